"""The one sampler: every posterior's draws run as the batch of one network, and become maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from segunc.bayes.attachments import MaxLogitStatistics
from segunc.bayes.convert import is_converted
from segunc.bayes.draws import AffineDraws, AffineLayout, FoldedDraws
from segunc.bayes.noise import DEFAULT_SCHEME, NoiseSource, Scheme
from segunc.bayes.posterior import Deterministic, Posterior
from segunc.errors import InputError
from segunc.sampling.accumulate import DrawAccumulator
from segunc.sampling.ending import Ending
from segunc.sampling.engine import Engine, Precision
from segunc.sampling.finish import finish_frame
from segunc.sampling.prediction import DEFAULT_SCORES, STANDARDIZED_MAX_LOGIT, Prediction, check_scores
from segunc.sampling.prefix import Prefix
from segunc.sampling.self_check import check
from segunc.sampling.tail import add_draws, base_maps, choose_backend
from segunc.sampling.upsampling import Upsampling

__all__ = ["Precision", "Sampler", "SamplerReport"]

CHUNK_PIXELS = 1 << 19
"""Pixels of a batch on a CPU: with more, activations leave the cache between layers and every pass gets slower."""
ACTIVATION_BYTES = 512
"""Memory of activations for a pixel of input on a GPU, on the safe side; what does not fit is halved."""
PENDING_BYTES = 64 << 20
"""Logits that wait until several draws are added to the sums at once."""


@dataclass
class SamplerReport:
    """What the sampler found out about the network on first use.

    Attributes:
        batched: draws run as a batch; False after a failed self-check.
        shared: what is the same for all draws is computed once; False after a failed self-check.
        self_check: largest relative difference between two draws as a batch and one by one, None before.
        unreached: sites that no drawn forward came through, whose noise therefore does nothing.
        upsampled: whether the network's last upsampling was taken over by the sampler, None before.
        messages: what a user should know.
    """

    batched: bool = True
    shared: bool = True
    self_check: float | None = None
    unreached: tuple[str, ...] = ()
    upsampled: bool | None = None
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
        scheme: how draws of one member are spread, see :class:`segunc.bayes.noise.NoiseSource`.
        scope: sample fewer sites than the posterior's own scope, or None.
        chunk: draws in a batch; None chooses by memory.
        precision: ``float32``, or ``bfloat16`` for weights and activations; sums are float32 or wider in both. With
            ``bfloat16`` the weights are copied at the first frame: later changes to the network are not seen.
        compiled: run the draws through torch.compile. It costs tens of seconds for each size of frame, saves about a
            tenth on a CPU, and needs a C++ compiler (CPU) or Triton (CUDA); where it fails, draws run as they are.
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
        scheme: Scheme = DEFAULT_SCHEME,
        scope: str | None = None,
        chunk: int | None = None,
        precision: Precision = "float32",
        scores: Sequence[str] = DEFAULT_SCORES,
        temperature: float = 1.0,
        max_logit_statistics: MaxLogitStatistics | None = None,
        compiled: bool = False,
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
        self.noise = NoiseSource(seed, scheme, self.draws)
        self.compiled = compiled
        self.device = next(network.parameters()).device
        self.report = SamplerReport()
        self._layout = AffineLayout(network) if self.posterior is not None else None
        self._engine: Engine | None = None
        self._folded: FoldedDraws | None = None
        self._reached: list[bool] | None = None
        self._share_one = False
        self._backend, why = choose_backend(self.device)
        if why:
            self.report.messages.append(why)

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
        engine = self._prepared(images)
        base_draw = None if self._folded is None else self._folded.part(0, 1).without_element_noise()
        shape = (images.shape[-2], images.shape[-1])
        share = self.report.shared or (self._share_one and self.chunk_for(len(images), shape, 1) == 1)
        prefix = Prefix() if self._folded is not None and share else None
        ending = engine.ending(images, base_draw, self._reached)
        self.report.upsampled = ending is not None
        base, upsampling = engine.logits(images, base_draw, ending, prefix)
        if not torch.isfinite(base).all():
            raise InputError(
                "the network returns NaN or infinite logits", "finite logits", "check its weights and its input"
            )
        statistics = self.max_logit_statistics if STANDARDIZED_MAX_LOGIT in self.scores else None
        outputs = [base_maps(logits, upsampling, self._backend, self.temperature, statistics) for logits in base]
        sums = [
            DrawAccumulator(
                base.shape[1], upsampling.kept, base.device, scores=self.scores, temperature=self.temperature
            )
            for _ in images
        ]
        if self._folded is None:
            self._add([base], upsampling, sums)
        else:
            del base
            self._sample(engine, images, sums, ending, prefix)
        finished = [
            finish_frame(a, o, size, keep_probabilities, self._backend) for a, o in zip(sums, outputs, strict=True)
        ]
        return Prediction(
            torch.stack([f.prediction for f in finished]),
            {name: torch.stack([f.scores[name] for f in finished]) for name in self.scores},
            torch.stack([f.probabilities for f in finished if f.probabilities is not None])
            if keep_probabilities
            else None,
        )

    def reseed(self, seed: int) -> None:
        """Make new draws from another seed, for the frames that follow."""
        self.seed, self.noise = seed, replace(self.noise, seed=seed)
        if self._folded is not None and self._engine is not None:
            self._folded = self._engine.fold(self._all_draws(), share=self.report.shared)

    def chunk_for(self, frames: int, size: tuple[int, int], classes: int) -> int:
        """Draws in a batch for ``frames`` frames of (height, width) ``size``."""
        if not self.report.batched:
            return 1
        if self.chunk is not None:
            return min(self.chunk, self.draws)
        pixels = frames * size[0] * size[1]
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            # Networks that do not end in an upsampling have float32 logits at full resolution, and about as much around.
            most = free // 2 // (pixels * (ACTIVATION_BYTES + 8 * classes))
        else:
            most = CHUNK_PIXELS // pixels
        return max(1, min(self.draws, most))

    def _prepared(self, images: Tensor) -> Engine:
        """The engine, made and checked with the first frame that comes."""
        if self._engine is not None:
            return self._engine
        engine = Engine(self.network, self.precision, self.report.messages, compiled=self.compiled)
        if self.posterior is not None:
            draws = self._all_draws()
            self._check(images, draws)
            self._folded = engine.fold(draws, share=self.report.shared or self._share_one)
        self._engine = engine
        return engine

    def _all_draws(self) -> AffineDraws:
        """The base network's own affine, and then the S draws."""
        assert self._layout is not None
        assert self.posterior is not None
        drawn = self.posterior.affine(self._layout, range(self.draws), self.noise, self.scope)
        return AffineDraws(
            torch.cat([self._layout.weight[None], drawn.weight]),
            torch.cat([self._layout.bias[None], drawn.bias]),
            drawn.element_alpha,
            (0, *drawn.element_seeds) if drawn.element_seeds else (),
        )

    def _sample(
        self,
        engine: Engine,
        images: Tensor,
        sums: list[DrawAccumulator],
        ending: Ending | None,
        prefix: Prefix | None,
    ) -> None:
        assert self._folded is not None
        frames = len(images)
        chunk = self.chunk_for(frames, (images.shape[-2], images.shape[-1]), sums[0].probabilities.shape[0])
        if prefix is not None and not self.report.shared:
            chunk = 1
        pending: list[Tensor] = []
        first = 0
        while first < self.draws:
            last = min(first + chunk, self.draws)
            try:
                # Row 0 is the base network.
                logits, upsampling = engine.logits(images, self._folded.part(first + 1, last + 1), ending, prefix)
            except torch.OutOfMemoryError:
                if chunk == 1:
                    raise
                chunk = self.chunk = max(1, chunk // 2)
                self.report.messages.append(f"out of memory: chunk halved to {chunk}")
                torch.cuda.empty_cache()
                continue
            pending.append(logits)
            first = last
            if first == self.draws or sum(t.numel() * t.element_size() for t in pending) >= PENDING_BYTES:
                self._add(pending, upsampling, sums)
                pending.clear()

    def _add(self, chunks: list[Tensor], upsampling: Upsampling, sums: list[DrawAccumulator]) -> None:
        """Add chunks of logits ``[k * n, C, h, w]``, draw-major, to the sums of n frames."""
        for index, frame in enumerate(sums):
            draws = [logits[index :: len(sums)] for logits in chunks]
            add_draws(draws[0] if len(draws) == 1 else torch.cat(draws), upsampling, frame, self._backend)

    def _check(self, images: Tensor, draws: AffineDraws) -> None:
        """Find out in float32 how draws may run on this network."""
        exact = Engine(self.network, "float32")
        found = check(exact, images, draws)
        report = self.report
        report.self_check, report.batched, report.shared = found.batched, found.batched_passed, found.shared_passed
        self._share_one = found.shared_one_passed
        if not report.batched:
            report.messages.append(
                f"self-check failed: two draws as a batch differ from the same two one by one by {found.batched:.1e} of "
                "the largest logit; draws run one at a time"
            )
        if not report.shared:
            report.messages.append(
                "what is common to all draws can be shared on this network by one draw at a time only"
                if self._share_one
                else f"what is common to all draws cannot be shared on this network (the logits change by {found.shared:.1e} "
                "of the largest); everything is computed for every draw"
            )
        reached = exact.require_layout().reached()
        self._reached = reached
        names = exact.require_layout().names
        report.unreached = tuple(name for name, hit in zip(names, reached, strict=True) if not hit)
        if report.unreached:
            report.messages.append(
                f"{len(report.unreached)} norm sites are never called by the network, e.g. {report.unreached[0]}"
            )
