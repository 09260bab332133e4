"""A small maps folder with everything a review page can show, and a visitor of its page in a
headless Chromium.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.labels import LabelMap
from segunc.decisions.flags import Threshold
from segunc.frames.sources import open_source
from segunc.gallery.condensed import condense
from segunc.gallery.pictures import WrittenPictures, write_pictures
from segunc.gallery.review_page import write_review
from segunc.maps.labelled import LabelSources
from segunc.maps.manifest import build_manifest
from segunc.maps.store import MapsWriter
from segunc.scores import SCORES as SCORES_OF_TOOL
from tests.maps.fakes import CLASSES, PALETTE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("a dark", "b&<mid>#1", "c%20 100%", "sub/d", "sub/e 'quoted'", "sub/f bright")
SIZE = (30, 40)
SCORES = ("entropy", "epistemic", "deterministic-max-logit")
LABEL_MAP = LabelMap("three", CLASSES, PALETTE, {0: 0, 1: 1, 2: 2, 255: 255})
OBJECT = (slice(8, 18), slice(5, 17))
SECOND_OBJECT = (slice(20, 26), slice(25, 35))


@dataclass(frozen=True)
class Scene:
    images: Path
    maps: Path
    anomaly: Path
    labels: Path


class Reasoned(dict[str, Any]):
    reasons: Any = None


def score_maps(grey: Any, seed: int) -> dict[str, Any]:
    """Textured maps whose mean follows the picture's brightness."""
    noise = np.random.default_rng(seed).random(SIZE, np.float32)
    entropy = np.clip(0.75 * grey + 0.25 * noise, 0, 1).astype(np.float32)
    return {
        "entropy": entropy,
        "epistemic": 0.2 * entropy**2 * noise,
        "deterministic-max-logit": 12 * (entropy - 1) - 3 * noise,
        "anomaly": 4 * (1 - entropy) + 2 * noise,
    }


def carried(values: Any, score: str = "entropy") -> Any:
    """Return what the page shows of a map of a score, whose usual threshold these maps record."""
    codes, ends = condense(values, 960, SCORES_OF_TOOL[score].threshold)
    span = ends["high"] - ends["low"]
    shown = ends["low"] + (codes + ends["shift"]) / 254 * span
    return np.clip(shown, ends["low"], ends["high"]).astype(np.float32)


def labels_of(given: dict[str, Any]) -> LabelSources:
    """Take the labels out of what a page or pictures are given; ``images`` are for these alone."""
    names = {field.name for field in fields(LabelSources)} - {"images"}
    return LabelSources(**{name: given.pop(name) for name in names & given.keys()})


def write_page(maps: Path, out: Path, share: float = 0.5, **given: Any) -> Path:
    given["flag"] = {
        score: Threshold(value, found_share=share) for score, value in given.get("flag", {}).items()
    }
    return write_review(maps, out, labels_of(given), **given)


def draw(maps: Path, out: Path, **given: Any) -> WrittenPictures:
    given["flag"] = {score: Threshold(value) for score, value in given.get("flag", {}).items()}
    return write_pictures(maps, out, labels_of(given), **given)


def write_maps(
    images: Path,
    out: Path,
    *,
    scores: Sequence[str] = SCORES,
    reasons: Any = None,
    **described: Any,
) -> Path:
    """Maps of a folder of pictures, of a model that is none; ``reasons`` are of a pixel."""
    source = open_source(images)
    run = {"input": str(source.path), "draws": 24, "seed": 0, "scope": "decoder"}
    model: dict[str, Any] = {"architecture": "FPN mobilenet_v2", "method": "ABNN", "members": 4}
    model |= {
        "parameters": {"alpha": 0.05, "noise": "channel"},
        "feature_encoder": "timm's" if reasons else "own",
    }
    about = {"device": "cpu", "classes": CLASSES, "palette": PALETTE, "model": model}
    manifest = build_manifest(run, scores, **about, **described)
    with MapsWriter(out, manifest) as writer:
        for frame in source.frames():
            grey = frame.image.mean(axis=2).astype(np.float32) / 255
            prediction = np.where(grey > 0.5, 2, 0).astype(np.uint8)
            prediction[-6:] = 1
            found = score_maps(grey, frame.index)
            maps = Reasoned({"prediction": prediction, **{name: found[name] for name in scores}})
            maps.reasons = reasons
            record = writer.store(frame.name, maps, place=frame.index)
            writer.commit(record | {"stamp": frame.stamp})
    return out


def write_scene(root: Path) -> Scene:
    """Six frames of rising brightness. Four have anomaly masks: a bright object (found at high
    thresholds), a dark one (missed), a bright and a dark one, none at all.
    """
    images, anomaly, labels = root / "images", root / "anomaly", root / "labels"
    for index, name in enumerate(NAMES):
        picture = np.full((*SIZE, 3), 20 + 40 * index, np.uint8)
        label = np.zeros(SIZE, np.uint8)
        if index < 3:
            label[OBJECT], picture[OBJECT] = 1, 5 if index == 1 else 250
        if index == 2:
            label[SECOND_OBJECT], picture[SECOND_OBJECT] = 1, 5
        label[0] = 255
        truth = np.zeros(SIZE, np.uint8)
        truth[:, 20:] = 2
        truth[0] = 255
        for folder, content, count in (
            (images, picture, 6),
            (anomaly, label, 4),
            (labels, truth, 5),
        ):
            if index < count:
                path = folder / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                assert cv2.imwrite(str(path), content)
    maps = write_maps(images, root / "maps")
    return Scene(images, maps, anomaly, labels)


