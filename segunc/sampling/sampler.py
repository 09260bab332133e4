"""The sampler: S draws of one network, or of several, over the same sums, and the maps of the scores asked for.

It deals draws to branches (:mod:`segunc.sampling.runner`), takes their logits, a chunk at a time, from the engine
(:mod:`segunc.sampling.engine`), and hands them to the sums (:mod:`segunc.sampling.tail`).
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from segunc.affine.convert import is_converted
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource, Scheme
from segunc.affine.posterior import AnyPosterior, Branch, Deterministic, InputTransform, branches_of, draws_of
from segunc.core.device import Precision, full_float32, to_device
from segunc.core.errors import InputError, is_out_of_memory
from segunc.data.images import Image
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.networks.values import check_images, check_logits
from segunc.sampling.engine import Engine, check_common, is_rounding, own_tensors, require_finite
from segunc.sampling.frames import Prediction, calibrate, finish_frame, network_input
from segunc.sampling.prefix import Prefix
from segunc.sampling.runner import BranchRunner, Pass
from segunc.sampling.tail import DrawAccumulator, add_draws, base_evidence, base_maps, choose_backend
from segunc.scores import DEFAULT_SCORES, EVIDENCE, SCORES, Source, check_scores, with_parts
from segunc.uncertainty import Calibrator

PENDING_BYTES = 64 << 20
"""Logits that wait until several draws are added to the sums at once."""
CHUNK_PIXELS = 1 << 19
"""Pixels of a batch on a CPU: with more, activations leave the cache between layers and every pass gets slower."""
ACTIVATION_BYTES = 512
"""Memory of activations for a pixel of input on a GPU, on the safe side; what does not fit is halved."""
CUDA_BATCH_PIXELS = 1 << 22
"""Pixels of a batch up to which a GPU is taken to have cores to spare; more frames are no gain."""
MOST_FRAMES = 16
"""Frames of a group at most: as many are decoded, kept and, after a kill, computed again together."""


def frames_at_once(device: torch.device, size: tuple[int, int], draws: int) -> int:
    """Return how many frames of (height, width) ``size`` share a batch when nobody says how many.

    On a GPU as many as fill it with all their draws; it depends on the pixels alone, not on free memory, so that every
    shard of a run groups alike. On a CPU one: the draws of one frame mostly fill a chunk (below 250 x 250 pixels four
    frames at once saved an eighth), and frames alone have the very bits that evaluating frame by frame has.
    """
    if device.type != "cuda":
        return 1
    return max(1, min(MOST_FRAMES, CUDA_BATCH_PIXELS // (draws * size[0] * size[1])))


class Provider(Protocol):
    """Gives evidence that was fitted on a model. A sum of scores also names these, as its ``parts``."""

    @property
    def gives(self) -> frozenset[str]: ...
    def __call__(
        self, given: Any, needs: Collection[str], precision: Precision, temperature: float, /
    ) -> dict[str, Any]:
        """Return what is needed of it, by the names of :data:`segunc.scores.EVIDENCE`: for the images ``[n, 3, H, W]`` in 0..1 maps
        ``[n, H, W]``, or a constant; or for the maps of its parts ``[n, H, W]``, by name, maps of their size."""


@dataclass
class SamplerReport:
    """What the sampler found out about the network, or all networks of an ensemble, on first use; None before it."""

    batched: bool = True  # draws run as a batch: no network failed its self-check
    shared: bool = True  # what is the same for all draws is computed once, likewise
    self_check: float | None = None  # largest relative difference between two draws as a batch and one by one
    unreached: tuple[str, ...] = ()  # sites that no drawn forward came through, whose noise therefore does nothing
    upsampled: bool | None = None  # whether the network's last upsampling was taken over by the sampler
    messages: list[str] = field(default_factory=list)  # what a user should know


class FrameEvidence(NamedTuple):
    """What the maps of one frame are made of."""

    draws: DrawAccumulator
    of_base: dict[str, Tensor]  # maps [H, W] of scores of the base network alone
    others: dict[str, Any]  # evidence of the base network and of what was fitted on the model


class Sampler:
    """Samples a converted network and returns the prediction and the scores that are asked for.

    Every posterior is a list of branches (network, input transform, posterior; mostly one): draw s belongs to branch s
    mod B. The draws of one branch after the other are added to the same sums, in the order of s. The same (posterior, seed, S) gives the same
    maps for any chunk size, batch size or order of frames, up to rounding where a library sums in another order for
    another batch size.

    Args:
        network: from images ``[n, 3, H, W]`` to logits ``[n, C, H, W]``; converted, unless the posterior is
            deterministic. It is put into eval mode. The base scores are its own, of the untransformed frame; of an
            ensemble it is the first network.
        posterior: makes the draws; None is the deterministic network itself.
        draws: S in total; draw s belongs to member s mod M. Ignored by a posterior without noise, which has one draw
            for each branch.
        seed: of the noise.
        scheme: how draws of one member are spread, see :class:`segunc.affine.noise.NoiseSource`.
        scope: sample fewer sites than the posterior's own scope, or None.
        chunk: draws in a batch; None chooses by memory, for the first frame.
        precision: ``float32``, or ``bfloat16`` for weights and activations; sums are float32 or wider in both. With
            ``bfloat16`` the weights are copied at the first frame: later changes to the network are not seen.
        scores: names of :data:`segunc.scores.SCORES`; further sums are kept only for those that need them.
        temperature: T, by which the logits of every draw, and of the base network, are divided before the softmax.
        calibrator: of the mean over the draws. The mean probabilities, msp and entropy are of the calibrated mean, and so is
            the prediction, which a calibrator of more than one number may change; aleatoric and epistemic are of the draws
            as they are, so that entropy is no longer their sum, and the base network's scores, and those of logits, of
            logits as they are.
        fitted: what gives evidence that was fitted on the model, see :meth:`segunc.posteriors.model.Model.fitted`. Maps of a frame are
            made once, whatever the draws; of a sum of scores the parts are made, too.
        compiled: run whole chunks of draws through torch.compile, which takes ten seconds and more for each size of
            frame and a C++ compiler (CPU) or Triton (CUDA); where it fails, draws run as they are.

    Raises:
        InputError: fewer draws than members, a chunk below 1, an unconverted network with a posterior, an unknown
            score, a score of what was not fitted, or a temperature that is not positive.
    """

    def __init__(
        self,
        network: nn.Module,
        posterior: AnyPosterior | None = None,
        *,
        draws: int = 24,
        seed: int = 0,
        scheme: Scheme = DEFAULT_SCHEME,
        scope: str | None = None,
        chunk: int | None = None,
        precision: Precision = "float32",
        scores: Sequence[str] = DEFAULT_SCORES,
        temperature: float = 1.0,
        calibrator: Calibrator | None = None,
        fitted: Sequence[Provider] = (),
        compiled: bool = False,
    ) -> None:
        self.network = network.eval()
        self.posterior = None if posterior is None or isinstance(posterior, Deterministic) else posterior
        self._branches = branches_of(network, self.posterior)
        for branch in self._branches:
            branch.network.eval()
            if branch.stochastic and not is_converted(branch.network):
                raise InputError("the network of a posterior is not converted", hint="call segunc.convert on it first")
        self.draws = draws_of(self._branches, self.posterior, draws)
        if chunk is not None and chunk < 1:
            raise InputError(f"a chunk of {chunk} draws is none", hint="leave it out to have it chosen by memory")
        self.scores = check_scores(scores)
        self.fitted = tuple(fitted)
        table = [SCORES[name] for name in with_parts(self.scores, self.fitted)]
        there = frozenset[str]().union(*(provider.gives for provider in self.fitted))
        for score in table:
            for need in score.needs if score.sources - {"draws", "base"} else ():
                if (evidence := EVIDENCE[need]).without and need not in there:
                    raise InputError(
                        f"score {score.name} of a model {evidence.without} cannot be made",
                        hint=evidence.remedy(score.name),
                    )
        self._of_base = [score for score in table if score.sources <= {"base", "constant"}]
        self._sums = [score for score in table if "scores" in score.sources]
        self._of_draws = [score for score in table if score not in self._of_base and score not in self._sums]
        self._needs = {name for score in table for name in score.needs}
        self._both = any("base" in score.sources for score in self._of_draws)
        if not (temperature > 0 and math.isfinite(temperature)):
            raise InputError(f"a temperature of {temperature} is not positive", hint="1 changes nothing")
        self.temperature, self.calibrator = temperature, calibrator
        self.seed, self.scope, self.chunk, self.precision = seed, scope, chunk, precision
        self.noise = NoiseSource(seed, scheme, self.draws)
        self.compiled = compiled
        self.device = next(network.parameters()).device
        self.report = SamplerReport()
        self._runners: list[BranchRunner] = []  # changed in place: copies with another execution share them
        self._engines: dict[int, Engine] = {}  # by the id of their network, likewise
        self._backend, why = choose_backend(self.device)
        if why:
            self.report.messages.append(why)

    @torch.inference_mode()
    @full_float32()
    def __call__(
        self,
        images: Tensor,
        *,
        size: tuple[int, int] | None = None,
        keep_probabilities: bool = False,
        calibrated: bool = True,
        seed: int | None = None,
    ) -> Prediction:
        """Return the maps of n frames of one size.

        Args:
            images: what the network takes, ``[n, 3, H, W]``.
            size: (height, width) of the maps; None for the network's input. Maps and mean probabilities are
                resized bilinearly; prediction and msp come from the resized probabilities.
            keep_probabilities: also return the mean probabilities.
            calibrated: False returns them as the draws gave them, at the size of the network's output, ``[n, C, h, w]``: what is
                blended over tiles is calibrated after that.
            seed: of other draws for these frames alone; None for the sampler's own.

        Raises:
            NotFiniteError: the images hold, or the network returns, NaN or infinite values.
            InputError: it returns no dense logits, or images of another type or range than it takes.
        """
        check_images(images, self.network)
        images = to_device(images, self.device).contiguous(memory_format=torch.channels_last)
        self._prepare(images, self.noise if seed is None else replace(self.noise, seed=seed))
        evidence = self._sample(images)
        if len(images) > 1 and any(engine.branching for engine in self._engines.values()):
            # A branch that values decide was taken for the whole batch.
            frames = [
                self(i[None], size=size, keep_probabilities=keep_probabilities, calibrated=calibrated, seed=seed)
                for i in images
            ]
            return Prediction(
                torch.cat([frame.prediction for frame in frames]),
                {name: torch.cat([frame.scores[name] for frame in frames]) for name in self.scores},
                torch.cat([cast(Tensor, frame.probabilities) for frame in frames]) if keep_probabilities else None,
            )
        frames = [self._finish(frame, size, keep_probabilities, calibrated) for frame in evidence]
        maps = {name: torch.stack([frame.scores[name] for frame in frames]) for name in frames[0].scores}
        if self._sums:
            of_scores = self._evidence("scores", maps)
            maps |= {score.name: score(of_scores) for score in self._sums}
        return Prediction(
            torch.stack([frame.prediction for frame in frames]),
            {name: maps[name] for name in self.scores},
            torch.stack([cast(Tensor, frame.probabilities) for frame in frames]) if keep_probabilities else None,
        )

    def _finish(
        self, frame: FrameEvidence, size: tuple[int, int] | None, keep_probabilities: bool, calibrated: bool
    ) -> Prediction:
        """Return one frame's maps of all scores but sums of others, each ``[H, W]``; its sums over the draws are used up."""
        prediction, evidence = frame.draws.finish()
        raw = evidence["probabilities"]
        most_probable = None if self.calibrator is not None and not self.calibrator.scalar else prediction
        if self.calibrator is not None:
            evidence = calibrate(evidence, self.calibrator)
        evidence |= frame.others
        finished = finish_frame(self._of_draws, evidence, size, most_probable, frame.of_base, keep=keep_probabilities)
        return finished if calibrated else replace(finished, probabilities=raw[0])

    def _evidence(self, source: Source, subject: Any) -> dict[str, Any]:
        """Return what is needed of one source of that which was fitted on the model, for images or maps."""
        needs = {name for name in self._needs if EVIDENCE[name].source == source}
        evidence: dict[str, Any] = {}
        for provider in self.fitted:
            if asked := needs & provider.gives:
                evidence |= provider(subject, asked, self.precision, self.temperature)
        return evidence

    def with_execution(self, *, chunk: int | None, compiled: bool) -> Sampler:
        """Return a sampler of the same draws of the same networks, computed in another way; what was found out about them is shared.
        The arguments are those of the class."""
        other = copy.copy(self)
        other.chunk, other.compiled = chunk, compiled
        return other

    def chunk_for(self, frames: int, size: tuple[int, int], classes: int) -> int:
        """Return how many draws are in a batch for ``frames`` frames of (height, width) ``size``."""
        if not self.report.batched:
            return 1
        pixels = frames * size[0] * size[1]
        if self.chunk is not None:
            most = self.chunk
        elif self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            # What earlier frames have freed is PyTorch's, not the driver's.
            free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            # Networks that do not end in an upsampling have float32 logits at full resolution, and as much around.
            most = int(free // 2 // (pixels * (ACTIVATION_BYTES + 8 * classes)))
        else:
            most = CHUNK_PIXELS // pixels
        return max(1, min(self.draws, most))

    def _prepare(self, images: Tensor, noise: NoiseSource) -> None:
        """Make the runners, and check their networks with the first frames; then make their draws of this noise."""
        if self._runners:
            for runner in self._runners:
                runner.draw(noise, self.scope)
            return
        networks = {id(network): network for network in (self.network, *(b.network for b in self._branches))}
        own = self._own(list(networks.values()), images)
        engines, messages, copies = self._engines, self.report.messages, dict[int, Any]()
        engines |= {key: Engine(n, self.precision, messages, own, copies) for key, n in networks.items()}
        runners = []
        for index, branch in enumerate(self._branches):
            if draws := range(index, self.draws, len(self._branches)):
                runners.append(BranchRunner(branch, draws, engines[id(branch.network)]))
                runners[-1].draw(noise, self.scope, images)
        # Draw s is member s mod M's, so that the members take turns like branches.
        self._runners += runners[0].by_member(noise, self.scope, images) if len(runners) == 1 else runners
        for engine in engines.values():
            self._report(engine)

    def _own(self, networks: list[nn.Module], images: Tensor) -> frozenset[str]:
        """Return in what the networks differ, if what they have in common can be computed once; checked with the first frames."""
        if any(branch.stochastic for branch in self._branches) or not (own := own_tensors(networks)):
            return frozenset()
        if is_rounding(difference := check_common(networks, own, images)):
            return own
        self.report.messages.append(
            f"what the networks have in common cannot be shared (the logits change by {difference:.1e} of the largest); "
            "it is computed for each"
        )
        return frozenset()

    def _sample(self, images: Tensor) -> list[FrameEvidence]:
        """Run the base network and all draws over frames, and return what each frame's maps are made of."""
        fitted, constants = self._evidence("frame", images), self._evidence("constant", images)
        first = self._runners[0]
        plain = first if first.branch.transform.identity else first.untransformed()
        if first.branch.network is not self.network:  # whose posterior draws other networks only
            plain = BranchRunner(Branch(self.network, Deterministic()), range(0), self._engines[id(self.network)])
        common: dict[InputTransform, Prefix] = defaultdict(Prefix)  # of these frames, and gone with them

        def run(runner: BranchRunner) -> Pass:
            return Pass(runner, images, common[runner.branch.transform] if runner.engine.own else None)

        base_pass = run(plain)
        base, upsampling = base_pass.base_logits()
        require_finite(base)
        if self.report.upsampled is None and (note := check_logits(self.network, base, images)):
            self.report.messages.append(note)
        self.report.upsampled = base_pass.ending is not None
        how = (self.temperature, getattr(self.network, "logarithms", False))
        shape = (base.shape[1], upsampling.kept, base.device, self._backend)
        frames = []
        for number, logits in enumerate(base):
            of_base = base_maps(self._of_base, logits, upsampling, self._backend, *how, constants)
            # Volumes at full resolution, which only a score of both draws and base network needs.
            others = (base_evidence(logits, upsampling, *how) if self._both else {}) | constants
            others |= {name: values[number, None] for name, values in fitted.items()}
            sums = DrawAccumulator(*shape, needs=self._needs, temperature=how[0], logarithms=how[1])
            frames.append(FrameEvidence(sums, of_base, others))
        sums_of_frames = [frame.draws for frame in frames]
        for runner in self._runners:
            if runner is not plain:
                self._add_branch(runner, run(runner), images, sums_of_frames)
            elif runner.folded is None:
                add_draws(sums_of_frames, [base], len(runner.draws), upsampling, runner.branch.transform)
            else:
                del base, logits
                self._add_branch(runner, base_pass, images, sums_of_frames)
        return frames

    def _add_branch(self, runner: BranchRunner, branch_pass: Pass, images: Tensor, sums: list[DrawAccumulator]) -> None:
        """Run the draws of a branch over images, a chunk at a time, and add them to the sums of each frame."""
        total, transform = len(runner.draws), runner.branch.transform
        if runner.folded is None:
            logits, upsampling = branch_pass.base_logits()
            require_finite(logits)
            add_draws(sums, [logits], total, upsampling, transform)
            return
        chunk = self.chunk_for(len(images), (images.shape[-2], images.shape[-1]), sums[0].shape[0])
        if self.compiled and self.device.type == "cuda":
            self.chunk = chunk  # a graph is for one number of draws, which free memory must not change
        done, waiting = 0, list[Tensor]()
        while done < total:
            together = 1 if branch_pass.alone else min(chunk, total)
            count = min(together, total - done)
            try:
                logits, upsampling = branch_pass.logits(done, done + count, self.compiled and count == together)
            except Exception as error:
                if count == 1 or not is_out_of_memory(error):
                    raise
                chunk = self.chunk = max(1, count // 2)
                self.report.messages.append(f"out of memory: chunk halved to {chunk}")
                torch.cuda.empty_cache()
                continue
            if done == 0 and runner is not self._runners[0]:
                require_finite(logits)  # the first branch was checked by its base
            done += count
            waiting.append(logits)
            if done == total or sum(part.numel() * part.element_size() for part in waiting) >= PENDING_BYTES:
                add_draws(sums, waiting, sum(map(len, waiting)) // len(sums), upsampling, transform)
                waiting = []

    def _report(self, engine: Engine) -> None:
        """Take what the self-check of a network found into the report."""
        check, report = engine.self_check, self.report
        if check is None:
            return
        unreached = tuple(n for n, reached in zip(engine.layout.names, check.reached, strict=True) if not reached)
        batched, shared = is_rounding(check.batched), is_rounding(check.shared)
        report.self_check = max(check.batched, report.self_check or 0.0)
        report.batched &= batched
        report.shared &= shared
        report.unreached += unreached
        if not is_rounding(check.repeated):
            report.messages.append(
                f"two passes of the same frame and draw differ by {check.repeated:.1e} of the largest logit: the network draws "
                "random numbers itself, which no seed decides here; switch its noise or its dropout off in eval mode"
            )
        elif not batched:
            report.messages.append(
                "self-check failed: two draws as a batch differ from the same two one by one by "
                f"{check.batched:.1e} of the largest logit; draws run one at a time"
            )
        if is_rounding(check.repeated) and not shared:
            report.messages.append(
                "what is common to all draws cannot be shared on this network (the logits change by "
                f"{check.shared:.1e} of the largest); everything is computed for every draw"
            )
        if unreached:
            report.messages.append(f"{len(unreached)} norm sites are never called by the network, e.g. {unreached[0]}")


def sample_frames(
    sampler: Sampler,
    images: Sequence[Image],
    *,
    size: tuple[int, int] | None = None,
    keep_probabilities: bool = False,
    seed: int | None = None,
) -> Prediction:
    """Return the maps of frames RGB uint8 ``[H, W, 3]`` of one size, at their own size. The network, a
    :class:`SegmentationNetwork`, sees (height, width) ``size``; None is its inference size for the frame.
    ``keep_probabilities`` and ``seed`` are those of :meth:`Sampler.__call__`."""
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    frame = (images[0].shape[0], images[0].shape[1])
    batch = network_input(images, inference_size(network.description, frame, size))
    return sampler(batch, size=frame, keep_probabilities=keep_probabilities, seed=seed)
