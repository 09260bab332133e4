"""The sampler: from frames to the maps of the scores that are asked for.

It deals draws to branches, takes their logits from :mod:`segunc.sampling.engine`, and adds them up
in :mod:`segunc.sampling.tail`.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import is_converted
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.affine.posterior import Deterministic
from segunc.core.bounds import PositiveFloat, Settings
from segunc.core.device import Precision, full_float32, to_device
from segunc.core.errors import InputError, NoteWarning, is_out_of_memory, one_line
from segunc.core.modes import eval_mode
from segunc.core.terminal import counted
from segunc.data.images import AnyImage, resize_image
from segunc.networks.network import (
    SegmentationNetwork,
    check_images,
    check_logits,
    check_parameters,
    gives_logarithms,
    inference_size,
)
from segunc.sampling.branches import AnyPosterior, Branch, InputTransform, branches_of, draws_of
from segunc.sampling.compiled import CompiledEngine
from segunc.sampling.engine import (
    BranchRunner,
    Engine,
    Pass,
    PassOfAnySize,
    SelfCheck,
    check_common,
    is_rounding,
    own_tensors,
    require_finite,
)
from segunc.sampling.shortcuts import Prefix, Upsampling
from segunc.sampling.tail import (
    DrawAccumulator,
    add_draws,
    base_evidence,
    base_maps,
    choose_backend,
)
from segunc.sampling.tail_traced import GraphAccumulator
from segunc.scores import (
    CLASS_SCORES,
    DEFAULT_SCORES,
    EVIDENCE,
    NEAREST,
    SCORES,
    Score,
    Source,
    check_scores,
    with_parts,
)
from segunc.uncertainty import Calibrator

PENDING_BYTES = 64 << 20  # logits that wait until several draws are added to the sums at once
CHUNK_PIXELS = 1 << 19
"""Pixels of a batch on a CPU. With more, activations leave the cache between layers, and every pass
gets slower.
"""
AMX_CHUNK_PIXELS = 1 << 21
"""The same where AMX multiplies bfloat16: four frames of 512 x 1024 at once took about .8 of the
time of one at a time (docs/benchmarks.md).
"""
ACTIVATION_BYTES = 512
"""Estimated memory of activations for a pixel of input on a GPU, rather too high. A chunk that does
not fit is halved.
"""
CUDA_CHUNK_PIXELS = 1 << 22
"""Pixels of a batch of draws on a GPU. Half as many took 1.6 times as long, three times as many a
tenth less (docs/benchmarks.md). Compiled passes, whose host does not slow them, are as fast with
half of it, which takes half the memory.
"""
CALLS = threading.RLock()
"""Calls of all samplers take turns, also from several threads: draws are set in the layers of a
network that samplers may share, and switches of torch (fused attention, the precision of float32)
hold for the whole process.
"""
Nearest = Callable[[Sequence[tuple[float, float]]], list[tuple[float, str]]]
"""Returns distance and training frame of the feature that is nearest to that of each position
(y, x), shares 0..1 of the frame's height and width.
"""


@dataclass(frozen=True)
class Reasons:
    """What made the sums of scores of one frame, for single pixels. It is asked while the maps of
    the frame are written; nothing is computed before.

    Attributes:
        parts: maps ``[H, W]`` of the scores that are added up, by name.
        sums: the providers of sums.
        nearest: finds the training frame of the nearest feature; None where no feature names its
            frame.
    """

    parts: Mapping[str, Tensor]
    sums: Sequence[Any]
    nearest: Nearest | None

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return for each pixel (x, y) its parts in decades, and the training frame of the nearest
        feature with its distance.
        """
        reasons: list[dict[str, Any]] = []
        for x, y in pixels:
            values = {name: float(part[y, x]) for name, part in self.parts.items()}
            decades: dict[str, Any] = {}
            for provider in self.sums:
                decades |= provider.decades(values)
            reasons.append({"parts": decades})
        if self.nearest is not None and pixels:
            height, width = next(iter(self.parts.values())).shape
            positions = [((y + 0.5) / height, (x + 0.5) / width) for x, y in pixels]
            for reason, (distance, frame) in zip(reasons, self.nearest(positions), strict=True):
                reason["nearest"] = {"frame": frame, "distance": round(distance, 3)}
        return reasons


@dataclass(frozen=True)
class Prediction:
    """Maps of n frames.

    Attributes:
        prediction: uint8 ``[n, H, W]``, the class of the largest mean probability.
        scores: float32 ``[n, H, W]`` by name; entropies are divided by ln C (0..1).
        probabilities: float32 ``[n, C, H, W]``, mean over the draws, only when asked for.
        reasons: of each frame, where a score is a sum of others.
        extremes: float32 ``[k, 2]``, the smallest and the largest logit of each batch of draws;
            None where no draw was made for these frames.
    """

    prediction: Tensor
    scores: Mapping[str, Tensor]
    probabilities: Tensor | None = None
    reasons: Sequence[Reasons] = ()
    extremes: Tensor | None = field(default=None, repr=False)

    def require_finite(self) -> None:
        """Raise NotFiniteError where a draw gave NaN or infinite logits."""
        if self.extremes is not None:
            require_finite(self.extremes, "a draw gives", "lower alpha")


