"""``segunc finetune``: one entry of :data:`segunc.posteriors.methods.METHODS` a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.options import FinetuneOptions
from segunc.posteriors.methods import METHODS
from segunc.verbs.train import words


@dataclass(frozen=True)
class FinetuneResult:
    """What was made.

    Attributes:
        out: the model folder.
        measured: seconds, steps and selections of a fine-tuning; empty for the other methods.
    """

    out: Path
    measured: Mapping[str, Any]


def finetune(options: FinetuneOptions, say: Callable[[str], None] | None = None) -> FinetuneResult:
    """Make a model folder from another one, by the method that is asked for.

    Args:
        options: which method, of what, and where to.
        say: receives a line for each step.

    Raises:
        InputError: the base, the configuration and the output folder do not fit together.

    >>> result = finetune(FinetuneOptions(base=base, config=finetune_config, out=folder / "abnn", device="cpu"))
    >>> result.measured["steps"] > 0, segunc.load_model(result.out).posterior.method
    (True, 'abnn')
    """
    from segunc.core.device import resolve_device
    from segunc.core.progress import quiet_lightning
    from segunc.training.config import FinetuneConfig, FitConfig, parse_config

    say = say or (lambda line: None)
    resolve_device(options.device)  # before any work
    method, out, overrides = METHODS[options.method], Path(options.out), words(options.settings)
    bases = [Path(base) for base in ([options.base] if isinstance(options.base, str | Path) else options.base)]
    given, own = Path(options.config) if options.config else None, options.data
    if method.several:
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(
                f"--method {method.name} with {' '.join(unused)}", "--base and --out", "it has no settings"
            )
        method.fit(bases, out, say=say)
        return FinetuneResult(out, {})
    if len(bases) > 1:
        raise InputError(
            f"--method {method.name} with {len(bases)} folders at --base", "one", "only ensemble takes more"
        )
    if method.finished:
        if own is not None:
            raise InputError(f"method {method.name} with loaders of your own", "a data set", "leave data out")
        if method.data and given is None:
            raise InputError(f"--method {method.name} without --config", "a YAML file", "see configs/ for examples")
        method.fit(
            bases[0],
            parse_config(FitConfig, given, overrides, method.config, data=method.data),
            out,
            device=options.device,
            say=say,
        )
        return FinetuneResult(out, {})
    if own is None and given is None:
        raise InputError(f"--method {method.name} without --config", "a YAML file", "see configs/ for examples")
    quiet_lightning()
    config = parse_config(FinetuneConfig, given, overrides, method.config, data=True if own is None else own)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return FinetuneResult(out, method.fit(bases[0], config, out, device=options.device, say=say))
