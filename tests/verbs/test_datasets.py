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
from segunc.data.entries import DatasetEntry, Sample
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import IGNORE, label_map
from segunc.data.masks import AnomalyEncoding
from segunc.maps.encoding import encode_unit
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.options import EvaluateOptions
from segunc.sampling.sampler import sample_frames
from segunc.verbs.evaluate import _folder_name, label_sources
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
    command = ("evaluate", *words, "--replicates", 0, "--out", out)
    assert main([str(word) for word in command]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def colour_labels(folder: Path) -> None:
    """Write CamVid's labels again as colours."""
    palette = np.zeros((12, 3), np.uint8)
    for colour, raw in (label_map("camvid").colours or {}).items():
        palette[raw] = colour[::-1]
    for path in folder.iterdir():
        labels = cv2.imread(str(path), 0)
        assert cv2.imwrite(str(path), palette[labels])


@pytest.mark.parametrize("coloured", [False, True])
def test_a_declared_class_is_the_anomaly_of_the_frames_that_hold_it(
    tmp_path: Path, coloured: bool
) -> None:
    root = draw_miniature("camvid", tmp_path / "data")
    if coloured:
        colour_labels(root / "testannot")
    network = model(tmp_path / "base", "camvid", "bicyclist")
    data = ("--dataset", "camvid", "--root", root, "--anomaly-class", "bicyclist")
    small = ("--split", "test", "--size", "64x64", "--device", "cpu", "--scores", "entropy")
    result = evaluate(tmp_path / "metrics.json", "--model", network, *data, *small)
    # One test frame of twelve stripes holds it (one of them, one void), one of eleven does not.
    pixels = 48 * 64
    counts = result["counts"]
    assert counts["frames"] == 2
    assert counts["anomaly_pixels"] == pytest.approx(pixels / 12, rel=0.15)
    assert counts["labelled_pixels"] == pytest.approx(pixels * 10 / 11, rel=0.02)
    known = dataset_entry("camvid", anomaly_classes=["bicyclist"]).label_map().classes
    assert list(result["segmentation"]["per_class"]) == list(known)
    assert 0 <= result["scores"]["entropy"]["pooled"]["auroc"] <= 1


def write_map(path: Path, content: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), content)


def write_right_maps(entry: DatasetEntry, samples: list[Sample], maps: Path) -> None:
    """Write maps that are right about every class and every anomaly."""
    for sample in samples:
        score = np.zeros((48, 64), np.float32)
        if sample.anomaly is not None and entry.anomaly_encoding is not None:
            truth = entry.anomaly_encoding.read(sample.anomaly)
            score[truth == 1] = 0.9
        write_map(maps / "own" / f"{sample.name}.png", encode_unit(score))
        prediction = np.zeros((48, 64), np.uint8)
        if sample.label is not None:
            ids = entry.label_map().read(sample.label)
            prediction[ids != IGNORE] = ids[ids != IGNORE]
        write_map(maps / "prediction" / f"{sample.name}.png", prediction)


def holds_both(encoding: AnomalyEncoding, sample: Sample) -> bool:
    """Tell whether a frame has pixels with an anomaly and pixels without."""
    if sample.anomaly is None:
        return False
    truth = encoding.encode(read_label_image(sample.anomaly))
    return bool((truth == 1).any() and (truth == 0).any())


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_every_published_layout_passes_through_evaluate(
    tmp_path: Path, name: str, form: int
) -> None:
    """Right maps have the best numbers, whatever the set's files look like."""
    root = draw_miniature(name, tmp_path / "data", form)
    maps = tmp_path / "maps"
    entry = dataset_entry(name)
    split = next(reversed(COUNTS[name]))
    samples = entry.samples(root, split)
    write_right_maps(entry, samples, maps)
    words = ("--maps", maps, "--dataset", name, "--root", root, "--split", split)
    result = evaluate(tmp_path / "metrics.json", *words, "--protocols", "pooled,smiyc")
    assert result["counts"]["frames_scored"] == COUNTS[name][split]
    if entry.labels is not None:
        assert result["segmentation"]["miou"] == 1.0
    encoding = entry.anomaly_encoding
    if encoding is not None:
        assert any(holds_both(encoding, sample) for sample in samples)
        assert result["scores"]["own"]["pooled"]["auroc"] == 1.0
        assert result["scores"]["own"]["smiyc"]["auroc"] == 1.0