class Provider(Protocol):
    """Gives evidence that was fitted on a model.

    A sum of scores also names these, as its ``parts``. A provider with a true attribute ``whole``
    gets frames at their own size where the images have another.
    """

    @property
    def gives(self) -> frozenset[str]: ...
    def __call__(
        self, subject: Any, needs: Collection[str], precision: Precision, temperature: float, /
    ) -> dict[str, Any]:
        """Return the evidence that is needed of it, by the names of :data:`segunc.scores.EVIDENCE`.

        Args:
            subject: images ``[n, K, H, W]`` in 0..1; or, for a sum of scores, the maps of its parts
                and the ``prediction``, ``[n, H, W]``, by name.
            needs: names of evidence.

        Returns:
            Maps ``[n, H, W]`` of the subject's size, or constants.
        """


@dataclass(frozen=True)
class Fitted(Settings):
    """What was fitted on a model, see :meth:`segunc.posteriors.model.Model.fitted`.

    A calibrator changes mean probabilities, prediction, msp and entropy. Aleatoric and epistemic
    are of the draws as they are, so that entropy is no longer their sum.

    Attributes:
        temperature: T, by which logits of draws and base network are divided before the softmax.
        calibrator: of the mean probabilities.
        providers: of further evidence.
    """

    temperature: PositiveFloat = 1.0
    calibrator: Calibrator | None = None
    providers: Sequence[Provider] = ()


@dataclass
class SamplerReport:
    """What the sampler found out about the network, or all networks of an ensemble, on first use.

    Attributes:
        batched: draws run as a batch: no network failed its self-check.
        shared: what is the same for all draws is computed once, likewise.
        self_check: largest relative difference between two draws as a batch and one by one; None
            before the first call.
        unreached: normalisation layers that no drawn forward came through, whose noise therefore
            does nothing.
        upsampled: whether the sampler does the network's last upsampling; None before the first
            call.
        messages: what a user should know; a call of the sampler gives each as a NoteWarning, once.
    """

    batched: bool = True
    shared: bool = True
    self_check: float | None = None
    unreached: tuple[str, ...] = ()
    upsampled: bool | None = None
    messages: list[str] = field(default_factory=list)


class FrameEvidence(NamedTuple):
    """What the maps of one frame are made of.

    Attributes:
        draws: sums over its draws.
        base_scores: maps ``[H, W]`` of scores of the base network alone, by name.
        others: evidence of the base network and of what was fitted on the model, by name.
        nearest: see :class:`Reasons`.
        extremes: ``[2]`` of each batch of draws, of all frames; see :class:`Prediction`.
    """

    draws: DrawAccumulator
    base_scores: dict[str, Tensor]
    others: dict[str, Any]
    nearest: Nearest | None
    extremes: list[Tensor]


class _ScoresBySource:
    """The scores of a run with the parts of sums, sorted by what they are made of.

    Attributes:
        of_base: scores of the base network and constants alone.
        of_draws: scores of the draws, perhaps with other evidence.
        sums: scores that are made of the maps of others.
        needs: names of all evidence that they need.
        needs_both: whether a score needs draws and base network.

    Raises:
        InputError: a score needs evidence that was not fitted.
    """

    def __init__(self, names: Sequence[str], providers: Sequence[Provider]) -> None:
        self.of_base: list[Score] = []
        self.of_draws: list[Score] = []
        self.sums: list[Score] = []
        self.needs: set[str] = set()
        for name in with_parts(names, providers):
            score = SCORES[name]
            _check_evidence(score, providers)
            self.needs.update(score.needs)
            if score.sources <= {"base", "constant"}:
                self.of_base.append(score)
            elif "scores" in score.sources:
                self.sums.append(score)
            else:
                self.of_draws.append(score)
        self.needs_both = any("base" in score.sources for score in self.of_draws)


def _check_evidence(score: Score, providers: Sequence[Provider]) -> None:
    """Raise an InputError where a score needs evidence that was not fitted on the model."""
    if score.sources <= {"draws", "base"}:
        return
    for need in score.needs:
        evidence = EVIDENCE[need]
        if evidence.without and not any(need in provider.gives for provider in providers):
            message = f"score {score.name} of a model {evidence.without} cannot be made"
            hint = f"make one: segunc finetune --method {evidence.method}"
            raise InputError(message, hint=hint)


def _check_class_scores(scores: Sequence[str], network: nn.Module) -> None:
    """Raise an InputError where a score needs class scores, and the network has none."""
    if gives_logarithms(network):
        return
    for name in scores:
        if CLASS_SCORES in SCORES[name].needs:
            raise InputError(
                f"score {name} is defined for networks that classify masks, "
                "and this network gives logits of pixels",
                hint="deterministic-energy, which also is high where no class claims a pixel",
            )


