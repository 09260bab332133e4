"""The tail of the sampler: low-resolution logits of draws become sums of p and H(p) at full resolution.

One signature, several ways: a reference in plain torch, compiled code on a CPU, Triton on CUDA. Logits at full
resolution never exist for more than one draw (reference) or one tile (the others). Draws are added in their order,
so the sums do not depend on how many come at a time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.posteriors.max_logit import MaxLogitStatistics
from segunc.sampling.accumulate import DrawAccumulator
from segunc.sampling.ending import Upsampling
from segunc.sampling.tail_native import native_tail
from segunc.scores import MAX_LOGIT_STATISTICS, Score
from segunc.uncertainty import per_ln

Backend = Literal["reference", "native", "triton"]


def choose_backend(device: torch.device) -> tuple[Backend, str]:
    """The fastest way on a device, and why not a faster one (or an empty string)."""
    if device.type == "cpu":
        native = native_tail()
        if native.library is not None:
            return "native", ""
        return "reference", f"{native.reason}: upsampling and softmax run in plain PyTorch, which is slower"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is not None:
            return "triton", ""
        return "reference", "Triton is not installed: upsampling and softmax run in plain PyTorch, which is slower"
    return "reference", ""


def add_draws(logits: Tensor, upsampling: Upsampling, sums: DrawAccumulator, backend: Backend) -> None:
    """Add draws of one frame to its sums.

    Args:
        logits: ``[S, C, h, w]`` of any floating type.
        upsampling: from (h, w) to the size of the sums.
        sums: of the same device; its sum of p, sum of H(p) and number of draws grow, and what further sums it keeps.
        backend: see :func:`choose_backend`. Further sums need each draw's probabilities, which only the reference has.
    """
    if backend == "reference" or sums.disagreement is not None:
        for draw in logits:
            sums.add(upsampling.apply(draw[None].float())[0])
        return
    if backend == "triton":
        from segunc.sampling.tail_triton import add_draws_triton

        add_draws_triton(logits, upsampling, sums.probabilities, sums.entropy, sums.temperature)
    else:
        logits = _native_dtype(logits)
        native_tail().add_draws(logits, upsampling, sums.entropy, sums.probabilities, temperature=sums.temperature)
    sums.draws += len(logits)


def finish(sums: DrawAccumulator, backend: Backend) -> tuple[Tensor, dict[str, Tensor]]:
    """Prediction uint8 ``[H, W]`` and the evidence of the draws so far, ``[1, (C,) H, W]``; the sums are used up."""
    if backend == "native":
        prediction, total, expected = native_tail().finish(sums.probabilities, sums.entropy, sums.draws)
    else:
        prediction = sums.probabilities.argmax(0).to(torch.uint8)
        total, expected = sums.entropies()
    if sums.draws == 1:
        # The two entropies are sums in different orders, and the stored code is so fine near 0 that it would show it.
        expected = total
    probabilities = sums.probabilities.div_(sums.draws)
    if len(probabilities) == 1:
        probabilities.fill_(1.0)  # but for rounding, which the stored code would show
    found = {"probabilities": probabilities[None], "total entropy": total[None], "expected entropy": expected[None]}
    return prediction, found if sums.disagreement is None else found | sums.disagreement.evidence(sums.draws)


def base_evidence(
    logits: Tensor, upsampling: Upsampling, temperature: float, statistics: MaxLogitStatistics | None
) -> dict[str, Any]:
    """:data:`segunc.scores.BASE` of one frame from its logits ``[C, h, w]``."""
    full = upsampling.apply(logits[None].float())
    return {"base logits": full, "temperature": temperature, MAX_LOGIT_STATISTICS: statistics}


NATIVE_BASE = ("deterministic-msp", "deterministic-entropy", "max-logit", "energy")
"""Scores that the compiled tail makes of low-resolution logits in one pass, as their formulas do but for rounding."""


def base_maps(
    scores: Sequence[Score],
    logits: Tensor,
    upsampling: Upsampling,
    backend: Backend,
    temperature: float = 1.0,
    statistics: MaxLogitStatistics | None = None,
) -> dict[str, Tensor]:
    """Scores of one deterministic pass from its logits ``[C, h, w]``, each ``[H, W]`` float32.

    Where one of them needs the logits at full resolution, all are made from these.
    """
    if not scores:
        return {}
    if backend != "native" or any(score.name not in NATIVE_BASE for score in scores):
        evidence = base_evidence(logits, upsampling, temperature, statistics)
        return {score.name: score(evidence)[0].float() for score in scores}
    entropy = torch.zeros(upsampling.kept, dtype=torch.float64)
    maximum, normaliser = torch.empty(upsampling.kept), torch.empty(upsampling.kept)
    native_tail().add_draws(
        _native_dtype(logits)[None], upsampling, entropy, extremes=(maximum, normaliser), temperature=temperature
    )
    found = {
        # The largest probability is exp(max z - logsumexp z), of the logits divided by T.
        "deterministic-msp": -torch.expm1(-normaliser),
        "deterministic-entropy": entropy.mul_(per_ln(logits.shape[0])).float(),
        "max-logit": maximum * -temperature,
        "energy": (maximum + normaliser) * -temperature,
    }
    return {score.name: found[score.name] for score in scores}


def _native_dtype(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.bfloat16) else logits.float()
