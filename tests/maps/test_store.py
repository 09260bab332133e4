"""The maps folder: its files, what a second run may do to it, damage and what is done about it, and
what its frames amount to.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import ndimage

import segunc
from segunc.core.errors import InputError, NoteWarning
from segunc.frames.source import Frame
from segunc.frames.sources import open_source
from segunc.maps import store
from segunc.maps.encoding import decode_unit, encode_score, encode_unit
from segunc.maps.folder import (
    begin_video,
    begun_files,
    check_video,
    clear_folder,
    note_video,
)
from segunc.maps.manifest import read_manifest
from segunc.maps.moments import Moment, maps_folders, separated_peaks, worst_moments
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region, map_statistics
from segunc.maps.shards import DamageError, Shard, frame_times, write_state
from segunc.maps.store import Maps, MapsWriter
from tests.maps import fakes
from tests.maps.fakes import SCORES, folder_bytes, manifest, predict, write_pictures

NAMES = ("a/one", "b/two")
FRAME = "a/frame_001"
FILES = ("entropy/{}.png", "prediction/{}.png", "deterministic-max-logit/{}.npy")


def maps(value: float = 0.25) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(int(value * 100))
    return {
        "prediction": generator.integers(0, 3, (6, 8)).astype(np.uint8),
        "entropy": generator.random((6, 8), np.float32) * value,
        "epistemic": generator.random((6, 8), np.float32) * value / 10,
        "deterministic-max-logit": -20 * generator.random((6, 8), np.float32),
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        for index, name in enumerate(NAMES):
            writer.write(name, maps(0.25 + index / 2))
    return tmp_path / "maps"


def test_files_are_what_the_contract_says(out: Path) -> None:
    prediction = cv2.imread(str(out / "prediction/a/one.png"), cv2.IMREAD_UNCHANGED)
    assert prediction.dtype == np.uint8
    codes = cv2.imread(str(out / "entropy/a/one.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(codes, encode_unit(maps(0.25)["entropy"]))
    assert np.load(out / "deterministic-max-logit/a/one.npy").dtype == np.float16
    assert not list(out.rglob(".*"))


def test_a_line_names_the_files_of_its_frame_and_their_statistics(out: Path) -> None:
    expected = maps(0.25)
    line = json.loads((out / "frames.jsonl").read_text().splitlines()[0])
    assert line["name"] == "a/one"
    assert line["size"] == [6, 8]
    assert line["files"]["deterministic-max-logit"] == "deterministic-max-logit/a/one.npy"
    assert line["mean"]["epistemic"] == pytest.approx(expected["epistemic"].mean(), rel=1e-3)
    largest = expected["deterministic-max-logit"].max()
    assert line["max"]["deterministic-max-logit"] == pytest.approx(largest, rel=1e-3)


def test_the_reader_gives_what_was_written(out: Path) -> None:
    expected = maps(0.25)
    reader = MapsReader(out)
    assert reader.frames == list(NAMES)
    assert reader.scores == list(SCORES)
    np.testing.assert_array_equal(reader.prediction("a/one"), expected["prediction"])
    codes = encode_unit(expected["entropy"])
    np.testing.assert_array_equal(reader.read_stored("a/one", "entropy"), codes)
    for score in SCORES:
        values = reader.read("b/two", score)
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, maps(0.75)[score], rtol=2e-3, atol=2e-5)


def test_a_score_without_maps_is_refused(out: Path) -> None:
    with pytest.raises(InputError, match="no map 'deterministic-energy'"):
        MapsReader(out).read("a/one", "deterministic-energy")


def test_encoded_maps_are_stored_as_they_are(tmp_path: Path) -> None:
    encoded = {
        "entropy": encode_unit(maps()["entropy"]),
        "deterministic-max-logit": maps()["deterministic-max-logit"].astype(np.float16),
    }
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("a/one", maps() | encoded)
        reader = MapsReader(tmp_path)
        for score, values in encoded.items():
            np.testing.assert_array_equal(reader.read_stored("a/one", score), values)


def test_the_reader_says_that_a_run_goes_on(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("a/one", maps())
        unfinished = MapsReader(tmp_path).unfinished
    assert unfinished is not None
    assert "status running, 1 frame so far" in unfinished


def test_a_frame_without_a_line_is_not_read(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("a/one", maps())
        writer.store("b/two", maps())
    assert MapsReader(tmp_path).frames == ["a/one"]


def test_manifest_records_status_and_failed_frames(tmp_path: Path) -> None:
    writer = MapsWriter(tmp_path, manifest())
    writer.write("a/one", maps())
    writer.failed["c/three"] = "the JPEG is truncated"
    writer.close()
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["status"] == "finished"
    assert content["failed"] == [{"name": "c/three", "reason": "the JPEG is truncated"}]


def test_manifest_records_units_ranges_and_classes(out: Path) -> None:
    content = json.loads((out / "manifest.json").read_text())
    assert list(content["maps"]) == ["prediction", *SCORES]
    assert content["maps"]["epistemic"]["range"] == [0.0, 1.0]
    assert content["maps"]["deterministic-max-logit"] == {
        "file": "npy",
        "dtype": "float16",
        "unit": "negative max logit",
        "range": None,
    }
    assert content["environment"]["numpy"] == np.__version__
    assert content["classes"] == {
        "names": list(fakes.CLASSES),
        "palette": [list(colour) for colour in fakes.PALETTE],
    }


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"draws": 8}, "draws = 24 (now 8)"),
        (
            {"maps": ["entropy"], "draws": 8, "anomaly": {"parts": [1]}},
            "with `scores` entropy,epistemic,deterministic-max-logit (now entropy), "
            "draws = 24 (now 8). Hint",
        ),
        ({"group": 2, "scope": "a", "seed": 1, "size": [2, 2]}, "scope = None (now 'a'), seed"),
        ({"scope": "decoder"}, "scope = None"),
    ],
)
def test_other_settings_are_refused_by_name(out: Path, changed: dict[str, Any], key: str) -> None:
    before = (out / "frames.jsonl").read_bytes()
    with pytest.raises(InputError) as error:
        MapsWriter(out, manifest(**changed))
    assert key in str(error.value)
    assert "give another `out`, or `overwrite`" in str(error.value)
    assert (out / "frames.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"precision": "float32"}, "with --precision bfloat16 the run goes on"),
        ({"threads": 4, "chunk": 2}, "with --chunk 8 and with --threads 2 the run goes on"),
        ({"compiled": True}, "without --compile the run goes on"),
        ({"threads": 4, "draws": 2}, ""),
    ],
)
def test_an_option_that_another_machine_chose_is_typed_in_the_hint(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    before = {"precision": "bfloat16", "threads": 2, "chunk": 8}
    MapsWriter(tmp_path, manifest(**before)).close()
    with pytest.raises(InputError) as error:
        MapsWriter(tmp_path, manifest(**before | changed))
    usual = "give another --out, or --overwrite"
    assert error.value.hint == (f"{words}; or {usual}" if words else usual)


def test_another_model_is_said_in_the_place_of_what_follows_from_it(tmp_path: Path) -> None:
    fitted = {"anomaly": {"part_surprises": [0.5] * 40, "scales": [1.5] * 40}}
    before = fitted | {"base_sha256": "ab" * 32, "posterior_sha256": "cd" * 32}
    MapsWriter(tmp_path, manifest(**before)).close()
    fitted = {"anomaly": {"part_surprises": [0.7] * 40, "scales": [2.5] * 40}}
    now = fitted | {"base_sha256": "ab" * 32, "posterior_sha256": "ef" * 32}
    with pytest.raises(InputError) as error:
        MapsWriter(tmp_path, manifest(**now))
    words = "another model: posterior cdcdcdcdcdcd (now efefefefefef)"
    assert str(error.value).startswith(f"{tmp_path} was written with {words}. Hint: ")
    with pytest.raises(InputError, match=r"other anomaly\.part_surprises than now"):
        MapsWriter(tmp_path, manifest(**before | fitted))


def test_overlays_of_maps_without_them_are_another_command(out: Path) -> None:
    with pytest.raises(InputError) as error:
        MapsWriter(out, manifest(overlay="entropy"))
    assert error.value.message == f"{out} was written without --overlay"
    command = f"segunc overlay --maps {out} --score entropy --out {out}-overlay"
    assert error.value.hint.startswith(f"{command} draws overlays of these maps; ")


def test_overlays_are_no_command_where_maps_differ(out: Path) -> None:
    with pytest.raises(InputError) as error:
        MapsWriter(out, manifest(overlay="entropy", draws=8))
    assert "draws = 24 (now 8)" in error.value.message
    assert error.value.hint == "give another --out, or --overwrite"


def test_overwrite_removes_our_maps(out: Path) -> None:
    """And what a killed run left without a line, but nothing else, see ``test_hostile.py``."""
    (out / "overlay.webm").write_bytes(b"ours")
    note_video(out, read_manifest(out) or {})
    (out / "entropy/.x.png.segunc-partial").write_bytes(b"")
    killed = MapsWriter(out, manifest())
    killed.store("without a line", maps())
    killed.close("interrupted")
    with MapsWriter(out, manifest(draws=8), overwrite=True) as writer:
        assert len(writer.lines) == 0
        left = sorted(path.name for path in out.iterdir())
    assert left == [".lock", "frames.jsonl", "manifest.json"]


def test_an_overwritten_folder_holds_the_new_run(out: Path) -> None:
    settings = manifest(draws=8)
    with MapsWriter(out, settings, overwrite=True) as writer:
        writer.write("new", maps())
    assert MapsReader(out).frames == ["new"]
    assert (read_manifest(out) or {})["run"] == settings["run"]


def test_an_overwriting_that_was_killed_goes_on(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    unlink = Path.unlink
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            clear_folder(out, read_manifest(out) or {})
    assert not (out / "frames.jsonl").exists()
    MapsWriter(out, manifest(draws=8), overwrite=True).close()
    left = {path.name for path in out.iterdir()}
    assert left == {"frames.jsonl", "manifest.json"}


def test_overwrite_refuses_a_map_that_was_changed(out: Path) -> None:
    path = next((out / "entropy").rglob("*.png"))
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="has changed since the run wrote it"):
        MapsWriter(out, manifest(draws=8), overwrite=True)
    assert path.read_bytes() == b"mine"


def test_files_that_were_begun_are_listed_until_they_have_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_BEGUN_FILES", 8)  # of two frames
    with MapsWriter(tmp_path, manifest()) as writer:
        for number in range(4):
            writer.write(f"frame {number}", maps())
        listed = begun_files(tmp_path, Shard()).listed
        assert {name.rpartition("/")[2] for name in listed} == {"frame 3.npy", "frame 3.png"}
    assert not (tmp_path / ".begun.jsonl").exists()


def test_other_versions_that_continue_a_folder_are_noted(out: Path) -> None:
    newer = manifest()
    newer["environment"] = {**newer["environment"], "numpy": "99.0"}
    for _ in range(2):
        with pytest.warns(NoteWarning, match=r"was begun with numpy = '.*' \(now '99\.0'\), so"):
            MapsWriter(out, newer).close()
    content = read_manifest(out) or {}
    assert [entry["environment"]["numpy"] for entry in content["continued_by"]] == ["99.0"]
    assert content["environment"]["numpy"] == np.__version__


def test_another_kernel_gpu_or_command_is_no_other_maker(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    first = manifest() | {"device": "NVIDIA H200 (cuda:0)"}
    MapsWriter(tmp_path / "maps", first).close()
    environment = {**first["environment"], "platform": "Linux-99"}
    others = {"environment": environment, "device": "NVIDIA H200 (cuda:1)", "command": "another"}
    MapsWriter(tmp_path / "maps", first | others).close()
    assert not recwarn.list


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_folder_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"no manifest\.json"):
        MapsWriter(tmp_path, manifest(), overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    for path in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "maps"):
        with pytest.raises(InputError, match="thesis"):
            MapsWriter(path, manifest())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entropy": np.full((6, 8), np.nan, np.float32)}, "NaN"),
        ({"entropy": np.zeros((6, 7), np.float32)}, "map entropy of frame x"),
        (
            {"deterministic-max-logit": np.zeros((6, 8), np.uint16)},
            "deterministic-max-logit is of type uint16",
        ),
        ({"prediction": np.full((6, 8), 256)}, "class ids"),
        ({"surprise": np.zeros((6, 8), np.float32)}, "surprise"),
    ],
)
def test_unfit_maps_are_refused(tmp_path: Path, change: dict[str, np.ndarray], said: str) -> None:
    with MapsWriter(tmp_path, manifest()) as writer, pytest.raises(InputError, match=said):
        writer.write("x", maps() | change)
    assert (tmp_path / "frames.jsonl").read_bytes() == b""


def again(home: Path, *, verify: bool = False) -> list[str]:
    """Write what is missing of four frames; return what is said of frames that are made again."""
    notes: list[str] = []
    predict(home / "in", home / "maps", verify=verify, on_note=notes.append)
    return [note for note in notes if "again" in note]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 4)
    assert again(tmp_path) == []
    return tmp_path


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


MADE_AGAIN = "1 finished frame is made again: maps or images are missing, damaged or others"


def assert_refused(home: Path, file: str, reason: str) -> None:
    score = file.split("/")[0]
    with pytest.raises(InputError, match=rf"{FRAME}.* {reason}.*--verify"):
        MapsReader(home / "maps")._read(FRAME, score)


@pytest.mark.parametrize("file", FILES)
def test_damage_to_a_file_is_read_by_nobody(home: Path, file: str) -> None:
    path = home / "maps" / file.format(FRAME)
    whole = path.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(whole), 60, replace=False):
        flip(path, int(bit))
        assert_refused(home, file, "was changed since it was written")
        path.write_bytes(whole)
    path.unlink()
    assert_refused(home, file, "is missing")


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_another_size_is_always_made_again(home: Path, file: str) -> None:
    before = folder_bytes(home / "maps")
    path = home / "maps" / file.format(FRAME)
    path.write_bytes(path.read_bytes()[:50])
    assert again(home) == [MADE_AGAIN]
    assert folder_bytes(home / "maps") == before


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_made_again_where_verify_asks(home: Path, file: str) -> None:
    before = folder_bytes(home / "maps")
    flip(home / "maps" / file.format(FRAME), 300)
    assert again(home) == []
    assert len(again(home, verify=True)) == 1
    assert folder_bytes(home / "maps") == before
    assert again(home, verify=True) == []


@pytest.fixture
def log_lines(home: Path) -> list[bytes]:
    """The first lines of the log of `home`."""
    return (home / "maps/frames.jsonl").read_bytes().splitlines(keepends=True)


def test_a_damaged_line_is_refused(home: Path, log_lines: list[bytes]) -> None:
    first, second, third = log_lines[:3]
    damaged = second.replace(b'"mean"', b'"moan"')
    (home / "maps/frames.jsonl").write_bytes(first + first + damaged + third)
    with pytest.raises(DamageError, match=r"line 3, was changed since it was written.*--verify"):
        MapsReader(home / "maps")


def test_lost_and_torn_lines_are_said_and_made_again(home: Path, log_lines: list[bytes]) -> None:
    before = folder_bytes(home / "maps")
    log = home / "maps/frames.jsonl"
    kept = log_lines[0] + log_lines[2]
    log.write_bytes(kept)
    assert "has lost the lines of 2 finished frames" in (MapsReader(home / "maps").unfinished or "")
    log.write_bytes(kept + b"more")
    assert len(again(home)) == 1
    assert folder_bytes(home / "maps") == before


def test_a_changed_mask_is_noticed(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 1)
    mask = np.full((24, 32), 255, np.uint8)
    for rows in (20, 19):
        mask[rows:] = 0
        cv2.imwrite(str(tmp_path / f"{rows}.png"), mask)
    predict(tmp_path / "in", tmp_path / "maps", region=Region(tmp_path / "20.png"))
    (tmp_path / "19.png").rename(tmp_path / "maps/mask.png")
    with pytest.raises(DamageError, match=r"mask.png was changed"):
        MapsReader(tmp_path / "maps")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Maps of four frames in two shards."""
    write_pictures(tmp_path / "in", 4)
    for number in (1, 2):
        predict(tmp_path / "in", tmp_path / "maps", shard=Shard(number, 2))
    return tmp_path / "maps"


