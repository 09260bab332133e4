"""Files of maps and their folders, of other tools too: every accepted kind, compact ones, damaged
and unfit ones in one line each.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError, NoteWarning
from segunc.maps.encoding import (
    decode_compact,
    decode_stored,
    decode_unit,
    encode_compact,
    encode_unit,
    read_score_file,
    score_keys,
)
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from tests.maps.fakes import edit_manifest, manifest
from tests.maps.foreign import write_map

RAMP = np.linspace(-3, 900, 12).reshape(3, 4)
KINDS = {
    "float16 float32 float64": (".hdf5", ".h5", ".npy"),
    "uint8 uint16": (".hdf5", ".npy", ".png", ".tif"),
    "float32 float64": (".tif", ".tiff", ".TIF"),
    "int64 bool": (".npy",),
}
HEIGHT, WIDTH = 47, 64  # odd and even
ACROSS = (
    np.linspace(0, 1, WIDTH, dtype=np.float32)[None, :]
    * np.linspace(0.2, 1, HEIGHT, dtype=np.float32)[:, None]
)
MAPS = {
    "prediction": (np.arange(HEIGHT * WIDTH) % 3).reshape(HEIGHT, WIDTH).astype(np.uint8),
    "entropy": ACROSS,
    "epistemic": ACROSS**2 / 10,
    "deterministic-max-logit": 5 - 20 * ACROSS,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (f"map{ending}", dtype)
        for dtypes, endings in KINDS.items()
        for dtype in dtypes.split()
        for ending in endings
    ],
)
def test_every_kind_is_read_in_its_own_type(tmp_path: Path, name: str, dtype: str) -> None:
    values = np.abs(RAMP).astype(dtype) if "uint" in dtype else RAMP.astype(dtype)
    stored = read_score_file(write_map(tmp_path / name, values))
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(stored, values)
    for shape in ((1, 3, 4), (3, 4, 1)):  # an axis of length one is dropped
        stored = read_score_file(write_map(tmp_path / "map.npy", values.reshape(shape)))
        np.testing.assert_array_equal(stored, values)


@pytest.mark.parametrize("name", ["map.png", "map.tif", "map.npy", "map.hdf5"])
@pytest.mark.parametrize("kept", [0.0, 0.97])
def test_a_truncated_file_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kept: float
) -> None:
    generator = np.random.default_rng(0)
    path = write_map(tmp_path / name, generator.integers(0, 65535, (40, 50), np.uint16))
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(InputError, match=rf"{name} cannot be read \(.+\).* write the map again"):
        read_score_file(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("map.png", np.zeros((3, 4, 3), np.uint8), r"has the shape \(3, 4, 3\)"),
        ("map.npy", np.zeros(7), r"has the shape \(7,\)"),
        ("map.npy", np.zeros((2, 2), np.complex64), "is of type complex64"),
        ("map.npy", np.array([["a"]]), "is of type <U1"),
        ("map.npy", np.array([{"no": "map"}]), "cannot be read"),  # a pickle
        ("map.npz", RAMP, "is of an unknown kind"),
        ("none.npy", None, r"cannot be read \(No such file"),
    ],
)
def test_what_is_no_map_is_refused(
    tmp_path: Path, name: str, values: np.ndarray | None, said: str
) -> None:
    if values is not None:
        np.save(tmp_path / name, values) if name != "map.png" else write_map(
            tmp_path / name, values
        )
    with pytest.raises(InputError, match=f"{name} {said}"):
        read_score_file(tmp_path / name)


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "value", (4, 4))
    file.create_virtual_dataset("value", layout)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda f: f.create_dataset("group/value", data=RAMP), "holds no data set 'value'"),
        (lambda f: f.create_group("value"), "holds no data set 'value'"),
        (
            lambda f: f.__setitem__("value", h5py.ExternalLink("secret.h5", "value")),
            "holds no data set 'value'",
        ),
        (
            lambda f: f.create_dataset("value", (4, 4), "u1", external=[("secret.raw", 0, 16)]),
            "from other files",
        ),
        (_virtual, "from other files"),
        (
            lambda f: f.create_dataset("value", dtype="f4", data=h5py.Empty("f4")),
            r"has the shape \(\)",
        ),
        (
            lambda f: f.create_dataset("value", data=[["text"]], dtype=h5py.string_dtype()),
            "is of type object",
        ),
    ],
)
def test_an_hdf5_map_is_held_by_its_file_and_may_be_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.raw").write_bytes(b"root:x:0:0:root:")
    write_map(Path("secret.h5"), np.ones((4, 4)))
    with h5py.File("map.hdf5", "w") as file:
        write(file)
    with pytest.raises(InputError, match=said):
        read_score_file(Path("map.hdf5"))
    for compression in ("gzip", "lzf"):
        with h5py.File("map.hdf5", "w") as file:
            file.create_dataset("stored", data=RAMP, compression=compression, shuffle=True)
            file["value"] = h5py.SoftLink("/stored")
        np.testing.assert_array_equal(read_score_file(Path("map.hdf5")), RAMP)


def written(out: Path, region: Region | None = None, **run: Any) -> MapsReader:
    with MapsWriter(out, manifest(**run), region=region) as writer:
        writer.write("a/one", MAPS)
    return MapsReader(out)


def test_a_compact_map_is_the_mean_of_four_pixels_at_8_bits() -> None:
    values = np.array([[0.0, 0.04, 1.0], [0.04, 0.16, 1.0], [0.5, 0.5, 0.25]], np.float32)
    codes = encode_compact(encode_unit(values))
    assert (codes.dtype, codes.shape) == (np.uint8, (2, 2))
    even = encode_compact(encode_unit(values[:2, :2]))
    np.testing.assert_array_equal(even, np.rint(255 * np.sqrt([[0.06]])))
    np.testing.assert_allclose(decode_unit(even), 0.06, atol=0.002)
    back = decode_compact(np.full((2, 3), 51, np.uint8), 3, 6, floats=False)
    np.testing.assert_array_equal(
        back, np.full((3, 6), 51 * 257, np.uint16)
    )  # (51 / 255)^2 exactly
    halves = np.array([[-20.0, -20.0], [3.5, 3.5]], np.float16).repeat(2, axis=1)
    back = decode_compact(encode_compact(halves.repeat(2, axis=0)), 4, 4, floats=True)
    np.testing.assert_array_equal(back[[0, 3]], halves)


def test_compact_files_are_small_and_every_reader_gets_the_frames_size(tmp_path: Path) -> None:
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[31:] = 0
    region = Region(write_map(tmp_path / "mask.png", mask))
    full, compact = written(tmp_path / "full"), written(tmp_path / "compact", compact=True)
    masked = written(tmp_path / "masked", region, compact=True)
    for score, dtype in (("entropy", np.uint8), ("deterministic-max-logit", np.uint16)):
        file = cv2.imread(str(tmp_path / f"compact/{score}/a/one.png"), cv2.IMREAD_UNCHANGED)
        assert (file.dtype, file.shape) == (dtype, (24, 32))
        values = masked.read("a/one", score)
        assert not values[31:].any()
        np.testing.assert_array_equal(values[:31], compact.read("a/one", score)[:31])
    np.testing.assert_array_equal(compact.prediction("a/one"), MAPS["prediction"])
    bounds = (
        ("entropy", 0.005, 0.02),
        ("epistemic", 0.0011, 0.005),
        ("deterministic-max-logit", 0.03, 0.4),
    )
    for score, inside, edge in bounds:
        one, other = full.read_stored("a/one", score), compact.read_stored("a/one", score)
        assert (one.dtype, one.shape, full.form(score)) == (
            other.dtype,
            other.shape,
            compact.form(score),
        )
        off = np.abs(full.read("a/one", score) - compact.read("a/one", score))
        assert (
            0 < off[2:-2, 2:-2].max() < inside
        )  # a map moved by half a pixel would be further off
        assert off.max() < edge
    # What a frame amounts to is said of the maps before.
    lines = [
        json.loads((tmp_path / name / "frames.jsonl").read_text()) for name in ("full", "compact")
    ]
    assert (lines[0]["max"], lines[0]["component"]) == (lines[1]["max"], lines[1]["component"])


def test_the_manifest_names_the_codes_and_others_refuse_them(tmp_path: Path) -> None:
    out = tmp_path / "maps"
    described = written(out, compact=True).manifest["maps"]  # type: ignore[index]
    assert (described["entropy"]["dtype"], described["entropy"]["value"]) == (
        "uint8",
        "(code / 255)^2",
    )
    assert described["deterministic-max-logit"]["value"].startswith("float16 whose bits")
    assert "value" not in described["prediction"]
    with pytest.raises(InputError, match="written with compact = True \\(now None\\)"):
        MapsWriter(out, manifest())
    edit_manifest(out, lambda content: content["maps"]["entropy"].update(value="code / 7"))
    with pytest.raises(
        InputError, match="the values of 'entropy' are code / 7, which this segunc does not know"
    ):
        MapsReader(out)


VALUES = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
CODES = encode_unit(VALUES)
FLAT, PICTURE = np.zeros((3, 4), np.float32), np.zeros((3, 4, 3), np.uint8)
OURS = {
    "prediction": CODES // 65535,
    "entropy": VALUES,
    "epistemic": FLAT,
    "deterministic-max-logit": FLAT,
}


def lay(folder: Path, *places: str, values: np.ndarray = VALUES) -> Path:
    for place in places:
        write_map(folder / place, values)
    return folder


def test_a_float_that_16_bits_would_round_has_no_16_bit_key() -> None:
    """98.01 and 98.02 are one float16, and 70000 is none."""
    for values in ([98.01, 98.02], [70000.0], [np.nan]):
        with pytest.raises(InputError, match="float16 does not hold a score exactly"):
            score_keys(np.array(values, np.float32))


def test_a_float64_map_is_read_without_rounding(tmp_path: Path) -> None:
    values = 1 - 1e-12 * np.arange(6.0).reshape(2, 3)
    read = MapsReader(lay(tmp_path, "other/1.npy", values=values)).read("1", "other")
    np.testing.assert_array_equal(read, values)


def test_linked_folders_of_maps_are_said(tmp_path: Path) -> None:
    lay(tmp_path, "elsewhere/1.npy", "maps/a/1.npy")
    (tmp_path / "maps/b").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.warns(NoteWarning, match="1 links to folders left out, first b"):
        assert MapsReader(tmp_path / "maps").scores == ["a"]


def test_score_folders_with_nested_frames_and_mixed_kinds(tmp_path: Path) -> None:
    reader = MapsReader(lay(tmp_path, "energy/a/1.npy", "energy/a/2.h5", "void/a/1.tif"))
    assert (reader.scores, reader.frames) == (["energy", "void"], ["a/1", "a/2"])
    assert [reader.has("a/2", score) for score in reader.scores] == [True, False]
    assert (reader.manifest, reader.unfinished) == (None, None)
    for name, score in (("a/1", "energy"), ("a/2", "energy"), ("a/1", "void")):
        np.testing.assert_array_equal(reader.read(name, score), VALUES)
    # Whole numbers without a range of their own are values.
    for kept in (
        np.float64,
        np.uint8,
        np.uint16,
        np.float16,
        np.int16,
        np.int64,
        np.uint32,
        np.bool_,
    ):
        write_map(tmp_path / "void/a/2.npy", np.array([[0, 1]], kept))
        stored = MapsReader(tmp_path).read_stored("a/2", "void")
        assert stored.dtype == (
            np.float64 if kept in (np.int16, np.int64, np.uint32, np.bool_) else kept
        )
        np.testing.assert_array_equal(stored, [[0, 1]])


@pytest.mark.parametrize("level", [".", "anomaly_p"])
def test_the_benchmark_layout(tmp_path: Path, level: str) -> None:
    values = VALUES.astype(np.float16)
    lay(tmp_path / "anomaly_p", "A/One/f.hdf5", "B/One/f.hdf5", "B/Two/f.hdf5", values=values)
    reader = MapsReader(tmp_path / level)
    assert (reader.scores, reader.frames) == (["A", "B"], ["One/f", "Two/f"])
    assert not reader.has("Two/f", "A")
    np.testing.assert_array_equal(reader.read_stored("Two/f", "B"), values)


def test_class_ids_alone_are_enough_and_palettes_are_indices(tmp_path: Path) -> None:
    ids = {"a.png": np.array([[0, 255]], np.uint8), "b.npy": np.array([[3, 18]], np.int64)}
    for name, values in ids.items():
        write_map(tmp_path / "prediction" / name, values)
    reader = MapsReader(tmp_path)
    assert (reader.scores, reader.frames) == ([], ["a", "b"])
    for name, values in zip(reader.frames, ids.values(), strict=True):
        assert reader.prediction(name).dtype == np.uint8
        np.testing.assert_array_equal(reader.prediction(name), values)
    indices = np.array([[2, 0, 1], [0, 1, 2]], np.uint8)
    palette = Image.fromarray(indices, "P")
    palette.putpalette([128, 64, 128, 244, 35, 232, 70, 70, 70])
    palette.save(tmp_path / "prediction/a.png")
    np.testing.assert_array_equal(reader.prediction("a"), indices)
    palette.convert("RGB").save(tmp_path / "prediction/a.png")
    with pytest.raises(InputError, match=r"a.png has the shape \(2, 3, 3\)"):
        reader.prediction("a")
    write_map(tmp_path / "prediction/a.png", np.dstack([ids["a.png"]] * 3))
    np.testing.assert_array_equal(reader.prediction("a"), ids["a.png"])
    for unfit in (np.array([[0, 256]]), np.array([[-1, 2]]), np.array([[0.0, 1.0]])):
        write_map(tmp_path / "prediction/b.npy", unfit)
        with pytest.raises(InputError, match="prediction of frame b"):
            reader.prediction("b")


def test_the_name_of_a_score_does_not_make_codes_of_ours(tmp_path: Path) -> None:
    write_map(tmp_path / "theirs/entropy/1.png", CODES)
    (tmp_path / "theirs/manifest.json").write_text('{"name": "a web page"}')  # of another tool
    theirs = MapsReader(tmp_path / "theirs")
    assert (theirs.manifest, theirs.form("entropy")) == (None, "linear")
    np.testing.assert_allclose(theirs.read("1", "entropy"), CODES / 65535, rtol=1e-6)
    np.testing.assert_allclose(
        decode_stored(np.array([[51]], np.uint8), "linear"), [[0.2]], rtol=1e-6
    )
    with MapsWriter(tmp_path / "ours", manifest()) as writer:
        writer.write("1", OURS)
    ours = MapsReader(tmp_path / "ours")
    forms = [ours.form(score) for score in ("entropy", "deterministic-max-logit", "unknown")]
    assert forms == ["unit-code", "linear", "linear"]
    np.testing.assert_array_equal(ours.read("1", "entropy"), decode_unit(CODES))
    np.testing.assert_array_equal(
        ours.read_stored("1", "entropy"), theirs.read_stored("1", "entropy")
    )


def test_pictures_and_labels_beside_the_scores_are_no_scores(tmp_path: Path) -> None:
    lay(tmp_path, "images/1.png", "labels/1.png", values=PICTURE)
    with pytest.raises(InputError, match=r"holds no finished map, SCORE/FRAME of .*\.hdf5"):
        MapsReader(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        MapsReader(tmp_path / "nowhere")
    lay(tmp_path, "entropy/1.png", values=PICTURE)
    reader = MapsReader(lay(tmp_path, "entropy/2.png", "overlay/1.png", values=CODES))
    assert (reader.scores, reader.frames) == (["entropy"], ["1", "2"])
    with pytest.raises(InputError, match=r"entropy/1.png has the shape \(3, 4, 3\)"):
        reader.read("1", "entropy")


def test_two_files_of_one_frame_are_both_named_and_hidden_files_none(tmp_path: Path) -> None:
    """A Mac decomposes accents and lays a hidden file beside each of its own on a foreign disk."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    lay(
        tmp_path,
        f"a/{composed}.npy",
        f"b/{decomposed}.npy",
        f"a/._{composed}.npy",
        "a/.cache/x.npy",
    )
    reader = MapsReader(tmp_path)
    assert (reader.frames, reader.has(composed, "b")) == ([composed], True)
    for second in (f"{decomposed}.npy", f"{composed}.tif"):
        with pytest.raises(InputError, match=r"a/caf.*and .*a/caf.* are both frame 'caf"):
            MapsReader(lay(tmp_path, f"a/{second}"))
        (tmp_path / "a" / second).unlink()


