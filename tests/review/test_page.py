"""The review page's folder: complete, escaped, without a network; what lacks is said, and the rest is shown."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.maps.reader import MapsReader
from segunc.review.page import write_review
from tests.review.page_tables import notices, table
from tests.review.scenes import NAMES, SCORES, Scene


class Links(HTMLParser):
    """All addresses that a page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [value for key in ("src", "href", "poster") if (value := given.get(key)) is not None]


def test_page_is_self_contained_and_escaped(full_page: Path) -> None:
    links = Links(full_page.read_text())
    assert len(links.addresses) == 24
    assert all((full_page.parent / address).is_file() for address in links.addresses)
    for path in (full_page, *(full_page.parent / "assets").iterdir()):
        assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", path.read_text()), path
    found = table(full_page, "frames")
    assert found["names"] == list(NAMES)
    kinds = [set(found["kinds"][kind]) for kind in found["kind"]]
    assert {"image", "prediction", *SCORES, "anomaly", "truth", "other/entropy"} <= kinds[0]
    assert "truth" not in kinds[5]
    for name, place, kind in zip(found["names"], found["places"], kinds, strict=True):
        for content in kind:
            ending = "jpg" if content == "image" else "js"
            assert (full_page.parent / "frames" / f"{place:06d}" / f"{content}.{ending}").is_file(), (name, content)


def test_header_says_what_made_the_maps(full_page: Path) -> None:
    page = table(full_page, "page")
    assert page["line"] == "FPN mobilenet_v2, ABNN, 4 members, 24 draws, seed 0, scope decoder"
    facts = dict(page["facts"])
    assert facts["Parameters"] == "alpha 0.05, noise channel"
    assert facts["Made with"] == "epochs 2, lr 0.005"  # without what the posterior itself records
    assert facts["Data"].endswith("images")
    assert facts["Maps made with"].startswith("segunc ")
    assert page["compared"]["line"].endswith("seed 1, scope decoder")
    assert [page["scores"]["entropy"][end] for end in ("low", "high")] == [0, 1]
    assert page["scores"]["epistemic"]["ticks"] == ["0", "0.05", ">= 0.1"]


def test_unbounded_scores_span_the_whole_set(full_page: Path, scene: Scene) -> None:
    shown = table(full_page, "page")["scores"]["max-logit"]
    reader = MapsReader(scene.maps)
    ends = [np.percentile(reader.read(name, "max-logit"), (1, 99)) for name in NAMES]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    assert shown["low"] <= low <= shown["low"] + (high - low) / 10
    assert shown["high"] - (high - low) / 10 <= high <= shown["high"]
    assert shown["ticks"][0].startswith("<= ")


def test_a_map_is_carried_bit_by_bit(full_page: Path, scene: Scene) -> None:
    reader = MapsReader(scene.maps)
    for score in (*SCORES, "prediction"):
        text = (full_page.parent / "frames" / "000001" / f"{score}.js").read_text()
        found = re.fullmatch(r'segunc\.receive\("frames/000001/[\w-]+", (\{.*\}), "([^"]+)"\);\n', text)
        assert found is not None
        stored = reader.read_stored(NAMES[1], score) if score in SCORES else reader.prediction(NAMES[1])
        head = json.loads(found[1])
        assert (head["dtype"], head["height"], head["width"]) == (stored.dtype.name, *stored.shape)
        size = stored.dtype.itemsize
        planes = np.frombuffer(zlib.decompress(base64.b64decode(found[2])), np.uint8).reshape(size, *stored.shape)
        differences = sum(planes[i].astype(np.uint64) << (8 * i) for i in range(size))
        codes = np.cumsum(differences, axis=0).astype(f"<u{size}")
        assert (codes.view(stored.dtype) == stored).all()