def test_a_damaged_record_of_a_shard_is_refused(sharded: Path) -> None:
    record = sharded / "manifest.1-of-2.json"
    record.write_text(record.read_text().replace('"finished": 2', '"finished": 3'))
    with pytest.raises(DamageError, match=r"manifest.1-of-2.json was changed"):
        MapsReader(sharded)


def test_shards_with_the_manifest_of_another_tool_are_refused(sharded: Path) -> None:
    (sharded / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="is not the manifest of a maps folder"):
        MapsReader(sharded)


def test_shards_without_a_manifest_are_refused(sharded: Path) -> None:
    (sharded / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"holds frames\.1-of-2\.jsonl but no manifest"):
        MapsReader(sharded)


SIDES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@dataclass
class RandomMap:
    """A stored map with many ties.

    Args:
        stored: The map as a file holds it.
        values: The same map in float64.
        kept: Which pixels a mask keeps; None without a mask.
    """

    stored: Any
    values: Any
    kept: Any

    @property
    def pixels(self) -> Any:
        """The values of the pixels that count."""
        return self.values.ravel() if self.kept is None else self.values[self.kept]

    @property
    def threshold(self) -> float:
        """The first value, because a value at the threshold belongs to a component."""
        return float(self.values[0, 0])

    def statistics(self, threshold: float | None) -> dict[str, float]:
        return map_statistics(self.stored, threshold, self.kept)


