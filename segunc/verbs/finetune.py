"""``segunc finetune``: one entry of :data:`segunc.posteriors.methods.METHODS` a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.options import FinetuneOptions, several
from segunc.posteriors.methods import METHODS
from segunc.verbs.train import words


@dataclass(frozen=True)
class FinetuneResult:
    """What was made."""

    out: Path  # the model folder
    measured: Mapping[str, Any]  # seconds, steps and selections of a fine-tuning; empty for the other methods


def finetune(options: FinetuneOptions, say: Callable[[str], None] | None = None) -> FinetuneResult:
    """Make a model folder from another one, by the method that is asked for.

    ``say`` receives a line for each step.

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
    bases = [Path(base) for base in several(options.base)]
    given, own, asked = Path(options.config) if options.config else None, options.data, f"--method {method.name}"
    if method.several:
        unused = [*([f"--config {options.config}"] if options.config else []), *overrides]
        if unused:
            raise InputError(f"{asked} with {' '.join(unused)}", "--base and --out", "it has no settings")
        method.fit(bases, out, say=say)
        return FinetuneResult(out, {})
    if len(bases) > 1:
        raise InputError(f"{asked} with {len(bases)} folders at --base", "one", "only ensemble takes more")
    if method.finished and own is not None:
        raise InputError(f"method {method.name} with loaders of your own", "a data set", "leave data out")
    if given is None and own is None and (method.data or not method.finished):
        raise InputError(f"{asked} without --config", "a YAML file", "see configs/ for examples")
    if method.finished:
        fitted = parse_config(FitConfig, given, overrides, method.config, data=method.data)
        method.fit(bases[0], fitted, out, device=options.device, say=say)
        return FinetuneResult(out, {})
    quiet_lightning()
    config = parse_config(FinetuneConfig, given, overrides, method.config, data=True if own is None else own)
    # Lightning, not the caller, places a fine-tuning on its devices.
    return FinetuneResult(out, method.fit(bases[0], config, out, device=options.device, say=say))
