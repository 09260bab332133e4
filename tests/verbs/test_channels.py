"""Networks of four input channels in every verb that sees images."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import yaml

import segunc
from segunc.core.errors import InputError
from segunc.data.channels import ORDER
from segunc.maps.encoding import encode_score
from segunc.posteriors.model import channels_in
from tests.support.tiffs import tiff

SIZE = (64, 96)
NETWORK = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
"""
MEAN = (0.1, 0.2, 0.3, 0.4)
STD = (0.5, 0.6, 0.7, 0.8)


def image_of(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, (*SIZE, 4), np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a data set of four channels and a model; both are only read."""
    place = tmp_path_factory.mktemp("four channels")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        (place / "nets_of_four.py").write_text(NETWORK)
        make_data(place / "data")
        segunc.import_network(
            source="python:nets_of_four:build",
            trust=True,
            classes="road,other",
            mean=MEAN,
            std=STD,
            out=place / "base",
        )
        segunc.finetune(
            base=place / "base", out=place / "abnn", settings={"abnn.statistics": "frozen"}
        )
        yield place
    sys.modules.pop("nets_of_four", None)


def make_data(root: Path) -> None:
    """Write a data set of TIFF and NPY files whose label is where the fourth channel is bright."""
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    rows = []
    for number in range(6):
        image = image_of(number)
        image[:, :48, 3] //= 4
        image[:, 48:, 3] |= 128
        name = f"{number:03d}"
        path = f"images/{name}.tif" if number % 2 else f"images/{name}.npy"
        if number % 2:
            (root / path).write_bytes(tiff([image], deflate=True))
        else:
            np.save(root / path, image)
        label = np.repeat([[0] * 48 + [1] * 48], SIZE[0], 0).astype(np.uint8)
        assert cv2.imwrite(str(root / f"labels/{name}.png"), label)
        split = "train" if number < 4 else "val"
        rows.append((split, path, f"labels/{name}.png"))
    with (root / "frames.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("split", "image", "label"), *rows])
    (root / "classes.csv").write_text(
        "id,name,train_id,red,green,blue\n0,road,0,128,64,128\n1,other,1,0,0,0\n"
    )


def settings_of_data(place: Path) -> dict[str, Any]:
    return {
        "dataset": "folder",
        "root": str(place / "data"),
        "frames": str(place / "data/frames.csv"),
        "labels": str(place / "data/classes.csv"),
        "crop": [32, 32],
        "batch_size": 2,
        "eval_batch_size": 1,
    }


def write_frames(folder: Path) -> Any:
    """Write one image in five formats, and return it."""
    image = image_of(9)
    folder.mkdir()
    np.save(folder / "array.npy", image)
    (folder / "pages.tif").write_bytes(tiff([image[..., [channel]] for channel in range(4)]))
    (folder / "samples.tiff").write_bytes(tiff([image], separate=True, rows=9))
    assert cv2.imwrite(str(folder / "rgba.png"), image[..., [2, 1, 0, 3]])
    np.save(folder / "wide.npy", image.astype(np.uint16) * 257)
    return image


def test_every_format_gives_the_maps_of_the_array(place: Path, tmp_path: Path) -> None:
    image = write_frames(tmp_path / "in")
    segunc.predict(
        model=place / "abnn",
        input=tmp_path / "in",
        out=tmp_path / "maps",
        draws=4,
        precision="float32",
        overlay=True,
    )
    maps = segunc.load(place / "abnn")(image, draws=4)
    for name in ("entropy", "epistemic"):
        files = sorted((tmp_path / "maps" / name).iterdir())
        assert [file.stem for file in files] == ["array", "pages", "rgba", "samples", "wide"]
        expected = encode_score(name, maps.scores[name]).astype(int)
        for file in files:
            found = cv2.imread(str(file), cv2.IMREAD_UNCHANGED).astype(int)
            assert np.abs(found - expected).max() <= 1, file
    run = json.loads((tmp_path / "maps/manifest.json").read_text())["run"]
    assert run["channels"] == 4
    assert run["channel_order"] == ORDER
    assert run["white"] == {"uint8": 255, "uint16": 65535, "float": 1}


def test_overlays_and_pages_show_the_first_three_channels(place: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    image = np.zeros((*SIZE, 4), np.uint8)
    image[..., 0] = 255  # red
    image[..., 3] = 255
    np.save(tmp_path / "in/a.npy", image)
    segunc.predict(model=place / "base", input=tmp_path / "in", out=tmp_path / "maps", draws=1)
    segunc.review(maps=tmp_path / "maps", out=tmp_path / "page")
    shown = [
        cv2.imread(str(path))
        for path in (tmp_path / "page").rglob("*.jpg")
        if "image" in path.as_posix().removeprefix(str(tmp_path))
    ]
    assert shown
    blue, green, red = shown[0].reshape(-1, 3).mean(0)
    assert red > 240
    assert max(blue, green) < 15


def test_a_frame_of_other_channels_fails_by_name(place: Path, tmp_path: Path) -> None:
    write_frames(tmp_path / "in")
    np.save(tmp_path / "in/more.npy", np.zeros((*SIZE, 5), np.uint8))
    result = segunc.predict(
        model=place / "abnn", input=tmp_path / "in", out=tmp_path / "maps", draws=2
    )
    assert "1 of 6 frames failed, first more (" in result.failure
    assert "more.npy: it has 5 channels, and the network takes 4" in result.failure


def test_a_video_is_refused_in_one_sentence(place: Path, tmp_path: Path) -> None:
    video = tmp_path / "drive.mp4"
    video.write_bytes(b"not looked into")
    with pytest.raises(
        InputError, match=r"video .*drive.mp4 has frames of three channels, and .*4"
    ):
        segunc.predict(model=place / "abnn", input=video, out=tmp_path / "maps")


def test_an_array_is_no_frame_of_a_network_of_colour(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4))
    segunc.wrap(net, ("a", "b", "c", "d")).save(tmp_path / "model")
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", image_of(0))
    with pytest.raises(InputError, match="holds no image of three channels, but 1 arrays, first"):
        segunc.predict(model=tmp_path / "model", input=tmp_path / "in", out=tmp_path / "maps")
    with pytest.raises(InputError, match="is an array, and the network takes images of three"):
        segunc.predict(model=tmp_path / "model", input=tmp_path / "in/a.npy", out=tmp_path / "maps")


def test_finetune_and_evaluate_on_a_data_set_of_four_channels(place: Path, tmp_path: Path) -> None:
    (tmp_path / "abnn.yaml").write_text(
        yaml.safe_dump({"data": settings_of_data(place), "abnn": {"members": 2, "epochs": 2}})
    )
    segunc.finetune(base=place / "base", config=tmp_path / "abnn.yaml", out=tmp_path / "abnn")
    result = segunc.evaluate(model=tmp_path / "abnn", split="val", draws=2)
    assert result.numbers["counts"]["frames"] == 2
    with pytest.raises(InputError, match=r"corruption`? needs images of three channels"):
        segunc.evaluate(model=tmp_path / "abnn", split="val", draws=2, corruption="fog:2")


def test_a_training_from_the_beginning(place: Path, tmp_path: Path) -> None:
    """The label is where the fourth channel is bright, which it learns."""
    network = {
        "architecture": "FPN",
        "encoder": "mobilenet_v2",
        "mean": [0.5] * 4,
        "std": [0.25] * 4,
        "options": {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32},
    }
    (tmp_path / "train.yaml").write_text(
        yaml.safe_dump(
            {
                "data": {**settings_of_data(place), "flip": 0.0},
                "network": network,
                "trainer": {"max_epochs": 2, "precision": "32-true"},
            }
        )
    )
    segunc.train(config=tmp_path / "train.yaml", out=tmp_path / "trained")
    assert channels_in(tmp_path / "trained") == 4
    model = segunc.load(tmp_path / "trained")
    assert model(image_of(0), draws=1).entropy.shape == SIZE


def test_the_exported_graph_takes_four_channels(place: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    segunc.export(model=place / "abnn", to="onnx", out=tmp_path / "onnx", size=SIZE, draws=2)
    record = json.loads((tmp_path / "onnx/model.json").read_text())
    assert record["input"]["shape"] == [1, 4, *SIZE]
    assert record["input"]["channels"].startswith("the 4 channels of the network")
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx/model.onnx"))
    assert session.get_inputs()[0].shape == [1, 4, *SIZE]
    image = image_of(3)
    names = [output.name for output in session.get_outputs()]
    frame = np.ascontiguousarray(image.transpose(2, 0, 1)[None], np.float32) / 255
    outputs = dict(zip(names, session.run(None, {"image": frame}), strict=True))
    maps = segunc.load(place / "abnn")(image, draws=2)
    np.testing.assert_allclose(outputs["entropy"][0], maps.entropy, rtol=0, atol=1e-4)


def test_the_exported_graph_takes_bytes_of_four_channels(place: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    segunc.export(
        model=place / "abnn", to="onnx", out=tmp_path / "onnx", size=SIZE, draws=2, input="uint8"
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx/model.onnx"))
    assert session.get_inputs()[0].shape == [1, *SIZE, 4]
    image = image_of(3)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {"image": image[None]}), strict=True))
    maps = segunc.load(place / "abnn")(image, draws=2)
    np.testing.assert_allclose(outputs["entropy"][0], maps.entropy, rtol=0, atol=1e-4)


def test_the_doctor_looks_at_four_channels(place: Path, tmp_path: Path) -> None:
    findings = segunc.doctor(model=place / "abnn", draws=4)
    assert findings
    np.save(tmp_path / "a.npy", image_of(0))
    assert segunc.doctor(model=place / "abnn", draws=4, image=tmp_path / "a.npy")


def test_a_source_says_its_channels_after_its_import(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames are looked for before the import, and opened by its channels after it."""
    text = (place / "nets_of_four.py").read_text()
    stated = {"classes": ["road", "other"], "mean": list(MEAN), "std": list(STD)}
    (tmp_path / "net_that_says_it.py").write_text(f"{text}\nbuild.segunc = {stated!r}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", image_of(0))
    result = segunc.predict(
        model="python:net_that_says_it:build",
        trust=True,
        input=tmp_path / "in",
        out=tmp_path / "maps",
        draws=2,
    )
    sys.modules.pop("net_that_says_it", None)
    assert result.inputs[0].summary.finished == 1
    assert result.hint == ""
