"""The review page: complete, escaped, without a network, ranked, and working in a browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import cv2
import numpy as np
import pytest

from segunc.errors import InputError
from segunc.maps.manifest import build_manifest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.sources import open_source
from segunc.maps.store import MapsWriter
from segunc.review import page as page_module
from segunc.review.page import write_review
from segunc.review.pictures import read_anomaly_mask
from tests.maps.fakes import CLASSES, PALETTE, SCORES, process
from tests.review.browser import dump_dom


class Links(HTMLParser):
    """All addresses that a page refers to, and the alternative texts of its images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.alternatives: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for key in ("src", "href", "poster") if (value := given.get(key)) is not None]
        if tag == "img":
            self.alternatives.append(given.get("alt"))


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Three frames of rising brightness, and so of rising entropy; one has a name that needs escaping."""
    for name, level in (("a dark", 20), ("b&<mid>#1", 120), ("sub/c bright", 220)):
        path = tmp_path / "in" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((30, 40, 3), level, np.uint8))
    source = open_source(tmp_path / "in")
    run = {"input": str(source.path), "draws": 24, "seed": 7, "scope": "decoder"}
    model = {"method": "ABNN", "members": 4}
    manifest = build_manifest(run, SCORES, device="cpu", classes=CLASSES, palette=PALETTE, model=model)
    run_pipeline(source, process, MapsWriter(tmp_path / "maps", manifest))
    return tmp_path / "maps"


def order(text: str) -> list[str]:
    return re.findall(r"<h3>([^<]*)</h3>", text)


def test_page_is_self_contained_ranked_and_escaped(maps: Path, tmp_path: Path) -> None:
    index = write_review(maps, tmp_path / "review")
    text = index.read_text()
    assert order(text) == ["sub/c bright", "b&amp;&lt;mid&gt;#1", "a dark"]
    assert "ABNN, 4 members, 24 draws, seed 7, scope decoder" in text
    links = Links(text)
    assert len(links.addresses) == 6
    for address in links.addresses:
        assert (index.parent / unquote(address)).is_file(), address
    assert all(alternative and "mean entropy" in alternative for alternative in links.alternatives)
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_overlays_of_the_prediction_are_shown_as_they_are(maps: Path, tmp_path: Path) -> None:
    overlay = maps / "overlay" / "a dark.jpg"
    overlay.parent.mkdir()
    cv2.imwrite(str(overlay), np.full((50, 70, 3), (0, 0, 255), np.uint8))
    write_review(maps, tmp_path / "review")
    shown = cv2.imread(str(tmp_path / "review/frames/a dark.jpg"))
    assert shown.shape == (50, 70, 3)
    assert cv2.imread(str(tmp_path / "review/frames/sub/c bright.jpg")).shape != shown.shape
    write_review(maps, tmp_path / "review", redraw=True)
    assert cv2.imread(str(tmp_path / "review/frames/a dark.jpg")).shape != shown.shape


def test_missing_images_are_said_and_maps_are_shown(maps: Path, tmp_path: Path) -> None:
    with_images = write_review(maps, tmp_path / "with")
    assert "could not be opened" not in with_images.read_text()
    shutil.rmtree(tmp_path / "in")
    index = write_review(maps, tmp_path / "without")
    assert "only maps are shown" in index.read_text()
    first = [cv2.imread(str(folder / "frames/a dark.jpg"))[100, 100] for folder in (with_images.parent, index.parent)]
    np.testing.assert_allclose(first[0], [20, 20, 20], atol=3)  # the image
    np.testing.assert_allclose(first[1][::-1], PALETTE[0], atol=3)  # the prediction has moved to its place
    with pytest.raises(InputError, match="does not exist"):
        write_review(maps, tmp_path / "review", images=tmp_path / "in")


def test_labelled_frames_are_outlined(maps: Path, tmp_path: Path) -> None:
    label = np.zeros((30, 40), np.uint8)
    label[10:20, 10:30] = 1
    label[0] = 255
    (tmp_path / "labels").mkdir()
    cv2.imwrite(str(tmp_path / "labels" / "a dark_mask.png"), label)
    plain, outlined = tmp_path / "plain", tmp_path / "outlined"
    write_review(maps, plain)
    index = write_review(maps, outlined, anomaly_labels=tmp_path / "labels")
    assert "1 of 3 frames shown, outlined" in index.read_text()
    dark = [cv2.imread(str(folder / "frames/a dark.jpg")) for folder in (plain, outlined)]
    assert (np.abs(dark[0].astype(int) - dark[1]).max(axis=2) > 100).sum() > 500
    same = [(folder / "frames/sub/c bright.jpg").read_bytes() for folder in (plain, outlined)]
    assert same[0] == same[1]


def test_label_values_are_checked(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "label.png"), np.full((4, 4), 2, np.uint8))
    with pytest.raises(InputError, match=r"holds the values \[2\]"):
        read_anomaly_mask(tmp_path / "label.png")


def test_metrics_are_a_table_with_reasons(maps: Path, tmp_path: Path) -> None:
    metrics: dict[str, Any] = {
        "scores": {"entropy": {"pooled": {"auroc": 0.98765, "aupr": None, "fpr95": 0.5}, "smiyc": {"auroc": 0.25}}},
        "reasons": {"scores.entropy.pooled.aupr": "no anomaly <pixel>"},
        "calibration": {"ece": 0.0321, "nll": None},
    }
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(metrics))
    text = write_review(maps, tmp_path / "review", metrics=path).read_text()
    for cell in ("<td>0.9877</td>", "<td>0.5000</td>", "<td>0.2500</td>", "<td>0.0321</td>"):
        assert cell in text
    assert '<td title="no anomaly &lt;pixel&gt;">–</td>' in text
    path.write_text("{")
    with pytest.raises(InputError, match="no JSON"):
        write_review(maps, tmp_path / "review", metrics=path)


def test_video_and_failures_are_shown(maps: Path, tmp_path: Path) -> None:
    (maps / "overlay.webm").write_bytes(b"video")
    found = json.loads((maps / "manifest.json").read_text())
    found["failed"] = [{"name": "x<y", "reason": "the JPEG is truncated"}]
    (maps / "manifest.json").write_text(json.dumps(found))
    index = write_review(maps, tmp_path / "review")
    assert (index.parent / "overlay.webm").read_bytes() == b"video"
    text = index.read_text()
    assert 'src="overlay.webm"' in text
    assert "<summary>1 frame failed</summary>" in text
    assert "<b>x&lt;y</b> the JPEG is truncated" in text


def test_limit_keeps_the_worst(maps: Path, tmp_path: Path) -> None:
    text = write_review(maps, tmp_path / "review", limit=1).read_text()
    assert order(text) == ["sub/c bright"]
    assert "the worst 1 of 3" in text


def test_maps_of_another_tool(tmp_path: Path) -> None:
    (tmp_path / "maps" / "surprise").mkdir(parents=True)
    np.save(tmp_path / "maps" / "surprise" / "f.npy", np.ones((9, 16), np.float32))
    index = write_review(tmp_path / "maps", tmp_path / "review", ranges={"surprise": (0, 2)})
    assert order(index.read_text()) == ["f"]
    assert "&gt;= 2" in index.read_text()
    with pytest.raises(InputError, match="lies inside"):
        write_review(tmp_path / "maps", tmp_path / "maps" / "review")


def test_sorting_works_in_a_browser(maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    click = "document.querySelector('[data-key=place]').click();"
    monkeypatch.setattr(
        page_module,
        "render",
        lambda page, render=page_module.render: render(page).replace("</body>", f"<script>{click}</script></body>"),
    )
    dom = dump_dom(write_review(maps, tmp_path / "review"), tmp_path / "profile", budget_ms=2000)
    assert order(dom) == ["a dark", "b&amp;&lt;mid&gt;#1", "sub/c bright"]
    assert re.search(r'data-key="place" aria-pressed="true"', dom)
