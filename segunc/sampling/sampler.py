"""The one sampler: every posterior's draws run as the batch of one network, and become maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.bayes.attachments import MaxLogitStatistics
from segunc.bayes.convert import is_converted
from segunc.bayes.draws import AffineDraws, AffineLayout
from segunc.bayes.posterior import Deterministic, Posterior
from segunc.errors import InputError
from segunc.sampling.accumulate import DrawAccumulator, base_scores
from segunc.sampling.prediction import DEFAULT_SCORES, STANDARDIZED_MAX_LOGIT, Prediction, check_scores

Precision = Literal["float32", "bfloat16"]
CHUNK_BYTES = 256 << 20
"""Full-resolution logits and their upsampling that a chunk of draws may take by default on a CPU."""
SELF_CHECK_SIDE = 512
"""Longest side of the image of the self-check: two draws at once of a large frame would take the most memory of a run."""
SELF_CHECK_TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit, that counts as rounding (float32)."""


@dataclass
class SamplerReport:
    """What the sampler found out about the network on first use.

    Attributes:
        batched: draws run as a batch; False after a failed self-check.
        self_check: largest relative difference between two draws as a batch and one by one, None before.
        unreached: sites that no drawn forward came through, whose noise therefore does nothing.
        messages: what a user should know.
    """

    batched: bool = True
    self_check: float | None = None
    unreached: tuple[str, ...] = ()
    messages: list[str] = field(default_factory=list)


