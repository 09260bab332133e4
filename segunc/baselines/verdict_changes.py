"""Which alarms of a run are left after verdicts entered the bank: the maps of its frames are made
once more with the new bank, and alarms before and after are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource, Scheme
from segunc.baselines.verdict_features import (
    FALSE_ALARM,
    JudgedFrame,
    JudgedRun,
    Mask,
    images_of,
    mask_of,
)
from segunc.core.progress import ConsoleProgress
from segunc.data.channels import shown_colours
from segunc.data.images import AnyImage
from segunc.decisions.flags import SMALLEST_REGION
from segunc.gallery.change_page import (
    ChangedAlarm,
    Changes,
    Coverage,
    JudgedRegions,
    draw_change,
    write_change_page,
)
from segunc.gallery.colours import page_ranges
from segunc.maps.encoding import decode_compact, decode_unit, encode_compact, encode_score
from segunc.maps.reader import MapsReader
from segunc.maps.regions import (
    MAX_LISTED_REGIONS,
    StrongRegion,
    regions_of,
    strongest_regions,
)
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler, sample_frames
from segunc.scores import FEATURE_DISTANCE, SCORES, with_parts
from segunc.training.batches import spaced

TRUE_ALARM = "true-alarm"
MIN_NOTABLE_SHARE = 0.1
"""Share of an alarm or of a judged region from which on their overlap is notable. Outlines of two
neighbouring regions may overlap by a few pixels.
"""
Values = npt.NDArray[np.float32]


def tell_changes(
    model: Model,
    judged: JudgedRun,
    settings: Any,
    lines: Sequence[str],
    say: Callable[[str], None],
    *,
    quiet: bool,
) -> None:
    """Say which alarms are left, and write the page of them if the settings name one.

    Args:
        model: with the new bank, and with the sum of scores of before.
        judged: the run and its verdicts.
        settings: a :class:`segunc.baselines.features.FeatureDensity`.
        lines: what entered the bank, in sentences.
        say: receives each line.
        quiet: whether no progress is shown.
    """
    pictures = settings.changes is not None
    changes = compare_alarms(
        model, judged, settings.compared, settings.images, pictures=pictures, quiet=quiet
    )
    if isinstance(changes, str):
        missing = f", and {settings.changes} is not written" if pictures else ""
        say(f"note: alarms before and after are not compared{missing}: {changes}")
        return
    for sentence in changes.sentences():
        say(sentence)
    say(changes.condition())
    if changes.warning():
        say(f"WARNING: {changes.warning()}")
    if pictures:
        write_change_page(Path(settings.changes), changes, lines)
        say(f"wrote {settings.changes}")


def compare_alarms(
    model: Model,
    judged: JudgedRun,
    limit: int,
    images: str | None,
    *,
    pictures: bool = False,
    quiet: bool = True,
) -> Changes | str:
    """Return the alarms of a run before and after, or a sentence that says why they cannot be
    compared.

    Alarms are the regions that the review page lists: the strongest of each frame.

    Args:
        model: with the new bank, and with the sum of scores of before.
        judged: the run and its verdicts.
        limit: most frames with alarms to compare: those with regions called true or missed first,
            then other judged frames, then others. Of more than fit, evenly spaced ones.
        images: where the frames are now; None takes the place that the maps record.
        pictures: whether each alarm gets a picture.
        quiet: whether no progress is shown.
    """
    flagged_by = judged.flagged_by()
    if flagged_by is None:
        return "all regions were drawn by hand, so there is no threshold to count alarms at"
    score, threshold, preparation = flagged_by
    if preparation:
        return f"the regions were flagged after {preparation}, which is not done here"
    reader = judged.reader
    if score not in reader.scores:
        return f"the maps hold no {score}, which flagged the regions"
    if "alpha" in judged.settings:
        return "the maps were made with another --alpha than that of the model"
    other = _other_model(model, judged.settings, score)
    if other:
        return f"the maps were made by a model with another {other} than the base"
    if FEATURE_DISTANCE not in model.needs([score]):
        return (
            f"the alarms are of {score}, which does not look at the bank; it changes knn and the "
            "sums with it"
        )
    with_alarms = _frames_with_alarms(reader, score, threshold)
    frames = {frame.name: frame for frame in judged.frames}
    names = _frames_to_compare(with_alarms, frames, limit)
    comparison = _Comparison(model, judged, score, threshold, pictures=pictures)
    alarms: list[ChangedAlarm] = []
    with ConsoleProgress(label="alarms before and after", quiet=quiet) as progress:
        for done, (name, image) in enumerate(images_of(reader, names, images), 1):
            alarms.extend(comparison.of_frame(name, image, frames.get(name)))
            progress.count(done, len(names))
    return Changes(
        score=score,
        threshold=threshold,
        frames=len(names),
        frames_with_alarms=len(with_alarms),
        alarms=tuple(alarms),
        coverage=_coverage(judged, with_alarms, names, comparison.touched),
    )


def _other_model(model: Model, run: Mapping[str, Any], score: str) -> str:
    """Return in what the model that made the maps differs from this one, as far as the score
    depends on it; empty where it does not. Network and bank are checked before.

    Args:
        model: with the new bank, and with the sum of scores of before.
        run: what the maps record of their run.
        score: that flagged the regions.
    """
    sources: set[str] = set()
    for part in with_parts([score], model.attachments.values()):
        sources.update(SCORES[part].sources)
    if "draws" in sources and run.get("posterior_sha256") != model.posterior_sha256:
        return "posterior"
    if sources & {"draws", "base"}:
        temperatures = (run.get("temperature", 1.0), run.get("calibrator_sha256"))
        if temperatures != (model.temperature, model.hashes["calibrator_sha256"]):
            return "temperature"
    for attachment in model.used([score]):
        if not attachment.of_others:
            continue  # the bank, which was checked
        for key, value in attachment.record().items():
            # The manifest was read from JSON.
            if run.get(key) != json.loads(json.dumps(value)):
                return attachment.what
    return ""


def _noise_of(run: Mapping[str, Any]) -> NoiseSource:
    """Return the noise of a run; runs of earlier versions do not record its scheme."""
    scheme: Scheme = run.get("scheme") or DEFAULT_SCHEME
    return NoiseSource(run["seed"], scheme, run["draws"])


def _coverage(
    judged: JudgedRun,
    with_alarms: Sequence[str],
    compared: Sequence[str],
    touched: Mapping[str, int],
) -> Coverage:
    """Return how much of what was judged is compared.

    Args:
        judged: the run and its verdicts.
        with_alarms: names of the frames with alarms.
        compared: names of those that are compared.
        touched: number of regions that alarms of the same verdict touch, by the verdict.
    """
    false_left_out = 0
    to_find_left_out = 0
    judged_frames = 0
    judged_measured = 0
    true_left_out = 0
    for frame in judged.frames:
        if frame.name not in with_alarms:
            continue
        judged_frames += 1
        if frame.name in compared:
            judged_measured += 1
            continue
        false_left_out += len(frame.false_alarms)
        to_find_left_out += len(frame.to_find)
        if frame.to_find:
            true_left_out += 1
    return Coverage(
        false_alarms=JudgedRegions(judged.false_alarms, false_left_out, touched[FALSE_ALARM]),
        to_find=JudgedRegions(judged.to_find, to_find_left_out, touched[TRUE_ALARM]),
        judged_frames=judged_frames,
        judged_measured=judged_measured,
        true_left_out=true_left_out,
    )


class _Comparison:
    """Compares the alarms of one frame after the other, before and after."""

    def __init__(
        self, model: Model, judged: JudgedRun, score: str, threshold: float, *, pictures: bool
    ) -> None:
        self.reader = judged.reader
        self.size = judged.size
        self.score = score
        self.threshold = threshold
        # Number of regions that alarms of the same verdict touch, by the verdict.
        self.touched = {TRUE_ALARM: 0, FALSE_ALARM: 0}
        self.shown = page_ranges(self.reader, [score])[score] if pictures else None
        self.sampler = Sampler(
            model.network,
            model.posterior if model.bayesian else None,
            draws=judged.settings["draws"],
            seed=_noise_of(judged.settings),
            scope=judged.settings.get("scope"),
            scores=[score],
            fitted=model.fitted([score]),
        )

    def of_frame(
        self, name: str, image: AnyImage, judged: JudgedFrame | None
    ) -> Iterator[ChangedAlarm]:
        """Yield the alarms of a frame, of its image ``[H, W, K]``."""
        before = self.reader.read(name, self.score)
        sampled = sample_frames(self.sampler, [image], size=self.size)
        after = _as_stored(self.reader, self.score, sampled.scores[self.score][0].cpu().numpy())
        left = _flagged_regions(after, self.threshold)
        outlines = _outlines(judged)
        touched: set[tuple[str, int]] = set()
        for alarm in _alarms(before, self.threshold):
            verdict, both = verdict_on(alarm, outlines)
            for number, outline in enumerate(outlines.get(verdict, ())):
                if alarm.pixels(outline).any():
                    touched.add((verdict, number))
            picture = b""
            if self.shown is not None:
                colours = shown_colours(image)
                kept = self.reader.kept(before.shape)
                picture = draw_change(alarm.box, colours, before, after, self.shown, kept)
            yield ChangedAlarm(
                frame=name,
                verdict=verdict,
                before=float(alarm.pixels(before).max()),
                after=float(alarm.pixels(after).max()),
                stays=bool(alarm.pixels(left).any()),
                both=both,
                picture=picture,
            )
        for verdict, _ in touched:
            self.touched[verdict] += 1


def _frames_with_alarms(reader: MapsReader, score: str, threshold: float) -> list[str]:
    """Return the names of the frames with an alarm."""
    names = []
    for name in reader.frames:
        values = reader.read(name, score) if reader.has(name, score) else None
        if values is not None and _alarms(values, threshold):
            names.append(name)
    return names


def _frames_to_compare(
    with_alarms: Sequence[str], judged: Mapping[str, JudgedFrame], limit: int
) -> list[str]:
    """Return at most ``limit`` frames with alarms: first those with regions that should be found,
    because an alarm that is lost there is a warning, then other judged frames, then others.
    """
    to_find = []
    called_false = []
    others = []
    for name in with_alarms:
        if name not in judged:
            others.append(name)
        elif judged[name].to_find:
            to_find.append(name)
        else:
            called_false.append(name)
    chosen: set[str] = set()
    for names in (to_find, called_false, others):
        room = limit - len(chosen)
        if room > 0:
            chosen.update(names[place] for place in spaced(len(names), room))
    return [name for name in with_alarms if name in chosen]


def _alarms(values: Values, threshold: float) -> list[StrongRegion]:
    """Return the alarms of a map ``[H, W]`` that the review page lists."""
    return strongest_regions(values, threshold, smallest=SMALLEST_REGION, most=MAX_LISTED_REGIONS)


def _flagged_regions(values: Values, threshold: float) -> npt.NDArray[np.bool_]:
    """Return the pixels of all regions that are large enough for an alarm, bool ``[H, W]``."""
    numbers, boxes, _ = regions_of(values, threshold)
    large = np.flatnonzero(boxes[:, cv2.CC_STAT_AREA] >= SMALLEST_REGION) + 1
    return np.isin(numbers, large)


def _as_stored(reader: MapsReader, score: str, values: Values) -> Values:
    """Return a map ``[H, W]`` with the rounding of its stored form, and 0 where a mask leaves
    pixels out.
    """
    stored = encode_score(score, values)
    if (reader.manifest or {})["run"].get("compact"):
        height, width = values.shape
        codes = encode_compact(stored)
        stored = decode_compact(codes, height, width, floats=stored.dtype == np.float16)
    if reader.region is not None:
        stored = reader.region.clear({score: stored})[score]
    decoded = decode_unit(stored) if stored.dtype == np.uint16 else stored.astype(np.float32)
    return np.asarray(decoded, np.float32)


def _outlines(judged: JudgedFrame | None) -> dict[str, list[Mask]]:
    """Return the masks ``[H, W]`` of the regions with each verdict, the gravest first."""
    if judged is None:
        return {TRUE_ALARM: [], FALSE_ALARM: []}
    return {
        TRUE_ALARM: [mask_of(region) for region in judged.to_find],
        FALSE_ALARM: [mask_of(region) for region in judged.false_alarms],
    }


def verdict_on(alarm: StrongRegion, outlines: Mapping[str, Sequence[Mask]]) -> tuple[str, bool]:
    """Return the verdict on the region that an alarm overlaps most.

    Args:
        alarm: of the frame.
        outlines: masks ``[H, W]`` of the regions with each verdict; of equal overlaps, that of the
            first verdict counts.

    Returns:
        The verdict, empty where the alarm overlaps no region; and whether regions of several
        verdicts share at least :data:`MIN_NOTABLE_SHARE` of the alarm or of themselves with it.
    """
    largest = 0
    verdict_of_largest = ""
    notable = set()
    for verdict, masks in outlines.items():
        for mask in masks:
            overlap = int(np.count_nonzero(alarm.pixels(mask)))
            if not overlap:
                continue
            if overlap > largest:
                largest = overlap
                verdict_of_largest = verdict
            smaller_area = min(alarm.area, int(np.count_nonzero(mask)))
            if overlap >= MIN_NOTABLE_SHARE * smaller_area:
                notable.add(verdict)
    return verdict_of_largest, len(notable) > 1
