"""Verdicts change a bank of features: false alarms enter it, what should be found stays out, and
verdicts that belong elsewhere are refused in one sentence.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from segunc import Sampler, build_network, save_network
from segunc.baselines.anomaly import Anomaly
from segunc.baselines.features import FeatureDensity
from segunc.baselines.frame_choice import farthest_frames
from segunc.baselines.verdict_changes import verdict_on
from segunc.baselines.verdict_features import mask_of
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from segunc.data.images import load_image
from segunc.gallery.change_page import (
    ChangedAlarm,
    Changes,
    Coverage,
    JudgedRegions,
    write_change_page,
)
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.learned_frames import learned_among, learned_words, round_words
from segunc.maps.regions import StrongRegion, strongest_regions
from segunc.maps.verdicts import JudgedRegion
from segunc.networks.description import NetworkDescription
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.model import load_model
from tests.conftest import change_record
from tests.support.fits import fit_folder
from tests.verbs.processes import refuse, segunc, succeed

LAYERS = ["body.encoder.features.3"]  # of stride 4
ODD = (slice(40, 72), slice(40, 72))  # of every frame of the drive
OTHER = (slice(40, 72), slice(180, 212))  # of the frame c of the drive
THRESHOLD = 0.05


@dataclass(frozen=True)
class Drive:
    """A model with a bank of two frames, and maps of three frames of another drive."""

    model: Path
    images: Path
    maps: Path

    def regions(self, frame: str) -> list[dict[str, Any]]:
        """What the threshold flags in a frame, as a review page exports it: the left first."""
        values = open_maps(self.maps).read(frame, "knn")
        exported = []
        for region in strongest_regions(values, THRESHOLD, smallest=50, most=5):
            mask = np.zeros(values.shape, bool)
            left, top, width, height = region.box
            mask[top : top + height, left : left + width] = region.inside
            exported.append(
                {
                    "box": list(region.box),
                    "area": region.area,
                    "size": list(values.shape),
                    "mask": runs_of(mask),
                    "score": "knn",
                    "threshold": THRESHOLD,
                    "value": float(values[mask].max()),
                }
            )
        return sorted(exported, key=lambda region: region["box"][0])

    def write(self, path: Path, *verdicts: tuple[str, str, Any], **changes: Any) -> Path:
        """Write a file of verdicts (frame, verdict, region)."""
        reader = open_maps(self.maps)
        entries = []
        for frame, verdict, region in verdicts:
            entries.append(
                {
                    "frame": frame,
                    "verdict": verdict,
                    "note": "",
                    "time": "2026-01-01T00:00:00Z",
                    "reviewer": "Ana",
                    "region": region,
                    "image_hash": reader.image_hash(frame),
                }
            )
        content = {
            "format": "segunc-verdicts",
            "version": 2,
            "run": run_id(reader),
            "verdicts": entries,
        }
        path.write_text(json.dumps(content | changes))
        return path

    def learn(self, out: Path, verdicts: Path, **settings: Any) -> Any:
        given = {"maps": str(self.maps), "compared": 0, **settings}
        return fit_folder(FeatureDensity(verdicts=str(verdicts), **given), self.model, out)


def runs_of(mask: Any) -> list[int]:
    flat = np.concatenate([[0], mask.flatten().astype(int), [0]])
    steps = np.diff(flat)
    starts = np.flatnonzero(steps == 1)
    ends = np.flatnonzero(steps == -1)
    return np.stack([starts, ends - starts], 1).flatten().tolist()


def write_images(folder: Path, images: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    for name, image in images.items():
        cv2.imwrite(str(folder / f"{name}.png"), image)
    return folder


def road(number: int) -> Any:
    """A grey picture, each a little brighter than the one before."""
    return np.full((128, 256, 3), 110 + number, np.uint8)


def textured(seed: int) -> Any:
    """Coarse squares of two colours."""
    squares = np.random.default_rng(seed).integers(0, 2, (8, 8, 1))
    colours = squares * np.array([255, 20, 60]) + (1 - squares) * np.array([10, 240, 20])
    return colours.repeat(4, 0).repeat(4, 1).astype(np.uint8)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("drive")
    description = NetworkDescription("FPN", "mobilenet_v2", ("road", "sky"), inference_size=None)
    save_network(build_network(description), folder / "base")
    known = write_images(folder / "known", {"0": road(0), "1": road(1)})
    settings = FeatureDensity(images=str(known), layers=LAYERS)
    fit_folder(settings, folder / "base", folder / "model")
    images = {}
    for name, number in {"a": 0, "b": 1, "c": 0}.items():
        images[name] = road(number)
        images[name][ODD] = textured(0)
    images["c"][OTHER] = 255 - textured(5)
    drive = Drive(folder / "model", write_images(folder / "images", images), folder / "maps")
    predict(drive.model, drive.images, drive.maps)
    return drive


def predict(model: Path, images: Path, maps: Path, scores: str = "knn") -> None:
    succeed(
        "predict --device cpu --precision float32 --draws 1",
        *("--model", model, "--input", images, "--scores", scores, "--out", maps),
    )


def knn(model: Any, image: Path) -> Any:
    return model(load_image(image), scores=["knn"]).knn


def test_a_false_alarm_enters_and_goes_on_other_frames(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "ana.json", ("a", "false-alarm", region))
    learnt = drive.learn(tmp_path / "out", verdicts)
    before = load_model(drive.model)
    after = load_model(tmp_path / "out")
    other = drive.images / "b.png"
    assert knn(before, other)[ODD].max() > THRESHOLD
    assert knn(after, other)[ODD].max() < THRESHOLD / 4
    bank = after.attachments["features"]
    assert bank.frames == ("0", "1", "a")
    (entry,) = bank.verdicts
    assert entry["files"].keys() == {"ana.json"}
    assert entry["false_alarms"] == 1
    assert entry["added"] > 64
    stored = load_file(tmp_path / "out" / "features.safetensors")
    origins = stored["0.origins"]
    assert (origins[:, 0] == 2).sum() == entry["added"]
    assert len(stored["0.bank"]) == len(origins)
    assert learnt.summary == f"knn, with {entry['added']} features of 1 false alarm"


def test_only_places_of_the_region_enter(drive: Drive, tmp_path: Path) -> None:
    region = drive.regions("c")[0]
    verdicts = drive.write(tmp_path / "ana.json", ("c", "false-alarm", region))
    drive.learn(tmp_path / "out", verdicts)
    origins = load_file(tmp_path / "out" / "features.safetensors")["0.origins"]
    _, row, column, train_id = origins[origins[:, 0] == 2].T
    left, top, width, height = region["box"]
    place = 4  # pixels of a place
    assert (row * 128 > top - place).all()
    assert (row * 128 < top + height + place).all()
    assert (column * 256 < left + width + place).all()
    assert (train_id == 255).all()
    after = load_model(tmp_path / "out")
    assert knn(after, drive.images / "c.png")[OTHER].max() > THRESHOLD


def test_a_true_alarm_stays_out(drive: Drive, tmp_path: Path) -> None:
    odd, other = drive.regions("c")
    # Another reviewer called a region false that covers both.
    whole = np.zeros((128, 256), bool)
    whole[36:76, 36:216] = True
    both = {**odd, "mask": runs_of(whole), "box": [36, 36, 180, 40], "area": int(whole.sum())}
    verdicts = drive.write(
        tmp_path / "ana.json", ("c", "true-alarm", other), ("c", "false-alarm", both)
    )
    drive.learn(tmp_path / "out", verdicts)
    after = load_model(tmp_path / "out")
    image = drive.images / "c.png"
    assert knn(after, image)[ODD].max() < THRESHOLD / 4
    assert knn(after, image)[OTHER].max() > THRESHOLD
    assert after.attachments["features"].verdicts[0]["to_find"] == 1
    frame, _, column, _ = load_file(tmp_path / "out" / "features.safetensors")["0.origins"].T
    learnt = column[frame == 2] * 256
    assert len(learnt)
    assert ((learnt < OTHER[1].start - 4) | (learnt > OTHER[1].stop + 4)).all()


def test_a_region_that_reviewers_dispute_stays_out(drive: Drive, tmp_path: Path) -> None:
    odd, other = drive.regions("c")
    ana = drive.write(tmp_path / "ana.json", ("c", "false-alarm", odd), ("c", "false-alarm", other))
    # Both exported under one name, into folders of their own.
    (tmp_path / "ben").mkdir()
    file = tmp_path / "ben" / "ana.json"
    ben = drive.write(file, ("c", "false-alarm", odd), ("c", "true-alarm", other))
    ben.write_text(ben.read_text().replace("Ana", "Ben"))
    said: list[str] = []
    settings = FeatureDensity(verdicts=[str(ana), str(ben)], maps=str(drive.maps), compared=0)
    model = settings.fit(load_model(drive.model), device="cpu", say=said.append)
    assert "1 region called false by one reviewer and true or missed by another" in said[0]
    (entry,) = model.attachments["features"].verdicts
    assert entry["files"] == {"ana.json": file_sha256(ana), "ben/ana.json": file_sha256(ben)}
    assert (entry["false_alarms"], entry["to_find"]) == (1, 1)
    assert knn(model, drive.images / "c.png")[OTHER].max() > THRESHOLD


def test_verdicts_on_an_earlier_image_stay_out_of_the_bank(drive: Drive, tmp_path: Path) -> None:
    """The maps of a frame are made again if its image changes, and its regions are others then."""
    (region,) = drive.regions("a")
    odd, _ = drive.regions("c")
    file = drive.write(tmp_path / "v.json", ("a", "false-alarm", region), ("c", "false-alarm", odd))
    content = json.loads(file.read_text())
    content["verdicts"][0]["image_hash"] = "of the image before"
    file.write_text(json.dumps(content))
    said: list[str] = []
    settings = FeatureDensity(verdicts=str(file), maps=str(drive.maps), compared=0)
    model = settings.fit(load_model(drive.model), device="cpu", say=said.append)
    assert "1 verdict is left out, on 1 frame that had another image when judged" in said[0]
    (entry,) = model.attachments["features"].verdicts
    assert (entry["false_alarms"], entry["frames"]) == (1, 1)
    assert list(entry["learned"]) == ["c"]


def test_alarms_of_a_score_without_the_bank_are_not_compared(drive: Drive, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    predict(drive.model, drive.images, maps, "deterministic-entropy,knn")
    seen = Drive(drive.model, drive.images, maps)
    (region,) = seen.regions("a")
    by_entropy = {**region, "score": "deterministic-entropy"}
    verdicts = seen.write(tmp_path / "v.json", ("a", "false-alarm", by_entropy))
    said: list[str] = []
    settings = FeatureDensity(
        verdicts=str(verdicts), maps=str(maps), changes=str(tmp_path / "changes.html")
    )
    settings.fit(load_model(drive.model), device="cpu", say=said.append)
    assert "changes.html is not written: the alarms are of deterministic-entropy" in said[-1]
    assert not (tmp_path / "changes.html").exists()


def bank_of_the_drive(drive: Drive, out: Path) -> Drive:
    """The same drive, seen by a model whose bank holds its frames."""
    model = out / "model"
    settings = FeatureDensity(images=str(drive.images), layers=LAYERS)
    fit_folder(settings, drive.model.parent / "base", model)
    maps = out / "maps"
    predict(model, drive.images, maps)
    return Drive(model, drive.images, maps)


@pytest.fixture(scope="module")
def noisy(drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """An ABNN of the same network with the same bank, and its maps of anomaly."""
    folder = tmp_path_factory.mktemp("noisy")
    model = folder / "model"
    known = str(drive.images.parent / "known")
    fit_folder(ABNN(alpha=0.5), drive.images.parent / "base", model)
    fit_folder(FeatureDensity(images=known, layers=LAYERS), model, model)
    fit_folder(Anomaly(parts=["entropy", "knn"], images=str(drive.images)), model, model)
    succeed(
        "predict --device cpu --precision float32 --draws 4 --scheme independent",
        *("--model", model, "--input", drive.images, "--scores", "anomaly,knn"),
        *("--out", folder / "maps"),
    )
    return Drive(model, drive.images, folder / "maps")


def compared(
    made: Drive, base: Path, folder: Path, score: str = "anomaly", preparation: str = ""
) -> list[str]:
    """Return what is said where verdicts on maps change the bank of a base."""
    (region, *_) = made.regions("a")
    region |= {"score": score, "threshold": 0.5 if score == "anomaly" else THRESHOLD}
    region["preparation"] = preparation
    verdicts = made.write(folder / "ana.json", ("a", "false-alarm", region))
    lines: list[str] = []
    settings = FeatureDensity(verdicts=str(verdicts), maps=str(made.maps), compared=1)
    settings.fit(load_model(base), device="cpu", say=lines.append)
    return lines


def test_alarms_of_a_model_with_another_posterior_are_not_compared(
    noisy: Drive, drive: Drive, tmp_path: Path
) -> None:
    """Otherwise alarms that the other posterior has not would pass for alarms that went."""
    base = tmp_path / "base"
    settings = Anomaly(parts=["deterministic-entropy", "knn"], images=str(drive.images))
    fit_folder(settings, drive.model, base)
    refused = "alarms before and after are not compared: the maps were made by a model with another"
    assert f"note: {refused} sum of scores than the base" in compared(noisy, base, tmp_path)
    assert not any(refused in line for line in compared(noisy, noisy.model, tmp_path))


def test_alarms_of_knn_are_compared_whatever_the_posterior(
    noisy: Drive, drive: Drive, tmp_path: Path
) -> None:
    lines = compared(noisy, drive.model, tmp_path, score="knn")
    assert any(line.startswith("Measured on") for line in lines)


def test_alarms_of_a_prepared_map_are_not_compared(noisy: Drive, tmp_path: Path) -> None:
    """The maps of the new bank are not prepared, so their values are of another scale."""
    lines = compared(noisy, noisy.model, tmp_path, preparation="--margin 4")
    refused = "the regions were flagged after --margin 4, which is not done here"
    assert f"note: alarms before and after are not compared: {refused}" in lines


def test_alarms_are_compared_with_the_draws_of_the_maps(
    noisy: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samplers: list[Sampler] = []

    def make(*arguments: Any, **settings: Any) -> Sampler:
        samplers.append(Sampler(*arguments, **settings))
        return samplers[-1]

    monkeypatch.setattr("segunc.baselines.verdict_changes.Sampler", make)
    compared(noisy, noisy.model, tmp_path)
    (sampler,) = samplers
    assert (sampler.draws, sampler.noise.scheme) == (4, "independent")


def test_features_of_the_bank_within_a_missed_object_are_removed(
    drive: Drive, tmp_path: Path
) -> None:
    (_, other) = drive.regions("c")
    seen = bank_of_the_drive(drive, tmp_path)
    drawn = {**other, "score": None, "threshold": None, "value": None}
    image = drive.images / "c.png"
    assert knn(load_model(seen.model), image)[OTHER].max() < THRESHOLD
    verdicts = seen.write(tmp_path / "ana.json", ("c", "missed", drawn))
    seen.learn(tmp_path / "out", verdicts)
    after = load_model(tmp_path / "out")
    assert knn(after, image)[OTHER].max() > THRESHOLD
    assert after.attachments["features"].verdicts[0]["removed"] >= 64


def test_a_frame_of_the_same_name_keeps_its_features(drive: Drive, tmp_path: Path) -> None:
    (_, other) = drive.regions("c")
    (odd,) = drive.regions("a")
    known = write_images(tmp_path / "known", {"c": road(3), "1": road(4)})
    model = tmp_path / "model"
    fit_folder(FeatureDensity(images=str(known), layers=LAYERS), drive.model.parent / "base", model)
    predict(model, drive.images, tmp_path / "maps")
    seen = Drive(model, drive.images, tmp_path / "maps")
    verdicts = seen.write(
        tmp_path / "v.json", ("c", "true-alarm", other), ("a", "false-alarm", odd)
    )
    learnt = seen.learn(tmp_path / "out", verdicts)
    assert learnt.attachments["features"].verdicts[0]["removed"] == 0


def test_a_bank_that_holds_what_should_be_found_is_told(drive: Drive, tmp_path: Path) -> None:
    (odd,) = drive.regions("a")
    seen = bank_of_the_drive(drive, tmp_path)
    # Frame a is called true, and the same object in the frames b and c is in the bank.
    drawn = {**odd, "score": None, "threshold": None, "value": None}
    verdicts = seen.write(tmp_path / "ana.json", ("a", "missed", drawn))
    said: list[str] = []
    settings = FeatureDensity(verdicts=str(verdicts), maps=str(seen.maps), compared=0)
    settings.fit(load_model(seen.model), device="cpu", say=said.append)
    (told,) = [line for line in said if "holds what should be found" in line]
    assert "first on frame a" in told


def test_two_rounds_follow_each_other(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    first = drive.write(tmp_path / "one.json", ("a", "false-alarm", region))
    drive.learn(tmp_path / "first", first)
    predict(tmp_path / "first", drive.images, tmp_path / "maps")
    second = Drive(tmp_path / "first", drive.images, tmp_path / "maps")
    (left,) = second.regions("c")
    verdicts = second.write(tmp_path / "two.json", ("c", "false-alarm", left))
    second.learn(tmp_path / "second", verdicts)
    rounds = load_model(tmp_path / "second").attachments["features"].verdicts
    assert [list(entry["files"]) for entry in rounds] == [["one.json"], ["two.json"]]
    assert knn(load_model(tmp_path / "second"), drive.images / "c.png").max() < THRESHOLD


@pytest.fixture(scope="module")
def learnt(drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose bank the verdict on the frame a changed."""
    folder = tmp_path_factory.mktemp("learnt")
    (region,) = drive.regions("a")
    drive.learn(folder / "model", drive.write(folder / "v.json", ("a", "false-alarm", region)))
    return folder / "model"


