"""Maps of a model that are saved: the files of ``segunc predict``, which all readers take."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import segunc
from segunc.data.images import load_image
from segunc.frames.sources import open_source
from segunc.maps.encoding import encode_unit
from segunc.maps.reader import MapsReader
from segunc.posteriors.image_maps import ImageMaps
from segunc.scores import DEFAULT_SCORES
from tests.conftest import Job
from tests.posteriors.small_models import IMAGE, small_model
from tests.verbs.processes import succeed

OTHER = IMAGE[::-1].copy()
NOT_OF_ARRAYS = {"input", "every", "start", "end", "chunk"}
"""Settings of ``segunc predict`` that say which frames it takes and how many draws run at once."""


def contents(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "frames.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files of a folder but its lock, by their paths."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith(".lock"):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def model() -> segunc.Model:
    return small_model()


@pytest.fixture(scope="module")
def maps(model: segunc.Model) -> ImageMaps:
    return model(IMAGE, draws=4)


@pytest.fixture(scope="module")
def saved(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the maps that ``predicted`` has, made in Python from the same images."""
    out = tmp_path_factory.mktemp("saved") / "maps"
    model = segunc.load(predicted.abnn)
    model.place(torch.device("cpu"))  # channels last, as the command line has it
    for frame in open_source(predicted.frames).frames():
        model(frame.image, draws=4).save(out, frame.name)
    return out


@pytest.mark.slow
def test_saved_maps_are_the_files_of_predict(predicted: Job, saved: Path) -> None:
    theirs = files(predicted.maps)
    ours = files(saved)
    assert len(ours) > 10
    for name, data in ours.items():
        if name not in ("manifest.json", "frames.jsonl"):
            assert theirs[name] == data, name
    assert {name for name in theirs if not name.startswith("overlay")} == set(ours)


@pytest.mark.slow
def test_maps_of_a_model_that_was_not_placed_are_within_one_code(
    predicted: Job, saved: Path
) -> None:
    model = segunc.load(predicted.abnn)
    reader = MapsReader(saved)
    for frame in open_source(predicted.frames).frames():
        maps = model(frame.image, draws=4, scores=("entropy", "epistemic"))
        for name in maps.scores:
            stored = reader.read_stored(frame.name, name).astype(int)
            assert np.abs(encode_unit(maps[name]).astype(int) - stored).max() <= 1


@pytest.mark.slow
def test_lines_and_manifest_say_what_those_of_predict_say(predicted: Job, saved: Path) -> None:
    for ours, theirs in zip(lines(saved), lines(predicted.maps), strict=True):
        for field in set(theirs) - {"stamp", "sum", "files", "sums"}:
            assert ours[field] == theirs[field], field
    ours = contents(saved / "manifest.json")
    theirs = contents(predicted.maps / "manifest.json")
    for manifest in (ours, theirs):  # another test may have made the model once more
        del manifest["model"]["provenance"]
    for part in ("classes", "maps", "model", "device", "tool", "environment", "status", "finished"):
        assert ours[part] == theirs[part], part
    settings = {key: theirs["run"][key] for key in set(theirs["run"]) - NOT_OF_ARRAYS}
    settings["overlay"] = None
    assert {key: ours["run"][key] for key in ours["run"] if key != "chunk"} == settings


@pytest.mark.slow
def test_verbs_read_saved_maps(predicted: Job, saved: Path, tmp_path: Path) -> None:
    images: dict[str, Any] = {"images": predicted.frames}
    drawn = segunc.overlay(saved, out=tmp_path / "pictures", score=["entropy"], **images)
    assert len(drawn.pictures[tmp_path / "pictures" / "overlay-entropy"]) == 4
    page = segunc.review(saved, out=tmp_path / "page", **images)
    assert (tmp_path / "page" / "index.html").is_file()
    assert not page.failure
    results = []
    for folder in (saved, predicted.maps):
        out = tmp_path / f"{folder.parent.name}.json"
        segunc.evaluate(maps=folder, anomaly_labels=predicted.masks, out=out)
        results.append(contents(out)["scores"])
    assert results[0] == results[1]


