"""A class that is held out as the anomaly, where every frame of val holds it: which frames are left
out, which are trained on and on which the epoch is chosen, as every verb says it.
"""

import json
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest
import yaml

import segunc
from segunc.data.datasets import NONE_BY_DEFAULT, without_none_words
from segunc.data.module import DataConfig, SegmentationDataModule
from segunc.data.training_frames import epoch_words, note_on_epoch_frames
from segunc.posteriors.fit_run import FitRun, silent
from segunc.training.config import FitConfig
from segunc.training.fit_data import DataSource
from segunc.verbs.evaluate import chosen_words
from tests.data.miniatures import write_frame
from tests.verbs.processes import FAST, refuse, succeed

BICYCLIST = 10
CAR = 8
NOTE = (
    "note: 4 of 14 training frames hold bicyclist and are left out; every frame of val holds "
    "bicyclist, so 2 of the other 10 are taken for choosing the epoch; 8 are left to train"
)
SUBSTITUTE = (
    "these frames of the split train of the data set camvid stand in for val, and on them the "
    "model got "
)


@dataclass
class Held:
    """A network that was trained without bicyclists, and what was printed."""

    data: Path
    config: Path
    base: Path
    printed: str


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    folder = tmp_path_factory.mktemp("held")
    data = folder / "data"
    for split, count, holding in (("train", 14, 4), ("val", 2, 2), ("test", 2, 1)):
        for number in range(count):
            name = f"{split}_{number:02d}.png"
            values = [3, 11, 4, BICYCLIST if number < holding else CAR]
            image = data / split / name
            write_frame(image, data / f"{split}annot" / name, values, seed=number, size=(48, 64))
    config = folder / "mine.yaml"
    content = {
        "data": {
            "dataset": "camvid",
            "root": str(data),
            "crop": [32, 32],
            "batch_size": 2,
            "anomaly_class": "bicyclist",
        },
        "network": {
            "architecture": "DeepLabV3Plus",
            "encoder": "resnet18",
            "options": {"decoder_channels": 16},
        },
        "trainer": {"max_epochs": 1},
    }
    config.write_text(yaml.safe_dump(content))
    done = succeed("train --device cpu --config", config, "--out", folder / "base")
    return Held(data, config, folder / "base", done.stdout)


def test_a_training_says_which_frames_it_leaves_out(held: Held) -> None:
    lines = held.printed.splitlines()
    assert NOTE in lines
    assert "4 steps" in held.printed  # 8 frames in batches of 2
    assert "learns little" not in held.printed
    record = json.loads((held.base / "network.json").read_text())["provenance"]["training_frames"]
    assert record == {"train": 8, "left_out": 4, "selection": 2, "selection_from": "train"}


def test_few_frames_are_noted_and_too_few_refused(held: Held, tmp_path: Path) -> None:
    words = ("train --device cpu --config", held.config, "--out", tmp_path / "few")
    done = succeed(*words, "--data.batch_size 5")
    assert "note: 8 training frames in batches of 5 make only 1 step an epoch" in done.stdout
    words = ("train --device cpu --config", held.config, "--out", tmp_path / "none")
    message = refuse(*words, "--data.batch_size 9")
    assert "8 training frames without bicyclist are fewer than a batch of 9" in message


def test_a_fine_tuning_says_which_frames_it_leaves_out(held: Held, tmp_path: Path) -> None:
    words = ("--config", held.config, "--base", held.base, "--out", tmp_path / "abnn")
    done = succeed("finetune --device cpu --abnn.epochs 1", *words)
    assert NOTE in done.stdout.splitlines()
    assert "chose" not in done.stdout + done.stderr


