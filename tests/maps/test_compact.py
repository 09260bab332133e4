"""Compact maps: their files, how they are read back, who refuses them; and the bytes that maps are said to take."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_compact, decode_unit, encode_compact, encode_unit
from segunc.maps.reader import MapsReader
from segunc.maps.statistics import Region
from segunc.maps.store import MapsWriter
from tests.maps.fakes import edit_log, edit_manifest, folder_bytes, manifest, predict, write_pictures

Usage = namedtuple("Usage", "total used free")
HEIGHT, WIDTH = 47, 64  # odd and even
ACROSS = np.linspace(0, 1, WIDTH, dtype=np.float32)[None, :] * np.linspace(0.2, 1, HEIGHT, dtype=np.float32)[:, None]
MAPS = {
    "prediction": (np.arange(HEIGHT * WIDTH) % 3).reshape(HEIGHT, WIDTH).astype(np.uint8),
    "entropy": ACROSS,
    "epistemic": ACROSS**2 / 10,
    "deterministic-max-logit": 5 - 20 * ACROSS,
}


def written(out: Path, region: Region | None = None, **run: Any) -> MapsReader:
    with MapsWriter(out, manifest(**run), region=region) as writer:
        writer.write("a/one", MAPS)
    return MapsReader(out)


def test_a_compact_map_is_the_mean_of_four_pixels_at_8_bits() -> None:
    values = np.array([[0.0, 0.04, 1.0], [0.04, 0.16, 1.0], [0.5, 0.5, 0.25]], np.float32)
    codes = encode_compact(encode_unit(values))
    assert codes.dtype == np.uint8
    even = encode_compact(encode_unit(values[:2, :2]))
    np.testing.assert_array_equal(even, np.rint(255 * np.sqrt([[0.06]])))
    np.testing.assert_allclose(decode_unit(even), 0.06, atol=0.002)
    assert codes.shape == (2, 2)  # of 3 x 3
    back = decode_compact(np.full((2, 3), 51, np.uint8), [3, 6], "it", floats=False)
    np.testing.assert_array_equal(back, np.full((3, 6), 51 * 257, np.uint16))  # (51 / 255)^2 exactly
    halves = np.array([[-20.0, -20.0], [3.5, 3.5]], np.float16)
    np.testing.assert_array_equal(
        decode_compact(encode_compact(halves.repeat(2, axis=0).repeat(2, axis=1)), [4, 4], "it", floats=True)[[0, 3]],
        halves.repeat(2, axis=1),
    )


def test_files_are_small_and_every_reader_gets_the_frames_size(tmp_path: Path) -> None:
    full, compact = written(tmp_path / "full"), written(tmp_path / "compact", compact=True)
    for score, dtype in (("entropy", np.uint8), ("deterministic-max-logit", np.uint16)):
        file = cv2.imread(str(tmp_path / f"compact/{score}/a/one.png"), cv2.IMREAD_UNCHANGED)
        assert (file.dtype, file.shape) == (dtype, (24, 32))
    np.testing.assert_array_equal(compact.prediction("a/one"), MAPS["prediction"])
    for score, inside, edge in (
        ("entropy", 0.005, 0.02),
        ("epistemic", 0.0011, 0.005),
        ("deterministic-max-logit", 0.03, 0.4),
    ):
        one, other = full.read_stored("a/one", score), compact.read_stored("a/one", score)
        assert (one.dtype, one.shape, full.form(score)) == (other.dtype, other.shape, compact.form(score))
        off = np.abs(full.read("a/one", score) - compact.read("a/one", score))
        assert 0 < off[2:-2, 2:-2].max() < inside  # a map moved by half a pixel would be further off
        assert off.max() < edge
    # What a frame amounts to is said of the maps before.
    lines = [json.loads((tmp_path / name / "frames.jsonl").read_text()) for name in ("full", "compact")]
    assert lines[0]["max"] == lines[1]["max"]
    assert lines[0]["component"] == lines[1]["component"]


def test_the_manifest_names_the_codes_and_others_refuse_them(tmp_path: Path) -> None:
    out = tmp_path / "maps"
    described = written(out, compact=True).manifest["maps"]  # type: ignore[index]
    assert (described["entropy"]["dtype"], described["entropy"]["value"]) == ("uint8", "(code / 255)^2")
    assert described["deterministic-max-logit"]["value"].startswith("float16 whose bits")
    assert "value" not in described["prediction"]
    with pytest.raises(InputError, match="written with compact = True \\(now None\\)"):
        MapsWriter(out, manifest())
    written(tmp_path / "full")
    with pytest.raises(InputError, match="written with compact = None \\(now True\\)"):
        MapsWriter(tmp_path / "full", manifest(compact=True))
    edit_manifest(out, lambda content: content["maps"]["entropy"].update(value="code / 7"))
    with pytest.raises(InputError, match="the values of 'entropy' are code / 7, which this segunc does not know"):
        MapsReader(out)


@pytest.mark.parametrize("size", [None, "xy", [46, 64, 1], [10**9, 10**9], [24, 32]])
def test_a_size_that_is_none_of_the_map_is_one_line(tmp_path: Path, size: Any) -> None:
    out = tmp_path / "maps"
    written(out, compact=True)
    edit_log(out, lambda record: record.update(size=size))
    with pytest.raises(
        InputError,
        match=r"entropy/a/one.png, a compact one, is 24 x 32 uint8 for a frame of .*half its",
    ):
        MapsReader(out).read("a/one", "entropy")


def test_nothing_is_outside_of_the_region(tmp_path: Path) -> None:
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[31:] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    reader = written(tmp_path / "maps", Region(tmp_path / "mask.png"), compact=True)
    for score in ("entropy", "deterministic-max-logit"):
        values = reader.read("a/one", score)
        assert not values[31:].any()
        assert values[:29].any(axis=1).all()


def test_the_first_frame_tells_what_all_take(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 4)
    said: list[str] = []
    predict(tmp_path / "in", tmp_path / "out", on_note=said.append)
    first = json.loads((tmp_path / "out/frames.jsonl").read_text().splitlines()[0])
    took = sum((tmp_path / "out" / file).stat().st_size for file in first["files"].values())
    (line,) = said
    assert line.startswith(f"maps take {took / 1000:.3g} kB a frame, {4 * took / 1000:.3g} kB for all 4 frames; ")
    assert line.endswith(" are free")
    predict(tmp_path / "in", tmp_path / "out", on_note=said.append)
    assert len(said) == 1  # nothing was written


def test_a_run_that_does_not_fit_ends_after_its_first_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "in", 8)
    out, said = tmp_path / "out", list[str]()
    predict(tmp_path / "in", tmp_path / "whole")
    first = json.loads((tmp_path / "whole/frames.jsonl").read_text().splitlines()[0])
    took = sum((tmp_path / "whole" / file).stat().st_size for file in first["files"].values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 7 * took - 1))
    expected = r"of 7 more frames take .* a frame\), and .* are free for .*Hint: .*`compact` or fewer `scores`"
    with pytest.raises(InputError, match=expected):
        predict(tmp_path / "in", out, on_note=said.append)
    assert said == []
    status = json.loads((out / "manifest.json").read_text())
    done = len((out / "frames.jsonl").read_text().splitlines())
    assert (status["status"], status["finished"]) == ("interrupted", done)
    assert 1 <= done < 8
    # What is finished counts no more: the rest fits where the whole would not.
    predict(tmp_path / "in", out, on_note=said.append)
    assert len(said) == 1
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")
