"""From the logits of draws to the evidence of a frame.

There is a reference in PyTorch, C++ on a CPU and Triton on CUDA; graphs have their own, see
:mod:`segunc.sampling.tail_traced`. Draws are added one at a time, in strips of rows of a fixed
size, so that neither the chunk size nor the number of frames in a batch changes a sum.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.sampling.branches import InputTransform
from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail_native import native_tail
from segunc.scores import CLASS_SCORES, Score
from segunc.uncertainty import entropy_share, per_ln

Backend = Literal["reference", "native", "triton", "traced"]
"""``traced`` is that of a graph, in float32 alone."""
OF_LOGITS = ("mean max logit", "mean energy", "logit variance")
"""Evidence that reference and C++ gather in the pass of the softmax."""
NATIVE_BASE = (
    "deterministic-msp",
    "deterministic-entropy",
    "deterministic-max-logit",
    "deterministic-energy",
)
"""Scores that the compiled tail makes of low-resolution logits in one pass. They differ from their
formulas by rounding.
"""
LOWEST_EXPONENT = -104.0
"""In float32 exp of it is 0."""
STRIP_BYTES = 1 << 20
"""Working memory of one strip on a CPU: it should stay in the cache while the passes of the softmax
go over it.
"""
CUDA_STRIP_BYTES = 1 << 26
"""Working memory of one strip on a GPU."""


def choose_backend(device: torch.device) -> tuple[Backend, str]:
    """Return the fastest backend on a device, and a note for the user: why it is not a faster one,
    for instance. The note may be empty.
    """
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return "triton", ""
    if device.type == "cpu" and native_tail().functions is not None:
        return "native", native_tail().reason
    why = native_tail().reason if device.type == "cpu" else "Triton is not installed"
    return "reference", f"{why}: upsampling and softmax run in plain PyTorch, which is slower"


class DrawAccumulator:
    """Sums over the draws of one frame.

    Args:
        classes: C.
        size: (height, width) of the frame.
        device: where the sums lie.
        backend: that adds draws.
        needs: names of evidence, for which :class:`LogitSums` may be needed.
        temperature: T, by which logits are divided before the softmax.
    """

    def __init__(
        self,
        classes: int,
        size: tuple[int, int],
        device: torch.device,
        backend: Backend = "reference",
        *,
        needs: Collection[str] = (),
        temperature: float = 1.0,
    ) -> None:
        # The compiled tail takes this memory for float32, whatever torch's default is.
        self.probabilities = torch.zeros(classes, *size, device=device, dtype=torch.float32)
        self.entropy = torch.zeros(size, device=device, dtype=torch.float64)
        self.draws = 0
        self.temperature = temperature
        self.backend = backend
        self.logit_sums: LogitSums | None = None
        if not set(OF_LOGITS).isdisjoint(needs):
            self.logit_sums = LogitSums(needs, classes, size, device, temperature)
        strip_bytes = STRIP_BYTES if device.type == "cpu" else CUDA_STRIP_BYTES
        rows = max(1, strip_bytes // (4 * classes * size[1]))
        self._strips = [slice(top, top + rows) for top in range(0, size[0], rows)]

    @property
    def shape(self) -> tuple[int, ...]:
        """(classes, height, width)."""
        return tuple(self.probabilities.shape)

    def add(self, logits: Tensor, upsampling: Upsampling) -> None:
        """Add draws ``[S, C, h, w]`` of any floating type, which are upsampled to the frame."""
        if self.backend == "native":
            native_tail().add_draws(
                logits,
                upsampling,
                self.entropy,
                self.probabilities,
                planes=self.logit_sums.planes if self.logit_sums else (),
                temperature=self.temperature,
                earlier=self.draws,
            )
        elif self.backend == "triton" and self.logit_sums is None:
            from segunc.sampling.tail_triton import add_draws_triton

            add_draws_triton(logits, upsampling, self.entropy, self.probabilities, self.temperature)
        else:
            for earlier, draw in enumerate(logits, self.draws):
                # Neither an interpolation nor a difference of two halves can leave float32.
                half_logits = upsampling.apply(draw[None].float() * 0.5)[0]
                self._add_one(half_logits, earlier)
        self.draws += len(logits)

    def _add_one(self, half_logits: Tensor, earlier: int) -> None:
        """Add one draw ``[C, H, W]`` behind ``earlier`` others, from half its logits."""
        for rows in self._strips:
            # One contiguous float32 copy: the passes below then run along rows whatever the layout
            # was.
            z = half_logits[:, rows].to(
                torch.float32, copy=True, memory_format=torch.contiguous_format
            )
            if self.logit_sums is not None:
                self.logit_sums.add(rows, z, earlier)
            z -= z.amax(0)
            z *= 2.0 / self.temperature
            # Below it p is 0, and 0 times minus infinity would be NaN.
            z.clamp_min_(LOWEST_EXPONENT)
            p = z.exp()
            total = p.sum(0)
            p /= total
            self.probabilities[:, rows] += p
            # H = ln sum exp z - sum p z, with z shifted by its maximum.
            self.entropy[rows] += total.log_().sub_(p.mul_(z).sum(0)).clamp_min_(0.0)

    def finish(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the prediction uint8 ``[H, W]`` and the evidence of the draws, ``[1, (C,) H, W]``;
        the sums are used up.
        """
        p = self.probabilities
        if self.backend == "native":
            prediction, total, expected = native_tail().finish(p, self.entropy, self.draws)
        else:
            prediction = p.argmax(0).to(torch.uint8)
            strips = []
            for rows in self._strips:
                mean = p[None, :, rows].double() / self.draws
                strips.append(entropy_share(mean)[0])
            total = torch.cat(strips)
            expected = self.entropy * (per_ln(len(p)) / self.draws)
        if self.draws == 1:
            # The two are sums in different orders, and the stored code is so fine near 0 that it
            # would show it.
            expected = total
        p.div_(self.draws)
        if len(p) == 1:
            p.fill_(1.0)  # rounding would show in the stored code
        evidence = {
            "probabilities": p[None],
            "total entropy": total[None],
            "expected entropy": expected[None],
        }
        evidence["calibrated entropy"] = evidence["total entropy"]  # a calibrator replaces it
        if self.logit_sums is not None:
            evidence |= self.logit_sums.evidence(self.draws)
        return prediction, evidence