@st.composite
def random_maps(draw: Any) -> RandomMap:
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    size = draw(SIDES)
    score = draw(st.sampled_from(["epistemic", "deterministic-energy"]))
    values = generator.random(size, np.float32) ** 3
    if score == "deterministic-energy":
        values *= -40
    stored = encode_score(score, np.round(values, 2))
    decoded = decode_unit(stored) if score == "epistemic" else stored
    kept = None
    if draw(st.booleans()):
        kept = generator.random(size) < 0.5
        kept[0, 0] = True
    return RandomMap(stored, decoded.astype(np.float64), kept)


@given(random_maps())
def test_statistics_are_those_of_numpy(random_map: RandomMap) -> None:
    statistics = random_map.statistics(random_map.threshold)
    pixels = random_map.pixels
    p99 = np.percentile(pixels, 99, method="inverted_cdf")
    assert statistics["mean"] == pytest.approx(pixels.mean(), rel=1e-7)
    assert statistics["max"] == pytest.approx(pixels.max(), rel=1e-7)
    assert statistics["p99"] == pytest.approx(p99, rel=1e-7)


@given(random_maps())
def test_the_largest_component_is_that_of_scipy(random_map: RandomMap) -> None:
    high = random_map.values >= random_map.threshold
    if random_map.kept is not None:
        high &= random_map.kept
    labels, _ = ndimage.label(high, structure=np.ones((3, 3)))
    sizes = np.bincount(labels.ravel())[1:]
    statistics = random_map.statistics(random_map.threshold)
    assert statistics["component"] == sizes.max(initial=0)


