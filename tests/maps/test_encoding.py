"""Files of maps and their folders, of other tools too: every accepted kind, compact ones, damaged
and unfit ones in one line each.
"""

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
    is_flagged,
    read_score_file,
    score_keys,
    threshold_text,
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


def names_and_dtypes() -> list[tuple[str, str]]:
    """Return a file name and a type for each kind of file."""
    cases = []
    for dtypes, endings in KINDS.items():
        for dtype in dtypes.split():
            cases.extend((f"map{ending}", dtype) for ending in endings)
    return cases


def ramp(dtype: str) -> np.ndarray:
    """Return :data:`RAMP` in this type, without its sign where the type has none."""
    values = np.abs(RAMP) if "uint" in dtype else RAMP
    return values.astype(dtype)


@pytest.mark.parametrize(("name", "dtype"), names_and_dtypes())
def test_every_kind_is_read_in_its_own_type(tmp_path: Path, name: str, dtype: str) -> None:
    values = ramp(dtype)
    stored = read_score_file(write_map(tmp_path / name, values))
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(stored, values)


@pytest.mark.parametrize("dtype", sorted({*" ".join(KINDS).split()}))
@pytest.mark.parametrize(
    "shape",
    [
        (1, 3, 4),
        (3, 4, 1),
    ],
)
def test_an_axis_of_length_one_is_dropped(
    tmp_path: Path, shape: tuple[int, ...], dtype: str
) -> None:
    values = ramp(dtype)
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
    ("name", "values", "reason"),
    [
        ("map.npy", np.zeros(7), r"has the shape \(7,\)"),
        ("map.npy", np.zeros((2, 2), np.complex64), "is of type complex64"),
        ("map.npy", np.array([["a"]]), "is of type <U1"),
        ("map.npy", np.array([{"no": "map"}]), "cannot be read"),  # a pickle
        ("map.npz", RAMP, "is of an unknown kind"),
    ],
)
def test_an_array_that_is_no_map_is_refused(
    tmp_path: Path, name: str, values: np.ndarray, reason: str
) -> None:
    np.save(tmp_path / name, values)
    with pytest.raises(InputError, match=f"{name} {reason}"):
        read_score_file(tmp_path / name)


def test_a_colour_picture_is_no_map(tmp_path: Path) -> None:
    path = write_map(tmp_path / "map.png", np.zeros((3, 4, 3), np.uint8))
    with pytest.raises(InputError, match=r"map.png has the shape \(3, 4, 3\)"):
        read_score_file(path)


def test_a_missing_map_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.npy cannot be read \(No such file"):
        read_score_file(tmp_path / "none.npy")


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4, 4), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "value", (4, 4))
    file.create_virtual_dataset("value", layout)