# Of knn alone no region of these frames is strong.
@pytest.mark.parametrize("parts", ["[deterministic-energy,knn]", "[knn]"])
@pytest.mark.slow
def test_a_sum_of_scores_keeps_its_reasons(overconfident: Job, tmp_path: Path, parts: str) -> None:
    fitted = tmp_path / "model"
    for method, base, settings in (
        ("features", overconfident.abnn, "--features.frames 4"),
        ("anomaly", fitted, f"--anomaly.parts {parts} --anomaly.draws 2 --anomaly.frames 4"),
    ):
        command = f"finetune --device cpu --method {method} {settings} --data.dataset toy"
        succeed(command, "--data.root", overconfident.data, "--base", base, "--out", fitted)
    asked: dict[str, Any] = {"draws": 2, "scores": ("anomaly", "entropy")}
    theirs = tmp_path / "theirs"
    where: dict[str, Any] = {"device": "cpu", "precision": "float32", "out": theirs}
    segunc.predict(fitted, overconfident.frames, **where, **asked)
    model = segunc.load(fitted)
    ours = tmp_path / "ours"
    for frame in open_source(overconfident.frames).frames():
        model(frame.image, **asked).save(ours, frame.name)
    assert [line["peaks"] for line in lines(ours)] == [line["peaks"] for line in lines(theirs)]
    strong = [line for line in lines(ours) if line["peaks"]["anomaly"]]
    assert bool(strong) == (parts != "[knn]")
    assert contents(ours / "manifest.json")["maps"] == contents(theirs / "manifest.json")["maps"]


def test_what_is_read_back_is_what_was_saved(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path / "out", "drive/frame 1")
    reader = MapsReader(tmp_path / "out")
    assert reader.frames == ["drive/frame 1"]
    assert reader.unfinished is None
    assert reader.scores == list(DEFAULT_SCORES)
    assert reader.class_names == ["road", "car", "sky"]
    assert np.array_equal(reader.prediction("drive/frame 1"), maps.prediction)
    for name, values in maps.scores.items():
        read = reader.read("drive/frame 1", name)
        if "max-logit" in name or "energy" in name:
            assert np.array_equal(read, values.astype(np.float16))
        else:
            np.testing.assert_allclose(np.sqrt(read), np.sqrt(values), atol=0.51 / 65535)


def test_further_names_are_added_to_the_run(model: segunc.Model, tmp_path: Path) -> None:
    batch = model([OTHER, IMAGE[:20]], draws=4)
    model(IMAGE, draws=4).save(tmp_path, "a")
    batch.save(tmp_path, ["b", "c"])
    assert [line["name"] for line in lines(tmp_path)] == ["a", "b", "c"]
    assert [line["index"] for line in lines(tmp_path)] == [0, 1, 2]
    assert contents(tmp_path / "manifest.json")["finished"] == 3
    reader = MapsReader(tmp_path)
    assert np.array_equal(reader.prediction("c"), batch[1].prediction)


def test_the_same_maps_again_change_nothing(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path, "a")
    before = files(tmp_path)
    maps.save(tmp_path, "a")
    assert files(tmp_path) == before


def test_other_maps_of_a_name_are_refused(
    model: segunc.Model, maps: ImageMaps, tmp_path: Path
) -> None:
    maps.save(tmp_path, "a")
    before = files(tmp_path)
    with pytest.raises(segunc.InputError, match="another map 'prediction' of the frame 'a'"):
        model(OTHER, draws=4).save(tmp_path, "a")
    assert files(tmp_path) == before
    assert MapsReader(tmp_path).unfinished is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"draws": 6}, r"written with draws = 4 \(now 6\).*Hint: save into another folder"),
        ({"draws": 4, "seed": 1}, r"seed = 0 \(now 1\)"),
        (
            {"draws": 4, "scores": ("entropy",)},
            "holds the scores msp, entropy, .*, and these maps have entropy",
        ),
    ],
)
def test_maps_of_other_settings_are_refused(
    model: segunc.Model, maps: ImageMaps, tmp_path: Path, call: dict[str, Any], said: str
) -> None:
    maps.save(tmp_path, "a")
    before = files(tmp_path)
    with pytest.raises(segunc.InputError, match=said):
        model(OTHER, **call).save(tmp_path, "b")
    assert files(tmp_path) == before


def test_maps_of_another_model_are_refused(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path, "a")
    with pytest.raises(segunc.InputError, match="written with another model: network "):
        small_model(mean=(0, 0, 0))(IMAGE, draws=4).save(tmp_path, "b")