@given(random_maps())
def test_without_a_threshold_there_is_no_component(random_map: RandomMap) -> None:
    assert "component" not in random_map.statistics(None)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """The upper two thirds of 12x16."""
    mask = np.zeros((12, 16), np.uint8)
    mask[:8] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    return Region(tmp_path / "mask.png")


@dataclass
class MaskedRun:
    """Maps of two frames of 24x32, twice the size of the mask, with and without the mask."""

    home: Path
    name: str  # of the first frame

    @property
    def whole(self) -> MapsReader:
        return MapsReader(self.home / "whole")

    @property
    def masked(self) -> MapsReader:
        return MapsReader(self.home / "masked")


@pytest.fixture
def masked_run(tmp_path: Path, region: Region) -> MaskedRun:
    names = write_pictures(tmp_path / "in", 2)
    predict(tmp_path / "in", tmp_path / "whole")
    predict(tmp_path / "in", tmp_path / "masked", run={"mask": region.sha256}, region=region)
    return MaskedRun(tmp_path, names[0])


def test_nothing_is_drawn_outside_of_a_mask(tmp_path: Path, region: Region) -> None:
    write_pictures(tmp_path / "in", 2)
    drawn: list[Maps] = []

    def draw(frame: Frame, maps: Maps) -> Any:
        drawn.append(maps)
        return frame.image

    writer = MapsWriter(tmp_path / "masked", manifest(mask=region.sha256), region=region)
    run_pipeline(open_source(tmp_path / "in"), fakes.process, writer, draw_overlay=draw)
    assert not drawn[0]["entropy"][16:].any()
    assert drawn[0]["entropy"][:16].all()


