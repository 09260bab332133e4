"""From the logits of draws to the evidence of a frame: draws are added to sums, S x C x H x W never exists.

The sum of p is float32. The sum of H(p) and the final entropies are float64, because epistemic is a small difference
of two entropies: in float32 its rounding, near zero, exceeded one code of the stored map. Draws are added one at a
time, and strips of rows have a fixed size, so that neither the chunk size nor the number of frames in a batch changes a
sum.

Three backends, which differ by rounding: a reference in plain PyTorch, which runs draw by draw, compiled code on a CPU
(:mod:`segunc.sampling.tail_native`), Triton on CUDA (:mod:`segunc.sampling.tail_triton`). Logits at full resolution
never exist for more than one draw (reference) or one tile (the others).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.affine.posterior import InputTransform
from segunc.core.errors import InputError
from segunc.sampling.ending import Upsampling
from segunc.sampling.logit_sums import OF_LOGITS, LogitSums
from segunc.sampling.tail_native import native_tail
from segunc.scores import Score
from segunc.uncertainty import entropy_share, per_ln

Backend = Literal["reference", "native", "triton"]
DISAGREEMENT = ("variance", "votes", "covariance")
"""Evidence of :data:`segunc.scores.EVIDENCE` that needs sums of its own, and each draw's probabilities."""
NATIVE_BASE = ("deterministic-msp", "deterministic-entropy", "deterministic-max-logit", "deterministic-energy")
"""Scores that the compiled tail makes of low-resolution logits in one pass, as their formulas do but for rounding."""
STRIP_BYTES = 1 << 20
"""Working memory of one strip: it should stay in the cache while the passes of the softmax go over it."""


def choose_backend(device: torch.device) -> tuple[Backend, str]:
    """Return the fastest backend on a device, and why not a faster one, or what else a user should know of it (or an empty string)."""
    why = ""
    if device.type == "cpu":
        if native_tail().library is not None:
            return "native", native_tail().reason
        why = native_tail().reason
    elif device.type == "cuda" and importlib.util.find_spec("triton") is None:
        why = "Triton is not installed"
    if not why and device.type == "cuda":
        return "triton", ""
    return "reference", why and f"{why}: upsampling and softmax run in plain PyTorch, which is slower"


