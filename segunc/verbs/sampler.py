"""The sampler that a verb's sampling options describe."""

from __future__ import annotations

from collections.abc import Sequence

from segunc.affine.branches import branches_of
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.noise import DEFAULT_SCHEME
from segunc.core.device import resolve_device, resolve_precision
from segunc.core.errors import InputError
from segunc.options import SamplingOptions
from segunc.posteriors.files import Model
from segunc.sampling.sampler import Sampler
from segunc.scores import DEFAULT_SCORES


def make_sampler(model: Model, options: SamplingOptions, scores: Sequence[str] = DEFAULT_SCORES) -> Sampler:
    """The sampler of a model, which is placed on its device.

    Args:
        model: with its temperature and its max-logit statistics.
        options: of the verb; ``compile`` ``auto`` is off until the caller knows how much there is to compute.
        scores: that the sampler is to return.
    """
    if options.draws < 1:
        raise InputError(f"--draws {options.draws}", "at least 1", "the default is 24")
    device = resolve_device(options.device)
    if options.scope is not None:
        if not model.bayesian:
            raise InputError(
                f"--scope {options.scope} with a deterministic model", "a Bayesian model", "leave --scope out"
            )
        _check_scope(options.scope, model)
    model.place(device)
    return Sampler(
        model.network,
        model.posterior if model.bayesian else None,
        draws=options.draws,
        seed=options.seed,
        scheme=options.scheme or DEFAULT_SCHEME,
        scope=options.scope,
        chunk=options.chunk,
        precision=resolve_precision(options.precision, device),
        compiled=options.compile == "on",
        scores=scores,
        temperature=model.temperature,
        max_logit_statistics=model.max_logit_statistics,
    )


def _check_scope(scope: str, model: Model) -> None:
    """Fail here, not at every frame."""
    drawn = [b for b in branches_of(model.network, model.posterior) if b.stochastic]
    if not drawn:
        raise InputError(
            f"--scope {scope} with the method {model.posterior.method} of networks without noise",
            "a posterior over the affine parameters",
            "leave --scope out",
        )
    for branch in drawn:
        layout = AffineLayout(branch.network)
        in_scope(scope, layout.dropout_names or layout.names)