@pytest.mark.parametrize("score", ["prediction", *SCORES])
def test_maps_are_0_outside_of_a_mask_and_unchanged_inside(
    masked_run: MaskedRun, score: str
) -> None:
    stored = masked_run.masked.read_stored(masked_run.name, score)
    whole = masked_run.whole.read_stored(masked_run.name, score)
    assert not stored[16:].any()
    np.testing.assert_array_equal(stored[:16], whole[:16])


@pytest.mark.parametrize("score", SCORES)
def test_statistics_count_nothing_outside_of_a_mask(masked_run: MaskedRun, score: str) -> None:
    record = masked_run.masked.records[masked_run.name]
    inside = masked_run.whole.read(masked_run.name, score)[:16].astype(np.float64)
    assert record["mean"][score] == pytest.approx(inside.mean(), rel=1e-6)
    assert record["max"][score] == pytest.approx(inside.max(), rel=1e-6)


def test_a_mask_is_what_it_keeps_whatever_its_colours(tmp_path: Path, region: Region) -> None:
    red = np.zeros((12, 16, 3), np.uint8)
    red[:8, :, 2] = 200
    cv2.imwrite(str(tmp_path / "red.png"), red)
    assert Region(tmp_path / "red.png").sha256 == region.sha256


def test_the_reader_gives_the_mask_at_the_size_of_frames(
    masked_run: MaskedRun, region: Region
) -> None:
    assert masked_run.whole.region is None
    read = masked_run.masked.region
    assert read is not None
    assert read.sha256 == region.sha256
    expected = np.zeros((24, 32), bool)
    expected[:16] = True
    np.testing.assert_array_equal(read.at(24, 32), expected)