def labelled(drive: Drive, root: Path) -> Path:
    """Write anomaly labels of the drive, and its images under other names, as own data."""
    mask = np.zeros((128, 256), np.uint8)
    mask[ODD] = 255
    write_images(root / "masks", dict.fromkeys("abc", mask))
    write_images(root / "own" / "images", {})
    write_images(root / "own" / "labels_masks", dict.fromkeys(["x_a", "x_b", "x_c"], mask))
    for name in "abc":
        shutil.copy(drive.images / f"{name}.png", root / "own" / "images" / f"x_{name}.png")
    return root


LEARNT_ON_A = "note: 1 of these 3 frames gave features to the bank by verdicts, or lost some (a);"


def test_an_evaluation_of_maps_names_the_frames_of_verdicts(
    drive: Drive, learnt: Path, tmp_path: Path
) -> None:
    masks = ("--dataset folder-255 --anomaly-labels", labelled(drive, tmp_path) / "masks")
    predict(learnt, drive.images, tmp_path / "maps")
    evaluate = "evaluate --replicates 0"
    words = ("--maps", tmp_path / "maps", *masks)
    done = succeed(evaluate, *words, "--out", tmp_path / "m.json")
    assert LEARNT_ON_A in done.stdout
    assert "--frames leaves them out; numbers on such frames are too good" in done.stdout
    assert json.loads((tmp_path / "m.json").read_text())["run"]["learned_frames"] == 1
    # Neither other frames nor maps of the bank before them have anything of it.
    others = succeed(evaluate, *words, "--frames", "[bc]", "--out", tmp_path / "bc.json")
    assert "by verdicts" not in others.stdout
    assert "learned_frames" not in json.loads((tmp_path / "bc.json").read_text())["run"]
    before = succeed(evaluate, "--maps", drive.maps, *masks, "--out", tmp_path / "before.json")
    assert "by verdicts" not in before.stdout
    made = succeed(
        "threshold --score knn --control flagged-pixels --level 0.9",
        *(*words, "--out", tmp_path / "threshold.json"),
    )
    assert LEARNT_ON_A.removeprefix("note: ") in made.stdout
    assert "by verdicts" in json.loads((tmp_path / "threshold.json").read_text())["chosen"]