class Sampler:
    """Samples a converted network and returns the prediction and the scores that are asked for.

    The draws are fixed: every frame meets the same S networks, so the maps of a video do not flicker, and the same
    (posterior, seed, S) gives the same maps for any chunk size, batch size or order of frames (up to rounding where a
    library sums in another order for another batch size).

    Args:
        network: from images ``[n, 3, H, W]`` to logits ``[n, C, H, W]``; converted, unless the posterior is
            deterministic. It is put into eval mode.
        posterior: makes the draws; None is the deterministic network itself.
        draws: S in total; draw s belongs to member s mod M. Ignored by a deterministic posterior, which has one.
        seed: of the noise.
        scope: sample fewer sites than the posterior's own scope, or None.
        chunk: draws in a batch; None chooses by memory.
        precision: ``float32``, or ``bfloat16`` by autocast; sums are float32 in both.
        scores: names of :data:`segunc.sampling.prediction.ALL_SCORES`; further sums are kept only for those that need them.
        temperature: T, by which the logits of every draw, and of the base network, are divided before the softmax.
        max_logit_statistics: of the training set, for standardized-max-logit.

    Raises:
        InputError: fewer draws than members, a chunk below 1, an unconverted network with a posterior, an unknown score,
            a score without its statistics, or a temperature that is not positive.
    """

    def __init__(
        self,
        network: nn.Module,
        posterior: Posterior | None = None,
        *,
        draws: int = 24,
        seed: int = 0,
        scope: str | None = None,
        chunk: int | None = None,
        precision: Precision = "float32",
        scores: Sequence[str] = DEFAULT_SCORES,
        temperature: float = 1.0,
        max_logit_statistics: MaxLogitStatistics | None = None,
    ) -> None:
        self.network = network.eval()
        self.posterior = None if posterior is None or isinstance(posterior, Deterministic) else posterior
        if self.posterior is not None and not is_converted(network):
            raise InputError(
                "an unconverted network with a posterior", "a converted network", "call segunc.convert on it first"
            )
        self.draws = draws if self.posterior is not None else 1
        members = self.posterior.members if self.posterior is not None else 1
        if self.draws < members:
            raise InputError(f"{draws} draws for {members} members", f"at least {members} draws", "raise --draws")
        if chunk is not None and chunk < 1:
            raise InputError(f"chunk {chunk}", "at least 1", "leave it out to have it chosen by memory")
        self.scores = check_scores(scores)
        if STANDARDIZED_MAX_LOGIT in self.scores and max_logit_statistics is None:
            raise InputError(
                f"score {STANDARDIZED_MAX_LOGIT} of a model without statistics of its training set",
                "a model with them",
                f"make one: segunc finetune --method {STANDARDIZED_MAX_LOGIT}",
            )
        if not (temperature > 0 and math.isfinite(temperature)):
            raise InputError(f"temperature {temperature}", "a positive number", "1 changes nothing")
        self.temperature = temperature
        self.max_logit_statistics = max_logit_statistics
        self.seed, self.scope, self.chunk, self.precision = seed, scope, chunk, precision
        self.device = next(network.parameters()).device
        self.report = SamplerReport()
        self._layout = AffineLayout(network) if self.posterior is not None else None
        self._affine: AffineDraws | None = None

    @torch.inference_mode()
    def __call__(
        self, images: Tensor, *, size: tuple[int, int] | None = None, keep_probabilities: bool = False
    ) -> Prediction:
        """The maps of n frames of one size.

        Args:
            images: what the network takes, ``[n, 3, H, W]``.
            size: (height, width) of the maps; None for the network's input. Maps and mean probabilities are
                resized bilinearly; prediction and msp come from the resized probabilities.
            keep_probabilities: also return the mean probabilities.

        Raises:
            InputError: the network returns NaN or infinite logits, or no dense logits.
        """
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        with self._autocast():
            base = self._logits(images)
        if not torch.isfinite(base).all():
            raise InputError(
                "the network returns NaN or infinite logits", "finite logits", "check its weights and its input"
            )
        statistics = self.max_logit_statistics if STANDARDIZED_MAX_LOGIT in self.scores else None
        outputs = [base_scores(logits, self.temperature, statistics) for logits in base]
        shape = (base.shape[2], base.shape[3])
        sums = [
            DrawAccumulator(base.shape[1], shape, base.device, scores=self.scores, temperature=self.temperature)
            for _ in images
        ]
        if self.posterior is None:
            for accumulator, logits in zip(sums, base, strict=True):
                accumulator.add(logits)
        else:
            del base
            self._check_once(images)
            self._sample(images, sums)
        target = size or (sums[0].entropy.shape[0], sums[0].entropy.shape[1])
        finished = [_finish(a, o, target, keep_probabilities) for a, o in zip(sums, outputs, strict=True)]
        return Prediction(
            torch.stack([f.prediction for f in finished]),
            {name: torch.stack([f.scores[name] for f in finished]) for name in self.scores},
            torch.stack([f.probabilities for f in finished if f.probabilities is not None])
            if keep_probabilities
            else None,
        )

    def reseed(self, seed: int) -> None:
        """Make new draws from another seed, for the frames that follow."""
        self.seed, self._affine = seed, None

    def chunk_for(self, frames: int, size: tuple[int, int], classes: int) -> int:
        """Draws in a batch for ``frames`` frames of (height, width) ``size``."""
        if not self.report.batched:
            return 1
        if self.chunk is not None:
            return min(self.chunk, self.draws)
        budget = CHUNK_BYTES
        if self.device.type == "cuda":
            budget = torch.cuda.mem_get_info(self.device)[0] // 2
        # Logits at full resolution and about three times as much around them (activations, the upsampling).
        each = 4 * frames * classes * size[0] * size[1] * 4
        return max(1, min(self.draws, budget // each))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def _logits(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[0] != images.shape[0]:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"a network that returns {shape} for {tuple(images.shape)}",
                "logits [n, C, H, W]",
                "wrap it to return them",
            )
        return logits

    def _compare_two(self, image: Tensor) -> tuple[list[Tensor], float]:
        """Logits of the first two draws one by one, and how far those of both as a batch lie from them."""
        single = [self._run(image, s, s + 1) for s in range(min(2, self.draws))]
        size = max(float(s.abs().max()) for s in single)
        try:
            both = self._run(image, 0, len(single))
        except InputError:
            return single, float("inf")
        return single, float((both - torch.cat(single)).abs().max()) / max(size, 1e-12)

    def _all_draws(self) -> tuple[AffineLayout, AffineDraws]:
        assert self._layout is not None
        assert self.posterior is not None
        if self._affine is None:
            self._affine = self.posterior.affine(self._layout, range(self.draws), self.seed, self.scope)
        return self._layout, self._affine

    def _run(self, images: Tensor, first: int, last: int) -> Tensor:
        """Logits of the draws first..last-1 of all frames, draw-major."""
        layout, affine = self._all_draws()
        part = AffineDraws(
            affine.weight[first:last],
            affine.bias[first:last],
            affine.element_alpha,
            affine.element_seeds[first:last],
        )
        with layout.active(part):
            batch = images.repeat(last - first, 1, 1, 1).contiguous(memory_format=torch.channels_last)
            return self._logits(batch)

    def _sample(self, images: Tensor, sums: list[DrawAccumulator]) -> None:
        frames = len(images)
        size = (sums[0].entropy.shape[0], sums[0].entropy.shape[1])
        chunk = self.chunk_for(frames, size, sums[0].probabilities.shape[0])
        first = 0
        while first < self.draws:
            last = min(first + chunk, self.draws)
            try:
                with self._autocast():
                    logits = self._run(images, first, last)
            except torch.OutOfMemoryError:
                if chunk == 1:
                    raise
                chunk = self.chunk = max(1, chunk // 2)
                self.report.messages.append(f"out of memory: chunk halved to {chunk}")
                torch.cuda.empty_cache()
                continue
            for index in range(last - first):
                for frame in range(frames):
                    sums[frame].add(logits[index * frames + frame])
            first = last

    def _check_once(self, images: Tensor) -> None:
        """Two draws as a batch against the same two one by one, in float32, on the first frame that comes."""
        if self.report.self_check is not None:
            return
        layout, _ = self._all_draws()
        image = images[:1].float()
        with torch.autocast(self.device.type, enabled=False):
            try:
                single, difference = self._compare_two(_shrunk(image))
            except torch.OutOfMemoryError:
                raise
            except Exception:
                # Some networks take frames of their own size only.
                single, difference = self._compare_two(image)
        self.report.self_check = difference
        if not difference <= SELF_CHECK_TOLERANCE:
            self.report.batched = False
            self.report.messages.append(
                f"self-check failed: two draws as a batch differ from the same two one by one by {difference:.1e} of the "
                "largest logit; draws run one at a time"
            )
        if not all(torch.isfinite(s).all() for s in single):
            raise InputError("a draw gives NaN or infinite logits", "finite logits", "lower alpha")
        self.report.unreached = tuple(n for n, hit in zip(layout.names, layout.reached(), strict=True) if not hit)
        if self.report.unreached:
            self.report.messages.append(
                f"{len(self.report.unreached)} norm sites are never called by the network, e.g. {self.report.unreached[0]}"
            )


def _shrunk(image: Tensor) -> Tensor:
    """An image ``[1, 3, H, W]`` with sides of at most :data:`SELF_CHECK_SIDE` pixels; whether draws mix does not depend on it."""
    height, width = image.shape[-2:]
    scale = SELF_CHECK_SIDE / max(height, width)
    if scale >= 1:
        return image
    # Whole multiples of the usual stride, so that a bare smp network takes them.
    size = [max(64, 32 * round(side * scale / 32)) for side in (height, width)]
    return F.interpolate(image, size, mode="bilinear", align_corners=False).contiguous(
        memory_format=torch.channels_last
    )


def _finish(sums: DrawAccumulator, base: dict[str, Tensor], size: tuple[int, int], keep: bool) -> Prediction:
    """One frame's maps at (height, width) ``size``."""
    resize: Callable[[Tensor], Tensor]
    own = (sums.entropy.shape[0], sums.entropy.shape[1])
    scores = {**sums.scores(), **base}
    probabilities = sums.probabilities.div_(sums.draws)
    if own != size:
        resize = lambda t: F.interpolate(t[None], size, mode="bilinear", align_corners=False)[0]  # noqa: E731
        stacked = resize(torch.stack(list(scores.values())))
        scores = dict(zip(scores, stacked, strict=True))
        probabilities = resize(probabilities)
        # The confidence must be that of the class that is predicted at this resolution.
        scores["msp"] = 1.0 - probabilities.amax(0)
        scores["epistemic"] = (scores["entropy"] - scores["aleatoric"]).clamp_min_(0.0)
    return Prediction(probabilities.argmax(0).to(torch.uint8), scores, probabilities if keep else None)
