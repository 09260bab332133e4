"""Streaming sums over draws: S draws of logits become the sum of p and the sum of H(p), never S x C x H x W.

Draws are added one at a time and in their order, in strips of rows of a fixed size, so that neither the chunk size
nor the number of frames in a batch changes a sum.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from segunc.bayes.attachments import MaxLogitStatistics
from segunc.sampling.disagreement import DisagreementSums
from segunc.sampling.prediction import DISAGREEMENT_SCORES, STANDARDIZED_MAX_LOGIT
from segunc.sampling.standardized import standardized_max_logit
from segunc.uncertainty import decompose, entropy_from_probabilities

STRIP_BYTES = 1 << 20
"""Working memory of one strip: it should stay in the cache while the passes of the softmax go over it."""


class DrawAccumulator:
    """Sums over the draws of one frame.

    Args:
        classes: C.
        size: (height, width) of the logits.
        device: where the sums live.
        scores: names of all scores that will be asked for; those of how much the draws disagree keep sums of their own.
        temperature: T, by which every draw's logits are divided before the softmax.
    """

    def __init__(
        self,
        classes: int,
        size: tuple[int, int],
        device: torch.device,
        *,
        scores: Collection[str] = (),
        temperature: float = 1.0,
    ) -> None:
        self.probabilities = torch.zeros(classes, *size, device=device)
        # float64: epistemic is a small difference of two entropies, and this plane is 1 / C of the probabilities' memory.
        self.entropy = torch.zeros(size, device=device, dtype=torch.float64)
        self.draws = 0
        self.temperature = temperature
        further = [name for name in DISAGREEMENT_SCORES if name in scores]
        self.disagreement = DisagreementSums(further, classes, size, device) if further else None
        self._rows = max(1, STRIP_BYTES // (4 * classes * size[1])) if device.type == "cpu" else size[0]

    def add(self, logits: Tensor) -> None:
        """Add one draw's logits ``[C, H, W]`` of any floating type; sums are kept in float32."""
        for top in range(0, logits.shape[1], self._rows):
            rows = slice(top, top + self._rows)
            # One contiguous float32 copy: the passes below then run along rows whatever the layout was.
            z = logits[:, rows].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            if self.temperature != 1.0:
                z /= self.temperature
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

    def scores(self) -> dict[str, Tensor]:
        """msp, entropy, aleatoric, epistemic (each in 0..1) and what else was asked for of the draws so far, ``[H, W]``."""
        msp = torch.empty(self.entropy.shape, device=self.entropy.device)
        entropy, aleatoric, epistemic = (torch.empty_like(msp) for _ in range(3))
        for top in range(0, msp.shape[0], self._rows):
            rows = slice(top, top + self._rows)
            sums = self.probabilities[:, rows]
            parts = decompose(sums[None].double(), self.entropy[None, rows], self.draws)
            entropy[rows], aleatoric[rows], epistemic[rows] = (part[0] for part in parts)
            msp[rows] = 1.0 - sums.amax(0) / self.draws
        if len(self.probabilities) == 1:
            msp.zero_()
        found = {"msp": msp, "entropy": entropy, "aleatoric": aleatoric, "epistemic": epistemic}
        return found if self.disagreement is None else found | self.disagreement.scores(self.draws)


def base_scores(
    logits: Tensor, temperature: float = 1.0, statistics: MaxLogitStatistics | None = None
) -> dict[str, Tensor]:
    """The scores of one deterministic pass.

    Args:
        logits: ``[C, H, W]``.
        temperature: T of ``softmax(z / T)`` in deterministic-msp and -entropy and of the energy ``-T logsumexp(z / T)``;
            the max-logit scores are of the logits as they are.
        statistics: of the training set; with them standardized-max-logit is among the scores.

    Returns:
        each ``[H, W]`` float32.
    """
    classes, height, width = logits.shape
    rows_each = max(1, STRIP_BYTES // (4 * classes * width)) if logits.device.type == "cpu" else height
    scale = 1.0 / math.log(classes) if classes > 1 else 1.0
    names = ("deterministic-msp", "deterministic-entropy", "max-logit", "energy")
    out = {name: torch.empty(height, width, device=logits.device) for name in names}
    for top in range(0, height, rows_each):
        rows = slice(top, top + rows_each)
        z = logits[:, rows].to(torch.float32, memory_format=torch.contiguous_format)
        out["max-logit"][rows] = -z.amax(0)
        if temperature != 1.0:
            z = z / temperature
        p = z.softmax(0)
        out["deterministic-msp"][rows] = 1.0 - p.amax(0)
        out["deterministic-entropy"][rows] = entropy_from_probabilities(p, 0) * scale
        out["energy"][rows] = -temperature * z.logsumexp(0)
    if statistics is not None:
        out[STANDARDIZED_MAX_LOGIT] = standardized_max_logit(logits[None], statistics)[0]
    return out