class DrawAccumulator:
    """Sums over the draws of one frame of (height, width) ``size``, the logits of each divided by the temperature. Sums
    of how much the draws disagree, or of their logits, are kept only where that evidence ``needs`` them; the former are
    made by the reference, and so are the latter where logits are the ``logarithms`` of the scores that count as such."""

    def __init__(
        self,
        classes: int,
        size: tuple[int, int],
        device: torch.device,
        backend: Backend = "reference",
        *,
        needs: Collection[str] = (),
        temperature: float = 1.0,
        logarithms: bool = False,
    ) -> None:
        self.probabilities = torch.zeros(classes, *size, device=device)
        self.entropy = torch.zeros(size, device=device, dtype=torch.float64)
        self.draws = 0
        self.temperature, self.backend = temperature, backend
        further = [name for name in DISAGREEMENT if name in needs]
        self.disagreement = DisagreementSums(further, classes, size, device) if further else None
        self.logit_sums = None if set(OF_LOGITS).isdisjoint(needs) else LogitSums(needs, classes, size, device)
        self._logarithms = logarithms and self.logit_sums is not None
        rows = max(1, STRIP_BYTES // (4 * classes * size[1])) if device.type == "cpu" else size[0]
        self._strips = [slice(top, top + rows) for top in range(0, size[0], rows)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Classes, height and width."""
        return tuple(self.probabilities.shape)

    def add(self, logits: Tensor, upsampling: Upsampling) -> None:
        """Add draws ``[S, C, h, w]`` of any floating type, (h, w) what is upsampled to the frame."""
        if self.backend == "reference" or self.disagreement is not None or self._logarithms:
            for draw in logits:
                self._add_one(upsampling.apply(draw[None].float())[0])
            return
        if self.backend == "triton":
            from segunc.sampling.tail_triton import add_draws_triton as add_draws
        else:
            add_draws = native_tail().add_draws
        sums = (self.entropy, self.probabilities, self.logit_sums)
        add_draws(logits, upsampling, *sums, self.temperature, self.draws)
        self.draws += len(logits)

    def _add_one(self, logits: Tensor) -> None:
        for rows in self._strips:
            # One contiguous float32 copy: the passes below then run along rows whatever the layout was.
            z = logits[:, rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            if self._logarithms and self.logit_sums is not None:
                self.logit_sums.add(rows, z.exp().div_(self.temperature), self.draws)
            if self.temperature != 1.0:
                z /= self.temperature
            if not self._logarithms and self.logit_sums is not None:
                self.logit_sums.add(rows, z, self.draws)
            z -= z.amax(0)
            p = z.exp()
            total = p.sum(0)
            p /= total
            if self.disagreement is not None:
                self.disagreement.add(rows, z, p, self.probabilities[:, rows], self.draws)
            self.probabilities[:, rows] += p
            # H = ln sum exp z - sum p z, with z shifted by its maximum.
            self.entropy[rows] += total.log_().sub_(p.mul_(z).sum(0)).clamp_min_(0.0)
        self.draws += 1

    def finish(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the prediction uint8 ``[H, W]`` and the evidence of the draws, ``[1, (C,) H, W]``; the sums are used up."""
        p = self.probabilities
        if self.backend == "native":
            prediction, total, expected = native_tail().finish(p, self.entropy, self.draws)
        else:
            prediction = p.argmax(0).to(torch.uint8)
            total = torch.cat([entropy_share(p[None, :, rows].double() / self.draws)[0] for rows in self._strips])
            expected = self.entropy * (per_ln(len(p)) / self.draws)
        if self.draws == 1:
            # The two are sums in different orders, and the stored code is so fine near 0 that it would show it.
            expected = total
        p.div_(self.draws)
        if len(p) == 1:
            p.fill_(1.0)  # but for rounding, which the stored code would show
        evidence = {"probabilities": p[None], "total entropy": total[None], "expected entropy": expected[None]}
        evidence["calibrated entropy"] = evidence["total entropy"]  # until somebody calibrates
        if self.disagreement is not None:
            evidence |= self.disagreement.evidence(self.draws)
        if self.logit_sums is not None:
            evidence |= self.logit_sums.evidence(self.draws, self.temperature)
        return prediction, evidence


class DisagreementSums:
    """Sums of one frame behind the evidence of :data:`DISAGREEMENT`; their memory does not grow with the draws.

    With the deviation d = p_n - mean of the n - 1 draws before it, a sum of squared (or crossed) deviations from the
    mean grows by ``(n - 1) / n`` times d squared (or d times the other's deviation): Welford 1962. Nothing is subtracted
    in the end, so a disagreement of 1e-9 keeps its digits, where ``mean p^2 - (mean p)^2`` in float32 would be noise.

    Expected pairwise KL is such a sum too. The mean over ordered pairs i != j of ``sum_c p_ic (l_ic - l_jc)``, l = ln
    p, is half the mean of ``sum_c (p_ic - p_jc)(l_ic - l_jc)``, and a sum over all pairs of products of differences is
    2 S times the sum of products of deviations from the mean. So it equals ``sum_c cov(p_c, ln p_c)`` over the draws
    with divisor S - 1. Deviations of p sum to 0 over the classes, so a constant added to all l of a draw changes
    nothing: logits stand for ln p, and no logarithm of an underflown p is ever taken.
    """

    def __init__(self, needs: Collection[str], classes: int, size: tuple[int, int], device: torch.device) -> None:
        self._classes = classes
        self._squares = torch.zeros(size, device=device) if "variance" in needs else None
        self._votes: Tensor | None = None
        self._crossed = torch.zeros(size, device=device) if "covariance" in needs else None
        if "votes" in needs:
            self._votes = torch.zeros(classes, *size, device=device, dtype=torch.int16)
            self._rank = torch.arange(classes, 0, -1, device=device, dtype=torch.int16).view(-1, 1, 1)
        if self._crossed is not None:
            self._logits = torch.zeros(classes, *size, device=device)

    def add(self, rows: slice, logits: Tensor, probabilities: Tensor, earlier: Tensor, draws: int) -> None:
        """Add one draw's strip of rows, each ``[C, rows, W]`` float32: logits less their maximum, and their softmax.
        ``earlier`` is the sum of the probabilities of the ``draws`` draws before."""
        if self._votes is not None:
            if draws == torch.iinfo(self._votes.dtype).max:
                self._votes = self._votes.int()
            # The first of the classes whose logit is the maximum: ten times as fast as argmax over the outer axis. Where all are NaN,
            # which the stored form of a score refuses, the last: on a GPU an index beyond it would be the end of the process.
            winners = self._classes - ((logits == 0) * self._rank).amax(0, keepdim=True).clamp_min_(1).long()
            self._votes[:, rows].scatter_add_(0, winners, torch.ones_like(winners, dtype=self._votes.dtype))
        if draws and (self._squares is not None or self._crossed is not None):
            share = draws / (draws + 1)
            deviation = probabilities - earlier / draws
            if self._squares is not None:
                self._squares[rows] += deviation.square().sum(0) * share
            if self._crossed is not None:
                self._crossed[rows] += deviation.mul_(logits - self._logits[:, rows] / draws).sum(0) * share
        if self._crossed is not None:
            self._logits[:, rows] += logits

    def evidence(self, draws: int) -> dict[str, Tensor]:
        """Return the evidence of ``draws`` draws, each ``[1, (C,) H, W]`` float32."""
        evidence: dict[str, Tensor] = {}
        if self._squares is not None:
            evidence["variance"] = (self._squares / (draws * self._classes))[None]
        if self._votes is not None:
            evidence["votes"] = (self._votes / draws)[None]
        if self._crossed is not None:
            # Never negative but for rounding; one draw has no pair, and its sum is 0.
            evidence["covariance"] = (self._crossed / max(1, draws - 1)).clamp_min_(0.0)[None]
        return evidence


def base_evidence(
    logits: Tensor, upsampling: Upsampling, temperature: float, logarithms: bool = False
) -> dict[str, Any]:
    """Return the evidence that the base network gives of one frame, from its logits ``[C, h, w]``, which may be the logarithms of scores."""
    full = upsampling.apply(logits[None].float())
    return {"base logits": full, "base scores": full.exp() if logarithms else full, "temperature": temperature}


def base_maps(
    scores: Sequence[Score],
    logits: Tensor,
    upsampling: Upsampling,
    backend: Backend,
    temperature: float = 1.0,
    logarithms: bool = False,
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Return scores of one deterministic pass from its logits ``[C, h, w]`` and constants that were fitted on the model, each ``[H, W]`` float32.
    Where one of them needs the logits at full resolution, all are made from these."""
    if not scores:
        return {}
    if backend != "native" or logarithms or any(score.name not in NATIVE_BASE for score in scores):
        evidence = base_evidence(logits, upsampling, temperature, logarithms) | dict(constants)
        return {score.name: score(evidence)[0].float() for score in scores}
    entropy = torch.zeros(upsampling.kept, dtype=torch.float64)
    sums = LogitSums(("mean energy",), len(logits), upsampling.kept, logits.device)
    native_tail().add_draws(logits[None], upsampling, entropy, logit_sums=sums, temperature=temperature)
    maximum, normaliser = (plane.float() for plane in sums.planes[:2] if plane is not None)
    maps = {
        # The largest probability is exp(max z - logsumexp z), of the logits divided by T.
        "deterministic-msp": -torch.expm1(-normaliser),
        "deterministic-entropy": entropy.mul_(per_ln(logits.shape[0])).float(),
        "deterministic-max-logit": maximum * -temperature,
        "deterministic-energy": (maximum + normaliser) * -temperature,
    }
    return {score.name: maps[score.name] for score in scores}


def add_draws(
    sums: Sequence[DrawAccumulator],
    chunks: Sequence[Tensor],
    draws: int,
    upsampling: Upsampling,
    transform: InputTransform,
) -> None:
    """Add draws of n frames to the sums of each frame, in their order.

    Args:
        sums: of the n frames.
        chunks: logits ``[k * n, C, h, w]`` of k draws each, draw-major; one chunk ``[n, C, h, w]`` where all draws are the same.
        draws: in all chunks.
        upsampling: that is left to be done to the logits.
        transform: of the frames, which is undone behind the upsampling.

    Raises:
        InputError: the draws are of other classes or another size than the sums.
    """
    size = sums[0].shape[1:]
    shape = (chunks[0].shape[1], *(upsampling.kept if transform.identity else size))
    if shape != sums[0].shape:
        raise InputError(
            f"networks return {sums[0].shape} and {shape} (classes, height, width)", hint="use alike networks"
        )
    for frame, of_frame in enumerate(sums):
        parts = [chunk[frame :: len(sums)] for chunk in chunks]
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        logits = logits.expand(draws, -1, -1, -1) if len(logits) < draws else logits
        if transform.identity:
            of_frame.add(logits, upsampling)
            continue
        whole = Upsampling.none((size[0], size[1]))
        for draw in logits:  # at full resolution, so one at a time
            of_frame.add(transform.undo(upsampling.apply(draw[None].float()), whole.kept), whole)