@pytest.mark.parametrize(
    ("write", "reason"),
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
def test_an_hdf5_map_is_held_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.raw").write_bytes(b"root:x:0:0:root:")
    write_map(Path("secret.h5"), np.ones((4, 4)))
    with h5py.File("map.hdf5", "w") as file:
        write(file)
    with pytest.raises(InputError, match=reason):
        read_score_file(Path("map.hdf5"))


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_an_hdf5_map_may_be_compressed_and_linked_within_its_file(
    tmp_path: Path, compression: str
) -> None:
    path = tmp_path / "map.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("stored", data=RAMP, compression=compression, shuffle=True)
        file["value"] = h5py.SoftLink("/stored")
    np.testing.assert_array_equal(read_score_file(path), RAMP)


def written(out: Path, region: Region | None = None, **run: Any) -> MapsReader:
    with MapsWriter(out, manifest(**run), region=region) as writer:
        writer.write("a/one", MAPS)
    return MapsReader(out)


def test_a_compact_map_has_a_code_of_8_bits_for_four_pixels() -> None:
    """Odd sizes are rounded up."""
    codes = encode_compact(encode_unit(np.full((3, 3), 0.5, np.float32)))
    assert codes.dtype == np.uint8
    assert codes.shape == (2, 2)


def test_a_compact_code_is_the_root_of_the_mean() -> None:
    values = np.array([[0.0, 0.04], [0.04, 0.16]], np.float32)
    codes = encode_compact(encode_unit(values))
    np.testing.assert_array_equal(codes, np.rint(255 * np.sqrt([[0.06]])))
    np.testing.assert_allclose(decode_unit(codes), 0.06, atol=0.002)


def test_a_compact_code_is_decoded_to_its_square() -> None:
    codes = np.full((2, 3), 51, np.uint8)
    decoded = decode_compact(codes, 3, 6, floats=False)
    exact = 51 * 257  # of 65535: (51 / 255)^2
    np.testing.assert_array_equal(decoded, np.full((3, 6), exact, np.uint16))


def test_compact_floats_keep_their_values() -> None:
    halves = np.array([[-20.0, -20.0], [3.5, 3.5]], np.float16).repeat(2, axis=1)
    codes = encode_compact(halves.repeat(2, axis=0))
    decoded = decode_compact(codes, 4, 4, floats=True)
    np.testing.assert_array_equal(decoded[[0, 3]], halves)


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        ("entropy", np.uint8),
        ("deterministic-max-logit", np.uint16),
    ],
)
def test_compact_files_are_small(tmp_path: Path, score: str, dtype: Any) -> None:
    written(tmp_path, compact=True)
    file = cv2.imread(str(tmp_path / score / "a/one.png"), cv2.IMREAD_UNCHANGED)
    assert file.dtype == dtype
    assert file.shape == (24, 32)


@pytest.mark.parametrize("score", ["entropy", "deterministic-max-logit"])
def test_compact_maps_end_at_the_mask(tmp_path: Path, score: str) -> None:
    mask = np.full((HEIGHT, WIDTH), 255, np.uint8)
    mask[31:] = 0
    region = Region(write_map(tmp_path / "mask.png", mask))
    compact = written(tmp_path / "compact", compact=True).read("a/one", score)
    masked = written(tmp_path / "masked", region, compact=True).read("a/one", score)
    assert not masked[31:].any()
    np.testing.assert_array_equal(masked[:31], compact[:31])


def test_compact_class_ids_are_exact(tmp_path: Path) -> None:
    compact = written(tmp_path, compact=True)
    np.testing.assert_array_equal(compact.prediction("a/one"), MAPS["prediction"])


@pytest.mark.parametrize("score", ["entropy", "epistemic", "deterministic-max-logit"])
def test_a_reader_gets_compact_maps_in_the_form_and_size_of_the_frame(
    tmp_path: Path, score: str
) -> None:
    full = written(tmp_path / "full")
    compact = written(tmp_path / "compact", compact=True)
    expected = full.read_stored("a/one", score)
    stored = compact.read_stored("a/one", score)
    assert stored.dtype == expected.dtype
    assert stored.shape == expected.shape
    assert compact.form(score) == full.form(score)


@pytest.mark.parametrize(
    ("score", "inside", "edge"),
    [
        ("entropy", 0.005, 0.02),
        ("epistemic", 0.0011, 0.005),
        ("deterministic-max-logit", 0.03, 0.4),
    ],
)
def test_compact_maps_are_near_the_full_ones(
    tmp_path: Path, score: str, inside: float, edge: float
) -> None:
    """A map that is moved by half a pixel is further off."""
    full = written(tmp_path / "full").read("a/one", score)
    compact = written(tmp_path / "compact", compact=True).read("a/one", score)
    error = np.abs(full - compact)
    assert 0 < error[2:-2, 2:-2].max() < inside
    assert error.max() < edge