class Sampler:
    """Samples a converted network, and returns the prediction and the scores that are asked for.

    Every posterior is a list of branches (network, input transform, posterior; mostly one): draw s
    belongs to branch s mod B. The draws of one branch after the other are added to the same sums,
    in the order of s. The same (posterior, seed, S) gives the same maps for any chunk size, batch
    size or order of frames, up to rounding where a library sums in another order for another batch
    size. Calls from several threads take turns, those of all samplers of a process.

    Args:
        network: from images ``[n, 3, H, W]`` to logits ``[n, C, H, W]``, of an ensemble the first;
            converted, unless the posterior is deterministic. The base scores are its own, of the
            untransformed frame. Each call puts it into eval mode, and gives every module its own
            mode back at the end.
        posterior: makes the draws; None is the deterministic network itself.
        draws: S in total; draw s belongs to member s mod M. A posterior without noise has one draw
            for each branch.
        seed: of the noise, or where it comes from: how draws of one member are spread
            (:class:`segunc.affine.noise.NoiseSource`).
        scope: sample fewer normalisation layers than the posterior's own scope, or None.
        chunk: draws in a batch; None chooses by memory, for the first frame.
        precision: ``float32``, or ``bfloat16`` for weights and activations, of which the weights
            are copied at the first frame.
        scores: names of :data:`segunc.scores.SCORES`; further sums are kept only for those that
            need them.
        fitted: what was fitted on the model.
        compiled: passes run as compiled graphs, which the first frame of each size waits for; maps
            differ by rounding.

    Raises:
        InputError: fewer draws than members, an unconverted network with a posterior, or a score
            that is unknown or needs what was not fitted.

    >>> import segunc
    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1))
    >>> report = segunc.convert(network)
    >>> posterior = segunc.ABNNPosterior.around(segunc.AffineLayout(network), alpha=0.1)
    >>> sampler = segunc.Sampler(network, posterior, draws=4, scores=["entropy", "epistemic"])
    >>> prediction = sampler(torch.rand(1, 3, 16, 32))
    >>> {name: tuple(values.shape) for name, values in prediction.scores.items()}
    {'entropy': (1, 16, 32), 'epistemic': (1, 16, 32)}
    """

    def __init__(  # noqa: PLR0913  the settings of a public class, all with defaults
        self,
        network: nn.Module,
        posterior: AnyPosterior | None = None,
        *,
        draws: int = 24,
        seed: int | NoiseSource = 0,
        scope: str | None = None,
        chunk: int | None = None,
        precision: Precision = "float32",
        scores: Sequence[str] = DEFAULT_SCORES,
        fitted: Fitted = Fitted(),
        compiled: bool = False,
    ) -> None:
        if isinstance(posterior, Deterministic):
            posterior = None
        self.network = network
        self.posterior = posterior
        self._branches = branches_of(network, posterior)
        for branch in self._branches:
            if branch.stochastic and not is_converted(branch.network):
                raise InputError(
                    "the network of a posterior is not converted",
                    hint="call segunc.convert on it first",
                )
        self.draws: int = draws_of(self._branches, posterior, draws)
        if chunk is not None and chunk < 1:
            raise InputError(
                f"chunk {chunk}: a batch holds at least 1 draw",
                hint="leave chunk out to have it chosen by memory",
            )
        self.scores: tuple[str, ...] = check_scores(scores)
        _check_class_scores(self.scores, network)
        self.fitted = fitted
        self._table = _ScoresBySource(self.scores, fitted.providers)
        if not isinstance(seed, NoiseSource):
            seed = NoiseSource(seed, DEFAULT_SCHEME, self.draws)
        self.noise: NoiseSource = replace(seed, total=self.draws)
        self.seed: int = self.noise.seed
        self.scope = scope
        self.chunk = chunk
        self.precision = precision
        self.compiled = compiled
        self.device: torch.device = next(network.parameters()).device
        self.report: SamplerReport = SamplerReport()
        # All are changed in place: copies with another chunk share them.
        self._runners: list[BranchRunner] = []
        self._engines: dict[int, Engine] = {}  # by the id of their network
        self._stamp: list[Any] = []  # of the last call, see :meth:`_stamp_now`
        self._pass: type[Pass] = Pass
        self.warns = True  # False where somebody else shows the messages of the report
        self.warned: set[str] = set()  # the messages that were given as warnings
        self._backend, note = choose_backend(self.device)
        if note:
            self.report.messages.append(note)

    def __call__(
        self,
        images: Tensor,
        *,
        size: tuple[int, int] | None = None,
        keep_probabilities: bool = False,
        whole: Sequence[AnyImage] = (),
    ) -> Prediction:
        """Return the maps of n frames of one size. What the sampler found out about the network is
        given as a :class:`segunc.core.errors.NoteWarning`, each note once.

        Args:
            images: what the network takes, ``[n, 3, H, W]``.
            size: (height, width) of the maps, to which they are resized bilinearly; None for the
                network's input.
            keep_probabilities: also return the mean probabilities.
            whole: the frames of the images, RGB at their own size, uint8 or float32 in 0..1, for
                evidence that is made of these; without them the images are.

        Raises:
            NotFiniteError: the images hold, or the network or a draw returns, NaN or infinite
                values.
            InputError: it returns no dense logits, or images of another type or range than it
                takes.
        """
        prediction = self.start(
            images, size=size, keep_probabilities=keep_probabilities, whole=whole
        )
        prediction.require_finite()
        return prediction

    def start(
        self,
        images: Tensor,
        *,
        size: tuple[int, int] | None = None,
        keep_probabilities: bool = False,
        whole: Sequence[AnyImage] = (),
    ) -> Prediction:
        """Return the same without waiting for a GPU that still computes the maps.

        Whoever reads them first calls :meth:`Prediction.require_finite`. The arguments are those
        of :meth:`__call__`.
        """
        with CALLS, full_float32(), self._in_eval_mode(), torch.inference_mode():
            if self._runners and self._stamp != self._stamp_now():
                self._begin_again()
            try:
                prediction = self._predict(images, size, keep_probabilities, whole)
            finally:
                self._stamp[:] = self._stamp_now()
        if self.warns:
            self._warn()
        return prediction

    @contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        """Run the networks, and those that providers hold, in eval mode."""
        modules = self._networks()
        for provider in self.fitted.providers:
            for value in getattr(provider, "__dict__", {}).values():
                if isinstance(value, nn.Module):
                    modules.append(value)
        with eval_mode(modules) as in_training:
            if in_training:
                names = ", ".join(in_training[:3])
                self._say(
                    f"{len(in_training)} modules stay in training mode when the network is put "
                    f"into eval mode ({names}): dropout and statistics of the batch may change "
                    "the maps"
                )
            yield

    def _networks(self) -> list[nn.Module]:
        """Return the network and those of the branches, each once."""
        networks = [self.network, *(branch.network for branch in self._branches)]
        return list({id(network): network for network in networks}.values())

    def _stamp_now(self) -> list[Any]:
        """Return what differs as soon as a network is not the one of before: its modules with their
        hooks and plain attributes, and its tensors with their memory and how often each was
        written.
        """
        stamp: list[Any] = []
        for network in self._networks():
            for module in network.modules():
                stamp.append(_stamp_of_code(module))
                stamp += stamp_of_tensors(module)
        return stamp

    def _begin_again(self) -> None:
        """Forget what was made of a network that has changed since: draws, copies, compiled passes
        and the self-check.
        """
        self._runners.clear()
        self._engines.clear()
        report = self.report
        report.batched = True
        report.shared = True
        report.self_check = None
        report.unreached = ()
        if any(branch.stochastic for branch in self._branches):
            self._say(
                "the network has changed since the sampler was called first: "
                "statistics are taken again, but the affine parameters of the posterior are those "
                "that it was made with"
            )

    def _say(self, message: str) -> None:
        if message not in self.report.messages:
            self.report.messages.append(message)

    def _warn(self) -> None:
        """Give the messages of the report that are new as warnings."""
        for message in self.report.messages:
            if message not in self.warned:
                self.warned.add(message)
                warnings.warn(message, NoteWarning, stacklevel=caller_level())

    def _predict(
        self,
        images: Tensor,
        size: tuple[int, int] | None,
        keep_probabilities: bool,
        whole: Sequence[AnyImage],
    ) -> Prediction:
        check_parameters(self.network)
        check_images(images, self.network)
        images = to_device(images, self.device).contiguous(memory_format=torch.channels_last)
        self._prepare(images, self.noise)
        evidence = self._sample(images, whole)
        if len(images) > 1 and any(engine.branching for engine in self._engines.values()):
            # A branch that values decide was taken for the whole batch.
            evidence = self._sample_one_by_one(images, whole)
        frames = [self._finish(frame, size, keep_probabilities) for frame in evidence]
        prediction, maps = self._joined(frames)
        reasons = self._reasons(evidence, maps)
        probabilities = None
        if keep_probabilities:
            probabilities = torch.stack([cast(Tensor, frame.probabilities) for frame in frames])
        extremes: list[Tensor] = []
        for frame_evidence in evidence:
            extremes += frame_evidence.extremes
        return Prediction(
            prediction=prediction,
            scores={name: maps[name] for name in self.scores},
            probabilities=probabilities,
            reasons=reasons,
            extremes=torch.stack(extremes) if extremes else None,
        )

    def _sample_one_by_one(self, images: Tensor, whole: Sequence[AnyImage]) -> list[FrameEvidence]:
        """Return the same as :meth:`_sample`, of each frame in passes of its own."""
        evidence = []
        for number in range(len(images)):
            row = slice(number, number + 1)
            evidence += self._sample(images[row], whole[row])
        return evidence

    def _reasons(
        self, evidence: Sequence[FrameEvidence], maps: Mapping[str, Tensor]
    ) -> list[Reasons]:
        """Return what made the sums of scores of each frame; none where no score is a sum."""
        if not self._table.sums:
            return []
        sums: list[Any] = []
        parts: dict[str, Tensor] = {}
        for provider in self.fitted.providers:
            if hasattr(provider, "decades"):
                sums.append(provider)
                for name in cast(Any, provider).parts:
                    parts[name] = maps[name]
        if not sums:
            return []
        reasons = []
        for number, frame in enumerate(evidence):
            of_frame = {name: values[number] for name, values in parts.items()}
            reasons.append(Reasons(of_frame, sums, frame.nearest))
        return reasons

    def _joined(self, frames: Sequence[Prediction]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return predictions and maps of all scores of frames, ``[n, H, W]``, sums of others among
        them.
        """
        maps = {}
        for name in frames[0].scores:
            maps[name] = torch.stack([frame.scores[name] for frame in frames])
        prediction = torch.stack([frame.prediction for frame in frames])
        if self._table.sums:
            evidence = self._evidence("scores", {**maps, "prediction": prediction})
            for score in self._table.sums:
                maps[score.name] = score(evidence)
        return prediction, maps

    def _finish(
        self, frame: FrameEvidence, size: tuple[int, int] | None, keep_probabilities: bool
    ) -> Prediction:
        """Return one frame's maps of all scores except sums of others, each ``[H, W]``; its sums
        over the draws are used up.

        Entropy and aleatoric are resized bilinearly to (height, width) ``size``, epistemic is their
        difference, and prediction and msp come from resized mean probabilities: entropies of these
        would mix neighbouring classes and write that into epistemic.
        """
        prediction, evidence = frame.draws.finish()
        calibrator = self.fitted.calibrator
        if calibrator is not None:
            calibrate = calibrator.calibrate if self._backend == "traced" else calibrator
            probabilities, entropy = calibrate(evidence["probabilities"])
            evidence["probabilities"] = probabilities
            evidence["calibrated entropy"] = entropy
        evidence |= frame.others
        resizes = size is not None and size != evidence["probabilities"].shape[-2:]
        late = []  # scores of resized evidence
        maps = {}
        for score in self._table.of_draws:
            if resizes and score.resized == "evidence":
                late.append(score)
            else:
                maps[score.name] = score(evidence)[0].float()
        maps |= frame.base_scores
        if size is not None and resizes:
            maps = _resized_maps(maps, size)
            evidence = _resized_evidence(evidence, late, size)
            for score in late:
                maps[score.name] = score(evidence)[0].float()
            prediction = evidence["probabilities"][0].max(0).indices.to(prediction.dtype)
        kept = evidence["probabilities"][0] if keep_probabilities else None
        return Prediction(prediction, maps, kept)

    def _evidence(
        self, source: Source, subject: Any, whole: Sequence[AnyImage] = ()
    ) -> dict[str, Any]:
        """Return what is needed of one source of evidence, for images or maps; of whole frames it
        is resized to the images.
        """
        needs = {name for name in self._table.needs if EVIDENCE[name].source == source}
        evidence: dict[str, Any] = {}
        for provider in self.fitted.providers:
            asked = needs & provider.gives
            if not asked:
                continue
            if len(whole) > 0 and getattr(provider, "whole", False):
                frames = to_device(network_input(whole), self.device)
                at_own_size = provider(frames, asked, self.precision, self.fitted.temperature)
                for name, values in at_own_size.items():
                    evidence[name] = _resized(values, subject.shape[-2:])
            else:
                evidence |= provider(subject, asked, self.precision, self.fitted.temperature)
        return evidence

    def with_chunk(self, chunk: int | None) -> Sampler:
        """Return a sampler of the same draws in other batches; what was found out about the
        networks is shared.
        """
        other = copy.copy(self)
        other.chunk = chunk
        return other

    def drawn(self) -> Tensor | None:
        """Return the draws that :meth:`graph_maps` takes, ``[2, S, T]`` scale and shift of the
        layers in which they differ; None where the model is not one network with such draws. The
        sampler has been called before.
        """
        return self._runners[0].own_draws() if len(self._runners) == 1 else None

    def graph_maps(
        self,
        images: Tensor,
        draws: Tensor | None = None,
        *,
        any_size: bool = False,
        size: tuple[int, int] | None = None,
    ) -> Prediction:
        """Return the maps of frames in a form that can be traced as a graph.

        Only plain operators of torch run, none of which looks at values, with all draws as a batch.

        The sampler has been called on a frame before, of this size unless the graph is for
        ``any_size``.

        Args:
            images: ``[n, 3, H, W]``.
            draws: stand in for :meth:`drawn`; None takes the sampler's own.
            any_size: the graph is for frames of any size.
            size: (height, width) of the maps; None is that of the images.

        Raises:
            InputError: the network's own code reads values, or code that cannot be followed may
                look at sizes.
        """
        if any(engine.branching for engine in self._engines.values()):
            raise InputError(
                "the network's code reads values of its input, so that no one graph is right for "
                "every frame"
            )
        if any_size and any(engine.unfollowed for engine in self._engines.values()):
            raise InputError(
                "a part of the network runs code that cannot be followed, for instance "
                "TorchScript, so that its branches on the size of a frame are not known",
                hint="--size HxW",
            )
        other = self.with_chunk(self.draws)
        other._backend = "traced"
        other._pass = PassOfAnySize if any_size else Pass
        other.report = copy.copy(self.report)
        if draws is not None:
            other._runners = [self._runners[0].with_draws(draws)]
        with CALLS, self._in_eval_mode():
            evidence = other._sample(images)
            frames = [other._finish(frame, size, False) for frame in evidence]
            prediction, maps = other._joined(frames)
        # Last of all, and from a float: TensorRT has uint8 only where a graph ends, and converts
        # only floats to it. Class ids are at most 255, which float32 holds.
        scores = {name: maps[name] for name in self.scores}
        return Prediction(prediction.float().to(torch.uint8), scores)

    def chunk_for(self, frames: int, size: tuple[int, int], classes: int) -> int:
        """Return how many draws are in a batch.

        Args:
            frames: number of frames that the network sees at once.
            size: their (height, width).
            classes: number of classes of the network.
        """
        if not self.report.batched:
            return 1
        pixels = frames * size[0] * size[1]
        if self.chunk is not None:
            fitting = self.chunk
        elif self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            # What earlier frames have freed is PyTorch's, not the driver's.
            free += torch.cuda.memory_reserved(self.device)
            free -= torch.cuda.memory_allocated(self.device)
            # Networks that do not end in an upsampling have float32 logits at full resolution, and
            # as much around.
            by_memory = int(free // 2 // (pixels * (ACTIVATION_BYTES + 8 * classes)))
            by_speed = CUDA_CHUNK_PIXELS // (pixels * (1 + self.compiled))
            fitting = min(by_speed, by_memory)
        elif self.precision == "bfloat16" and torch.cpu._is_amx_tile_supported():
            fitting = AMX_CHUNK_PIXELS // pixels
        else:
            fitting = CHUNK_PIXELS // pixels
        return max(1, min(self.draws, fitting))

    def _prepare(self, images: Tensor, noise: NoiseSource) -> None:
        """Make the runners, and check their networks with the first frames; then make their draws
        of this noise.
        """
        if self._runners:
            for runner in self._runners:
                runner.draw(noise, self.scope)
            return
        networks = self._networks()
        own = self._own_tensors(networks, images)
        copies: dict[int, Any] = {}
        engine_class = CompiledEngine if self.compiled else Engine
        for network in networks:
            self._engines[id(network)] = engine_class(
                network, self.precision, self.report.messages, own, copies
            )
        runners = []
        for index, branch in enumerate(self._branches):
            draws = range(index, self.draws, len(self._branches))
            if draws:
                runner = BranchRunner(branch, draws, self._engines[id(branch.network)])
                runner.draw(noise, self.scope, images)
                runners.append(runner)
        self._runners += runners
        for engine in self._engines.values():
            self._report_self_check(engine)

    def _own_tensors(self, networks: list[nn.Module], images: Tensor) -> frozenset[str]:
        """Return the names of the tensors in which the networks differ, if what they have in common
        can be computed once; checked with the first frames.
        """
        if any(branch.stochastic for branch in self._branches):
            return frozenset()
        own = own_tensors(networks)
        if not own:
            return own
        difference = check_common(networks, own, images)
        if is_rounding(difference):
            return own
        self._say(
            "what the networks have in common cannot be shared (the logits change by "
            f"{difference:.1e} of the largest); it is computed for each"
        )
        return frozenset()

    def _sample(self, images: Tensor, whole: Sequence[AnyImage] = ()) -> list[FrameEvidence]:
        """Run the base network and all draws over frames, and return what each frame's maps are
        made of.
        """
        of_frames = self._evidence("frame", images, whole)
        constants = self._evidence("constant", images)
        common: dict[InputTransform, Prefix] = defaultdict(Prefix)  # of these frames alone
        base_runner = self._base_runner()
        base_pass = self._open_pass(base_runner, images, common)
        base, upsampling = base_pass.base_logits()
        require_finite(base)
        if self.report.upsampled is None:
            note = check_logits(self.network, base, images)
            if note:
                self._say(note)
        self.report.upsampled = base_pass.ending is not None
        extremes: list[Tensor] = []  # of all frames and draws
        frames = self._begin_frames(base, upsampling, of_frames, constants, extremes)
        sums = [frame.draws for frame in frames]
        for runner in self._runners:
            if runner is not base_runner:
                branch_pass = self._open_pass(runner, images, common)
                extremes += self._add_branch(runner, branch_pass, images, sums)
            elif runner.folded is None:
                add_draws(sums, [base], len(runner.draws), upsampling, runner.branch.transform)
            else:
                del base  # the draws need its memory
                extremes += self._add_branch(runner, base_pass, images, sums)
        return frames

    def _base_runner(self) -> BranchRunner:
        """Return the runner of the base network on the untransformed frame: one of the branches
        where its draws can follow in the same pass.
        """
        first = self._runners[0]
        if first.branch.network is not self.network:  # the posterior draws other networks only
            engine = self._engines[id(self.network)]
            return BranchRunner(Branch(self.network, Deterministic()), range(0), engine)
        return first if first.branch.transform.identity else first.untransformed()

    def _open_pass(
        self, runner: BranchRunner, images: Tensor, common: Mapping[InputTransform, Prefix]
    ) -> Pass:
        """Return a pass over images, with what other networks computed of them in the same
        transform.
        """
        prefix = common[runner.branch.transform] if runner.engine.own else None
        return self._pass(runner, images, prefix)

    def _begin_frames(
        self,
        base: Tensor,
        upsampling: Upsampling,
        of_frames: dict[str, Any],
        constants: dict[str, Any],
        extremes: list[Tensor],
    ) -> list[FrameEvidence]:
        """Return the evidence of each frame before any draw is added.

        Args:
            base: logits ``[n, C, h, w]`` of the base network.
            of_frames: evidence that was fitted on the model, of all frames; its nearest features
                are taken out.
            constants: evidence that is the same for all frames.
            extremes: the list that the draws of all frames will add to.
        """
        temperature = self.fitted.temperature
        logarithms = gives_logarithms(self.network)
        nearest = of_frames.pop(NEAREST, [None] * len(base))
        frames = []
        for number, logits in enumerate(base):
            base_scores = base_maps(
                self._table.of_base,
                logits,
                upsampling,
                self._backend,
                temperature,
                constants,
                logarithms,
            )
            others: dict[str, Any] = {}
            if self._table.needs_both:
                # Volumes at full resolution, which only such a score needs.
                others = base_evidence(logits, upsampling, temperature, logarithms)
            others |= constants
            for name, values in of_frames.items():
                others[name] = values[number, None]
            sums = self._accumulator(base.shape[1], upsampling.kept)
            frames.append(FrameEvidence(sums, base_scores, others, nearest[number], extremes))
        return frames

    def _accumulator(self, classes: int, size: tuple[int, int]) -> DrawAccumulator:
        """Return the empty sums over the draws of one frame of a (height, width)."""
        needs = self._table.needs
        temperature = self.fitted.temperature
        if self._backend == "traced":
            return GraphAccumulator(classes, size, needs=needs, temperature=temperature)
        return DrawAccumulator(
            classes, size, self.device, self._backend, needs=needs, temperature=temperature
        )

    def _add_branch(
        self, runner: BranchRunner, branch_pass: Pass, images: Tensor, sums: list[DrawAccumulator]
    ) -> list[Tensor]:
        """Run the draws of a branch over images, a chunk at a time, and add them to each frame's
        sums.

        Returns:
            The smallest and the largest logit of each chunk, ``[2]`` float32: a tail may hide NaN,
            and to look at each at once would wait for a GPU.
        """
        total = len(runner.draws)
        transform = runner.branch.transform
        if runner.folded is None:
            logits, upsampling = branch_pass.base_logits()
            require_finite(logits)
            add_draws(sums, [logits], total, upsampling, transform)
            return []
        chunk = self.chunk_for(len(images), (images.shape[-2], images.shape[-1]), sums[0].shape[0])
        done = 0
        waiting: list[Tensor] = []
        waiting_draws = 0
        waiting_bytes = 0
        extremes: list[Tensor] = []
        while done < total:
            count = min(1 if branch_pass.alone else chunk, total - done)
            try:
                logits, upsampling = branch_pass.logits(done, done + count)
            except Exception as error:
                if count == 1 or not is_out_of_memory(error):
                    raise
                chunk = self.chunk = max(1, count // 2)
                self.report.messages.append(f"out of memory: chunk halved to {chunk}")
                torch.cuda.empty_cache()
                continue
            done += count
            if self._backend != "traced":
                extremes.append(torch.stack(logits.aminmax()).float())
            waiting.append(logits)
            waiting_draws += count
            waiting_bytes += logits.numel() * logits.element_size()
            if done == total or waiting_bytes >= PENDING_BYTES:
                add_draws(sums, waiting, waiting_draws, upsampling, transform)
                waiting = []
                waiting_draws = 0
                waiting_bytes = 0
        return extremes

    def _report_self_check(self, engine: Engine) -> None:
        """Take what the self-check of a network found into the report."""
        check = engine.self_check
        if check is None:
            return
        unreached = []
        for name, reached in zip(engine.layout.names, check.reached, strict=True):
            if not reached:
                unreached.append(name)
        report = self.report
        report.self_check = max(check.batched, report.self_check or 0.0)
        report.batched &= is_rounding(check.batched)
        report.shared &= is_rounding(check.shared)
        report.unreached += tuple(unreached)
        if not is_rounding(check.repeated):
            self._say(
                f"two passes of the same frame and draw differ by {check.repeated:.1e} of the "
                "largest logit: the network draws random numbers itself, which no seed decides "
                "here; switch its noise or its dropout off in eval mode"
            )
        else:
            self._say_what_failed(check)
        if unreached:
            self._say(
                f"{counted(len(unreached), 'normalisation layer', 'is')} never called by the "
                f"network, e.g. {unreached[0]}"
            )

    def _say_what_failed(self, check: SelfCheck) -> None:
        """Say which ways of running draws this network does not allow."""
        if not is_rounding(check.arranged):
            self._say(
                "weights of convolutions cannot be arranged for this CPU once (the logits change "
                f"by {check.arranged:.1e} of the largest); each pass does it"
            )
        if not is_rounding(check.batched):
            self._say(
                "self-check failed: two draws as a batch differ from the same two one by one by "
                f"{check.batched:.1e} of the largest logit; draws run one at a time"
            )
        if check.differ and not is_rounding(check.shared):
            self._say(
                "what is common to all draws cannot be shared on this network (the logits change "
                f"by {check.shared:.1e} of the largest); everything is computed for every draw"
            )


def stamp_of_tensors(module: nn.Module) -> list[tuple[Any, ...]]:
    """Return what differs as soon as a module's own tensors are others than before: each with its
    memory and how often it was written.
    """
    stamp: list[tuple[Any, ...]] = []
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            version = 0 if tensor.is_inference() else tensor._version
            stamp.append((id(tensor), version, tensor.data_ptr(), tensor.dtype))
    return stamp


def _stamp_of_code(module: nn.Module) -> tuple[Any, ...]:
    """Return what differs as soon as a module gets or loses a hook, a ``forward`` of its own, or
    another value of an attribute that is a number or a text. A hook's number is given once in a
    process.
    """
    attributes = vars(module)
    values = []
    for name, value in attributes.items():
        if name != "training" and isinstance(value, (bool, int, float, str)):
            values.append((name, value))
    hooks = (*module._forward_hooks, *module._forward_pre_hooks)
    return id(module), id(attributes.get("forward")), hooks, values


def caller_level() -> int:
    """Return how many frames of the stack lie between the caller of this function and the first
    code that belongs neither to this package nor to a library that it calls through.
    """
    package = str(Path(__file__).parents[1])
    libraries = (str(Path(torch.__file__).parent), contextlib.__file__)
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((package, *libraries)):
        frame = frame.f_back
        level += 1
    return level


def sample_frames(
    sampler: Sampler,
    images: Sequence[AnyImage],
    *,
    size: tuple[int, int] | None = None,
    keep_probabilities: bool = False,
    wait: bool = True,
) -> Prediction:
    """Return the maps of frames of one size, at their own size.

    Args:
        sampler: over a :class:`SegmentationNetwork`.
        images: uint8 ``[H, W, K]``, or float32 in 0..1, K the channels of the network.
        size: (height, width) that the network sees; None is its inference size for the frame.
        keep_probabilities: see :meth:`Sampler.__call__`.
        wait: False returns before a GPU has computed the maps, see :meth:`Sampler.start`.
    """
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    frame = (images[0].shape[0], images[0].shape[1])
    batch = network_input(images, inference_size(network.description, frame, size))
    run = sampler if wait else sampler.start
    return run(batch, size=frame, keep_probabilities=keep_probabilities, whole=images)


def fault_of(error: Exception, image: AnyImage | None) -> InputError:
    """Return why one frame has no maps, where that is the frame's own fault: it is refused, or too
    large for memory. Any other error is raised.
    """
    if isinstance(error, InputError):
        return error
    no_memory = is_out_of_memory(error)
    # A plain RuntimeError is what operators raise for shapes. Subclasses (torch.AcceleratorError)
    # and CUDA libraries mean the device.
    names_device = re.search("cuda|cudnn|cublas", str(error), re.IGNORECASE) is not None
    of_shapes = type(error) is RuntimeError and not names_device
    # So torch's normalisation refuses a frame that is one pixel there.
    of_shapes |= isinstance(error, ValueError) and str(error).startswith("Expected more than 1")
    if image is None or not (no_memory or of_shapes):
        raise error
    frame = f"a frame of {image.shape[1]} x {image.shape[0]} pixels"
    if no_memory:
        return InputError(
            f"there is not enough memory for {frame} ({one_line(error)})",
            hint="give a smaller --size or --chunk",
        )
    return InputError(
        f"the network fails on {frame} ({one_line(error)})",
        hint="--size HxW with sides that it takes",
    )


def network_input(images: Sequence[AnyImage], size: tuple[int, int] | None = None) -> Tensor:
    """Return images ``[H, W, K]``, uint8 or float32 in 0..1, as float32 ``[n, K, h, w]`` in 0..1.

    Args:
        images: uint8 images are resized in 8 bits, as they always were, float images in float32.
        size: (height, width) to which they are resized, bilinearly or by the mean over areas where
            they shrink; None keeps their own.
    """
    planes = []
    for image in images:
        pixels: Any = image
        if size is not None and image.shape[:2] != size:
            pixels = resize_image(image, size)
        values = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        planes.append(values.float().div_(255.0) if values.dtype == torch.uint8 else values)
    return torch.stack(planes)


def _resized(planes: Any, size: tuple[int, int]) -> Any:
    """Return maps ``[n, (C,) H, W]`` resized bilinearly; a number as it is."""
    if not isinstance(planes, Tensor):
        return planes
    volume = planes.float() if planes.dim() == 4 else planes[None].float()
    resized = F.interpolate(volume, size, mode="bilinear", align_corners=False)
    return resized if planes.dim() == 4 else resized[0]


def _resized_maps(maps: Mapping[str, Tensor], size: tuple[int, int]) -> dict[str, Tensor]:
    """Return maps ``[H, W]``, resized bilinearly at once."""
    if not maps:
        return {}
    planes = _resized(torch.stack(list(maps.values())), size)
    return dict(zip(maps, planes, strict=True))


def _resized_evidence(
    evidence: Mapping[str, Any], scores: Sequence[Score], size: tuple[int, int]
) -> dict[str, Any]:
    """Return the probabilities and what scores need, resized bilinearly."""
    needs = {"probabilities"}
    for score in scores:
        needs.update(score.needs)
        if score.direct in evidence:
            needs.add(score.direct)
    return {name: _resized(evidence[name], size) for name in needs}