def test_frames_of_verdicts_are_not_noted_of_scores_without_the_bank(
    drive: Drive, learnt: Path, tmp_path: Path
) -> None:
    masks = ("--dataset folder-255 --anomaly-labels", labelled(drive, tmp_path) / "masks")
    predict(learnt, drive.images, tmp_path / "maps", "knn,entropy")
    words = ("--maps", tmp_path / "maps", *masks)
    out = tmp_path / "m.json"
    done = succeed("evaluate --replicates 0 --scores entropy", *words, "--out", out)
    assert "by verdicts" not in done.stdout
    assert "learned_frames" not in json.loads(out.read_text())["run"]
    out = tmp_path / "threshold.json"
    options = "threshold --score entropy --control flagged-pixels --level 0.9"
    made = succeed(options, *words, "--out", out)
    assert "by verdicts" not in made.stdout
    assert "by verdicts" not in json.loads(out.read_text())["chosen"]


def test_an_evaluation_of_a_model_knows_images_under_other_names(
    drive: Drive, learnt: Path, tmp_path: Path
) -> None:
    root = labelled(drive, tmp_path) / "own"
    done = succeed(
        "evaluate --replicates 0 --device cpu --draws 1 --scores knn --dataset folder-255",
        *("--model", learnt, "--root", root, "--out", tmp_path / "m.json"),
    )
    assert LEARNT_ON_A.replace("(a)", "(x_a)") in done.stdout