def test_the_manifest_describes_the_mask(masked_run: MaskedRun, region: Region) -> None:
    described = (read_manifest(masked_run.home / "masked") or {})["mask"]
    assert described["sha256"] == region.sha256
    assert described["kept"] == pytest.approx(2 / 3)


def test_a_masked_folder_is_not_continued_without_its_mask(masked_run: MaskedRun) -> None:
    with pytest.raises(InputError, match="mask = "):
        predict(masked_run.home / "in", masked_run.home / "masked")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("black.png", "black all over"),
        ("broken.png", "is not a PNG"),
        ("missing.png", "cannot be read"),
        ("mask.jpg", "exactly 0"),
    ],
)
def test_unfit_masks_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((4, 4), np.uint8))
    (tmp_path / "broken.png").write_bytes(b"no PNG")
    with pytest.raises(InputError, match=reason):
        Region(tmp_path / name)


def test_a_mask_of_another_shape_than_the_frame_is_refused(region: Region) -> None:
    with pytest.raises(InputError, match="mask of 12x16 does not fit a frame of 12x12"):
        region.at(12, 12)


def test_frames_that_a_mask_does_not_fit_fail(tmp_path: Path, region: Region) -> None:
    write_pictures(tmp_path / "in", 2, (20, 20))
    assert len(predict(tmp_path / "in", tmp_path / "out", region=region).failed) == 2


FRAMES = st.tuples(
    st.one_of(st.floats(-5, 5), st.just(math.nan)),
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 3.0, 7.0, None]),
    st.sampled_from(["day", "night"]),
)


def plain_peaks(moments: list[Moment], apart: float) -> list[Moment]:
    """Return the peaks by a comparison of each moment with all peaks before it."""

    def near(moment: Moment, peak: Moment) -> bool:
        if moment.time is None or peak.time is None or moment.folder != peak.folder:
            return False
        return abs(moment.time - peak.time) < apart

    finite = [moment for moment in moments if not math.isnan(moment.value)]
    peaks: list[Moment] = []
    for moment in sorted(finite, key=lambda moment: -moment.value):
        if not any(near(moment, peak) for peak in peaks):
            peaks.append(moment)
    return peaks


@given(
    st.lists(FRAMES, max_size=30),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 100.0]),
)
def test_peaks_are_those_of_the_plain_comparison_of_all_with_all(
    frames: list[tuple[float, float | None, str]], count: int, apart: float
) -> None:
    moments = [
        Moment(Path(video), f"v/{number}", time, value)
        for number, (value, time, video) in enumerate(frames)
    ]
    assert separated_peaks(moments, apart, count) == plain_peaks(moments, apart)[:count]


def test_peaks_that_lie_just_as_far_apart_as_asked_are_kept() -> None:
    moments = [Moment(Path("day"), f"v/{number}", number * 0.8, 0.5) for number in range(12)]
    assert separated_peaks(moments, 0.8, 20) == moments
    nearer = [Moment(Path("day"), f"v/{number}", number * 0.79, 0.5) for number in range(12)]
    assert len(separated_peaks(nearer, 0.8, 20)) == 6


@pytest.fixture
def drives(tmp_path: Path) -> list[Path]:
    """Maps of two videos, two shards each."""
    for name in ("monday", "tuesday"):
        fakes.write_timed_video(tmp_path / f"{name}.mkv", [0.0, 0.1, 3.0, 3.1, 9.0])
        for number in (2, 1):
            predict(tmp_path / f"{name}.mkv", tmp_path / "maps" / name, shard=Shard(number, 2))
    return maps_folders(tmp_path / "maps")


