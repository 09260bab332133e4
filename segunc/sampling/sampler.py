"""The sampler: it deals draws to branches, takes their logits from :mod:`segunc.sampling.engine`,
adds them up in :mod:`segunc.sampling.tail`, and makes the maps of the scores that are asked for.
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

import cv2
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
from segunc.data.images import Image
from segunc.networks.network import (
    SegmentationNetwork,
    check_images,
    check_logits,
    check_parameters,
    inference_size,
)
from segunc.sampling.branches import AnyPosterior, Branch, InputTransform, branches_of, draws_of
from segunc.sampling.compiled import CompiledEngine
from segunc.sampling.engine import (
    BranchRunner,
    Engine,
    Pass,
    PassOfAnySize,
    check_common,
    is_rounding,
    own_tensors,
    require_finite,
)
from segunc.sampling.shortcuts import Prefix
from segunc.sampling.tail import (
    DrawAccumulator,
    add_draws,
    base_evidence,
    base_maps,
    choose_backend,
)
from segunc.scores import (
    DEFAULT_SCORES,
    EVIDENCE,
    NEAREST,
    SCORES,
    Source,
    check_scores,
    with_parts,
)
from segunc.uncertainty import Calibrator

PENDING_BYTES = 64 << 20  # logits that wait until several draws are added to the sums at once
CHUNK_PIXELS = 1 << 19
"""Pixels of a batch on a CPU: with more, activations leave the cache between layers and every pass
gets slower.
"""
ACTIVATION_BYTES = 512
"""Memory of activations for a pixel of input on a GPU, on the safe side; what does not fit is
halved.
"""
CUDA_CHUNK_PIXELS = 1 << 22
"""Pixels of a batch of draws on a GPU: half as many took 1.6 times as long, three times as many a
tenth less (docs/benchmarks.md). Compiled passes, whose host does not slow them, are as fast with
half of it, which takes half the memory.
"""
CALLS = threading.RLock()
"""Calls from several threads take turns, those of all samplers: draws are set in the layers of a
network that samplers may share, and switches of torch (fused attention, the precision of float32)
hold for the whole process."""
Nearest = Callable[[Sequence[tuple[float, float]]], list[tuple[float, str]]]
"""Gives distance and training frame of the feature that is nearest to that of each place (shares
0..1 of the frame's height and width).
"""


@dataclass(frozen=True)
class Reasons:
    """What made the sums of scores of one frame, asked for at single pixels while its maps are
    written. Nothing is computed before.
    """

    parts: Mapping[str, Tensor]  # maps [H, W] of the scores that are added up
    sums: Sequence[Any]  # providers of sums
    nearest: Nearest | None  # None where no feature names its training frame

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return of pixels (x, y) each part in decades, and the training frame of the nearest
        feature with its distance.
        """
        reasons: list[dict[str, Any]] = [{"parts": {}} for _ in pixels]
        for (x, y), of_pixel in zip(pixels, reasons, strict=True):
            values = {name: float(of_part[y, x]) for name, of_part in self.parts.items()}
            for provider in self.sums:
                of_pixel["parts"] |= provider.decades(values)
        if self.nearest is not None and pixels:
            height, width = next(iter(self.parts.values())).shape
            nearest = self.nearest([((y + 0.5) / height, (x + 0.5) / width) for x, y in pixels])
            for of_pixel, (distance, frame) in zip(reasons, nearest, strict=True):
                of_pixel["nearest"] = {"frame": frame, "distance": round(distance, 3)}
        return reasons


@dataclass(frozen=True)
class Prediction:
    """Maps of n frames."""

    prediction: Tensor  # uint8 [n, H, W], the class of the largest mean probability
    scores: Mapping[str, Tensor]  # float32 [n, H, W] by name; entropies divided by ln C (0..1)
    probabilities: Tensor | None = None  # float32 [n, C, H, W] mean over draws, only when asked for
    reasons: Sequence[Reasons] = ()  # of each frame, where a score is a sum of others
    # float32 [k, 2], the smallest and the largest logit of each batch of draws; None where no draw
    # was made for these frames.
    extremes: Tensor | None = field(default=None, repr=False)

    def require_finite(self) -> None:
        """Raise NotFiniteError where a draw gave NaN or infinite logits."""
        if self.extremes is not None:
            require_finite(self.extremes, "a draw gives", "lower alpha")


class Provider(Protocol):
    """Gives evidence that was fitted on a model. A sum of scores also names these, as its
    ``parts``.
    """

    @property
    def gives(self) -> frozenset[str]: ...
    def __call__(
        self, given: Any, needs: Collection[str], precision: Precision, temperature: float, /
    ) -> dict[str, Any]:
        """Return what is needed of it, by the names of :data:`segunc.scores.EVIDENCE`: for the
        images ``[n, 3, H, W]`` in 0..1 maps ``[n, H, W]``, or a constant; or for the maps of its
        parts and the ``prediction`` ``[n, H, W]``, by name, maps of their size. One that is
        ``whole`` gets frames at their own size where the images have another.
        """


@dataclass(frozen=True)
class Fitted(Settings):
    """What was fitted on a model, see :meth:`segunc.posteriors.model.Model.fitted`. A calibrator
    changes mean probabilities, prediction, msp and entropy; aleatoric and epistemic are of the
    draws as they are, so that entropy is no longer their sum.
    """

    temperature: PositiveFloat = (
        1.0  # T, by which logits of draws and base network are divided before the softmax
    )
    calibrator: Calibrator | None = None
    providers: Sequence[Provider] = ()  # of further evidence


@dataclass
class SamplerReport:
    """What the sampler found out about the network, or all networks of an ensemble, on first use;
    None before it.
    """

    batched: bool = True  # draws run as a batch: no network failed its self-check
    shared: bool = True  # what is the same for all draws is computed once, likewise
    self_check: float | None = (
        None  # largest relative difference between two draws as a batch and one by one
    )
    unreached: tuple[
        str, ...
    ] = ()  # sites that no drawn forward came through, whose noise therefore does nothing
    upsampled: bool | None = (
        None  # whether the network's last upsampling was taken over by the sampler
    )
    # What a user should know; a call of the sampler gives each as a NoteWarning, once.
    messages: list[str] = field(default_factory=list)


class FrameEvidence(NamedTuple):
    draws: DrawAccumulator
    of_base: dict[str, Tensor]  # maps [H, W] of scores of the base network alone
    others: dict[str, Any]  # evidence of the base network and of what was fitted on the model
    nearest: Nearest | None
    extremes: list[Tensor]  # [2] of each batch of draws, of all frames; see Prediction


class Sampler:
    """Samples a converted network and returns the prediction and the scores that are asked for.
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
        scope: sample fewer sites than the posterior's own scope, or None.
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
            that is unknown or of what was not fitted.
    """

    def __init__(
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
        self.network = network
        self.posterior = (
            None if posterior is None or isinstance(posterior, Deterministic) else posterior
        )
        self._branches = branches_of(network, self.posterior)
        for branch in self._branches:
            if branch.stochastic and not is_converted(branch.network):
                raise InputError(
                    "the network of a posterior is not converted",
                    hint="call segunc.convert on it first",
                )
        self.draws = draws_of(self._branches, self.posterior, draws)
        if chunk is not None and chunk < 1:
            raise InputError(
                f"a chunk of {chunk} draws is none", hint="leave it out to have it chosen by memory"
            )
        self.scores, self.fitted = check_scores(scores), fitted
        table = [SCORES[name] for name in with_parts(self.scores, fitted.providers)]
        there = frozenset[str]().union(*(provider.gives for provider in fitted.providers))
        for score in table:
            for need in score.needs if score.sources - {"draws", "base"} else ():
                if (evidence := EVIDENCE[need]).without and need not in there:
                    message = f"score {score.name} of a model {evidence.without} cannot be made"
                    hint = f"make one: segunc finetune --method {evidence.method}"
                    raise InputError(message, hint=hint)
        self._of_base = [score for score in table if score.sources <= {"base", "constant"}]
        self._sums = [score for score in table if "scores" in score.sources]
        self._of_draws = [
            score for score in table if score not in self._of_base and score not in self._sums
        ]
        self._needs = {name for score in table for name in score.needs}
        self._both = any("base" in score.sources for score in self._of_draws)
        noise = (
            seed if isinstance(seed, NoiseSource) else NoiseSource(seed, DEFAULT_SCHEME, self.draws)
        )
        self.noise = replace(noise, total=self.draws)
        self.seed = self.noise.seed
        self.scope, self.chunk, self.precision, self.compiled = scope, chunk, precision, compiled
        self.device = next(network.parameters()).device
        self.report = SamplerReport()
        self._runners: list[
            BranchRunner
        ] = []  # changed in place: copies with another chunk share them
        self._engines: dict[int, Engine] = {}  # by the id of their network, likewise
        self._pass: type[Pass] = Pass
        self._stamp: list[Any] = []  # of the last call, see :meth:`_stamp_now`
        self.warns = True  # False where somebody else shows the messages of the report
        self.warned: set[str] = set()  # the messages that were given as warnings
        self._backend, why = choose_backend(self.device)
        if why:
            self.report.messages.append(why)

    def __call__(
        self,
        images: Tensor,
        *,
        size: tuple[int, int] | None = None,
        keep_probabilities: bool = False,
        whole: Sequence[Image] = (),
    ) -> Prediction:
        """Return the maps of n frames of one size. What the sampler found out about the network is
        given as a :class:`segunc.core.errors.NoteWarning`, each note once.

        Args:
            images: what the network takes, ``[n, 3, H, W]``.
            size: (height, width) of the maps, to which they are resized bilinearly; None for the
                network's input.
            keep_probabilities: also return the mean probabilities.
            whole: the frames of the images, RGB uint8 at their own size, for evidence that is made
                of these; without them the images are.

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
        whole: Sequence[Image] = (),
    ) -> Prediction:
        """Return the same without waiting for a GPU that still computes them: whoever reads the
        maps first calls :meth:`Prediction.require_finite`."""
        with CALLS, full_float32(), self._in_eval_mode(), torch.inference_mode():
            if self._runners and self._stamp != self._stamp_now():
                self._begin_again()
            try:
                prediction = self._predict(images, size, keep_probabilities, whole)
            finally:
                self._stamp = self._stamp_now()
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
        """Return what changes where a network is another one than before: its modules with their
        hooks and plain attributes, and its tensors with their memory and how often each was
        written."""
        stamp: list[Any] = []
        for network in self._networks():
            for module in network.modules():
                stamp.append(_stamp_of_code(module))
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    if tensor is not None:
                        version = 0 if tensor.is_inference() else tensor._version
                        stamp.append((id(tensor), version, tensor.data_ptr(), tensor.dtype))
        return stamp

    def _begin_again(self) -> None:
        """Forget what was made of a network that has changed since: draws, copies, compiled
        passes and the self-check."""
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
                warnings.warn(message, NoteWarning, stacklevel=_caller_level())

    def _predict(
        self,
        images: Tensor,
        size: tuple[int, int] | None,
        keep_probabilities: bool,
        whole: Sequence[Image],
    ) -> Prediction:
        check_parameters(self.network)
        check_images(images, self.network)
        images = to_device(images, self.device).contiguous(memory_format=torch.channels_last)
        self._prepare(images, self.noise)
        evidence = self._sample(images, whole)
        if len(images) > 1 and any(engine.branching for engine in self._engines.values()):
            # A branch that values decide was taken for the whole batch.
            ones = (slice(i, i + 1) for i in range(len(images)))
            evidence = [frame for one in ones for frame in self._sample(images[one], whole[one])]
        frames = [self._finish(frame, size, keep_probabilities) for frame in evidence]
        prediction, maps = self._joined(frames)
        sums: list[Any] = [
            provider
            for provider in self.fitted.providers
            if self._sums and hasattr(provider, "decades")
        ]
        reasons = []
        for number, frame in enumerate(evidence if sums else ()):
            parts = {name: maps[name][number] for provider in sums for name in provider.parts}
            reasons.append(Reasons(parts, sums, frame.nearest))
        kept = None
        if keep_probabilities:
            kept = torch.stack([cast(Tensor, frame.probabilities) for frame in frames])
        asked = {name: maps[name] for name in self.scores}
        extremes: list[Tensor] = []
        for frame_evidence in evidence:
            extremes += frame_evidence.extremes
        return Prediction(
            prediction, asked, kept, reasons, torch.stack(extremes) if extremes else None
        )

    def _joined(self, frames: Sequence[Prediction]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return predictions and maps of all scores of frames, ``[n, H, W]``, sums of others among
        them.
        """
        maps = {
            name: torch.stack([frame.scores[name] for frame in frames]) for name in frames[0].scores
        }
        prediction = torch.stack([frame.prediction for frame in frames])
        of_scores = (
            self._evidence("scores", {**maps, "prediction": prediction}) if self._sums else {}
        )
        return prediction, maps | {score.name: score(of_scores) for score in self._sums}

    def _finish(
        self, frame: FrameEvidence, size: tuple[int, int] | None, keep_probabilities: bool
    ) -> Prediction:
        """Return one frame's maps of all scores but sums of others, each ``[H, W]``; its sums over
        the draws are used up. Entropy and aleatoric are resized bilinearly to (height, width)
        ``size``, epistemic is their difference, and prediction and msp come from resized mean
        probabilities: entropies of these would mix neighbouring classes and write that into
        epistemic.
        """
        prediction, evidence = frame.draws.finish()
        if (calibrator := self.fitted.calibrator) is not None:
            calibrate = calibrator.calibrate if self._backend == "traced" else calibrator
            probabilities, entropy = calibrate(evidence["probabilities"])
            evidence |= {"probabilities": probabilities, "calibrated entropy": entropy}
        evidence |= frame.others
        resize = size is not None and size != evidence["probabilities"].shape[-2:]
        late = [score for score in self._of_draws if resize and score.resized == "evidence"]
        maps = {
            s.name: s(evidence)[0].float() for s in self._of_draws if s not in late
        } | frame.of_base
        if size is not None and resize:
            if maps:
                maps = dict(
                    zip(maps, _resized(torch.stack(list(maps.values())), size), strict=True)
                )
            needed = {"probabilities", *(name for score in late for name in score.needs)}
            evidence = {name: _resized(evidence[name], size) for name in needed}
            maps |= {score.name: score(evidence)[0].float() for score in late}
            prediction = evidence["probabilities"][0].max(0).indices.to(torch.uint8)
        return Prediction(
            prediction, maps, evidence["probabilities"][0] if keep_probabilities else None
        )

    def _evidence(
        self, source: Source, subject: Any, whole: Sequence[Image] = ()
    ) -> dict[str, Any]:
        """Return what is needed of one source of evidence, for images or maps; of whole frames it
        is resized to the images.
        """
        needs = {name for name in self._needs if EVIDENCE[name].source == source}
        evidence: dict[str, Any] = {}
        for provider in self.fitted.providers:
            if asked := needs & provider.gives:
                resized = len(whole) > 0 and getattr(provider, "whole", False)
                given = to_device(network_input(whole), self.device) if resized else subject
                found = provider(given, asked, self.precision, self.fitted.temperature)
                evidence |= (
                    {k: _resized(v, subject.shape[-2:]) for k, v in found.items()}
                    if resized
                    else found
                )
        return evidence

    def with_chunk(self, chunk: int | None) -> Sampler:
        """Return a sampler of the same draws in other batches; what was found out about the
        networks is shared.
        """
        other = copy.copy(self)
        other.chunk = chunk
        return other

    def drawn(self) -> Tensor | None:
        """Return the draws that :meth:`one_frame` takes, ``[2, S, T]`` scale and shift of the
        layers in which they differ; None where the model is not one network with such draws. The
        sampler has been called before.
        """
        return self._runners[0].own_draws() if len(self._runners) == 1 else None

    def one_frame(
        self, images: Tensor, draws: Tensor | None = None, *, any_size: bool = False
    ) -> Prediction:
        """Return the maps of one frame ``[1, 3, H, W]`` by plain operators of torch which look at
        no values, with all draws as a batch, so that a graph can be traced; ``draws`` stand in for
        :meth:`drawn`. The sampler has been called on a frame before, of this size unless the graph
        is for ``any_size``. InputError where the network's own code reads values, or where code
        that cannot be followed may look at sizes."""
        if any(engine.branching for engine in self._engines.values()):
            raise InputError(
                "the network's code reads values of its input, so that no one graph is right for every frame"
            )
        if any_size and any(engine.unfollowed for engine in self._engines.values()):
            raise InputError(
                "a part of the network runs code that cannot be followed, for instance "
                "TorchScript, so that its branches on the size of a frame are not known",
                hint="--size HxW",
            )
        other = self.with_chunk(self.draws)
        other._backend, other._pass, other.report = (
            "traced",
            PassOfAnySize if any_size else Pass,
            copy.copy(self.report),
        )
        if draws is not None:
            other._runners = [self._runners[0].with_draws(draws)]
        with CALLS, self._in_eval_mode():
            frame = other._finish(other._sample(images)[0], None, False)
            prediction, maps = other._joined([frame])
        return Prediction(prediction, {name: maps[name] for name in self.scores})

    def chunk_for(self, frames: int, size: tuple[int, int], classes: int) -> int:
        """Return how many draws are in a batch for ``frames`` frames of (height, width)
        ``size``.
        """
        if not self.report.batched:
            return 1
        pixels = frames * size[0] * size[1]
        if self.chunk is not None:
            most = self.chunk
        elif self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            # What earlier frames have freed is PyTorch's, not the driver's.
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(
                self.device
            )
            # Networks that do not end in an upsampling have float32 logits at full resolution, and
            # as much around.
            most = min(
                CUDA_CHUNK_PIXELS // (pixels * (1 + self.compiled)),
                int(free // 2 // (pixels * (ACTIVATION_BYTES + 8 * classes))),
            )
        else:
            most = CHUNK_PIXELS // pixels
        return max(1, min(self.draws, most))

    def _prepare(self, images: Tensor, noise: NoiseSource) -> None:
        """Make the runners, and check their networks with the first frames; then make their draws
        of this noise.
        """
        if self._runners:
            for runner in self._runners:
                runner.draw(noise, self.scope)
            return
        networks = self._networks()
        own = self._own(networks, images)
        engines, messages, copies = self._engines, self.report.messages, dict[int, Any]()
        make = CompiledEngine if self.compiled else Engine
        for network in networks:
            engines[id(network)] = make(network, self.precision, messages, own, copies)
        runners = []
        for index, branch in enumerate(self._branches):
            if draws := range(index, self.draws, len(self._branches)):
                runners.append(BranchRunner(branch, draws, engines[id(branch.network)]))
                runners[-1].draw(noise, self.scope, images)
        self._runners += runners
        for engine in engines.values():
            self._report(engine)

    def _own(self, networks: list[nn.Module], images: Tensor) -> frozenset[str]:
        """Return in what the networks differ, if what they have in common can be computed once;
        checked with the first frames.
        """
        own = (
            frozenset[str]()
            if any(branch.stochastic for branch in self._branches)
            else own_tensors(networks)
        )
        if not own or is_rounding(difference := check_common(networks, own, images)):
            return own
        by = f"(the logits change by {difference:.1e} of the largest)"
        self._say(
            f"what the networks have in common cannot be shared {by}; it is computed for each"
        )
        return frozenset()

    def _sample(self, images: Tensor, whole: Sequence[Image] = ()) -> list[FrameEvidence]:
        """Run the base network and all draws over frames, and return what each frame's maps are
        made of.
        """
        fitted, constants = (
            self._evidence("frame", images, whole),
            self._evidence("constant", images),
        )
        nearest = fitted.pop(NEAREST, [None] * len(images))
        first = self._runners[0]
        plain = first if first.branch.transform.identity else first.untransformed()
        if first.branch.network is not self.network:  # whose posterior draws other networks only
            plain = BranchRunner(
                Branch(self.network, Deterministic()), range(0), self._engines[id(self.network)]
            )
        common: dict[InputTransform, Prefix] = defaultdict(
            Prefix
        )  # of these frames, and gone with them

        def run(runner: BranchRunner) -> Pass:
            return self._pass(
                runner, images, common[runner.branch.transform] if runner.engine.own else None
            )

        base_pass = run(plain)
        base, upsampling = base_pass.base_logits()
        require_finite(base)
        if self.report.upsampled is None and (note := check_logits(self.network, base, images)):
            self._say(note)
        self.report.upsampled = base_pass.ending is not None
        shape, temperature = (
            (base.shape[1], upsampling.kept, base.device, self._backend),
            self.fitted.temperature,
        )
        extremes: list[Tensor] = []
        frames = []
        for number, logits in enumerate(base):
            of_base = base_maps(
                self._of_base, logits, upsampling, self._backend, temperature, constants
            )
            # Volumes at full resolution, which only a score of both draws and base network needs.
            others = (
                base_evidence(logits, upsampling, temperature) if self._both else {}
            ) | constants
            others |= {name: values[number, None] for name, values in fitted.items()}
            sums = DrawAccumulator(*shape, needs=self._needs, temperature=temperature)
            frames.append(FrameEvidence(sums, of_base, others, nearest[number], extremes))
        sums_of_frames = [frame.draws for frame in frames]
        for runner in self._runners:
            if runner is not plain:
                extremes += self._add_branch(runner, run(runner), images, sums_of_frames)
            elif runner.folded is None:
                add_draws(
                    sums_of_frames, [base], len(runner.draws), upsampling, runner.branch.transform
                )
            else:
                del base, logits
                extremes += self._add_branch(runner, base_pass, images, sums_of_frames)
        return frames

    def _add_branch(
        self, runner: BranchRunner, branch_pass: Pass, images: Tensor, sums: list[DrawAccumulator]
    ) -> list[Tensor]:
        """Run the draws of a branch over images, a chunk at a time, and add them to the sums of
        each frame. Return the smallest and the largest logit of each chunk, ``[2]`` float32: a tail
        may hide NaN, and to look at each at once would wait for a GPU."""
        total, transform = len(runner.draws), runner.branch.transform
        if runner.folded is None:
            logits, upsampling = branch_pass.base_logits()
            require_finite(logits)
            add_draws(sums, [logits], total, upsampling, transform)
            return []
        chunk = self.chunk_for(len(images), (images.shape[-2], images.shape[-1]), sums[0].shape[0])
        done, waiting = 0, list[Tensor]()
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
            if (
                done == total
                or sum(part.numel() * part.element_size() for part in waiting) >= PENDING_BYTES
            ):
                add_draws(sums, waiting, sum(map(len, waiting)) // len(sums), upsampling, transform)
                waiting = []
        return extremes

    def _report(self, engine: Engine) -> None:
        """Take what the self-check of a network found into the report."""
        check, report = engine.self_check, self.report
        if check is None:
            return
        unreached = tuple(
            n for n, reached in zip(engine.layout.names, check.reached, strict=True) if not reached
        )
        batched, shared = is_rounding(check.batched), is_rounding(check.shared)
        report.self_check = max(check.batched, report.self_check or 0.0)
        report.batched &= batched
        report.shared &= shared
        report.unreached += unreached
        say = self._say
        if not is_rounding(check.repeated):
            what = f"two passes of the same frame and draw differ by {check.repeated:.1e} of the largest logit: the network draws random numbers"
            say(
                f"{what} itself, which no seed decides here; switch its noise or its dropout off in eval mode"
            )
        elif not batched:
            what = (
                f"two draws as a batch differ from the same two one by one by {check.batched:.1e}"
            )
            say(f"self-check failed: {what} of the largest logit; draws run one at a time")
        if is_rounding(check.repeated) and not shared and check.differ:
            what = f"the logits change by {check.shared:.1e} of the largest"
            what = f"what is common to all draws cannot be shared on this network ({what})"
            say(f"{what}; everything is computed for every draw")
        if unreached:
            say(
                f"{len(unreached)} normalisation layers are never called by the network, e.g. {unreached[0]}"
            )


def _stamp_of_code(module: nn.Module) -> tuple[Any, ...]:
    """Return what changes where a module gets or loses a hook, a ``forward`` of its own, or another
    value of an attribute that is a number or a text. A hook's number is given once in a process."""
    attributes = vars(module)
    values = []
    for name, value in attributes.items():
        if name != "training" and isinstance(value, (bool, int, float, str)):
            values.append((name, value))
    hooks = (*module._forward_hooks, *module._forward_pre_hooks)
    return id(module), id(attributes.get("forward")), hooks, values


def _caller_level() -> int:
    """Return how many frames above the function that asks the first code stands that is neither
    ours nor a library's of ours."""
    ours = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), contextlib.__file__)
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
        level += 1
    return level


def sample_frames(
    sampler: Sampler,
    images: Sequence[Image],
    *,
    size: tuple[int, int] | None = None,
    keep_probabilities: bool = False,
    wait: bool = True,
) -> Prediction:
    """Return the maps of frames RGB uint8 ``[H, W, 3]`` of one size, at their own size. The
    :class:`SegmentationNetwork` sees (height, width) ``size``, None: its inference size for the
    frame; the rest is of :meth:`Sampler.__call__`, or where nobody shall ``wait`` for a GPU of
    :meth:`Sampler.start`."""
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    frame = (images[0].shape[0], images[0].shape[1])
    batch = network_input(images, inference_size(network.description, frame, size))
    run = sampler if wait else sampler.start
    return run(batch, size=frame, keep_probabilities=keep_probabilities, whole=images)


def fault_of(error: Exception, image: Image | None) -> InputError:
    """Return why one frame has no maps where that is the frame's own: it is refused, or too large
    for memory; else raise the error.
    """
    if isinstance(error, InputError):
        return error
    no_memory = is_out_of_memory(error)
    # A plain RuntimeError is what operators raise for shapes. Subclasses (torch.AcceleratorError)
    # and CUDA libraries mean the device.
    of_shapes = type(error) is RuntimeError and not re.search(
        "cuda|cudnn|cublas", str(error), re.IGNORECASE
    )
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


def network_input(images: Sequence[Image], size: tuple[int, int] | None = None) -> Tensor:
    """Return RGB uint8 images ``[H, W, 3]`` as float32 ``[n, 3, h, w]`` in 0..1, at (height, width)
    ``size``, None: their own; bilinear, or the mean over areas where it shrinks.
    """
    resized = []
    for image in images:
        if size is not None and image.shape[:2] != size:
            interpolation = cv2.INTER_AREA if size[0] < image.shape[0] else cv2.INTER_LINEAR
            image = np.asarray(
                cv2.resize(image, (size[1], size[0]), interpolation=interpolation), np.uint8
            )
        resized.append(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return torch.from_numpy(np.stack(resized)).float().div_(255.0)


def _resized(planes: Any, size: tuple[int, int]) -> Any:
    if not isinstance(planes, Tensor):
        return planes
    volume = planes.float() if planes.dim() == 4 else planes[None].float()
    resized = F.interpolate(volume, size, mode="bilinear", align_corners=False)
    return resized if planes.dim() == 4 else resized[0]