def test_a_round_says_that_its_frames_test_no_more(drive: Drive, tmp_path: Path) -> None:
    odd, _ = drive.regions("c")
    verdicts = drive.write(
        tmp_path / "v.json", ("c", "false-alarm", odd), ("a", "true-alarm", drive.regions("a")[0])
    )
    said: list[str] = []
    settings = FeatureDensity(verdicts=str(verdicts), maps=str(drive.maps), compared=0)
    model = settings.fit(load_model(drive.model), device="cpu", say=said.append)
    note = (
        "note: numbers on the 1 frame of images that changed the bank (c) are too good from now on:"
        " test this model on other frames"
    )
    assert note in said
    (entry,) = model.attachments["features"].verdicts
    assert entry["images"] == "images"
    assert entry["learned"] == {"c": open_maps(drive.maps).records["c"]["stamp"]}


def test_frames_without_a_hash_are_known_by_name_and_images() -> None:
    rounds = [{"images": "drive.mp4", "learned": {"frame_1": None, "frame_2": "2"}}]
    frames = {"frame_1": None, "frame_2": None, "frame_3": None}
    assert learned_among(rounds, frames, "drive.mp4") == ["frame_1", "frame_2"]
    assert learned_among(rounds, frames, "other.mp4") == []
    assert learned_among(rounds, {"frame_2": "3", "x": "2"}, "drive.mp4") == ["x"]