def test_a_folder_of_other_files_is_refused(maps: ImageMaps, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(segunc.InputError, match=r"holds files but no manifest.json"):
        maps.save(tmp_path, "a")
    assert files(tmp_path) == {"notes.txt": b"mine"}


def test_a_file_of_the_user_is_not_replaced(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path, "a")
    (tmp_path / "entropy" / "b.png").write_text("mine")
    with pytest.raises(segunc.InputError, match=r"holds entropy/b.png, which is in no record"):
        maps.save(tmp_path, "b")
    assert (tmp_path / "entropy" / "b.png").read_text() == "mine"
    assert MapsReader(tmp_path).frames == ["a"]


def test_compact_maps_are_half_as_high_and_wide(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path, "a", compact=True)
    with Image.open(tmp_path / "entropy" / "a.png") as stored:
        assert stored.size == (24, 16)
    read = MapsReader(tmp_path).read("a", "entropy")
    assert read.shape == (32, 48)
    assert float(read.mean()) == pytest.approx(float(maps.entropy.mean()), abs=0.01)
    with pytest.raises(segunc.InputError, match="compact = True"):
        maps.save(tmp_path, "b")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../a", "which is not a relative path"),
        ("", "which is not a relative path"),
        (["a", "b"], "the maps are of 1 image, and the names given are 2"),
        ([], "the names given are 0"),
        ([3], "the name 3 is not a text"),
        (3, "3 is neither a name nor a list of names"),
        (None, "None is neither a name"),
    ],
)
def test_names_of_no_file_are_refused(
    maps: ImageMaps, tmp_path: Path, name: Any, said: str
) -> None:
    with pytest.raises(segunc.InputError, match=said):
        maps.save(tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


def test_a_batch_needs_a_name_for_each_image(model: segunc.Model, tmp_path: Path) -> None:
    batch = model([IMAGE, OTHER], draws=2)
    for names, said in (
        ("a", "of 2 images, and the names given are 1"),
        (["a", "a"], "the name 'a' is given twice"),
    ):
        with pytest.raises(segunc.InputError, match=said):
            batch.save(tmp_path, names)


def test_maps_of_unknown_origin_are_refused(tmp_path: Path) -> None:
    maps = ImageMaps(np.zeros((2, 2), np.uint8), {"entropy": np.zeros((2, 2), np.float32)})
    with pytest.raises(segunc.InputError, match="do not say which model made them"):
        maps.save(tmp_path, "a")


def test_values_that_no_file_holds_are_refused(maps: ImageMaps, tmp_path: Path) -> None:
    scores = {**maps.scores, "entropy": np.full((32, 48), np.nan, np.float32)}
    broken = ImageMaps(maps.prediction, scores, classes=maps.classes, origin=maps.origin)
    maps.save(tmp_path, "a")
    with pytest.raises(segunc.InputError, match="NaN or infinite"):
        broken.save(tmp_path, "b")
    assert MapsReader(tmp_path).frames == ["a"]
    assert MapsReader(tmp_path).unfinished is None


def test_images_are_written_for_overlays(
    model: segunc.Model, maps: ImageMaps, tmp_path: Path
) -> None:
    exact = model(np.full((32, 48, 3), 0.7, np.float32), draws=4)
    images = tmp_path / "images"
    maps.save(tmp_path / "maps", "drive/a", images=images)
    maps.save(tmp_path / "maps", "drive/a", images=images)
    exact.save(tmp_path / "maps", "drive/b", images=images)
    assert np.array_equal(load_image(images / "drive" / "a.png"), IMAGE)
    assert np.unique(load_image(images / "drive" / "b.png")).tolist() == [round(0.7 * 255)]
    drawn = segunc.overlay(tmp_path / "maps", out=tmp_path / "out", images=images)
    assert [len(paths) for paths in drawn.pictures.values()] == [2]


def test_a_picture_of_the_user_is_not_replaced(maps: ImageMaps, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("mine")
    with pytest.raises(segunc.InputError, match=r"a.png is another file than the image"):
        maps.save(tmp_path / "maps", "a", images=tmp_path)
    assert (tmp_path / "a.png").read_text() == "mine"
    assert not (tmp_path / "maps").exists()


def test_pickled_maps_are_saved_as_the_maps_are(maps: ImageMaps, tmp_path: Path) -> None:
    maps.save(tmp_path / "first", "a")
    pickle.loads(pickle.dumps(maps)).save(tmp_path / "second", "a")
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_whole_numbers_of_numpy_are_saved_as_plain_ones(
    model: segunc.Model, maps: ImageMaps, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"draws": np.int64(4), "seed": np.uint32(0)}
    model(IMAGE, **asked).save(tmp_path / "numpy", "a")
    maps.save(tmp_path / "plain", "a")
    run = contents(tmp_path / "numpy" / "manifest.json")["run"]
    assert (run["draws"], run["seed"]) == (4, 0)
    assert run == contents(tmp_path / "plain" / "manifest.json")["run"]
    for name in ("entropy/a.png", "epistemic/a.png", "prediction/a.png"):
        assert (tmp_path / "numpy" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