def test_moments_of_several_folders_and_of_shards_are_one_ranking(drives: list[Path]) -> None:
    """The bar grows from frame to frame, so each cluster's last frame is its brightest, its
    entropy the highest.
    """
    assert [folder.name for folder in drives] == ["monday", "tuesday"]
    moments = worst_moments(drives, "entropy", "mean", count=5, apart=1.0)
    assert [(moment.folder.name, moment.time) for moment in moments] == [
        ("monday", 9.0),
        ("tuesday", 9.0),
        ("monday", 3.1),
        ("tuesday", 3.1),
        ("monday", 0.1),
    ]
    values = [moment.value for moment in moments]
    assert values == sorted(values, reverse=True)


def test_moments_that_need_no_gap_are_all_frames(drives: list[Path]) -> None:
    assert len(worst_moments(drives[:1], "entropy", apart=0.0)) == 5


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """Maps of six images, three in each of two folders."""
    write_pictures(tmp_path / "in", 6)
    predict(tmp_path / "in", tmp_path / "out")
    return tmp_path / "out"


def test_images_get_times_from_a_rate(six: Path) -> None:
    names = MapsReader(six).frames
    moments = worst_moments([six], "epistemic", "p99", count=20, fps=2.0, apart=5.0)
    assert sorted(moment.name[0] for moment in moments) == ["a", "b"]  # one of each folder
    for moment in moments:
        assert moment.time == 0.5 * (names.index(moment.name) % 3)


def test_a_summary_lists_the_worst_moments(six: Path) -> None:
    summary = segunc.summary(six, score="epistemic", statistic="mean", top=20)
    worst = worst_moments([six], "epistemic", count=20)
    assert [moment.name for moment in summary.moments] == [moment.name for moment in worst]


def test_the_table_of_a_summary_lists_its_moments_and_all_of_them_to_label(six: Path) -> None:
    table = six.with_name("summary.csv")
    summary = segunc.summary(six, score="epistemic", statistic="mean", top=20, out=table)
    expected = []
    for part in ("moments", "label"):
        for rank, moment in enumerate(summary.moments, start=1):
            expected.append((part, str(rank), moment.name, moment.value))
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    listed = [(row["list"], row["rank"], row["frame"], float(row["value"])) for row in rows]
    assert listed == expected


def test_a_summary_without_times_notes_that_neighbours_may_be_listed(six: Path) -> None:
    (note,) = segunc.summary(six, score="epistemic", statistic="mean", top=20).notes
    assert "neighbours may be listed" in note
    assert segunc.summary(six, fps=2).notes == ()


def test_a_failed_frame_keeps_its_time() -> None:
    """Of five frames, the second failed."""
    records = {
        "a/0": {"index": 0},
        "a/4": {"index": 2},
        "b/1": {"index": 3},
        "b/3": {"index": 4},
    }
    times = frame_times(records, records, {"run": {"every": 2}}, 4.0)
    assert [*times] == [0, 1, 0, 0.5]


def test_a_first_frame_that_failed_keeps_the_times_of_the_others() -> None:
    """Of two folders, the first frame of the second failed."""
    records = {"a/0": {"index": 0}, "b/10": {"index": 2}, "b/11": {"index": 3}}
    failed = [{"name": "b/9", "reason": "damaged"}]
    times = frame_times(records, records, {"failed": failed}, 2.0)
    assert [*times] == [0, 0.5, 1]


def test_small_values_of_a_mask_of_16_bits_count(tmp_path: Path) -> None:
    mask = np.zeros((4, 8), np.uint16)
    mask[2:] = 255
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    assert np.array_equal(Region(tmp_path / "mask.png").kept, mask > 0)