FAST = ("--draws", 2, "--precision", "float32", "--device", "cpu")


def evaluate_model(folder: Path, network: Path, *words: object) -> dict[str, Any]:
    return evaluate(folder / "metrics.json", "--model", network, *words, *FAST)


TEST = ("--dataset", "toy", "--split", "test")


def test_a_corruption_changes_the_calibration_and_is_recorded(trained: Job, tmp_path: Path) -> None:
    words = (trained.base, *TEST, "--root", trained.data)
    clean = evaluate_model(tmp_path, *words)
    noisy = evaluate_model(tmp_path, *words, "--corruption", "noise:4")
    assert "corruption" not in clean["run"]
    assert noisy["run"]["corruption"] == "noise:4"
    assert noisy["calibration"]["nll"] != clean["calibration"]["nll"]


def test_a_corruption_is_that_of_the_images_themselves(trained: Job, tmp_path: Path) -> None:
    words = (trained.base, *TEST, "--root")
    noisy = evaluate_model(tmp_path, *words, trained.data, "--corruption", "noise:4")
    copied = tmp_path / "data"
    shutil.copytree(trained.data, copied)
    for sample in dataset_entry("toy").samples(copied, "test"):
        corrupted = Corruption("noise", 4)(load_image(sample.image), sample.name)
        assert cv2.imwrite(str(sample.image), corrupted[..., ::-1])
    stored = evaluate_model(tmp_path, *words, copied)
    for section in ("segmentation", "calibration", "selective"):
        assert stored[section] == noisy[section]


def anomalies(trained: Job, folder: Path) -> dict[str, Any]:
    data = ("--dataset", "toy-anomaly", "--split", "anomaly", "--root", trained.data)
    words = ("--scores", "entropy", "--threads", 1, "--groups", ".")
    return evaluate_model(folder, trained.base, *data, *words)