class LogitSums:
    """Sums of one frame behind the evidence of :data:`OF_LOGITS`; only those that are needed are
    held.

    With the logits z of a draw and the temperature T, the evidence is the mean over draws of
    ``-max_c z_c``, the mean of ``-T ln sum_c exp(z_c / T)``, and the variance of z_c with divisor
    S, mean over the classes, by Welford's update (1962).

    Attributes:
        planes: four sums, None where not needed: of ``max z`` and of ``ln sum_c exp((z_c - max z) /
            T)``, ``[H, W]`` float64; the mean of z ``[C, H, W]`` float32; squared deviations from
            it ``[H, W]`` float64.
    """

    def __init__(
        self,
        needs: Collection[str],
        classes: int,
        size: tuple[int, int],
        device: torch.device,
        temperature: float,
    ) -> None:
        self._needs = needs
        self._classes = classes
        self._temperature = temperature

        max_logit, energy, variance = OF_LOGITS
        maxima = normalisers = means = deviations = None
        if max_logit in needs or energy in needs:
            maxima = torch.zeros(size, device=device, dtype=torch.float64)
            normalisers = torch.zeros(size, device=device, dtype=torch.float64)
        if variance in needs:
            means = torch.zeros(classes, *size, device=device, dtype=torch.float32)
            deviations = torch.zeros(size, device=device, dtype=torch.float64)
        self.planes = (maxima, normalisers, means, deviations)

    def add(self, rows: slice, half_logits: Tensor, draws: int) -> None:
        """Add the strip of rows ``[C, rows, W]`` float32 of one draw, behind ``draws`` others: half
        its logits.
        """
        maxima, normalisers, means, deviations = self.planes
        if maxima is not None and normalisers is not None:
            maximum = half_logits.amax(0)
            maxima[rows] += 2.0 * maximum.double()
            shifted = (half_logits - maximum) * (2.0 / self._temperature)
            normalisers[rows] += shifted.exp_().sum(0).double().log_()
        if means is not None and deviations is not None:
            # In float64, which holds the square of every float32.
            deviation = 2.0 * half_logits.double() - means[:, rows]
            means[:, rows] += deviation / (draws + 1)
            deviations[rows] += deviation.square_().sum(0) * (draws / (draws + 1))

    def evidence(self, draws: int) -> dict[str, Tensor]:
        """Return the evidence of ``draws`` draws, each ``[1, H, W]`` float64, in the units of the
        logits.
        """
        maxima, normalisers, _, deviations = self.planes
        evidence: dict[str, Tensor] = {}
        if maxima is not None and normalisers is not None:
            evidence["mean max logit"] = maxima / -draws
            evidence["mean energy"] = (maxima + normalisers * self._temperature) / -draws
        if deviations is not None:
            evidence["logit variance"] = deviations / (draws * self._classes)
        return {name: values[None] for name, values in evidence.items() if name in self._needs}