def write_video_scene(root: Path, count: int = 40, fps: float = 20.0, every: int = 1) -> Path:
    """Maps of a video's frames whose entropy has two clear peaks, at frames 10 and 30, and an
    overlay video.
    """
    run, source = (
        {"draws": 8, "seed": 1, "scope": "all", "every": every},
        {"kind": "video", "fps": fps, "frames": count},
    )
    manifest = build_manifest(
        run, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE, source=source
    )
    maps = root / "video-maps"
    with MapsWriter(maps, manifest) as writer:
        for index in range(count):
            level = (
                0.2 + 0.5 * max(0, 1 - abs(index - 10) / 5) + 0.7 * max(0, 1 - abs(index - 30) / 5)
            )
            content = {
                "prediction": np.zeros(SIZE, np.uint8),
                "entropy": np.full(SIZE, level, np.float32),
            }
            writer.commit(writer.store(f"{index:06d}", content) | {"time": index * every / fps})
    return maps


def inside_of(path: str) -> set[tuple[int, int]]:
    """Return the pixels (x, y) that an outline of horizontal and vertical steps encloses: those
    with an odd number of vertical ones to the left."""
    walls = np.zeros(SIZE, int)
    for x, top, bottom in re.findall(r"M(\d+) (\d+)V(\d+)", path):
        walls[int(top) : int(bottom), int(x)] += 1
    return {(x, y) for y, x in np.argwhere(np.cumsum(walls, axis=1) % 2)}


class Visit:
    """One visitor of a page, with the addresses that it asked for and everything that it complained
    of.
    """

    def __init__(self, browser: "Browser", **settings: Any) -> None:
        settings.setdefault("viewport", {"width": 1400, "height": 900})
        self._context = browser.new_context(accept_downloads=True, **settings)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._on_failed)

    def _on_console(self, message: Any) -> None:
        # The page reads no canvas back; tests do.
        if message.type in ("error", "warning") and "willReadFrequently" not in message.text:
            self.complaints.append(message.text)

    def _on_failed(self, request: Any) -> None:
        # A picture that is still on its way when the visitor leaves or reloads the page is given
        # up, not missing.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.url}: {request.failure}")

    def open(self, index: Path, fragment: str = "") -> "Page":
        """Open a page from disk and wait until it stands."""
        self.page.goto("about:blank")  # a new fragment alone would not load it anew
        self.page.goto(f"{index.as_uri()}#{fragment}")
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def open_frame(self, index: Path, name: str, more: str = "") -> None:
        """Open the view of a frame and wait for its picture and, where a pixel is asked for, the
        values of all of its maps.
        """
        self.open(index, f"view=frame&frame={quote(name, safe='')}{more}")
        self.shown("#frame-name", name)
        self.valued()

    def valued(self) -> None:
        self.until(
            "[...document.querySelectorAll('#values dd')].every((cell) => cell.textContent !== '…')"
        )

    def names(self) -> list[str]:
        return self.page.locator("#cards .name").all_inner_texts()

    def pixels(self, canvas: str) -> npt.NDArray[np.int64]:
        """Colours of a canvas, ``[pixels, 4]`` of red, green, blue and alpha, row by row."""
        data = self.page.evaluate(
            f"(() => {{ const c = document.querySelector('{canvas}');"
            " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"
        )
        return np.array(data, np.int64).reshape(-1, 4)

    def shown(self, selector: str, text: str) -> None:
        """Wait until an element holds a text; the error says what it holds instead."""
        from playwright.sync_api import (
            TimeoutError as Late,
        )  # where Playwright is missing, tests skip before this

        try:
            self.page.locator(selector, has_text=text).first.wait_for()
        except Late as error:
            instead = self.page.locator(selector).all_inner_texts()
            raise AssertionError(
                f"{selector} holds {instead} in place of '{text}'; {self.complaints}"
            ) from error

    def until(self, expression: str) -> None:
        """Wait until an expression holds. Playwright's own waiting evaluates text in the page,
        which the page forbids.
        """
        deadline = time.monotonic() + 30
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(20)

    def close(self) -> None:
        """End the visit; the page must have been silent and must have asked for nothing but its own
        files.
        """
        self._context.close()
        assert not self.complaints, self.complaints
        strangers = [
            url for url in self.requests if not url.startswith(("file://", "blob:", "about:blank"))
        ]
        assert not strangers, strangers


def name_reviewer(visit: Visit, name: str) -> None:
    visit.page.click("#reviewer-button")
    visit.page.fill("#reviewer-name", name)
    visit.page.keyboard.press("Enter")
    visit.shown("#reviewer-button", name)
