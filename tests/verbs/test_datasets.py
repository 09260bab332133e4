"""Frames and labels that verbs are given: data sets by name, folders of labels, corrupted frames,
parts of splits.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from segunc.cli.main import main
from segunc.data.corruptions import Corruption
from segunc.data.datasets import dataset_entry
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import label_map
from segunc.maps.encoding import encode_unit
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.options import EvaluateOptions
from segunc.sampling.sampler import sample_frames
from segunc.verbs.evaluate import label_sources
from tests.conftest import Job
from tests.data.miniatures import COUNTS, EVERY_FORM, draw_miniature, write_frame
from tests.support.scenes import SIZE, write_maps, write_scene

OPTIONS = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}


def model(folder: Path, name: str, *anomaly_classes: str) -> Path:
    labels = dataset_entry(name, anomaly_classes=anomaly_classes).label_map()
    description = NetworkDescription("FPN", "mobilenet_v2", labels.classes, labels.palette, OPTIONS)
    save_network(build_network(description), folder)
    return folder


def evaluate(out: Path, *words: object) -> dict[str, Any]:
    assert main([str(word) for word in ("evaluate", *words, "--replicates", 0, "--out", out)]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("coloured", [False, True])
def test_a_declared_class_is_the_anomaly_of_the_frames_that_hold_it(
    tmp_path: Path, coloured: bool
) -> None:
    root, network = (
        draw_miniature("camvid", tmp_path / "data"),
        model(tmp_path / "base", "camvid", "bicyclist"),
    )
    words = (
        "--model",
        network,
        "--dataset",
        "camvid",
        "--root",
        root,
        "--anomaly-class",
        "bicyclist",
    )
    colours = {raw: colour[::-1] for colour, raw in (label_map("camvid").colours or {}).items()}
    for path in (root / "testannot").iterdir() if coloured else ():
        assert cv2.imwrite(
            str(path),
            np.array([colours[raw] for raw in range(12)], np.uint8)[cv2.imread(str(path), 0)],
        )
    small = ["--split", "test", "--size", "64x64", "--device", "cpu", "--scores", "entropy"]
    result = evaluate(tmp_path / "metrics.json", *words, *small)
    # One test frame of twelve stripes holds it (one of them, one void), one of eleven does not.
    assert result["counts"]["frames"] == 2
    pixels, known = (
        48 * 64,
        dataset_entry("camvid", anomaly_classes=["bicyclist"]).label_map().classes,
    )
    assert result["counts"]["anomaly_pixels"] == pytest.approx(pixels / 12, rel=0.15)
    assert result["counts"]["labelled_pixels"] == pytest.approx(pixels * 10 / 11, rel=0.02)
    assert list(result["segmentation"]["per_class"]) == list(known)
    assert 0 <= result["scores"]["entropy"]["pooled"]["auroc"] <= 1


def write_map(path: Path, content: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), content)


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_every_published_layout_passes_through_evaluate(
    tmp_path: Path, name: str, form: int
) -> None:
    """Maps that are right about every class and every anomaly have the best numbers, whatever the
    set's files look like.
    """
    root, maps = draw_miniature(name, tmp_path / "data", form), tmp_path / "maps"
    entry, split = dataset_entry(name), next(reversed(COUNTS[name]))
    both = False
    for sample in entry.samples(root, split):
        score, prediction = np.zeros((48, 64), np.float32), np.zeros((48, 64), np.uint8)
        if sample.anomaly is not None and entry.anomaly_encoding is not None:
            truth = entry.anomaly_encoding.encode(read_label_image(sample.anomaly))
            score[truth == 1] = 0.9
            both |= bool((truth == 1).any() and (truth == 0).any())
        if sample.label is not None:
            ids = entry.label_map().encode(read_label_image(sample.label))
            prediction = np.where(ids == 255, 0, ids).astype(np.uint8)
        write_map(maps / "own" / f"{sample.name}.png", encode_unit(score))
        write_map(maps / "prediction" / f"{sample.name}.png", prediction)
    words = ("--maps", maps, "--dataset", name, "--root", root, "--split", split)
    result = evaluate(tmp_path / "metrics.json", *words, "--protocols", "pooled,smiyc")
    assert result["counts"]["frames_scored"] == COUNTS[name][split]
    if entry.labels is not None:
        assert result["segmentation"]["miou"] == 1.0
    if entry.anomaly_encoding is not None:
        assert both
        assert [result["scores"]["own"][p]["auroc"] for p in ("pooled", "smiyc")] == [1.0] * 2


FAST = ("--draws", 2, "--precision", "float32", "--device", "cpu")


def evaluate_model(folder: Path, network: Path, *words: object) -> dict[str, Any]:
    return evaluate(folder / "metrics.json", "--model", network, *words, *FAST)


def test_a_corruption_is_that_of_the_images_themselves(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--split", "test")
    clean = evaluate_model(tmp_path, trained.base, *words, "--root", trained.data)
    noisy = evaluate_model(
        tmp_path, trained.base, *words, "--root", trained.data, "--corruption", "noise:4"
    )
    assert "corruption" not in clean["run"]
    assert noisy["run"]["corruption"] == "noise:4"
    assert noisy["calibration"]["nll"] != clean["calibration"]["nll"]
    copied = Path(shutil.copytree(trained.data, tmp_path / "data"))
    for sample in dataset_entry("toy").samples(copied, "test"):
        corrupted = Corruption("noise", 4)(load_image(sample.image), sample.name)
        assert cv2.imwrite(str(sample.image), corrupted[..., ::-1])
    stored = evaluate_model(tmp_path, trained.base, *words, "--root", copied)
    for section in ("segmentation", "calibration", "selective"):
        assert stored[section] == noisy[section]


def test_a_threshold_of_anomalies_flags_known_scenes_clean_and_corrupted(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--root", trained.data, "--scores", "entropy", "--threads", 1)
    first = evaluate_model(
        tmp_path,
        trained.base,
        "--dataset",
        "toy-anomaly",
        "--split",
        "anomaly",
        *words,
        "--groups",
        ".",
    )
    threshold = first["scores"]["entropy"]["pooled"]["thresholds"]["0.95"]
    flag = ("--dataset", "toy", "--split", "test", *words, "--flag", f"entropy={threshold!r}")
    clean, noisy = (
        evaluate_model(tmp_path, trained.base, *flag, *more)
        for more in ((), ("--corruption", "noise:4"))
    )
    for result in (clean, noisy):
        found = result["flagged"]["entropy"]
        assert found["threshold"] == threshold
        assert 0 < found["share"] <= 1
    assert clean["flagged"] != noisy["flagged"]
    assert "images corrupted by noise:4" in capsys.readouterr().out
    groups, sizes = first["counts"]["groups"].values(), first["scores"]["entropy"]["size"].values()
    pixels = sum(group["anomaly_pixels"] for group in groups), sum(size["pixels"] for size in sizes)
    assert pixels == (first["counts"]["anomaly_pixels"],) * 2


def test_the_selection_is_val_or_what_stands_in_for_it(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--root", trained.data, "--split")
    selection, val = (
        evaluate_model(tmp_path, trained.base, *words, split) for split in ("selection", "val")
    )
    assert selection["calibration"] == val["calibration"]
    # Every frame of val holds the anomaly: 30 frames of train stand in, of which a network has seen
    # none.
    known = [value for value in sorted(label_map("camvid").raw_to_train) if value != 10]
    root = tmp_path / "camvid"
    for split, frames, values in (("train", 32, known), ("val", 2, [*known, 10])):
        for i in range(frames):
            name = f"0001TP_{i:06d}.png"
            write_frame(root / split / name, root / f"{split}annot" / name, values, seed=i)
    network = model(tmp_path / "base", "camvid", "bicyclist")
    words = (
        "--dataset",
        "camvid",
        "--root",
        root,
        "--anomaly-class",
        "bicyclist",
        "--split",
        "selection",
    )
    result = evaluate_model(tmp_path, network, *words)
    assert result["counts"]["labelled_frames"] == 30
    assert result["calibration"]["nll"] > 0


def test_a_part_of_a_split(trained: Job, tmp_path: Path) -> None:
    words = ("--dataset", "toy", "--root", trained.data, "--split", "test")
    names = [sample.name for sample in dataset_entry("toy").samples(trained.data, "test")]
    last = names[-1]
    everything, others, alone = (
        evaluate_model(tmp_path, trained.base, *words, *more)
        for more in ((), ("--frames", f"^(?!{last}$)"), ("--frames", f"^{last}$"))
    )
    assert (alone["counts"]["frames"], others["counts"]["frames"]) == (1, len(names) - 1)
    for count in ("labelled_pixels", "labelled_frames"):
        assert alone["counts"][count] + others["counts"][count] == everything["counts"][count]
    assert alone["run"]["frames"] == f"^{last}$"
    thinned = evaluate_model(tmp_path, trained.base, *words, "--every", 2)
    matched = evaluate_model(
        tmp_path, trained.base, *words, "--frames", f"^({'|'.join(names[::2])})$"
    )
    assert (thinned["counts"]["frames"], thinned["run"]["every"]) == (len(names[::2]), 2)
    assert thinned["calibration"] == matched["calibration"]


def test_a_frame_that_memory_does_not_suffice_for_is_left_out(
    trained: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors: list[Exception | None] = [None, MemoryError()]

    def limited(*given: Any, **settings: Any) -> Any:
        if errors and (error := errors.pop()):
            raise error
        return sample_frames(*given, **settings)

    monkeypatch.setattr("segunc.sampling.sampler.sample_frames", limited)
    out = tmp_path / "metrics.json"
    words = (
        "evaluate",
        "--model",
        trained.base,
        "--dataset",
        "toy",
        "--split",
        "test",
        "--root",
        trained.data,
    )
    assert main([str(word) for word in (*words, *FAST, "--replicates", 0, "--out", out)]) == 1
    assert "1 of 2 frames could not be counted" in capsys.readouterr().err
    result = json.loads(out.read_text())
    assert "not enough memory for a frame of 128 x 64 pixels" in result["left_out"][0]["reason"]
    assert result["counts"]["frames_scored"] == 1


def run(verb: str, *words: object) -> int:
    return main([verb, *map(str, words)])


def published(root: Path, labelled: int) -> Path:
    """Six grey frames as Road Anomaly is published: ``NAME.png`` with
    ``NAME.labels/labels_semantic.png`` (2 is the anomaly) and its colours.
    """
    folder, noise = root / "frames", np.random.default_rng(0)
    for index in range(6):
        inner = folder / f"frame{index}.labels"
        inner.mkdir(parents=True)
        assert cv2.imwrite(
            str(folder / f"frame{index}.png"), noise.integers(0, 256, SIZE, np.uint8)
        )
        label = np.zeros(SIZE, np.uint8)
        label[8:18, 5:17] = 2
        if index < labelled:
            assert cv2.imwrite(str(inner / "labels_semantic.png"), label)
            assert cv2.imwrite(
                str(inner / "labels_semantic_color.png"), np.dstack([label * 100] * 3)
            )
    return folder


def words_of(verb: str, maps: Path, out: Path) -> list[object]:
    more = ["--replicates", 0] if verb == "evaluate" else []
    return [
        verb,
        "--maps",
        maps,
        "--out",
        out / ("out.json" if verb == "evaluate" else "out"),
        *more,
    ]


READERS = ("evaluate", "review", "overlay")


def test_masks_of_a_named_data_set_keep_their_meaning_beside_class_labels(tmp_path: Path) -> None:
    folders = {name: str(tmp_path) for name in ("maps", "labels", "anomaly_labels")}
    assert label_sources(
        EvaluateOptions(dataset="folder-255", label_map="toy", **folders)
    ).anomaly_encoding.anomaly == {255}


@pytest.mark.parametrize("labelled", [6, 0])
@pytest.mark.parametrize("verb", READERS)
def test_labels_beside_their_photographs_are_found_and_the_photographs_are_none(
    tmp_path: Path, verb: str, labelled: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, images = published(tmp_path, labelled), tmp_path / "photos"
    images.mkdir()
    for path in folder.glob("frame?.png"):
        shutil.copy(path, images)
    words = words_of(verb, write_maps(images, tmp_path / "maps"), tmp_path)
    assert run(*words, "--anomaly-labels", folder, "--dataset", "road-anomaly") == (
        0 if labelled else 1
    )
    if not labelled:
        assert (
            f"no label in {folder} belongs to a frame" in capsys.readouterr().err.splitlines()[-1]
        )
        assert not (tmp_path / "out" / "index.html").exists()
    elif verb == "evaluate":
        counts = json.loads((tmp_path / "out.json").read_text())["counts"]
        assert (counts["anomaly_frames"], counts["anomaly_pixels"]) == (6, 6 * 120)


@pytest.mark.parametrize("verb", READERS)
def test_values_that_no_label_has_end_with_1(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Masks of 0 and 1, read as if 2 were the anomaly: what can be done without them is done."""
    scene = write_scene(tmp_path)
    words = words_of(verb, scene.maps, tmp_path)
    assert run(*words, "--anomaly-labels", scene.anomaly, "--dataset", "road-anomaly") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "holds the values [1" in error
    if verb == "review":
        assert error.startswith("segunc review: 4 of 6 frames could not be shown whole")
        assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize("verb", READERS)