def test_a_round_of_an_earlier_version_says_that_its_frames_are_not_recorded() -> None:
    (words,) = learned_words([{}], [], 3)
    assert "did not record on which frames" in words
    assert round_words({"frames": 9}) == "verdicts on 9 frames"


def refused(drive: Drive, out: Path, verdicts: Path, said: str, **settings: Any) -> str:
    with pytest.raises(InputError, match=said) as error:
        drive.learn(out, verdicts, **settings)
    assert not out.exists()
    return error.value.hint


def test_verdicts_of_another_run_are_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region), run="0" * 16)
    hint = refused(drive, tmp_path / "out", verdicts, "holds verdicts on the run 0000000000000000")
    assert "maps" in hint


def test_maps_of_another_bank_are_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    drive.learn(tmp_path / "first", verdicts)
    learnt = Drive(tmp_path / "first", drive.images, drive.maps)
    hint = refused(learnt, tmp_path / "out", verdicts, "maps made with the feature bank")
    assert "--base" in hint


def test_maps_of_another_network_are_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    torch.manual_seed(1)
    description = NetworkDescription("FPN", "mobilenet_v2", ("road", "sky"), inference_size=None)
    save_network(build_network(description), tmp_path / "base")
    settings = FeatureDensity(images=str(drive.model.parent / "known"), layers=LAYERS)
    fit_folder(settings, tmp_path / "base", tmp_path / "model")
    other = Drive(tmp_path / "model", drive.images, drive.maps)
    hint = refused(other, tmp_path / "out", verdicts, "holds maps of the network")
    assert "--base" in hint


def test_a_missing_frame_is_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    images = tmp_path / "images"
    shutil.copytree(drive.images, images)
    (images / "a.png").unlink()
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    said = "1 frame with verdicts lacks an image, first 'a'"
    hint = refused(drive, tmp_path / "out", verdicts, said, images=str(images))
    assert "--features.images" in hint


def test_another_image_of_the_same_name_is_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    images = write_images(tmp_path / "images", {"a": road(77)})
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    said = "is not the image that was predicted"
    refused(drive, tmp_path / "out", verdicts, said, images=str(images))


@pytest.mark.parametrize("verdict", ["true-alarm", "unsure"])
def test_verdicts_without_a_false_alarm_are_refused(
    drive: Drive, tmp_path: Path, verdict: str
) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", verdict, region))
    said = "v.json holds no region that was called a false alarm"
    hint = refused(drive, tmp_path / "out", verdicts, said)
    assert "key s" in hint


def test_a_false_alarm_on_a_whole_frame_has_no_place(drive: Drive, tmp_path: Path) -> None:
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", None))
    refused(drive, tmp_path / "out", verdicts, "no region that was called a false alarm")


def test_a_region_of_another_size_is_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(
        tmp_path / "v.json", ("a", "false-alarm", {**region, "size": [128, 255]})
    )
    refused(drive, tmp_path / "out", verdicts, "was judged on 255 x 128 pixels")


