"""One page that shows what verdicts change: alarms of a run before and after, with their pictures.

The page is a single file. It loads nothing and runs no script.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange
from segunc.core.files import write_file
from segunc.core.terminal import agreeing, counted
from segunc.data.images import Image
from segunc.gallery.drawing import score_colours
from segunc.gallery.pictures import CropWindow
from segunc.maps.encoding import encode_jpeg, threshold_text
from segunc.scores import SCORES, title_of

STYLE = "change_page.css"
MAX_SHOWN = 30  # alarms of each kind
QUALITY = 80
GAP = 4  # pixels between two views of an alarm
WORDS = {
    "false-alarm": (
        "False alarms",
        "that overlap most with a region called false, which enters the bank",
    ),
    "true-alarm": (
        "True alarms",
        "that overlap most with a region called true or missed, which stays out of the bank",
    ),
    "": ("Other alarms", "of the same run, that touch no region called true, missed or false"),
}
"""Verdict on an alarm -> heading and what it means here."""
BOTH = "; overlaps a region called false and one called true or missed"


@dataclass(frozen=True)
class ChangedAlarm:
    """An alarm of a run, and what became of it."""

    frame: str
    verdict: str  # false-alarm, true-alarm (also of a missed object), or empty
    before: float  # largest value of the score within it
    after: float
    stays: bool  # whether an alarm is left there
    both: bool = False  # whether it overlaps both regions called false and called true or missed
    picture: bytes = b""  # JPEG; empty without one


@dataclass(frozen=True)
class JudgedRegions:
    """The regions of a run that were called false, or those called true or missed."""

    number: int
    left_out: int  # of these, those on frames with alarms that are not compared
    touched: int  # of these, those that alarms of the same verdict touch


@dataclass(frozen=True)
class Coverage:
    """How much of what was judged the compared alarms cover."""

    false_alarms: JudgedRegions
    to_find: JudgedRegions
    judged_frames: int  # judged frames with alarms
    judged_measured: int  # of these, those that are compared
    true_left_out: int  # judged frames with alarms and true or missed regions, not compared


@dataclass(frozen=True)
class Changes:
    """Alarms of a run before and after verdicts entered the bank."""

    score: str
    threshold: float
    frames: int  # on which alarms were compared
    frames_with_alarms: int  # of the run
    alarms: tuple[ChangedAlarm, ...]
    coverage: Coverage

    def of(self, verdict: str) -> list[ChangedAlarm]:
        """Return the alarms with a verdict; empty stands for none."""
        return [alarm for alarm in self.alarms if alarm.verdict == verdict]

    def sentences(self) -> list[str]:
        """Return what changes, for a reader: first what goes, then what would be lost."""
        others = self.of("")
        false_alarms = self.of("false-alarm")
        to_find = self.of("true-alarm")
        sentences = [
            f"{_gone(false_alarms)} of {len(false_alarms)} alarms on regions called false go.",
            f"{_gone(others)} of {len(others)} other alarms go.",
        ]
        if to_find:
            lost = _gone(to_find)
            sentences.append(
                f"{lost} of {len(to_find)} alarms on regions called true or missed go."
            )
        return sentences + self.notes()

    def notes(self) -> list[str]:
        """Return what a reader should know of the counts of alarms."""
        return [words for words in (self.note_on_both(), self.explanation()) if words]

    def note_on_both(self) -> str:
        """Return how many alarms overlap regions of both kinds; empty where none does."""
        both = [alarm for alarm in self.alarms if alarm.both]
        if not both:
            return ""
        number = len(both)
        gone = _gone(both)
        are = counted(number, "alarm", "overlaps")
        count = "It counts" if number == 1 else "Each counts"
        text = (
            f"{are} a region called false and one called true or missed. {count} by the region "
            f"that it overlaps most. {gone} of {number} {agreeing('goes', gone)}."
        )
        return f"{text} What should be found may go with a false alarm." if gone else text

    def explanation(self) -> str:
        """Return why there are not as many alarms as judged regions; empty where each of these
        regions has one alarm.
        """
        coverage = self.coverage
        sentences = [
            *_differing(len(self.of("false-alarm")), coverage.false_alarms, "called false"),
            *_differing(len(self.of("true-alarm")), coverage.to_find, "called true or missed"),
        ]
        if not sentences:
            return ""
        return (
            f"{' '.join(sentences)} Alarms are the strongest regions of a frame at "
            f"{threshold_text(self.threshold)}. A region that was drawn, or judged at another "
            "threshold, can touch several of them, or none."
        )

    def warning(self) -> str:
        """Return what to do if true alarms would be lost; empty if all of them stay."""
        lost = _gone(self.of("true-alarm"))
        if not lost:
            return ""
        alarms = f"{counted(lost, 'alarm')} that {agreeing('was', lost)}"
        goes = agreeing("goes", lost)
        return (
            f"{alarms} called true {goes}: with this bank the model misses what reviewers want to "
            "find. Leave out the false alarms that look like them, and run the command again."
        )

    def condition(self) -> str:
        """Return under which condition the numbers hold."""
        part = f"all {self.frames} frames with alarms"
        if self.frames == 1:
            part = "the one frame with alarms"
        if self.frames < self.frames_with_alarms:
            part = f"{self.frames} of {self.frames_with_alarms} frames with alarms"
        judged = ""
        coverage = self.coverage
        if coverage.judged_measured < coverage.judged_frames:
            judged = (
                f", among them {coverage.judged_measured} of the {coverage.judged_frames} "
                "judged ones"
            )
        left_out = ""
        if coverage.true_left_out:
            frames = counted(coverage.true_left_out, "frame")
            was = agreeing("was", coverage.true_left_out)
            left_out = (
                f" {frames} with regions called true or missed {was} not measured. Raise "
                "--features.compared to measure all."
            )
        scale = " and its scale of before" if "scores" in SCORES[self.score].sources else ""
        return (
            f"Measured on {part}{judged}, with {title_of(self.score, capital=False)} at "
            f"{threshold_text(self.threshold)}{scale}.{left_out}"
        )


def _differing(alarms: int, regions: JudgedRegions, called: str) -> Iterator[str]:
    """Yield how many regions of a verdict so many alarms touch, unless each region has one."""
    if alarms == regions.number == regions.touched:
        return
    all_regions = "the 1 region" if regions.number == 1 else f"the {regions.number} regions"
    touch = "alarm touches" if alarms == 1 else "alarms touch"
    yield f"{alarms} {touch} {regions.touched} of {all_regions} {called}."
    if regions.left_out:
        are = agreeing("is", regions.left_out)
        yield f"{regions.left_out} of them {are} on frames that were not measured."


def _gone(alarms: Sequence[ChangedAlarm]) -> int:
    return sum(not alarm.stays for alarm in alarms)


def draw_change(
    box: Sequence[int],
    image: Image,
    before: npt.NDArray[np.float32],
    after: npt.NDArray[np.float32],
    shown: DisplayRange,
    kept: npt.NDArray[np.bool_] | None = None,
) -> bytes:
    """Draw the surroundings of an alarm: image, score before and score after, as a JPEG.

    Args:
        box: left, top, width and height in pixels.
        image: RGB uint8 ``[H, W, 3]``.
        before, after: maps ``[H, W]`` of the score.
        shown: the range of its colours.
        kept: which pixels count, bool ``[H, W]``; None for all.
    """
    window = CropWindow.around(box, image.shape)
    views = []
    scores = [score_colours(values, shown, kept) for values in (before, after)]
    for picture in (image, *scores):
        view = window.view(picture)
        window.draw_box(view, box)
        views.append(view)
    gap = np.full((views[0].shape[0], GAP, 3), 255, np.uint8)
    return encode_jpeg(np.hstack([views[0], gap, views[1], gap, views[2]]), QUALITY)


def write_change_page(path: Path, changes: Changes, lines: Sequence[str]) -> None:
    """Write the page.

    Args:
        path: of the HTML file; one that is there is replaced.
        changes: alarms before and after.
        lines: what entered the bank, in sentences.
    """
    parts = ["<h1>What the verdicts change</h1>"]
    if changes.warning():
        parts.append(f'<p class="warning">{html.escape(changes.warning())}</p>')
    parts.extend(_summary(changes))
    parts.extend(f"<p>{html.escape(line)}</p>" for line in lines)
    parts.extend(f"<p>{html.escape(words)}</p>" for words in changes.notes())
    parts.append(f'<p class="small">{html.escape(changes.condition())}</p>')
    parts.append(
        '<p class="small">Pictures: the image, the score before, the score after. '
        "Bright is strange, dark is known.</p>"
    )
    for verdict in WORDS:
        parts.extend(_section(changes, verdict))
    write_single_page(path, "What the verdicts change", parts)


def write_single_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page that is one file, loads nothing and runs no script.

    Args:
        path: of the HTML file; one that is there is replaced.
        title: of the page, as text.
        parts: its content, as HTML.
    """
    style = (resources.files("segunc.gallery") / STYLE).read_text(encoding="utf-8")
    lines = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">",
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body><main>",
        *parts,
        "</main></body></html>\n",
    ]
    write_file(path, "\n".join(lines).encode())


