"""``segunc predict``: maps of images, folders, globs or videos."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from segunc.core.errors import InputError, PartialFailure
from segunc.options import PredictOptions, takes
from segunc.verbs.execution import InputResult, open_job, predict_input


class PredictResult(NamedTuple):
    """What a run did."""

    out: Path  # the maps folder, or the folder of one for each input
    inputs: tuple[InputResult, ...]  # those that came to their end
    notes: tuple[str, ...] = ()  # what a user should know
    # What went wrong meanwhile, in one line; empty where nothing did. What was finished is kept.
    failure: str = ""

    @property
    def frames(self) -> int:
        """Frames whose maps were written now."""
        return sum(part.summary.finished for part in self.inputs)

    @property
    def failed(self) -> dict[str, str]:
        """Frame -> why it has no maps; with several inputs, behind the input's label."""
        failures = (
            (part.label, name, why)
            for part in self.inputs
            for name, why in part.summary.failed.items()
        )
        return {f"{label}/{name}" if label else name: why for label, name, why in failures}


@takes(PredictOptions)
def predict(options: PredictOptions) -> PredictResult:
    """Write the maps of every input, or continue a run that was killed.

    Raises:
        InputError: what was given cannot be predicted.
        PartialFailure: the only input came to no end; what was finished is kept.

    >>> result = predict(PredictOptions(model=abnn, input=frames, out=folder / "maps", draws=4, device="cpu"))
    >>> result.frames, result.failed
    (2, {})
    >>> len(list((result.out / "epistemic").glob("*.png")))
    2
    """
    results, failures = [], []
    with open_job(options) as job:
        for place, target in enumerate(job.inputs):
            try:
                results.append(predict_input(job, place))
                failure = results[-1].summary.failure
            except (InputError, PartialFailure) as error:
                if len(job.inputs) == 1:
                    raise
                failure = str(error)
            if failure:
                failures.append(f"{target.label}: {failure}" if target.label else failure)
    failure = failures[0] if failures else ""
    if failures and len(job.inputs) > 1:
        failure = f"{len(failures)} of {len(job.inputs)} inputs failed; {'; '.join(failures)}"
    return PredictResult(
        Path(options.out), tuple(results), tuple(job.sampler.report.messages), failure
    )