def test_a_model_without_a_bank_is_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    bare = Drive(drive.model.parent / "base", drive.images, drive.maps)
    hint = refused(bare, tmp_path / "out", verdicts, "the base has no bank of features")
    assert "--features.images" in hint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"verdicts": "a.json", "layers": LAYERS}, "features.layers has no use"),
        ({"verdicts": "a.json", "frames": 3}, "features.frames has no use"),
        ({"choose": "farthest"}, "does not say how many frames"),
        ({"maps": "maps"}, "features.maps is given without verdicts"),
        ({"changes": "page.html"}, "features.changes is given without verdicts"),
        ({"verdicts": "a.json", "changes": "a.html", "compared": 0}, "features.compared is 0"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FeatureDensity(**settings)


def test_verdicts_without_maps_are_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    refused(drive, tmp_path / "out", verdicts, "says nothing of the run", maps=None)


def test_a_sum_of_the_earlier_bank_is_removed_and_refused(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    settings = Anomaly(images=str(drive.model.parent / "known"), parts=["knn"])
    with_sum = tmp_path / "sum"
    fit_folder(settings, drive.model, with_sum)
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    said: list[str] = []
    learning = FeatureDensity(verdicts=str(verdicts), maps=str(drive.maps), compared=0)
    model = learning.fit(load_model(with_sum), device="cpu", say=said.append)
    removed = model.write(tmp_path / "out")
    assert "with a former feature bank" in removed[0]
    assert "segunc finetune --method anomaly" in said[-1]
    assert load_model(tmp_path / "out").attachments.keys() == {"features"}
    shutil.copy(with_sum / "anomaly.json", tmp_path / "out")
    with pytest.raises(InputError, match="was fitted with other features") as error:
        load_model(tmp_path / "out")
    assert "segunc finetune --method anomaly" in error.value.hint


def test_the_command_tells_what_goes_and_writes_a_page(drive: Drive, tmp_path: Path) -> None:
    (region,) = drive.regions("a")
    other = drive.regions("c")[1]
    verdicts = drive.write(
        tmp_path / "v.json", ("a", "false-alarm", region), ("c", "true-alarm", other)
    )
    page = tmp_path / "changes.html"
    done = succeed(
        "finetune --method features --device cpu",
        *("--base", drive.model, "--features.verdicts", verdicts),
        *("--features.maps", drive.maps, "--features.changes", page),
        *("--out", tmp_path / "out"),
    )
    text = done.stdout + done.stderr
    assert "Into the bank: 1 false alarm on 1 frame, with" in text
    assert "1 of 1 alarms on regions called false go." in text
    assert "2 of 2 other alarms go." in text
    assert "0 of 1 alarms on regions called true or missed go." in text
    assert "WARNING" not in text
    assert "regions called false. " not in text  # each of them has one alarm
    written = page.read_text()
    assert written.count("<img") == 4
    assert "<script" not in written
    assert "<td>4</td><td>1</td>" in written


def changes_of(drive: Drive, tmp_path: Path, verdicts: Path, **settings: Any) -> list[str]:
    """Return what a fine-tuning with verdicts says."""
    said: list[str] = []
    learning = FeatureDensity(verdicts=str(verdicts), maps=str(drive.maps), **settings)
    learning.fit(load_model(drive.model), device="cpu", say=said.append)
    return said


def around_both(region: dict[str, Any]) -> dict[str, Any]:
    """A region that was judged at a lower threshold, which holds both odd places of frame c."""
    whole = np.zeros((128, 256), bool)
    whole[36:76, 36:216] = True
    box = [36, 36, 180, 40]
    return {**region, "mask": runs_of(whole), "box": box, "area": 180 * 40, "threshold": 0.01}


def test_two_alarms_on_one_region_are_explained(drive: Drive, tmp_path: Path) -> None:
    odd = drive.regions("a")[0]
    far = {**odd, "mask": [0, 4], "box": [0, 0, 4, 1], "area": 4}  # has no alarm
    verdicts = drive.write(
        tmp_path / "v.json",
        *(("a", "false-alarm", odd), ("b", "false-alarm", drive.regions("b")[0])),
        *(("c", "false-alarm", around_both(odd)), ("c", "false-alarm", far)),
    )
    page = tmp_path / "changes.html"
    said = changes_of(drive, tmp_path, verdicts, changes=str(page))
    assert "Into the bank: 4 false alarms on 3 frames, with" in said[0]
    assert any(line.endswith(" of 4 alarms on regions called false go.") for line in said)
    explained = (
        "4 alarms touch 3 of the 4 regions called false. Alarms are the strongest regions of a "
        "frame at 0.05. A region that was drawn, or judged at another threshold, can touch several "
        "of them, or none."
    )
    assert explained in said
    written = page.read_text()
    assert f"<p>{explained}</p>" in written
    assert "that overlap most with a region called false, which enters the bank" in written


def alarm_of(mask: Any) -> StrongRegion:
    """Return the only alarm of a map that a mask flags."""
    (alarm,) = strongest_regions(mask.astype(np.float32), 0.5, most=5)
    return alarm


@pytest.fixture
def wide() -> Any:
    """A mask of 80,400 pixels."""
    mask = np.zeros((300, 500), bool)
    mask[10:211, 20:420] = True
    return mask


def test_a_sliver_of_a_true_region_does_not_make_a_false_alarm_true(wide: Any) -> None:
    called_false = wide.copy()
    called_false[10, 20:420] = False  # 80,000 pixels are left
    called_true = np.zeros_like(wide)
    called_true[210:290, 100:133] = True  # 33 pixels of it are of the alarm
    outlines = {"true-alarm": [called_true], "false-alarm": [called_false]}
    assert verdict_on(alarm_of(wide), outlines) == ("false-alarm", False)


def test_an_alarm_over_a_whole_true_region_is_of_both_kinds(wide: Any) -> None:
    called_true = np.zeros_like(wide)
    called_true[50:60, 100:133] = True
    outlines = {"true-alarm": [called_true], "false-alarm": [wide & ~called_true]}
    assert verdict_on(alarm_of(wide), outlines) == ("false-alarm", True)
    both_true = {"true-alarm": [called_true, wide], "false-alarm": []}
    assert verdict_on(alarm_of(wide), both_true) == ("true-alarm", False)


def test_of_equal_overlaps_the_true_region_counts(wide: Any) -> None:
    outlines = {"true-alarm": [wide], "false-alarm": [wide]}
    assert verdict_on(alarm_of(wide), outlines) == ("true-alarm", True)


def test_an_alarm_that_touches_no_judged_region_has_no_verdict(wide: Any) -> None:
    assert verdict_on(alarm_of(wide), {"true-alarm": [~wide], "false-alarm": []}) == ("", False)


def test_alarms_of_both_kinds_are_told_and_marked(drive: Drive, tmp_path: Path) -> None:
    """One region called false covers both odd places of frame c, and one of them is called true."""
    odd, other = drive.regions("c")
    verdicts = drive.write(
        tmp_path / "v.json",
        *(("c", "false-alarm", around_both(odd)), ("c", "true-alarm", other)),
        ("a", "false-alarm", drive.regions("a")[0]),
    )
    page = tmp_path / "changes.html"
    said = changes_of(drive, tmp_path, verdicts, changes=str(page))
    (told,) = [line for line in said if "and one called true or missed" in line]
    assert told.startswith("1 alarm overlaps a region called false and one called true or missed.")
    assert told.endswith(" 0 of 1 go.")
    assert not any(line.startswith("WARNING") for line in said)
    written = page.read_text()
    assert f"<p>{told}</p>" in written
    assert written.count("; overlaps a region called false and one called true or missed") == 1


def test_no_more_frames_are_compared_than_asked_for(drive: Drive, tmp_path: Path) -> None:
    """Frames of true alarms come first, because it is there that verdicts may lose something."""
    first, second = drive.regions("a")[0], drive.regions("b")[0]
    other = drive.regions("c")[1]
    verdicts = drive.write(
        tmp_path / "v.json",
        *(("a", "false-alarm", first), ("b", "false-alarm", second), ("c", "true-alarm", other)),
    )
    said = changes_of(drive, tmp_path, verdicts, compared=1)
    assert "0 of 1 alarms on regions called true or missed go." in said
    assert (
        "Measured on 1 of 3 frames with alarms, among them 1 of the 3 judged ones, with feature "
        "distance at 0.05."
    ) in said
    (explained,) = [line for line in said if line.startswith("0 alarms touch")]
    assert "0 of the 2 regions called false. 2 of them are on frames that were not" in explained


def test_true_alarms_on_frames_that_were_not_compared_are_told(
    drive: Drive, tmp_path: Path
) -> None:
    verdicts = drive.write(
        tmp_path / "v.json",
        ("a", "true-alarm", drive.regions("a")[0]),
        ("b", "true-alarm", drive.regions("b")[0]),
        ("c", "false-alarm", drive.regions("c")[1]),
    )
    (measured,) = [
        line
        for line in changes_of(drive, tmp_path, verdicts, compared=1)
        if line.startswith("Measured")
    ]
    assert measured.endswith(
        " 1 frame with regions called true or missed was not measured. Raise "
        "--features.compared to measure all."
    )


WHOLE = Coverage(
    false_alarms=JudgedRegions(0, left_out=0, touched=0),
    to_find=JudgedRegions(2, left_out=0, touched=2),
    judged_frames=2,
    judged_measured=2,
    true_left_out=0,
)
SERVES_SEVERAL_RUNS = "features: {encoder: tf_efficientnet_lite0, weights: imagenet, bank: 500}\n"


def finetune_words(drive: Drive, tmp_path: Path, config: Path) -> tuple[Any, ...]:
    """Return the words of a fine-tuning with verdicts and a configuration."""
    (region,) = drive.regions("a")
    verdicts = drive.write(tmp_path / "v.json", ("a", "false-alarm", region))
    return (
        "finetune --method features --device cpu --features.compared 0",
        *("--config", config, "--base", drive.model, "--out", tmp_path / "out"),
        *("--features.verdicts", verdicts, "--features.maps", drive.maps),
    )


def test_a_file_of_several_runs_may_say_how_another_bank_is_made(
    drive: Drive, tmp_path: Path
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(SERVES_SEVERAL_RUNS)
    done = segunc(*finetune_words(drive, tmp_path, config))
    assert done.code == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert said.count("have no use here") == 1
    assert (
        f"configuration {config} gives features.encoder, features.weights, features.bank, which "
        "have no use here: features.verdicts changes the bank of the base"
    ) in said
    assert len(load_model(tmp_path / "out").attachments["features"].verdicts) == 1


def test_a_typed_option_without_use_is_refused_beside_a_file(drive: Drive, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(SERVES_SEVERAL_RUNS)
    words = finetune_words(drive, tmp_path, config)
    said = refuse(*words, "--features.bank", 600)
    assert "so features.bank has no use. Hint: leave --features.bank out" in said


def test_a_wrong_key_of_a_file_is_refused_with_verdicts(drive: Drive, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("features: {encodr: own}\n")
    assert "encodr" in refuse(*finetune_words(drive, tmp_path, config))


def test_true_alarms_that_go_are_a_warning_on_the_page(tmp_path: Path) -> None:
    """Verdicts that hide an object are no gain, however many false alarms go."""
    stays = ChangedAlarm("a", "true-alarm", before=5.0, after=4.0, stays=True)
    goes = ChangedAlarm("b", "true-alarm", before=5.0, after=0.1, stays=False)
    changes = Changes("knn", 3.0, 2, frames_with_alarms=2, alarms=(stays, goes), coverage=WHOLE)
    assert changes.warning().startswith("1 alarm that was called true goes: with this bank")
    write_change_page(tmp_path / "changes.html", changes, [])
    page = (tmp_path / "changes.html").read_text()
    assert f'<p class="warning">{changes.warning()}</p>' in page
    assert '<td>2</td><td class="bad">1</td>' in page
    kept = replace(changes, alarms=(stays,))
    write_change_page(tmp_path / "changes.html", kept, [])
    assert kept.warning() == ""
    assert "warning" not in (tmp_path / "changes.html").read_text().split("</style>")[1]


def test_an_alarm_of_both_kinds_that_goes_is_no_lost_true_alarm() -> None:
    goes = ChangedAlarm("b", "false-alarm", before=5.0, after=0.1, stays=False, both=True)
    changes = Changes("knn", 3.0, 2, frames_with_alarms=2, alarms=(goes, goes), coverage=WHOLE)
    assert changes.warning() == ""
    told = changes.note_on_both()
    assert told in changes.sentences()
    assert told.startswith("2 alarms overlap a region called false and one called true or missed.")
    assert told.endswith("2 of 2 go. What should be found may go with a false alarm.")


def test_true_regions_without_an_alarm_of_their_own_are_explained() -> None:
    """As a box that was drawn where nothing is flagged."""
    stays = ChangedAlarm("b", "true-alarm", before=5.0, after=4.0, stays=True)
    coverage = replace(WHOLE, to_find=JudgedRegions(4, left_out=1, touched=2))
    changes = Changes("knn", 3.0, 2, frames_with_alarms=2, alarms=(stays,), coverage=coverage)
    assert changes.explanation().startswith(
        "1 alarm touches 2 of the 4 regions called true or missed. 1 of them is on frames that "
        "were not measured. Alarms are the strongest regions of a frame at 3."
    )
    assert replace(changes, alarms=(stays, stays), coverage=WHOLE).explanation() == ""


def test_a_mask_is_that_of_its_runs() -> None:
    region = JudgedRegion(box=(1, 0, 2, 2), area=4, size=(3, 4), mask=(1, 2, 5, 2))
    expected = np.zeros((3, 4), bool)
    expected[:2, 1:3] = True
    np.testing.assert_array_equal(mask_of(region), expected)


def test_farthest_frames_are_spread() -> None:
    angles = torch.tensor([0.0, 0.01, 0.02, 0.03, 1.5, 3.0])
    means = torch.stack([angles.cos(), angles.sin()], 1)
    assert farthest_frames(means, 1) == [3]
    assert farthest_frames(means, 2) == [3, 5]
    assert farthest_frames(means, 3) == [3, 4, 5]
    assert farthest_frames(means, 9) == [0, 1, 2, 3, 4, 5]


def test_equal_frames_are_chosen_in_their_order() -> None:
    assert farthest_frames(torch.ones(4, 3), 2) == [0, 1]


def test_a_bank_of_the_farthest_frames(drive: Drive, tmp_path: Path) -> None:
    images = {str(number): road(number) for number in range(4)}
    images["3"] = np.full((128, 256, 3), 250, np.uint8)
    folder = write_images(tmp_path / "images", images)
    base = drive.model.parent / "base"
    settings = {"images": str(folder), "layers": LAYERS, "frames": 2}
    chosen = {}
    for choose in ("even", "farthest"):
        fit_folder(FeatureDensity(choose=choose, **settings), base, tmp_path / choose)
        chosen[choose] = load_model(tmp_path / choose).attachments["features"].frames
    assert chosen["even"] == ("0", "3")
    assert len(chosen["farthest"]) == 2
    assert "3" in chosen["farthest"]


def test_a_record_of_an_earlier_version_has_no_verdicts(drive: Drive, tmp_path: Path) -> None:
    shutil.copytree(drive.model, tmp_path / "model")
    change_record(tmp_path / "model" / "features.json", without=["verdicts"])
    assert load_model(tmp_path / "model").attachments["features"].verdicts == ()