def test_manifests_of_another_version_or_damaged_are_one_line(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("1", OURS)
    path = tmp_path / "manifest.json"
    whole = path.read_text()
    other = whole.replace('"format_version": 2', '"format_version": 3')
    for text, said in (
        (other, "is of format version 3, not 2"),
        (other[:-30], "is not valid JSON"),
        (whole.replace('"sha256"', '"sha257"'), "was changed since it was written"),
        (whole.replace("(code / 65535)^2", "(code / 65534)^2"), "was changed since it was written"),
    ):
        assert text != whole
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            MapsReader(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"holds frames\.jsonl but no manifest\.json"):
        MapsReader(tmp_path)


def test_maps_are_read_without_torch() -> None:
    rooms = "store, reader, regions, moments, pipeline"
    code = (
        f"import sys; from segunc.maps import {rooms}; "
        "sys.exit('torch' in sys.modules or 'filelock' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("value", [1.5, -0.2])
def test_a_value_outside_of_its_range_is_refused_and_not_clipped(value: float) -> None:
    values = np.full((2, 3), 0.5, np.float32)
    values[1, 1] = value
    with pytest.raises(InputError, match=r"stored as 0\.\.1 holds values"):
        encode_unit(values)


def test_rounding_beyond_the_ends_is_clipped() -> None:
    assert encode_unit(np.array([-1e-6, 1 + 1e-6], np.float32)).tolist() == [0, 65535]
