"""The maps folder: its files, what a second run may do to it, damage and what is done about it, and
what its frames amount to.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import ndimage

import segunc
from segunc.core.errors import InputError
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
    expected = maps(0.25)
    assert cv2.imread(str(out / "prediction/a/one.png"), cv2.IMREAD_UNCHANGED).dtype == np.uint8
    codes = cv2.imread(str(out / "entropy/a/one.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(codes, encode_unit(expected["entropy"]))
    assert np.load(out / "deterministic-max-logit/a/one.npy").dtype == np.float16
    first = json.loads((out / "frames.jsonl").read_text().splitlines()[0])
    assert (first["name"], first["size"]) == ("a/one", [6, 8])
    assert first["files"]["deterministic-max-logit"] == "deterministic-max-logit/a/one.npy"
    assert first["mean"]["epistemic"] == pytest.approx(expected["epistemic"].mean(), rel=1e-3)
    assert first["max"]["deterministic-max-logit"] == pytest.approx(
        expected["deterministic-max-logit"].max(), rel=1e-3
    )
    assert not list(out.rglob(".*"))
    reader = MapsReader(out)
    assert (reader.frames, reader.scores) == (list(NAMES), list(SCORES))
    np.testing.assert_array_equal(reader.prediction("a/one"), expected["prediction"])
    np.testing.assert_array_equal(reader.read_stored("a/one", "entropy"), codes)
    for score in SCORES:
        values = reader.read("b/two", score)
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, maps(0.75)[score], rtol=2e-3, atol=2e-5)
    with pytest.raises(InputError, match="no map 'deterministic-energy'"):
        reader.read("a/one", "deterministic-energy")


def test_manifest_records_units_ranges_and_status(tmp_path: Path) -> None:
    encoded = {
        "entropy": encode_unit(maps()["entropy"]),
        "deterministic-max-logit": maps()["deterministic-max-logit"].astype(np.float16),
    }
    writer = MapsWriter(tmp_path, manifest())
    writer.write("a/one", maps() | encoded)
    for score, values in encoded.items():  # which are taken as they are
        np.testing.assert_array_equal(MapsReader(tmp_path).read_stored("a/one", score), values)
    assert "status running, 1 frames so far" in (MapsReader(tmp_path).unfinished or "")
    writer.failed["c/three"] = "the JPEG is truncated"
    writer.store("b/two", maps())
    writer.close()
    assert MapsReader(tmp_path).frames == ["a/one"]  # alone has a line
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["status"] == "finished"
    assert content["failed"] == [{"name": "c/three", "reason": "the JPEG is truncated"}]
    assert list(content["maps"]) == ["prediction", *SCORES]
    assert content["maps"]["epistemic"]["range"] == [0.0, 1.0]
    described = {"file": "npy", "dtype": "float16", "unit": "negative max logit", "range": None}
    assert content["maps"]["deterministic-max-logit"] == described
    assert content["environment"]["numpy"] == np.__version__
    assert content["classes"] == {
        "names": list(fakes.CLASSES),
        "palette": [list(colour) for colour in fakes.PALETTE],
    }


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"draws": 8}, "draws = 24 (now 8)"),
        ({"maps": ["entropy"]}, "maps"),
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
        assert sorted(path.name for path in out.iterdir()) == [
            ".lock",
            "frames.jsonl",
            "manifest.json",
        ]
        writer.write("new", maps())
    assert MapsReader(out).frames == ["new"]
    assert (read_manifest(out) or {})["run"] == manifest(draws=8)["run"]


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
        MapsWriter(out, newer).close()
    content = read_manifest(out) or {}
    assert [entry["environment"]["numpy"] for entry in content["continued_by"]] == ["99.0"]
    assert content["environment"]["numpy"] == np.__version__


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


@pytest.mark.parametrize("file", FILES)
def test_damage_to_a_file_is_read_by_nobody_and_made_again(home: Path, file: str) -> None:
    before, path = folder_bytes(home / "maps"), home / "maps" / file.format(FRAME)
    whole = path.read_bytes()
    reader = MapsReader(home / "maps")
    for bit in np.random.default_rng(0).choice(8 * len(whole), 60, replace=False):
        flip(path, int(bit))
        with pytest.raises(
            InputError, match=rf"{FRAME}.* was changed since it was written.*`verify`"
        ):
            reader._read(FRAME, file.split("/")[0])
        path.write_bytes(whole)
    path.unlink()
    with pytest.raises(InputError, match=rf"{FRAME}.* is missing.*`verify`"):
        reader._read(FRAME, file.split("/")[0])
    # Another size is noticed always, a flipped bit when asked.
    path.write_bytes(whole[:50])
    assert again(home) == [
        "1 finished frames are made again: their maps or images are missing, damaged or others"
    ]
    assert folder_bytes(home / "maps") == before
    flip(path, 300)
    assert again(home) == []
    assert len(again(home, verify=True)) == 1
    assert folder_bytes(home / "maps") == before
    assert again(home, verify=True) == []


def test_damaged_doubled_torn_and_lost_lines(home: Path) -> None:
    before, log = folder_bytes(home / "maps"), home / "maps/frames.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[0] + lines[1].replace(b'"mean"', b'"moan"') + lines[2])
    with pytest.raises(DamageError, match=r"line 3, was changed since it was written.*`verify`"):
        MapsReader(home / "maps")
    log.write_bytes(lines[0] + lines[2])
    assert "has lost the lines of 2 finished frames" in (MapsReader(home / "maps").unfinished or "")
    log.write_bytes(log.read_bytes() + b"more")
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


def test_damaged_shards_are_refused_and_are_never_another_tools(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 4)
    out = tmp_path / "maps"
    for number in (1, 2):
        predict(tmp_path / "in", out, shard=Shard(number, 2))
    record = out / "manifest.1-of-2.json"
    record.write_text(record.read_text().replace('"finished": 2', '"finished": 3'))
    with pytest.raises(DamageError, match=r"manifest.1-of-2.json was changed"):
        MapsReader(out)
    (out / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="is not the manifest of a maps folder"):
        MapsReader(out)
    (out / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"holds frames\.1-of-2\.jsonl but no manifest"):
        MapsReader(out)


SIDES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(
    st.integers(0, 10**6),
    SIDES,
    st.booleans(),
    st.sampled_from(["epistemic", "deterministic-energy"]),
)
def test_statistics_are_those_of_numpy(
    seed: int, size: tuple[int, int], masked: bool, score: str
) -> None:
    generator = np.random.default_rng(seed)
    values = generator.random(size, np.float32) ** 3 * (1 if score == "epistemic" else -40)
    stored = encode_score(score, np.round(values, 2))  # with many ties
    real = (decode_unit(stored) if score == "epistemic" else stored).astype(np.float64)
    kept = generator.random(size) < 0.5 if masked else None
    if kept is not None:
        kept[0, 0] = True
    threshold = float(real[0, 0])  # a value at the threshold belongs to a component
    numbers = map_statistics(stored, threshold, kept)
    assert "component" not in map_statistics(stored, None, kept)
    pixels = real if kept is None else real[kept]
    assert numbers["mean"] == pytest.approx(pixels.mean(), rel=1e-7)
    assert numbers["max"] == pytest.approx(pixels.max(), rel=1e-7)
    assert numbers["p99"] == pytest.approx(
        np.percentile(pixels, 99, method="inverted_cdf"), rel=1e-7
    )
    high = (real >= threshold) & (True if kept is None else kept)
    labels, count = ndimage.label(high, structure=np.ones((3, 3)))
    assert numbers["component"] == (np.bincount(labels.ravel())[1:].max() if count else 0)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """The upper two thirds of 12x16."""
    mask = np.zeros((12, 16), np.uint8)
    mask[:8] = 1
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    return Region(tmp_path / "mask.png")


def test_outside_is_0_and_counts_for_nothing(tmp_path: Path, region: Region) -> None:
    names = write_pictures(tmp_path / "in", 2)  # 24x32: twice the mask
    predict(tmp_path / "in", tmp_path / "whole")
    seen: list[Maps] = []

    def draw(frame: Frame, maps: Maps) -> Any:
        seen.append(maps)
        return frame.image

    writer = MapsWriter(tmp_path / "masked", manifest(mask=region.sha256), region=region)
    run_pipeline(open_source(tmp_path / "in"), fakes.process, writer, draw_overlay=draw)
    assert not seen[0]["entropy"][16:].any()  # nothing outside is drawn
    assert seen[0]["entropy"][:16].all()
    whole, masked = MapsReader(tmp_path / "whole"), MapsReader(tmp_path / "masked")
    for score in ("prediction", *SCORES):
        stored = masked.read_stored(names[0], score)
        assert not stored[16:].any()
        np.testing.assert_array_equal(stored[:16], whole.read_stored(names[0], score)[:16])
    record = masked.records[names[0]]
    for score in SCORES:
        inside = whole.read(names[0], score)[:16].astype(np.float64)
        assert record["mean"][score] == pytest.approx(inside.mean(), rel=1e-6)
        assert record["max"][score] == pytest.approx(inside.max(), rel=1e-6)
    colour = np.zeros((12, 16, 3), np.uint8)
    colour[:8, :, 2] = 200
    cv2.imwrite(str(tmp_path / "red.png"), colour)  # colours and encodings do not matter
    assert whole.region is None
    assert masked.region is not None
    assert masked.region.sha256 == region.sha256 == Region(tmp_path / "red.png").sha256
    np.testing.assert_array_equal(
        masked.region.at(24, 32), np.repeat([True] * 16 + [False] * 8, 32).reshape(24, 32)
    )
    described = (read_manifest(tmp_path / "masked") or {})["mask"]
    assert (described["sha256"], described["kept"]) == (region.sha256, pytest.approx(2 / 3))
    with pytest.raises(InputError, match="mask = "):
        predict(tmp_path / "in", tmp_path / "masked")


def test_unfit_masks_are_one_line(tmp_path: Path, region: Region) -> None:
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((4, 4), np.uint8))
    (tmp_path / "broken.png").write_bytes(b"no PNG")
    masks = {
        "black.png": "black all over",
        "broken.png": "is not a PNG",
        "missing.png": "cannot be read",
    }
    for name, said in (masks | {"mask.jpg": "exactly 0"}).items():
        with pytest.raises(InputError, match=said):
            Region(tmp_path / name)
    with pytest.raises(InputError, match="mask of 12x16 does not fit a frame of 12x12"):
        region.at(12, 12)
    write_pictures(tmp_path / "in", 2, (20, 20))
    assert len(predict(tmp_path / "in", tmp_path / "out", region=region).failed) == 2


FRAMES = st.tuples(
    st.one_of(st.floats(-5, 5), st.just(math.nan)),
    st.sampled_from([0.0, 0.5, 1.0, 2.5, 3.0, 7.0, None]),
    st.sampled_from(["day", "night"]),
)


@given(
    st.lists(FRAMES, max_size=30), st.integers(1, 8), st.sampled_from([0.0, 0.5, 1.0, 2.5, 100.0])
)
def test_peaks_are_those_of_the_plain_comparison_of_all_with_all(
    frames: list[tuple[float, float | None, str]], count: int, apart: float
) -> None:
    moments = [
        Moment(Path(video), f"v/{place}", time, value)
        for place, (value, time, video) in enumerate(frames)
    ]

    def near(one: Moment, other: Moment) -> bool:
        known = one.time is not None and other.time is not None and one.folder == other.folder
        return known and abs(one.time - other.time) < apart

    plain: list[Moment] = []
    for moment in sorted((m for m in moments if not math.isnan(m.value)), key=lambda m: -m.value):
        if not any(near(moment, other) for other in plain):
            plain.append(moment)
    assert separated_peaks(moments, apart, count) == plain[:count]


def test_moments_of_several_folders_and_of_shards_are_one_ranking(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        fakes.write_timed_video(tmp_path / f"{name}.mkv", [0.0, 0.1, 3.0, 3.1, 9.0])
        for number in (2, 1):
            predict(tmp_path / f"{name}.mkv", tmp_path / "maps" / name, shard=Shard(number, 2))
    folders = maps_folders(tmp_path / "maps")
    assert [folder.name for folder in folders] == ["monday", "tuesday"]
    moments = worst_moments(folders, "entropy", "mean", count=5, apart=1.0)
    # The bar grows from frame to frame, so each cluster's last frame is its brightest, its entropy
    # the highest.
    assert [(m.folder.name, m.time) for m in moments] == [
        ("monday", 9.0), ("tuesday", 9.0), ("monday", 3.1), ("tuesday", 3.1), ("monday", 0.1)
    ]  # fmt: skip
    assert [m.value for m in moments] == sorted((m.value for m in moments), reverse=True)
    assert len(worst_moments(folders[:1], "entropy", apart=0.0)) == 5


def test_images_get_times_from_a_rate(tmp_path: Path) -> None:
    names, out = write_pictures(tmp_path / "in", 6), tmp_path / "out"
    predict(tmp_path / "in", out)
    timed = worst_moments([out], "epistemic", "p99", count=20, fps=2.0, apart=5.0)
    assert sorted(m.name[0] for m in timed) == ["a", "b"]  # of each folder one
    assert all(m.time == 0.5 * (names.index(m.name) % 3) for m in timed)
    result = segunc.summary(
        out, score="epistemic", statistic="mean", top=20, out=tmp_path / "summary.csv"
    )
    assert [m.name for m in result.moments] == [
        m.name for m in worst_moments([out], "epistemic", count=20)
    ]
    assert "neighbours may be listed" in result.notes[0]
    rows = list(csv.DictReader((tmp_path / "summary.csv").open(newline="")))
    assert [(row["list"], row["rank"], row["frame"], float(row["value"])) for row in rows] == [
        (part, str(rank), m.name, m.value)
        for part in ("moments", "label")
        for rank, m in enumerate(result.moments, start=1)
    ]
    assert segunc.summary(out, fps=2).notes == ()
    records = {
        name: {"index": index}
        for index, name in enumerate(("a/0", "a/2", "a/4", "b/1", "b/3"))
        if index != 1
    }  # that failed
    assert [*frame_times(records, records, {"run": {"every": 2}}, 4.0)] == [0, 1, 0, 0.5]
    for score, statistic, said in (
        ("entropie", "mean", "no mean of 'entropie'.*entropy, epistemic, deterministic-max-logit"),
        ("deterministic-max-logit", "component", "no component of 'deterministic-max-logit'"),
    ):
        with pytest.raises(InputError, match=said):
            worst_moments([out], score, statistic)
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        maps_folders(tmp_path / "in")


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
