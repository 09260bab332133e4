"""A recording for the Rerun viewer, read again by Rerun's own library."""

import io
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError, PartialFailure
from segunc.decisions.flags import Threshold
from segunc.gallery.rerun_recording import FILE_NAME, LONGEST_SIDE, write_recording
from segunc.maps.reader import MapsReader
from segunc.maps.regions import strongest_regions
from tests.maps.foreign import write_map
from tests.support.scenes import NAMES, SCORES, SIZE, Scene, labels_of, write_mask
from tests.verbs.processes import refuse, succeed

pytest.importorskip("rerun.chunk", reason="the extra rerun is not installed")


def columns_of(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the rows of each entity of a recording: column -> one value a row."""
    from rerun.chunk import RrdReader

    rows: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for chunk in RrdReader(path).stream().to_chunks():
        batch = chunk.to_record_batch()
        for name in set(batch.schema.names) - {"time"}:
            rows[chunk.entity_path][name] += batch.column(name).to_pylist()
    return rows


def column(rows: dict[str, list[Any]], ending: str) -> list[Any]:
    """Return the values of the one column whose name ends so, without those of the list around."""
    (name,) = [name for name in rows if name.endswith(ending)]
    return rows[name]


@pytest.fixture(scope="module")
def recorded(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("recorded")
    flag = {"entropy": Threshold(0.5, smallest=4)}
    written = write_recording(
        scene.maps, out, labels_of({"anomaly_labels": scene.anomaly}), flag=flag
    )
    assert written.failed == {}
    assert written.frames == len(NAMES)
    assert written.path == out / FILE_NAME
    return columns_of(written.path)


def test_every_frame_is_on_the_time_line(recorded):
    for path in ("/image", "/prediction", "/scores/entropy", "/mean/entropy"):
        assert recorded[path]["frame"] == list(range(len(NAMES)))


def test_the_names_of_frames_are_there(recorded, scene):
    names = column(recorded["/name"], ":text")
    assert [name[0] for name in names] == MapsReader(scene.maps).frames


def test_the_image_is_a_jpeg_of_the_frame(recorded):
    (jpeg,) = column(recorded["/image"], ":blob")[0]
    with Image.open(io.BytesIO(bytes(jpeg))) as image:
        assert image.format == "JPEG"
        assert image.size == SIZE[::-1]


def test_scores_are_those_of_the_maps(recorded, scene):
    reader = MapsReader(scene.maps)
    for score in SCORES:
        buffers = column(recorded[f"/scores/{score}"], ":buffer")
        for name, (buffer,) in zip(reader.frames, buffers, strict=True):
            values = np.frombuffer(bytes(buffer), np.float16).reshape(SIZE)
            np.testing.assert_array_equal(values, reader.read(name, score).astype(np.float16))


def test_colours_have_the_fixed_range_of_the_score(recorded):
    assert column(recorded["/scores/entropy"], ":depth_range")[0] == [[0.0, 1.0]]


def test_predictions_are_class_ids_with_names(recorded, scene):
    reader = MapsReader(scene.maps)
    (buffer,) = column(recorded["/prediction"], ":buffer")[0]
    expected = reader.prediction(reader.frames[0])
    np.testing.assert_array_equal(np.frombuffer(bytes(buffer), np.uint8).reshape(SIZE), expected)
    (context,) = [rows for rows in column(recorded["/prediction"], ":context") if rows]
    names = [entry["class_description"]["info"]["label"] for entry in context[0]]
    assert names == reader.class_names


def test_frames_with_an_anomaly_label_have_it_and_the_others_clear_it(recorded, scene):
    labelled = [name for name in NAMES if (scene.anomaly / f"{name}.png").exists()]
    assert len(labelled) == 4
    buffers = [value for value in column(recorded["/label"], ":buffer") if value]
    cleared = [value for value in column(recorded["/label"], ":is_recursive") if value]
    assert (len(buffers), cleared) == (4, [[False]] * (len(NAMES) - 4))


def test_boxes_are_those_of_the_flagged_regions(recorded, scene):
    reader = MapsReader(scene.maps)
    rows = recorded["/image/flagged/entropy"]
    centres = column(rows, ":centers")
    half_sizes = column(rows, ":half_sizes")
    some = 0
    for place, name in enumerate(reader.frames):
        regions = strongest_regions(reader.read(name, "entropy"), 0.5, smallest=4, most=32)
        expected = [region.box for region in regions]
        found = []
        for (x, y), (half_width, half_height) in zip(
            centres[place] or [], half_sizes[place] or [], strict=True
        ):
            found.append((x - half_width, y - half_height, 2 * half_width, 2 * half_height))
        assert found == expected
        some += len(expected)
    assert some > 3


def test_frames_larger_than_the_limit_are_shrunk_with_their_boxes(tmp_path):
    values = np.zeros((20, 2 * LONGEST_SIDE), np.float32)
    values[4:10, 100:140] = 1
    write_map(tmp_path / "maps" / "mine" / "a.npy", values)
    flag = {"mine": Threshold(0.5, smallest=1)}
    written = write_recording(tmp_path / "maps", tmp_path / "out", flag=flag)
    rows = columns_of(written.path)
    (box,) = column(rows["/image/flagged/mine"], ":centers")[0]
    assert box == pytest.approx([60, 3.5])
    assert column(rows["/scores/mine"], ":format")[0][0]["width"] == LONGEST_SIDE


def test_means_are_of_the_pixels_that_count(copy, tmp_path):
    write_mask(copy)
    written = write_recording(copy, tmp_path / "out", score=["entropy"])
    reader = MapsReader(copy)
    means = column(columns_of(written.path)["/mean/entropy"], ":scalars")
    for name, (mean,) in zip(reader.frames, means, strict=True):
        kept = reader.read(name, "entropy")[:, 20:]
        assert mean == pytest.approx(float(kept.mean(dtype="float64")), abs=1e-12)


def test_the_command_says_how_to_open_it(scene, tmp_path):
    done = succeed("overlay --to rerun --score entropy", "--maps", scene.maps, "--out", tmp_path)
    assert f"`rerun {tmp_path / FILE_NAME}`" in done.stdout
    assert "/scores/epistemic" not in columns_of(tmp_path / FILE_NAME)


def test_a_damaged_frame_is_named_and_the_others_are_there(scene, copy, tmp_path):
    reader = MapsReader(copy)
    damaged = copy / reader.records[reader.frames[1]]["files"]["entropy"]
    damaged.write_bytes(damaged.read_bytes()[:40])
    written = write_recording(copy, tmp_path)
    assert written.frames == len(NAMES) - 1
    assert f"1 frame is not in the recording, first {reader.frames[1]}" in written.failure


def test_without_a_readable_frame_there_is_no_file(tmp_path):
    (tmp_path / "maps" / "mine").mkdir(parents=True)
    (tmp_path / "maps" / "mine" / "a.npy").write_bytes(b"no array")
    with pytest.raises(PartialFailure, match="first a"):
        write_recording(tmp_path / "maps", tmp_path / "out")
    assert not (tmp_path / "out" / FILE_NAME).exists()


@pytest.mark.parametrize("words", ["--format jpg", "--video-format mp4"])
def test_options_of_pictures_are_refused(scene, tmp_path, words):
    error = refuse("overlay --to rerun", words, "--maps", scene.maps, "--out", tmp_path)
    assert "--to rerun takes no --" in str(error)


def test_the_size_of_the_file_is_said_with_what_makes_it_smaller(scene, tmp_path):
    done = succeed("overlay --to rerun --maps", scene.maps, "--out", tmp_path / "out").stdout
    megabytes = (tmp_path / "out" / FILE_NAME).stat().st_size / 1e6
    assert f"wrote {megabytes:.0f} MB; --score A,B takes fewer scores" in done


def test_the_size_is_said_before_the_second_frame_is_written(scene, tmp_path):
    calls = []
    written = write_recording(
        scene.maps,
        tmp_path,
        on_frame=lambda done, total: calls.append(done),
        on_size=calls.append,
    )
    forecast = calls.pop(0)
    assert (forecast.frames, forecast.scores) == (len(NAMES), len(SCORES))
    assert forecast.size == pytest.approx(written.path.stat().st_size, rel=0.2)
    assert calls == list(range(1, len(NAMES) + 1))


def test_the_command_says_the_size_while_it_works(scene, tmp_path):
    done = succeed("overlay --to rerun --score entropy --maps", scene.maps, "--out", tmp_path)
    said = f"the recording will take about 0 MB, for {len(NAMES)} frames with 1 score; --score A,B"
    assert said in done.stderr


def test_a_missing_library_is_named_with_its_extra(scene, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match="needs the package rerun-sdk") as error:
        write_recording(scene.maps, tmp_path)
    assert error.value.hint == 'pip install "segunc[rerun]"'
