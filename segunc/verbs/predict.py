"""``segunc predict``: maps of images, folders, globs or videos."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from segunc.affine.convert import takes_noise
from segunc.affine.posterior import Deterministic
from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.core.results import VerbResult
from segunc.core.urls import is_url, shown_url
from segunc.maps.shards import parse_shard
from segunc.networks.description import COLOUR
from segunc.options import PathLike, PredictOptions, is_source, takes
from segunc.verbs.execution import InputResult, open_job, predict_input
from segunc.verbs.ray_workers import RayWorkers, connected

if TYPE_CHECKING:
    from segunc.posteriors.model import Model


@dataclass(frozen=True, repr=False)
class PredictResult(VerbResult):
    """What a run did.

    Attributes:
        out: the maps folder, or the folder of one for each input; a URL where one was given.
        inputs: the inputs that were finished.
        notes: what a user should know.
        failure: what went wrong meanwhile, in one line; empty if nothing did. What was finished is
            kept.
        hint: what would find unknown objects better; empty if the model has it, or was named by its
            folder.
    """

    shown_properties: ClassVar[tuple[str, ...]] = ("frames", "failed")

    out: Path | str
    inputs: tuple[InputResult, ...]
    notes: tuple[str, ...] = ()
    failure: str = ""
    hint: str = ""

    @property
    def frames(self) -> int:
        """Frames whose maps were written now."""
        return sum(part.summary.finished for part in self.inputs)

    @property
    def failed(self) -> dict[str, str]:
        """Frame -> why it has no maps; with several inputs, behind the input's label."""
        reasons: dict[str, str] = {}
        for part in self.inputs:
            for name, reason in part.summary.failed.items():
                key = f"{part.label}/{name}" if part.label else name
                reasons[key] = reason
        return reasons


@takes(PredictOptions)
def predict(options: PredictOptions) -> PredictResult:
    """Write the maps of every input, or continue a run that was killed.

    Raises:
        InputError: the inputs or the model cannot be used.
        PartialFailure: the only input was not finished; what was finished of it is kept.

    >>> out = folder / "maps"
    >>> options = PredictOptions(model=abnn, input=frames, out=out, draws=4, device="cpu")
    >>> result = predict(options)
    >>> result.frames, result.failed
    (2, {})
    >>> len(list((result.out / "epistemic").glob("*.png")))
    2
    """
    results: list[InputResult] = []
    failures: list[str] = []
    notes: list[str] = []
    with contextlib.ExitStack() as opened:
        if options.ray:
            opened.enter_context(connected(options.ray))
        job = opened.enter_context(open_job(options))
        cluster = None
        if options.ray:
            cluster = RayWorkers(job)
            opened.callback(cluster.stop)
            cluster.begin()
            notes = cluster.notes
        for place, target in enumerate(job.inputs):
            try:
                result = predict_input(job, place, cluster)
                results.append(result)
                failure = result.summary.failure
            except (InputError, PartialFailure) as error:
                if len(job.inputs) == 1:
                    raise
                failure = one_line(error)
            if failure:
                failures.append(f"{target.label}: {failure}" if target.label else failure)
    return PredictResult(
        out=shown_url(str(options.out)) if is_url(options.out) else Path(options.out),
        inputs=tuple(results),
        notes=(*job.sampler.report.messages, *_notes_on_noise(options, job.model), *notes),
        failure=_in_one_line(failures, len(job.inputs)),
        hint=_hint(options, job.model.network.description.channels),
    )


def _notes_on_noise(options: PredictOptions, model: Model) -> list[str]:
    """Return a note on a model that runs once only because it is a plain network; none where the
    user chose the number of draws or the scores.
    """
    from segunc.posteriors.abnn import FROZEN

    is_plain = model.posterior.method == Deterministic.method
    is_chosen = options.draws != PredictOptions.draws or options.scores
    # Of several shards the first one says it.
    is_later_shard = options.shard is not None and parse_shard(options.shard).number > 1
    if not is_plain or is_chosen or is_later_shard:
        return []
    note = "the model has no noise: each frame is run once, and there are no maps of epistemic"
    if takes_noise(model.network):
        # A network by its source, too, is a base network.
        base = shlex.quote(str(options.model))
        command = f"segunc finetune --base {base} {FROZEN} --out {_model_with_noise(options.model)}"
        note += f"; {command} adds noise without training"
    return [note]


def _model_with_noise(model: PathLike) -> str:
    """Return the folder that a command proposes for a model with noise, quoted; it is free beside
    a model folder."""
    if is_source(model):
        return "runs/abnn"
    base = Path(model)
    if not base.name:  # the working folder
        base = base.resolve()
    return shlex.quote(str(base.with_name(f"{base.name}-abnn")))


def _hint(options: PredictOptions, channels: int) -> str:
    """Return what would find unknown objects better than a network by its source does, with the
    commands; empty where the user chose a model or scores, or where the network takes other images
    than those of three ``channels``, which a second encoder needs.

    The numbers are those of ``docs/boards.md`` on RoadObstacle21: "The packaged bank" (``knn``
    alone, and the entropy of FDDWNet), and "A bank from the operator's own road" (``knn``).
    """
    if not is_source(options.model) or options.scores or channels != COLOUR:
        return ""
    finetune = f"segunc finetune --base {shlex.quote(str(options.model))}"
    return (
        f"{finetune} --method anomaly --out runs/anomaly adds the score of a second encoder, whose "
        "FPR95 on RoadObstacle21 is .160 where the entropy of a Cityscapes network has .645. "
        "A bank of five frames of the own road has .012: --method features --features.extend "
        "packaged --features.images FOLDER --out runs/road, then predict --scores knn"
    )


def _in_one_line(failures: Sequence[str], inputs: int) -> str:
    """Return the failures of a run over so many inputs, empty if there are none."""
    if not failures:
        return ""
    if inputs == 1:
        return failures[0]
    return f"{len(failures)} of {inputs} inputs failed; {'; '.join(failures)}"