def test_metrics_are_tables_with_reasons(scene: Scene, tmp_path: Path) -> None:
    metrics: dict[str, Any] = {
        "scores": {"entropy": {"pooled": {"auroc": 0.98765, "aupr": None, "fpr95": 0.5}, "smiyc": {"auroc": 0.25}}},
        "reasons": {"scores.entropy.pooled.aupr": "no anomaly <pixel>"},
        "calibration": {"ece": 0.0321, "nll": None},
    }
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(metrics))
    tables = table(write_review(scene.maps, tmp_path / "review", metrics=path), "page")["metrics"]
    assert [entry["title"] for entry in tables] == [
        "Anomaly detection, pooled pixels",
        "Anomaly detection, smiyc pixels",
        "Segmentation and calibration",
    ]
    assert tables[0]["rows"][0]["cells"] == [
        {"value": 0.98765},
        {"value": None, "reason": "no anomaly <pixel>"},
        {"value": 0.5},
    ]
    assert tables[2]["rows"][1] == {"name": "NLL", "cells": [{"value": None, "reason": "not computed"}]}
    path.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        write_review(scene.maps, tmp_path / "review", metrics=path)


def test_limit_keeps_the_worst_and_scores_can_be_chosen(scene: Scene, tmp_path: Path) -> None:
    index = write_review(scene.maps, tmp_path / "review", limit=2, scores=["epistemic"])
    found = table(index, "frames")
    assert found["names"] == list(NAMES[4:])
    assert found["places"] == [4, 5]
    assert list(found["statistics"]) == ["epistemic"]
    assert "the worst 2 of 6 frames" in notices(index)
    for wrong in ({"limit": 0}, {"scores": ["entropie"]}, {"ranges": {"entropie": (0.0, 1.0)}}):
        with pytest.raises(InputError):
            write_review(scene.maps, tmp_path / "none", **wrong)


def test_times_of_frames_are_those_recorded(copy: Path, tmp_path: Path) -> None:
    assert table(write_review(copy, tmp_path / "without", scores=["entropy"]), "frames")["times"] is None
    records = [json.loads(line) for line in (copy / "frames.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(record | {"time": 0.5 * i**2}) + "\n" for i, record in enumerate(records))
    (copy / "frames.jsonl").write_text(text)
    found = table(write_review(copy, tmp_path / "with", scores=["entropy"]), "frames")
    assert found["times"] == [0, 0.5, 2, 4.5, 8, 12.5]
    assert list(found["statistics"]["entropy"]) == ["mean", "max", "p99", "component"]


def test_the_overlay_video_is_carried(copy: Path, tmp_path: Path) -> None:
    (copy / "overlay.webm").write_bytes(b"video")
    index = write_review(copy, tmp_path / "review")
    assert (index.parent / "overlay.webm").read_bytes() == b"video"
    assert table(index, "page")["video"] == "overlay.webm"


def test_the_verb_writes_a_page_and_imports_verdicts(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "review"
    words = ["review", "--maps", str(scene.maps)]
    assert main([*words, "--anomaly-labels", str(scene.anomaly), "--out", str(out)]) == 0
    run = table(out / "index.html", "page")["run"]
    verdicts = [{"frame": NAMES[1], "verdict": "missed", "note": "dark", "time": "2026-01-01T00:00:00Z"}]
    content = {"format": "segunc-verdicts", "version": 1, "run": run, "verdicts": verdicts}
    path = tmp_path / "verdicts.json"
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main([*words, "--import", str(path), "--out", str(out)]) == 0
    assert "| missed | 1 | 16.7% | 1 |" in capsys.readouterr().out
    assert table(out / "index.html", "verdicts")["verdicts"] == verdicts
    assert json.loads((out / "verdicts.json").read_text())["run"] == run
    assert main([*words, "--out", str(out)]) == 0
    assert table(out / "index.html", "verdicts")["verdicts"] == verdicts  # a page written anew keeps them
    assert main([*words, "--import", str(path), "--out", str(tmp_path)]) == 2
    assert "is no review page of these maps" in capsys.readouterr().err
    assert main(words) == 2
    assert "no --out is given" in capsys.readouterr().err
    assert main([*words, "--labels", str(scene.labels), "--out", str(out)]) == 2
    assert "--labels without the data set" in capsys.readouterr().err