def test_a_data_set_gives_its_labels_to_every_verb(
    predicted: Job, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        *words_of(verb, predicted.maps, tmp_path),
        "--dataset",
        "toy-anomaly",
        "--split",
        "anomaly",
    )
    assert run(*words, "--root", predicted.data) == 0
    if verb == "review":
        data = (tmp_path / "out" / "data" / "frames.js").read_text()
        assert "label/anomaly" in data
    assert run(*words, "--root", predicted.data, "--anomaly-labels", predicted.masks) == 2
    assert "--root goes with --dataset" in capsys.readouterr().err


def test_predict_leaves_labels_out_says_so_and_goes_on_likewise(
    finetuned: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, out = tmp_path / "frames", tmp_path / "maps"
    frames.mkdir()
    for index, image in enumerate(sorted(finetuned.frames.rglob("*.png"))[:2]):
        shutil.copy(image, frames / f"{index}.png")
        assert cv2.imwrite(
            str(frames / f"{index}_mask.png"), np.repeat([0, 1], [60, 4])[:, None].repeat(128, 1)
        )
    words = (
        "--model",
        finetuned.abnn,
        "--input",
        frames,
        "--draws",
        2,
        "--device",
        "cpu",
        "--out",
        out,
    )
    left_out = f"note: {frames}: 2 images; 2 others left out as labels, e.g. 0_mask.png"
    for finished in ("2 in", "0 in"):
        assert run("predict", *words) == 0
        said = capsys.readouterr().out.splitlines()
        assert [line.startswith(left_out) for line in said] == [True, *[False] * (len(said) - 1)]
        assert f": {finished}" in said[1]
    assert len((out / "frames.jsonl").read_text().splitlines()) == 2
    words = (*words[:-1], tmp_path / "all")
    assert run("predict", *words, "--all-images") == 0
    assert len((tmp_path / "all/frames.jsonl").read_text().splitlines()) == 4
    # Maps of images that are labels now are not thrown away without a word.
    assert run("predict", *words) == 2
    assert "restore it (--all-images, where it looks like a label)" in capsys.readouterr().err