def picture_element(picture: bytes, words: str = "", kind: str = "jpeg") -> str:
    """Return the HTML element of a picture that the page itself holds.

    Args:
        picture: content of the file.
        words: what stands in its place for those who cannot see it.
        kind: of the file, jpeg or png.
    """
    data = base64.b64encode(picture).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/{kind};base64,{data}">'


def _summary(changes: Changes) -> list[str]:
    """Return the table of alarms before and after, by verdict."""
    rows = []
    for verdict, (heading, meaning) in WORDS.items():
        alarms = changes.of(verdict)
        if not alarms and verdict == "true-alarm":
            continue
        left = len(alarms) - _gone(alarms)
        is_lost = verdict == "true-alarm" and left < len(alarms)
        after = f'<td class="bad">{left}</td>' if is_lost else f"<td>{left}</td>"
        rows.append(
            f'<tr><th scope="row">{heading}<span>{meaning}</span></th>'
            f"<td>{len(alarms)}</td>{after}</tr>"
        )
    total = len(changes.alarms)
    left = total - _gone(changes.alarms)
    rows.append(f'<tr class="total"><th scope="row">All</th><td>{total}</td><td>{left}</td></tr>')
    head = (
        '<tr><th scope="col">Alarms</th><th scope="col">before</th><th scope="col">after</th></tr>'
    )
    return [f"<table><thead>{head}</thead><tbody>", *rows, "</tbody></table>"]


def _section(changes: Changes, verdict: str) -> list[str]:
    """Return the pictures of the alarms with a verdict, those that go first."""
    alarms = sorted(changes.of(verdict), key=lambda alarm: (alarm.stays, -alarm.before))
    if not alarms:
        return []
    parts = [f"<h2>{WORDS[verdict][0]}</h2>"]
    if len(alarms) > MAX_SHOWN:
        parts.append(f'<p class="small">{MAX_SHOWN} of {len(alarms)} are shown.</p>')
    parts.append("<ul>")
    for alarm in alarms[:MAX_SHOWN]:
        picture = ""
        if alarm.picture:
            picture = picture_element(alarm.picture)
        # A true alarm is wanted, so it is good that it stays.
        is_good = alarm.stays == (verdict == "true-alarm")
        kind = "good" if is_good else "bad"
        fate = "stays" if alarm.stays else "goes"
        badge = f'<b class="{kind}">{fate}</b>'
        parts.append(
            f"<li>{picture}<p>{badge} <span>frame {html.escape(alarm.frame)}</span>, "
            f"strongest pixel {alarm.before:.2f} → {alarm.after:.2f}{BOTH if alarm.both else ''}"
            "</p></li>"
        )
    parts.append("</ul>")
    return parts