def test_frames_that_chose_the_epoch_are_not_trained_on_silently(
    held: Held, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(held.data, data)
    for number in range(20, 24):  # the last of train by name stand in for val
        name = f"train_{number}.png"
        image = data / "train" / name
        values = [3, 11, 4, CAR]
        write_frame(image, data / "trainannot" / name, values, seed=number, size=(48, 64))
    words = ("finetune --device cpu --config", held.config, "--data.root", data)
    said = f"2 of 12 training frames chose the epoch of {held.base}, because the split has changed"
    short = {
        "abnn": "--abnn.epochs 1",
        "distil": "--distil.epochs 1 --distil.head_channels 4 --distil.corruptions []",
    }
    for method, settings in short.items():
        out = ("--base", held.base, "--out", tmp_path / method)
        done = succeed(*words, "--method", method, settings, *out)
        assert said in done.stdout + done.stderr


def test_a_base_that_records_no_frames_of_its_epoch_is_noted(held: Held, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(held.base, base)
    record = json.loads((base / "network.json").read_text())
    assert len(record["provenance"].pop("epoch_frames")) == 2
    (base / "network.json").write_text(json.dumps(record))
    words = ("finetune --device cpu --abnn.epochs 1 --config", held.config)
    done = succeed(*words, "--base", base, "--out", tmp_path / "abnn")
    said = f"an earlier version trained {base} and did not record which frames chose its epoch"
    assert said in done.stdout + done.stderr


def test_an_unchanged_split_val_needs_no_record() -> None:
    trained = {"val_miou": 0.5}
    assert note_on_epoch_frames(trained, ["a"], "base", is_same_split=True) == ""
    assert "cannot be known" in note_on_epoch_frames(trained, ["a"], "base", is_same_split=False)
    assert note_on_epoch_frames({}, ["a"], "base", is_same_split=False) == ""


def test_an_evaluation_says_where_the_selection_comes_from(held: Held) -> None:
    words = ("--replicates 0 --model", held.base, "--config", held.config)
    done = succeed("evaluate --split selection", *words, FAST)
    assert f"note: {SUBSTITUTE}its best epoch; on frames" in done.stdout
    done = succeed("evaluate --split val", *words, FAST)
    assert "its best epoch" not in done.stdout


def test_labels_in_a_folder_are_parted_as_those_of_the_data_set(held: Held, tmp_path: Path) -> None:
    """Frames may be changed copies, whose labels only a folder gives."""
    maps = tmp_path / "maps"
    predict = ("predict --device cpu --scores entropy --input", held.data / "test", "--out", maps)
    succeed(*predict, "--model", held.base)
    labels = ("--labels", held.data / "testannot")
    masks = ("--anomaly-labels", held.data / "testannot")
    ways = {
        "the data set": ("--split test --config", held.config),
        "a folder": (*labels, "--config", held.config),
        "a folder and a typed class": (*labels, "--dataset camvid --anomaly-class bicyclist"),
        "a folder of anomalies": (*masks, "--anomaly-class bicyclist --config", held.config),
    }
    counts = {}
    for way, words in ways.items():
        out = tmp_path / "metrics.json"
        succeed("evaluate --device cpu --replicates 0 --maps", maps, *words, "--out", out)
        counts[way] = json.loads(out.read_text())["counts"]
    of_data_set = counts.pop("the data set")
    assert of_data_set["anomaly_frames"] == 1
    assert of_data_set["labelled_frames"] == 1
    for way in ("a folder", "a folder and a typed class"):
        for kind in ("anomaly_frames", "anomaly_pixels", "labelled_frames", "labelled_pixels"):
            assert counts[way][kind] == of_data_set[kind]
        assert counts[way]["anomaly_labels_without_frame"] == 0
        assert counts[way]["class_labels_without_frame"] == 0
    assert counts["a folder of anomalies"]["anomaly_frames"] == 2
    assert counts["a folder of anomalies"]["anomaly_pixels"] == of_data_set["anomaly_pixels"]


def test_a_threshold_and_a_report_say_where_the_epoch_was_chosen(
    held: Held, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    succeed(
        "predict --device cpu --model", held.base, "--input", held.data / "train", "--out", maps
    )
    words = ("--maps", maps, "--config", held.config, "--out", tmp_path / "threshold.json")
    done = succeed("threshold --control errors-kept --level 0.9 --split selection", *words)
    assert f"{SUBSTITUTE}its best epoch; the promise needs frames" in done.stdout
    report = tmp_path / "report"
    runs = []
    for split in ("selection", "val"):
        runs.append(tmp_path / f"{split}.json")
        words = ("--split", split, "--config", held.config, "--out", runs[-1])
        succeed("evaluate --replicates 0 --model", held.base, FAST, *words)
    succeed("report --model", held.base, "--out", report, "--runs", *runs)
    facts = json.loads((report / "report.json").read_text())
    roles = {result["name"]: result["role"] for result in facts["results"]}
    assert roles == {"selection": "validation", "val": "test"}
    page = (report / "index.html").read_text()
    words_of_report = (
        "Trained on camvid (8 frames; 4 that hold bicyclist were left out); its epoch was chosen "
        "on 2 other frames of the split train, because every frame of val holds a class that was "
        "left out."
    )
    assert words_of_report in page


def test_what_is_fitted_on_the_substitute_is_recorded_so(held: Held) -> None:
    data = asdict(DataConfig("camvid", str(held.data), anomaly_class="bicyclist"))
    settings = segunc.Temperature()
    model = segunc.load(held.base)
    run = FitRun(model, FitConfig(settings, data), DataSource(data), say=silent)
    assert run.fitted_on("val")["split"] == "selection"
    assert run.fitted_on("train")["split"] == "train"
    everything = {**data, "anomaly_class": None}
    run = FitRun(model, FitConfig(settings, everything), DataSource(data), say=silent)
    run.data = SegmentationDataModule(**everything)
    assert run.fitted_on("val")["split"] == "val"


def test_records_of_earlier_versions_keep_their_words() -> None:
    model = {"chosen_on": [{"what": "epoch", "dataset": "camvid", "split": "val"}]}
    before = "these frames are of the split val of the data set camvid, on which the model got"
    assert chosen_words(model, set(), "camvid", "selection") == f"{before} its best epoch"
    assert epoch_words("val", {}) == "its epoch was chosen on the split val"


def test_none_is_no_anomaly_class(held: Held, tmp_path: Path) -> None:
    words = ("--config", held.config, "--out", tmp_path / "out")
    done = succeed("train --device cpu --data.anomaly_class none", *words)
    assert "are left out" not in done.stdout
    record = json.loads((tmp_path / "out" / "network.json").read_text())
    assert "bicyclist" in record["classes"]
    done = succeed("evaluate --replicates 0 --model", tmp_path / "out", FAST)
    assert "label map" not in done.stdout


def test_a_class_that_is_called_none_is_held_out(tmp_path: Path) -> None:
    labels = tmp_path / "classes.csv"
    labels.write_text(
        "id,name,train_id,red,green,blue\n0,road,0,9,9,9\n1,car,1,8,8,8\n2,none,2,7,7,7\n"
    )
    data = {"dataset": "folder", "labels": str(labels), "anomaly_class": "none", "held_out": "none"}
    resolved = without_none_words(data)
    assert (resolved["anomaly_class"], resolved["held_out"]) == ("none", None)
    assert without_none_words({**data, "labels": "camvid"})["anomaly_class"] is None


def test_none_stands_for_every_setting_that_is_none_by_default() -> None:
    assert {field.name for field in fields(DataConfig) if field.default is None} == set(
        NONE_BY_DEFAULT
    )