def test_statistics_of_a_compact_frame_are_of_the_maps_before(tmp_path: Path) -> None:
    full = written(tmp_path / "full").records["a/one"]
    compact = written(tmp_path / "compact", compact=True).records["a/one"]
    assert compact["max"] == full["max"]
    assert compact["component"] == full["component"]


def test_the_manifest_names_the_compact_codes(tmp_path: Path) -> None:
    described = written(tmp_path, compact=True).manifest["maps"]  # type: ignore[index]
    assert described["entropy"]["dtype"] == "uint8"
    assert described["entropy"]["value"] == "(code / 255)^2"
    assert described["deterministic-max-logit"]["value"].startswith("float16 whose bits")
    assert "value" not in described["prediction"]


def test_a_compact_folder_is_not_continued_with_full_maps(tmp_path: Path) -> None:
    written(tmp_path, compact=True)
    with pytest.raises(InputError, match="written with compact = True \\(now None\\)"):
        MapsWriter(tmp_path, manifest())


def test_unknown_codes_are_refused(tmp_path: Path) -> None:
    written(tmp_path, compact=True)
    edit_manifest(tmp_path, lambda content: content["maps"]["entropy"].update(value="code / 7"))
    unknown = "the values of 'entropy' are code / 7, which this segunc does not know"
    with pytest.raises(InputError, match=unknown):
        MapsReader(tmp_path)


VALUES = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
CODES = encode_unit(VALUES)
FLAT = np.zeros((3, 4), np.float32)
PICTURE = np.zeros((3, 4, 3), np.uint8)
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
    assert reader.scores == ["energy", "void"]
    assert reader.frames == ["a/1", "a/2"]
    assert reader.has("a/2", "energy")
    assert not reader.has("a/2", "void")
    for name, score in (("a/1", "energy"), ("a/2", "energy"), ("a/1", "void")):
        np.testing.assert_array_equal(reader.read(name, score), VALUES)


def test_score_folders_need_no_manifest(tmp_path: Path) -> None:
    reader = MapsReader(lay(tmp_path, "energy/a/1.npy"))
    assert reader.manifest is None
    assert reader.unfinished is None


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (np.float64, np.float64),
        (np.uint8, np.uint8),
        (np.uint16, np.uint16),
        (np.float16, np.float16),
        (np.int16, np.float64),
        (np.int64, np.float64),
        (np.uint32, np.float64),
        (np.bool_, np.float64),
    ],
)
def test_whole_numbers_without_a_range_of_their_own_are_values(
    tmp_path: Path, stored: Any, read: Any
) -> None:
    write_map(tmp_path / "void/a/2.npy", np.array([[0, 1]], stored))
    values = MapsReader(tmp_path).read_stored("a/2", "void")
    assert values.dtype == read
    np.testing.assert_array_equal(values, [[0, 1]])


@pytest.mark.parametrize("level", [".", "anomaly_p"])
def test_the_benchmark_layout(tmp_path: Path, level: str) -> None:
    values = VALUES.astype(np.float16)
    lay(tmp_path / "anomaly_p", "A/One/f.hdf5", "B/One/f.hdf5", "B/Two/f.hdf5", values=values)
    reader = MapsReader(tmp_path / level)
    assert reader.scores == ["A", "B"]
    assert reader.frames == ["One/f", "Two/f"]
    assert not reader.has("Two/f", "A")
    np.testing.assert_array_equal(reader.read_stored("Two/f", "B"), values)


