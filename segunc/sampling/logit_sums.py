"""What the logits of draws are like, beyond their softmax: sums behind the evidence of :data:`OF_LOGITS`.

With z the logits of a draw divided by the model's temperature T, these are means over the draws of ``-T max_c z_c`` (Hendrycks et
al. 2022) and of the free energy ``-T ln sum_c exp z_c`` (Liu et al. 2020), the standard deviation of that energy, and the variance
of the logits T z_c, mean over the classes; both of the latter with divisor S. Sums are of z; T comes in at the end.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

OF_LOGITS = ("mean max logit", "mean energy", "energy spread", "logit variance")
"""Evidence of :data:`segunc.scores.EVIDENCE` that all backends gather in the pass of the softmax."""


class LogitSums:
    """Sums of one frame over its draws, which grow by Welford's update (1962): nothing is subtracted in the end, so a spread of
    1e-4 keeps its digits next to logits of 30. Only what is needed is held; logits are compared with their mean, which float32
    rounds to 1e-6 there.

    Attributes:
        planes: of the C++ and Triton code, None where not needed: the sums of ``max_c z_c`` and of ``ln sum_c exp(z_c - max z)``, and
            the squared deviations of the two's sum from its mean, each ``[H, W]`` float64; the mean z ``[C, H, W]`` float32 and the
            squared deviations from it, summed over the classes, ``[H, W]`` float64.
    """

    def __init__(self, needs: Collection[str], classes: int, size: tuple[int, int], device: torch.device) -> None:
        self._needs, self._classes = needs, classes

        def plane(*needing: str, each: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> Tensor | None:
            return torch.zeros(*each, *size, device=device, dtype=dtype) if not set(needing).isdisjoint(needs) else None

        of_energy, of_logits = OF_LOGITS[:3], OF_LOGITS[3]
        self.planes = (
            plane(*of_energy),
            plane(*of_energy),
            plane("energy spread"),
            plane(of_logits, each=(classes,), dtype=torch.float32),
            plane(of_logits),
        )

    def add(self, rows: slice, z: Tensor, draws: int) -> None:
        """Add the strip of rows ``[C, rows, W]`` float32 of one draw, behind ``draws`` others."""
        maxima, normalisers, squares, means, deviations = self.planes
        share = draws / (draws + 1)
        if maxima is not None and normalisers is not None:
            maximum = z.amax(0)
            normaliser = (z - maximum).exp_().sum(0).double().log_()
            if squares is not None and draws:
                before = (maxima[rows] + normalisers[rows]) / draws
                squares[rows] += (maximum + normaliser - before).square_() * share
            maxima[rows] += maximum
            normalisers[rows] += normaliser
        if means is not None and deviations is not None:
            deviation = z - means[:, rows]
            means[:, rows] += deviation / (draws + 1)
            deviations[rows] += deviation.square_().sum(0) * share

    def evidence(self, draws: int, temperature: float) -> dict[str, Tensor]:
        """The evidence that is needed of ``draws`` draws, each ``[1, H, W]`` float64, in the units of the logits."""
        maxima, normalisers, squares, _, deviations = self.planes
        found: dict[str, Tensor] = {}
        if maxima is not None and normalisers is not None:
            found["mean max logit"] = maxima * (-temperature / draws)
            found["mean energy"] = (maxima + normalisers) * (-temperature / draws)
        if squares is not None:
            found["energy spread"] = (squares / draws).sqrt_() * temperature
        if deviations is not None:
            found["logit variance"] = deviations * (temperature**2 / (draws * self._classes))
        return {name: values[None] for name, values in found.items() if name in self._needs}