def test_new_images_before_finished_ones_are_said(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", 4)
    images = tmp_path / "images"
    predict(images, tmp_path / "maps")
    (images / "a" / "frame_000_new.png").write_bytes((images / "a/frame_000.png").read_bytes())
    with pytest.raises(InputError, match="it is now number 2: new images stand before it"):
        predict(images, tmp_path / "maps")


def test_another_input_after_one_without_a_frame_is_recorded(tmp_path: Path) -> None:
    """All frames of the first input failed, so the maps are of the second one alone."""
    first = tmp_path / "first"
    second = tmp_path / "second"
    for folder, count in ((first, 2), (second, 3)):
        write_pictures(folder, count)
    for image in first.rglob("*.png"):
        image.write_bytes(b"damaged")
    maps = tmp_path / "maps"
    for images in (first, second):
        source = open_source(images)
        content = manifest(input=str(source.path)) | {"source": source.describe()}
        run_pipeline(source, fakes.process, MapsWriter(maps, content))
    recorded = read_manifest(maps)
    assert recorded is not None
    assert recorded["run"]["input"] == str(second)
    assert recorded["source"]["frames"] == 3
    assert "moved_to" not in recorded


@pytest.mark.parametrize(
    ("score", "statistic", "reason"),
    [
        ("entropie", "mean", "no mean of 'entropie'.*entropy, epistemic, deterministic-max-logit"),
        ("deterministic-max-logit", "component", "no component of 'deterministic-max-logit'"),
    ],
)
def test_a_statistic_that_maps_do_not_have_is_refused(
    six: Path, score: str, statistic: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        worst_moments([six], score, statistic)


def test_a_folder_without_maps_has_no_moments(six: Path) -> None:
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        maps_folders(six.with_name("in"))


def test_somebodys_file_with_the_name_of_a_map_is_refused_before_the_work(home: Path) -> None:
    source = open_source(home / "in")
    killed = MapsWriter(home / "killed", manifest())
    killed.begin(source)
    killed.write(source.name_of(0) or "", maps())
    killed.close("interrupted")
    mine = home / f"killed/entropy/{source.name_of(3)}.png"
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_bytes(b"mine")
    before = folder_bytes(home / "killed")
    with pytest.raises(InputError, match=r"in no record of the run .* so it is not replaced"):
        predict(home / "in", home / "killed")
    assert folder_bytes(home / "killed") == before


def test_a_frame_whose_map_is_somebodys_file_fails_by_name(tmp_path: Path) -> None:
    """Where names are not known before, as of a video, or lines are lost."""
    with MapsWriter(tmp_path, manifest()) as writer:
        mine = tmp_path / "entropy/x.png"
        mine.parent.mkdir()
        mine.write_bytes(b"mine")
        with pytest.raises(InputError, match=r"holds entropy/x\.png, which is in no record"):
            writer.write("x", maps())
    assert mine.read_bytes() == b"mine"
    assert not (tmp_path / "prediction/x.png").exists()


def test_a_damaged_map_is_made_again_after_a_kill_that_cut_its_line(home: Path) -> None:
    before = folder_bytes(home / "maps")
    victim = sorted((home / "maps/entropy").rglob("*.png"))[0]
    victim.write_bytes(b"damaged")
    killed = MapsWriter(home / "maps", manifest())
    killed.begin(open_source(home / "in"))
    killed.close("interrupted")
    assert again(home) == []
    assert folder_bytes(home / "maps") == before


def test_unlisted_maps_of_an_earlier_version_are_refused_with_what_to_do(home: Path) -> None:
    (home / "maps/frames.jsonl").write_bytes(b"")
    record = json.loads((home / "maps/manifest.json").read_text())
    content = {key: value for key, value in record.items() if key != "sha256"}
    write_state(home / "maps", Shard(), content | {"status": "running", "finished": 0})
    with pytest.raises(InputError, match="earlier version that was killed may have left it"):
        again(home)


def test_a_kill_before_the_video_is_noted_leaves_it_listed(out: Path) -> None:
    content = read_manifest(out) or {}
    partial = out / ".video.segunc-partial"
    partial.write_bytes(b"ours")
    begin_video(out, partial)
    partial.rename(out / "overlay.webm")
    MapsWriter(out, manifest()).close()
    check_video(out, content)
    MapsWriter(out, manifest(), overwrite=True).close()
    assert not (out / "overlay.webm").exists()


def test_somebodys_video_is_not_replaced(out: Path) -> None:
    (out / "overlay.webm").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"overlay\.webm, which is in no record"):
        check_video(out, read_manifest(out) or {})


def test_a_video_that_is_noted_is_begun_no_more(out: Path) -> None:
    partial = out / ".video.segunc-partial"
    partial.write_bytes(b"ours")
    begin_video(out, partial)
    partial.rename(out / "overlay.webm")
    note_video(out, read_manifest(out) or {})
    assert not (out / ".begun.jsonl").exists()
    check_video(out, read_manifest(out) or {})