def base_evidence(
    logits: Tensor, upsampling: Upsampling, temperature: float, logarithms: bool = False
) -> dict[str, Any]:
    """Return the evidence of one frame from logits ``[C, h, w]`` of the base network.

    Args:
        logarithms: whether these are logarithms of class scores, as of a network that classifies
            masks.
    """
    full = upsampling.apply(logits[None].float())
    if upsampling.source != upsampling.full:
        # PyTorch interpolates the largest float to infinity, by rounding.
        largest = torch.finfo(torch.float32).max
        full = full.clamp(-largest, largest)
    evidence = {"base logits": full, "temperature": temperature}
    if logarithms:
        evidence[CLASS_SCORES] = full.exp()
    return evidence


def base_maps(
    scores: Sequence[Score],
    logits: Tensor,
    upsampling: Upsampling,
    backend: Backend,
    temperature: float = 1.0,
    constants: Mapping[str, Any] = MappingProxyType({}),
    logarithms: bool = False,
) -> dict[str, Tensor]:
    """Return scores of one deterministic pass, each ``[H, W]`` float32, by name.

    Where one of them needs the logits at full resolution, all are made from these.

    Args:
        scores: of the base network and constants alone.
        logits: ``[C, h, w]``.
        upsampling: of the logits to the frame.
        backend: that computes them.
        temperature: T, by which logits are divided before the softmax.
        constants: evidence that was fitted on the model.
        logarithms: as of :func:`base_evidence`.
    """
    if not scores:
        return {}
    if backend != "native" or any(score.name not in NATIVE_BASE for score in scores):
        evidence = base_evidence(logits, upsampling, temperature, logarithms) | dict(constants)
        return {score.name: score(evidence)[0].float() for score in scores}
    entropy = torch.zeros(upsampling.kept, device=logits.device, dtype=torch.float64)
    sums = LogitSums(("mean energy",), len(logits), upsampling.kept, logits.device, temperature)
    maxima, normalisers, _, _ = sums.planes
    assert maxima is not None
    assert normalisers is not None
    native_tail().add_draws(
        logits[None], upsampling, entropy, planes=sums.planes, temperature=temperature
    )
    maximum = maxima.float()
    normaliser = normalisers.float()
    maps = {
        # The largest probability is exp(max z - logsumexp z), of the logits divided by T.
        "deterministic-msp": -torch.expm1(-normaliser),
        "deterministic-entropy": entropy.mul_(per_ln(logits.shape[0])).float(),
        "deterministic-max-logit": -maximum,
        "deterministic-energy": -(maximum + normaliser * temperature),
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

    The logits are upsampled, and then the frames' transform is undone.

    Args:
        sums: of each frame.
        chunks: logits ``[k * n, C, h, w]`` of k draws each, draw-major, or ``[n, C, h, w]`` of
            draws that are all the same.
        draws: the number of draws in all chunks.
        upsampling: of the logits to the transformed frames.
        transform: of the frames.

    Raises:
        InputError: networks of an ensemble return other numbers of classes or other sizes.
    """
    height, width = sums[0].shape[1:]
    upsampled = upsampling.kept if transform.identity else (height, width)
    shape = (chunks[0].shape[1], *upsampled)
    if shape != sums[0].shape:
        message = f"networks return {sums[0].shape} and {shape} (classes, height, width)"
        raise InputError(message, hint="use alike networks")
    for frame, frame_sums in enumerate(sums):
        parts = [chunk[frame :: len(sums)] for chunk in chunks]
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(logits) < draws:
            logits = logits.expand(draws, -1, -1, -1)
        if transform.identity:
            frame_sums.add(logits, upsampling)
            continue
        whole = Upsampling.none((height, width))
        for draw in logits:  # at full resolution, so one at a time
            full = transform.undo(upsampling.apply(draw[None].float()), whole.kept)
            frame_sums.add(full, whole)