def test_a_threshold_of_anomalies_flags_known_scenes_clean_and_corrupted(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = anomalies(trained, tmp_path)
    threshold = result["scores"]["entropy"]["pooled"]["thresholds"]["0.95"]
    words = ("--scores", "entropy", "--threads", 1, "--flag", f"entropy={threshold!r}")
    flag = (trained.base, *TEST, "--root", trained.data, *words)
    clean = evaluate_model(tmp_path, *flag)["flagged"]
    noisy = evaluate_model(tmp_path, *flag, "--corruption", "noise:4")["flagged"]
    assert "images corrupted by noise:4" in capsys.readouterr().out
    for flagged in (clean, noisy):
        assert flagged["entropy"]["threshold"] == threshold
        assert 0 < flagged["entropy"]["share"] <= 1
    assert clean != noisy


def test_groups_and_sizes_hold_every_pixel_of_an_anomaly(trained: Job, tmp_path: Path) -> None:
    result = anomalies(trained, tmp_path)
    pixels = result["counts"]["anomaly_pixels"]
    groups = result["counts"]["groups"].values()
    assert sum(group["anomaly_pixels"] for group in groups) == pixels
    sizes = result["scores"]["entropy"]["size"].values()
    assert sum(size["pixels"] for size in sizes) == pixels


def test_the_selection_is_val(trained: Job, tmp_path: Path) -> None:
    words = (trained.base, "--dataset", "toy", "--root", trained.data, "--split")
    selection = evaluate_model(tmp_path, *words, "selection")
    val = evaluate_model(tmp_path, *words, "val")
    assert selection["calibration"] == val["calibration"]


def write_split(root: Path, split: str, frames: int, values: list[int]) -> None:
    for number in range(frames):
        name = f"0001TP_{number:06d}.png"
        image = root / split / name
        label = root / f"{split}annot" / name
        write_frame(image, label, values, seed=number)


def test_frames_of_train_stand_in_for_a_val_of_anomalies(tmp_path: Path) -> None:
    """Every frame of val holds the anomaly: a fifth of the 32 frames of train stands in, of which a
    network has seen none.
    """
    root = tmp_path / "camvid"
    known = [value for value in sorted(label_map("camvid").raw_to_train) if value != 10]
    write_split(root, "train", 32, known)
    write_split(root, "val", 2, [*known, 10])
    network = model(tmp_path / "base", "camvid", "bicyclist")
    data = ("--dataset", "camvid", "--root", root, "--anomaly-class", "bicyclist")
    result = evaluate_model(tmp_path, network, *data, "--split", "selection")
    assert result["counts"]["labelled_frames"] == 6
    assert result["calibration"]["nll"] > 0


def test_parts_of_a_split_add_up_to_it(trained: Job, tmp_path: Path) -> None:
    words = (trained.base, *TEST, "--root", trained.data)
    names = [sample.name for sample in dataset_entry("toy").samples(trained.data, "test")]
    last = names[-1]
    everything = evaluate_model(tmp_path, *words)["counts"]
    others = evaluate_model(tmp_path, *words, "--frames", f"^(?!{last}$)")["counts"]
    result = evaluate_model(tmp_path, *words, "--frames", f"^{last}$")
    alone = result["counts"]
    assert result["run"]["frames"] == f"^{last}$"
    assert alone["frames"] == 1
    assert others["frames"] == len(names) - 1
    for count in ("labelled_pixels", "labelled_frames"):
        assert alone[count] + others[count] == everything[count]


def test_every_second_frame_of_a_split(trained: Job, tmp_path: Path) -> None:
    words = (trained.base, *TEST, "--root", trained.data)
    names = [sample.name for sample in dataset_entry("toy").samples(trained.data, "test")]
    selected = names[::2]
    thinned = evaluate_model(tmp_path, *words, "--every", 2)
    matched = evaluate_model(tmp_path, *words, "--frames", f"^({'|'.join(selected)})$")
    assert thinned["run"]["every"] == 2
    assert thinned["counts"]["frames"] == len(selected)
    assert thinned["calibration"] == matched["calibration"]


def test_a_frame_that_memory_does_not_suffice_for_is_left_out(
    trained: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    errors: list[Exception | None] = [None, MemoryError()]

    def limited(*arguments: Any, **settings: Any) -> Any:
        error = errors.pop() if errors else None
        if error is not None:
            raise error
        return sample_frames(*arguments, **settings)

    monkeypatch.setattr("segunc.sampling.sampler.sample_frames", limited)
    out = tmp_path / "metrics.json"
    words = ("--model", trained.base, *TEST, "--root", trained.data, *FAST)
    assert run("evaluate", *words, "--replicates", 0, "--out", out) == 1
    assert "1 of 2 frames could not be counted" in capsys.readouterr().err
    result = json.loads(out.read_text())
    assert "not enough memory for a frame of 128 x 64 pixels" in result["left_out"][0]["reason"]
    assert result["counts"]["frames_scored"] == 1


def run(verb: object, *words: object) -> int:
    return main([str(verb), *map(str, words)])


def published(root: Path, labelled: int) -> Path:
    """Six grey frames as Road Anomaly is published: ``NAME.png`` with
    ``NAME.labels/labels_semantic.png`` (2 is the anomaly) and its colours.
    """
    folder = root / "frames"
    noise = np.random.default_rng(0)
    label = np.zeros(SIZE, np.uint8)
    label[8:18, 5:17] = 2
    colours = np.dstack([label * 100] * 3)
    for index in range(6):
        labels = folder / f"frame{index}.labels"
        labels.mkdir(parents=True)
        grey = noise.integers(0, 256, SIZE, np.uint8)
        assert cv2.imwrite(str(folder / f"frame{index}.png"), grey)
        if index < labelled:
            assert cv2.imwrite(str(labels / "labels_semantic.png"), label)
            assert cv2.imwrite(str(labels / "labels_semantic_color.png"), colours)
    return folder


def words_of(verb: str, maps: Path, out: Path) -> list[object]:
    if verb == "evaluate":
        return [verb, "--maps", maps, "--out", out / "out.json", "--replicates", 0]
    return [verb, "--maps", maps, "--out", out / "out"]


READERS = ("evaluate", "review", "overlay")


def test_masks_of_a_named_data_set_keep_their_meaning_beside_class_labels(tmp_path: Path) -> None:
    options = EvaluateOptions(
        dataset="folder-255",
        label_map="toy",
        maps=str(tmp_path),
        labels=str(tmp_path),
        anomaly_labels=str(tmp_path),
    )
    assert label_sources(options).anomaly_encoding.anomaly == {255}


def words_of_published(verb: str, folder: Path, root: Path) -> list[object]:
    """Return a verb's words for maps of those frames, whose labels lie beside photographs."""
    images = root / "photos"
    images.mkdir()
    for path in folder.glob("frame?.png"):
        shutil.copy(path, images)
    maps = write_maps(images, root / "maps")
    labels = ("--anomaly-labels", folder, "--dataset", "road-anomaly")
    return [*words_of(verb, maps, root), *labels]


@pytest.mark.parametrize("verb", READERS)
def test_labels_beside_their_photographs_are_found(tmp_path: Path, verb: str) -> None:
    folder = published(tmp_path, labelled=6)
    assert run(*words_of_published(verb, folder, tmp_path)) == 0
    if verb == "evaluate":
        counts = json.loads((tmp_path / "out.json").read_text())["counts"]
        assert counts["anomaly_frames"] == 6
        assert counts["anomaly_pixels"] == 6 * 120


@pytest.mark.parametrize("verb", READERS)
def test_photographs_are_no_labels(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = published(tmp_path, labelled=0)
    assert run(*words_of_published(verb, folder, tmp_path)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"no label in {folder} belongs to a frame" in error
    assert not (tmp_path / "out" / "index.html").exists()


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
    predicted: Job, tmp_path: Path, verb: str
) -> None:
    data = ("--dataset", "toy-anomaly", "--split", "anomaly", "--root", predicted.data)
    assert run(*words_of(verb, predicted.maps, tmp_path), *data) == 0
    if verb == "review":
        frames = (tmp_path / "out" / "data" / "frames.js").read_text()
        assert "label/anomaly" in frames


@pytest.mark.parametrize("verb", READERS)
def test_labels_of_a_data_set_and_of_a_folder_are_refused(
    predicted: Job, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--dataset", "toy-anomaly", "--split", "anomaly", "--root", predicted.data)
    words = (*words_of(verb, predicted.maps, tmp_path), *data)
    assert run(*words, "--anomaly-labels", predicted.masks) == 2
    assert "--root goes with --dataset" in capsys.readouterr().err


@pytest.fixture
def masked_frames(finetuned: Job, tmp_path: Path) -> Path:
    """Two images, each with a mask beside it."""
    folder = tmp_path / "frames"
    folder.mkdir()
    rows = np.repeat([0, 1], [60, 4])
    mask = rows[:, None].repeat(128, 1)
    for index, image in enumerate(sorted(finetuned.frames.rglob("*.png"))[:2]):
        shutil.copy(image, folder / f"{index}.png")
        assert cv2.imwrite(str(folder / f"{index}_mask.png"), mask)
    return folder


def predict_words(job: Job, frames: Path, out: Path) -> list[object]:
    words = ("--model", job.abnn, "--draws", 2, "--device", "cpu")
    return ["predict", *words, "--input", frames, "--out", out]


def finished_frames(maps: Path) -> int:
    return len((maps / "frames.jsonl").read_text().splitlines())


def test_predict_leaves_labels_out_says_so_and_goes_on_likewise(
    finetuned: Job, masked_frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "maps"
    note = f"note: {masked_frames}: 2 images; 2 others left out as labels, e.g. 0_mask.png"
    for finished in ("2 in", "0 in"):
        assert run(*predict_words(finetuned, masked_frames, out)) == 0
        first, *others = capsys.readouterr().out.splitlines()
        assert first.startswith(note)
        assert not any(line.startswith(note) for line in others)
        assert f": {finished}" in others[0]
    assert finished_frames(out) == 2


def test_maps_of_images_that_look_like_labels_are_not_thrown_away_without_a_word(
    finetuned: Job, masked_frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "maps"
    words = predict_words(finetuned, masked_frames, out)
    assert run(*words, "--all-images") == 0
    assert finished_frames(out) == 4
    assert run(*words) == 2
    assert "restore it (--all-images, where it looks like a label)" in capsys.readouterr().err


def test_a_model_with_labels_of_no_data_set_is_led_to_its_maps(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", trained.base, "--anomaly-labels", trained.masks, "--dataset", "folder-255"]
    assert run("evaluate", *words, "--out", tmp_path / "metrics.json") == 2
    assert "segunc predict, then --maps MAPS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/data/fishyscapes_static/labels_masks", "fishyscapes_static/labels_masks"),
        ("/data/friday", "friday"),
        ("friday/labels", "friday/labels"),
        ("labels", "labels"),
        ("s3://bucket/static/labels", "s3://bucket/static/labels"),
    ],
)
def test_a_folder_of_labels_is_named_so_that_data_sets_are_told_apart(
    folder: str, name: str
) -> None:
    assert _folder_name(folder) == name