CLASS_IDS = np.array([[0, 255]], np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_class_ids_alone_are_enough(tmp_path: Path, dtype: Any) -> None:
    write_map(tmp_path / "prediction/a.npy", np.array([[3, 18]], dtype))
    reader = MapsReader(tmp_path)
    assert reader.scores == []
    assert reader.frames == ["a"]
    assert reader.prediction("a").dtype == np.uint8
    np.testing.assert_array_equal(reader.prediction("a"), [[3, 18]])


@pytest.mark.parametrize("channels", [1, 3])
def test_class_ids_are_grey_pictures(tmp_path: Path, channels: int) -> None:
    picture = CLASS_IDS if channels == 1 else np.dstack([CLASS_IDS] * 3)
    write_map(tmp_path / "prediction/a.png", picture)
    prediction = MapsReader(tmp_path).prediction("a")
    assert prediction.dtype == np.uint8
    np.testing.assert_array_equal(prediction, CLASS_IDS)


INDICES = np.array([[2, 0, 1], [0, 1, 2]], np.uint8)


@pytest.fixture
def palette() -> Image.Image:
    picture = Image.fromarray(INDICES, "P")
    picture.putpalette([128, 64, 128, 244, 35, 232, 70, 70, 70])
    return picture


def test_class_ids_of_a_palette_are_its_indices(tmp_path: Path, palette: Image.Image) -> None:
    (tmp_path / "prediction").mkdir()
    palette.save(tmp_path / "prediction/a.png")
    np.testing.assert_array_equal(MapsReader(tmp_path).prediction("a"), INDICES)


def test_colours_are_no_class_ids(tmp_path: Path, palette: Image.Image) -> None:
    (tmp_path / "prediction").mkdir()
    palette.convert("RGB").save(tmp_path / "prediction/a.png")
    with pytest.raises(InputError, match=r"a.png has the shape \(2, 3, 3\)"):
        MapsReader(tmp_path).prediction("a")


@pytest.mark.parametrize(
    "unfit",
    [
        [[0, 256]],
        [[-1, 2]],
        [[0.0, 1.0]],
    ],
)
def test_class_ids_beyond_8_bits_and_floats_are_refused(
    tmp_path: Path, unfit: list[list[float]]
) -> None:
    write_map(tmp_path / "prediction/b.npy", np.array(unfit))
    with pytest.raises(InputError, match="prediction of frame b"):
        MapsReader(tmp_path).prediction("b")


@pytest.fixture
def theirs(tmp_path: Path) -> MapsReader:
    """Whole numbers of another tool, under the name of a score of ours."""
    write_map(tmp_path / "theirs/entropy/1.png", CODES)
    (tmp_path / "theirs/manifest.json").write_text('{"name": "a web page"}')
    return MapsReader(tmp_path / "theirs")


@pytest.fixture
def ours(tmp_path: Path) -> MapsReader:
    with MapsWriter(tmp_path / "ours", manifest()) as writer:
        writer.write("1", OURS)
    return MapsReader(tmp_path / "ours")


def test_whole_numbers_of_another_tool_are_a_share_of_their_range(theirs: MapsReader) -> None:
    assert theirs.manifest is None
    assert theirs.form("entropy") == "linear"
    np.testing.assert_allclose(theirs.read("1", "entropy"), CODES / 65535, rtol=1e-6)
    fifth = decode_stored(np.array([[51]], np.uint8), "linear")
    np.testing.assert_allclose(fifth, [[0.2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("score", "form"),
    [
        ("entropy", "unit-code"),
        ("deterministic-max-logit", "linear"),
        ("unknown", "linear"),
    ],
)
def test_the_form_of_our_maps_is_that_of_their_score(
    ours: MapsReader, score: str, form: str
) -> None:
    assert ours.form(score) == form


def test_whole_numbers_of_ours_are_codes(ours: MapsReader, theirs: MapsReader) -> None:
    np.testing.assert_array_equal(ours.read("1", "entropy"), decode_unit(CODES))
    stored = theirs.read_stored("1", "entropy")
    np.testing.assert_array_equal(ours.read_stored("1", "entropy"), stored)


def test_a_folder_of_pictures_and_labels_holds_no_map(tmp_path: Path) -> None:
    lay(tmp_path, "images/1.png", "labels/1.png", values=PICTURE)
    with pytest.raises(InputError, match=r"holds no finished map, SCORE/FRAME of .*\.hdf5"):
        MapsReader(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        MapsReader(tmp_path / "nowhere")


def test_pictures_and_labels_beside_the_scores_are_no_scores(tmp_path: Path) -> None:
    lay(tmp_path, "images/1.png", "labels/1.png", "entropy/1.png", values=PICTURE)
    reader = MapsReader(lay(tmp_path, "entropy/2.png", "overlay/1.png", values=CODES))
    assert reader.scores == ["entropy"]
    assert reader.frames == ["1", "2"]
    with pytest.raises(InputError, match=r"entropy/1.png has the shape \(3, 4, 3\)"):
        reader.read("1", "entropy")


COMPOSED = "caf\u00e9"
DECOMPOSED = "cafe\u0301"


@pytest.fixture
def of_a_mac(tmp_path: Path) -> Path:
    """A Mac decomposes accents and lays a hidden file beside each of its own on a foreign disk."""
    return lay(
        tmp_path,
        f"a/{COMPOSED}.npy",
        f"b/{DECOMPOSED}.npy",
        f"a/._{COMPOSED}.npy",
        "a/.cache/x.npy",
    )


def test_hidden_files_and_decomposed_accents_are_no_other_frames(of_a_mac: Path) -> None:
    reader = MapsReader(of_a_mac)
    assert reader.frames == [COMPOSED]
    assert reader.has(COMPOSED, "b")


@pytest.mark.parametrize("second", [f"{DECOMPOSED}.npy", f"{COMPOSED}.tif"])
def test_two_files_of_one_frame_are_both_named(of_a_mac: Path, second: str) -> None:
    lay(of_a_mac, f"a/{second}")
    with pytest.raises(InputError, match=r"a/caf.*and .*a/caf.* are both frame 'caf"):
        MapsReader(of_a_mac)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"format_version": 2', '"format_version": 3', "is of format version 3, not 2"),
        ('"sha256"', '"sha257"', "was changed since it was written"),
        ("(code / 65535)^2", "(code / 65534)^2", "was changed since it was written"),
    ],
)
def test_a_manifest_of_another_version_or_a_changed_one_is_refused(
    ours: MapsReader, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    path = tmp_path / "ours/manifest.json"
    whole = path.read_text()
    assert old in whole
    path.write_text(whole.replace(old, new))
    with pytest.raises(InputError, match=reason):
        MapsReader(tmp_path / "ours")


def test_a_truncated_manifest_is_refused(ours: MapsReader, tmp_path: Path) -> None:
    path = tmp_path / "ours/manifest.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match="is not valid JSON"):
        MapsReader(tmp_path / "ours")


def test_a_missing_manifest_is_named(ours: MapsReader, tmp_path: Path) -> None:
    (tmp_path / "ours/manifest.json").unlink()
    with pytest.raises(InputError, match=r"holds frames\.jsonl but no manifest\.json"):
        MapsReader(tmp_path / "ours")


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


def test_a_threshold_that_is_written_flags_the_same_pixels() -> None:
    """2.60546875 in six digits is 2.60547, which lies above it."""
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    values[0] = 2.60546875
    values[1:500] = decode_unit(np.arange(1, 500, dtype=np.uint16))
    for value in values:
        written = float(threshold_text(float(value)))
        next_lower = np.nextafter(value, np.float32(-np.inf))
        assert is_flagged(np.array([next_lower, value]), written).tolist() == [False, True]


def test_a_threshold_is_written_in_few_digits() -> None:
    values = [0.4, 0.5, 100_000.0, 0.0, -3.5, float(np.float32(0.1))]
    written = [threshold_text(value) for value in values]
    assert written == ["0.4", "0.5", "100000", "0", "-3.5", "0.1"]


@pytest.mark.parametrize("value", [1 / 3, 16_777_217.0, 1e300])
def test_a_threshold_that_is_no_float32_is_written_with_all_its_digits(value: float) -> None:
    assert float(threshold_text(value)) == value
