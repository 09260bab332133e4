"""A network by its source is imported once and kept; what has changed is never served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
import torchvision

import segunc
from segunc import InputError, PartialFailure
from segunc.cli.main import main
from segunc.core.errors import NoteWarning
from segunc.core.files import PARTIAL_SUFFIX, Lock
from segunc.core.trust import TRUST
from segunc.networks.import_sources import SOURCES, Found, Wishes
from segunc.verbs import model_cache
from segunc.verbs.model_cache import cache_folder, model_folder

CODE = """\
import pathlib
import torch

HERE = pathlib.Path(__file__).parent

def build():
    first = torch.nn.Conv2d(3, 4, 3, padding=1)
    net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 3, 1))
    if (HERE / "weights.pt").exists():
        net.load_state_dict(torch.load(HERE / "weights.pt"))
    return net

build.segunc = {
    "classes": ["road", "car", "sky"],
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.25, 0.3],
    "size": [32, 48],
}

def plain():
    return torch.nn.Conv2d(3, 2, 1)

plain.segunc = {**build.segunc, "classes": ["road", "car"]}

def silent():
    return build()

def of_toy_scenes():
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 4, 3, padding=1)
    return torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 9, 1))

of_toy_scenes.segunc = {
    "classes": "sky,building,vegetation,road,sidewalk,car,person,pole,traffic sign".split(","),
    "size": [64, 128],
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.25, 0.3],
}
"""


@dataclass(frozen=True)
class Place:
    """A folder with code of a user, weights, an image, and an empty cache."""

    folder: Path
    module: str

    @property
    def source(self) -> str:
        return f"python:{self.module}:build"

    @property
    def image(self) -> Path:
        return self.folder / "street.png"

    @property
    def code(self) -> Path:
        return self.folder / f"{self.module}.py"

    def entries(self) -> list[Path]:
        return sorted(path for path in cache_folder().glob("*") if path.is_dir())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Place:
    """Code and trained weights. The module has a name of its own, because Python keeps modules."""
    module = f"nets_{abs(hash(request.node.name))}"
    place = Place(tmp_path, module)
    place.code.write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SEGUNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_weights(tmp_path, seed=0)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    cv2.imwrite(str(place.image), pixels)
    return place


def write_weights(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    first = torch.nn.Conv2d(3, 4, 3, padding=1)
    net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 3, 1))
    torch.save(net.state_dict(), folder / "weights.pt")


def notes_of(call: Callable[[], Any]) -> list[str]:
    """Return the notes of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught if warning.category is NoteWarning]


def forbid_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it is imported again")

    monkeypatch.setattr("segunc.verbs.model_cache._import", refuse)


def test_one_command_imports_once_and_keeps(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["predict", "--model", place.source, "--input", str(place.image), "--device", "cpu"]
    assert main([*words, "--out", "first", "--overlay", "--trust"]) == 0
    printed = capsys.readouterr().out
    assert f"note: {place.source} was imported into" in printed
    assert "UNTRAINED" not in printed
    (entry,) = place.entries()
    forbid_import(monkeypatch)
    assert main([*words, "--out", "second"]) == 0
    assert f"{place.source} is taken from {entry}, imported 20" in capsys.readouterr().out
    first = (place.folder / "first/epistemic/street.png").read_bytes()
    assert first == (place.folder / "second/epistemic/street.png").read_bytes()
    assert len([*(place.folder / "first/overlay").iterdir()]) == 1


def test_the_model_is_what_import_and_finetune_make(place: Place) -> None:
    loaded = segunc.load(place.source, trust=True)
    segunc.import_network(source=place.source, out="mine", trust=True)
    made = segunc.ABNN().fit(segunc.load("mine"))
    assert loaded.sha256 == made.sha256
    assert loaded.posterior_sha256 == made.posterior_sha256
    assert loaded.posterior.settings()["alpha"] == 0.1
    assert loaded.network.description.classes == ("road", "car", "sky")
    assert loaded.network.description.inference_size == (32, 48)


def test_code_that_has_changed_gets_an_entry_of_its_own(place: Place) -> None:
    before = model_folder(place.source, trust=True)
    place.code.write_text(f"{CODE}# changed\n", encoding="utf-8")
    assert model_folder(place.source) != before
    assert len(place.entries()) == 2


def test_weights_that_the_code_reads_from_elsewhere_are_never_the_old_ones(place: Place) -> None:
    old = segunc.load(place.source, trust=True)
    write_weights(place.folder, seed=1)
    new = segunc.load(place.source)
    assert new.sha256 != old.sha256
    write_weights(place.folder, seed=0)
    assert segunc.load(place.source).sha256 == old.sha256
    assert len(place.entries()) == 2


def test_classes_that_the_code_reads_from_elsewhere_are_never_the_old_ones(place: Place) -> None:
    stated = '"classes": ["road", "car", "sky"],'
    read = '"classes": (HERE / "classes.txt").read_text().split(),'
    place.code.write_text(CODE.replace(stated, read), encoding="utf-8")
    names = place.folder / "classes.txt"
    names.write_text("road car sky", encoding="utf-8")
    assert segunc.load(place.source, trust=True).network.description.classes[0] == "road"
    names.write_text("sky car road", encoding="utf-8")
    del sys.modules[place.module]  # as of another process
    assert segunc.load(place.source).network.description.classes[0] == "sky"


def test_random_weights_are_said_loudly_each_time(place: Place) -> None:
    (place.folder / "weights.pt").unlink()
    for _ in range(2):
        notes = notes_of(lambda: segunc.load(place.source, trust=True))
        (loud,) = [note for note in notes if note.startswith("UNTRAINED")]
        # Weight and bias of two convolutions; those of BatchNorm start at 1 and 0.
        assert "4 of 9 tensors" in loud
    assert len(place.entries()) == 1  # the random numbers are seeded


def test_import_says_that_weights_are_random(place: Place) -> None:
    (place.folder / "weights.pt").unlink()
    result = segunc.import_network(source=place.source, out="mine", trust=True)
    assert result.notes[0].startswith("UNTRAINED: 4 of 9 tensors")
    assert "untrained" in result.description.provenance


def test_an_input_that_is_no_image_is_said_before_the_import(place: Place) -> None:
    with pytest.raises(InputError, match="neither an image, a video nor a recording"):
        segunc.predict(place.source, place.code, out="maps", trust=True)
    assert place.entries() == []


def test_a_network_without_normalisation_layers_has_no_noise(place: Place) -> None:
    source = f"python:{place.module}:plain"
    loaded: list[Any] = []
    notes = notes_of(lambda: loaded.append(segunc.load(source, trust=True)))
    assert not loaded[0].bayesian
    assert any("no noise, so all draws are alike" in note for note in notes)


def test_code_needs_trust_once(place: Place) -> None:
    with pytest.raises(InputError, match="does not run") as error:
        segunc.load(place.source)
    assert "the same command with --trust" in error.value.hint
    assert place.entries() == []
    segunc.load(place.source, trust=True)
    segunc.load(place.source)


def test_what_the_source_does_not_say_is_one_command(place: Place) -> None:
    source = f"python:{place.module}:silent"
    with pytest.raises(InputError, match="does not give its class names, mean of") as error:
        segunc.load(source, trust=True)
    options = "--classes NAME|CSV --mean R,G,B --std R,G,B"
    command = f"segunc import {source} {options} --out MODEL"
    more = "; add --weights FILE if the function does not load its weights, and "
    more += "--arguments NAME=VALUE if it needs any"
    assert error.value.hint == command + more
    assert place.entries() == []


def test_import_says_that_the_network_has_no_noise_and_the_command_that_adds_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", place.source, "--trust", "--out", "mine"]) == 0
    printed = capsys.readouterr().out
    assert "1 normalisation layer with 4 channels can take noise" in printed
    assert "wrote mine, which has no noise yet" in printed
    command = printed.splitlines()[-1].partition("segunc finetune ")[2]
    assert main(["finetune", *command.split(), "--device", "cpu"]) == 0
    assert segunc.load("mine-abnn").bayesian


def test_import_into_the_working_folder_names_a_folder_beside_it(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.folder / "mine").mkdir()
    monkeypatch.chdir(place.folder / "mine")
    assert main(["import", place.source, "--trust", "--out", "."]) == 0
    assert f"--out {place.folder / 'abnn'}" in capsys.readouterr().out


def test_import_names_no_command_where_no_layer_can_take_noise(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"python:{place.module}:plain"
    assert main(["import", source, "--trust", "--out", "mine"]) == 0
    printed = capsys.readouterr().out
    assert "wrote mine, which has no noise yet" in printed
    assert "finetune" not in printed


def test_a_prediction_notes_that_a_network_without_noise_runs_once(place: Place) -> None:
    segunc.import_network(source=place.source, out="mine", trust=True)
    ways: dict[str, Any] = {
        "usual": {},
        "one draw": {"draws": 1},
        "score": {"scores": ["entropy"]},
        "later shard": {"shard": "2/2"},
    }
    notes = {}
    for name, wishes in ways.items():
        result = segunc.predict("mine", place.image, out=name, device="cpu", **wishes)
        notes[name] = [note for note in result.notes if "has no noise" in note]
    assert len(notes["usual"]) == 1
    command = "segunc finetune --base mine --abnn.statistics frozen --out mine-abnn adds noise"
    assert command in notes["usual"][0]
    assert notes["one draw"] == notes["score"] == notes["later shard"] == []


def test_a_prediction_advises_no_noise_for_a_network_that_can_take_none(place: Place) -> None:
    segunc.import_network(source=f"python:{place.module}:plain", out="mine", trust=True)
    notes = segunc.predict("mine", place.image, out="maps", device="cpu").notes
    (note,) = [note for note in notes if "has no noise" in note]
    assert "finetune" not in note


def test_a_prediction_of_a_model_with_noise_has_no_note_on_it(place: Place) -> None:
    notes = segunc.predict(place.source, place.image, out="maps", device="cpu", trust=True).notes
    assert not [note for note in notes if "has no noise" in note]


def test_import_needs_no_trust_for_code_that_is_trusted(place: Place) -> None:
    segunc.load(place.source, trust=True)
    segunc.import_network(source=place.source, out="mine")
    assert (place.folder / "mine/network.json").exists()


def test_trust_by_the_environment_lasts_as_long_as_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST, f"{place.module}:build@{place.folder}")
    segunc.load(place.source)
    segunc.import_network(source=place.source, out="mine")
    monkeypatch.delenv(TRUST)
    with pytest.raises(InputError, match="nobody agreed"):
        segunc.load(place.source)


def test_the_command_of_a_hint_agrees_where_the_environment_did(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST, f"{place.module}:silent@{place.folder}")
    source = f"python:{place.module}:silent"
    with pytest.raises(InputError, match="does not give") as error:
        segunc.load(source)
    assert error.value.hint.startswith(f"segunc import {source} --trust --classes")


@pytest.mark.parametrize(
    ("stated", "fault"),
    [
        ('"road,car,sky"', "not a mapping of classes, mean, std, size"),
        ('{"palette": []}', "not a mapping of classes, mean, std, size"),
        ('{"classes": 3}', "has classes 3, which is no list"),
    ],
)
def test_what_a_factory_states_wrongly_is_one_line(place: Place, stated: str, fault: str) -> None:
    place.code.write_text(f"{CODE}\nbuild.segunc = {stated}\n", encoding="utf-8")
    with pytest.raises(InputError, match=fault):
        segunc.load(place.source, trust=True)


def test_a_folder_of_smp_is_known_by_its_content(place: Place) -> None:
    smp.FPN("mobilenet_v2", encoder_weights=None, classes=1).save_pretrained("tiny")
    with pytest.raises(InputError, match="does not give its class names, mean"):
        segunc.load("smp:tiny")
    identity = model_cache._identity("smp", "tiny")
    assert identity["source"] == "smp:tiny"
    (place.folder / "elsewhere").mkdir()
    Path("tiny").rename("elsewhere/tiny")
    assert model_cache._identity("smp", "elsewhere/tiny") == identity
    (place.folder / "elsewhere/tiny/config.json").write_text("{}")
    assert model_cache._identity("smp", "elsewhere/tiny") != identity


def test_published_weights_of_torchvision_need_no_option(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(place.folder / "torch"))
    name = "lraspp_mobilenet_v3_large"
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
    cached = place.folder / "torch/hub/checkpoints"
    cached.mkdir(parents=True)
    torch.save(theirs.state_dict(), cached / f"{name}-d234d4ea.pth")
    notes = notes_of(lambda: segunc.load(f"torchvision:{name}"))
    assert any("fixed to revision d234d4ea" in note for note in notes)
    network = segunc.load_network(place.entries()[0] / "network")
    assert network.description.classes[:2] == ("__background__", "aeroplane")
    images = torch.rand(1, 3, 64, 96)
    normal = (images - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    with torch.inference_mode():
        assert torch.equal(network(images), theirs.eval()(normal)["out"])


def test_a_name_says_the_revision_that_it_is_fixed_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(name: str, wishes: Wishes) -> Found:
        found = SOURCES["python"](f"{place.module}:build", replace(wishes, trust=True))
        provenance = {"revision": "0123456789abcdef"}
        described = segunc.NetworkDescription.from_json(
            {**found.description.to_json(), "provenance": provenance}, "the network"
        )
        return Found(described, found.state)

    monkeypatch.setitem(SOURCES._entries, "hub", read)
    notes = notes_of(lambda: segunc.load("hub:owner/name"))
    assert any("fixed to revision 0123456789ab, and rm -r " in note for note in notes)
    notes = notes_of(lambda: segunc.load("hub:owner/name@main"))
    assert not any("fixed to revision" in note for note in notes)


def test_a_source_that_is_unknown_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "nowhere:net"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'nowhere:net' is neither a model folder nor a source of networks" in line
    assert "torchvision" in line


def test_a_folder_with_the_name_of_a_source_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smp:net").mkdir()
    assert model_folder("smp:net") == Path("smp:net")


@pytest.mark.parametrize("damage", ["changed", "missing", "record", "half-made"])
def test_a_damaged_entry_is_said_and_not_used(place: Place, damage: str) -> None:
    model = model_folder(place.source, trust=True)
    entry = model.parent
    weights = model / "network.safetensors"
    if damage == "changed":
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    elif damage == "missing":
        weights.unlink()
    elif damage == "record":
        record = entry / "source.json"
        record.write_text(record.read_text().replace("normalisation", "normalization"))
    else:
        (entry / "source.json").unlink()
    with pytest.raises(InputError, match=r"of the cache (is damaged|cannot be read)") as error:
        segunc.load(place.source)
    assert error.value.hint.startswith(f"rm -r {entry}; the same command then imports it again")


def test_what_a_killed_import_left_is_no_entry(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(place.source, trust=True)
    (entry,) = place.entries()
    partial = entry.with_name(f".{entry.name}{PARTIAL_SUFFIX}")
    entry.rename(partial)
    (partial / "network/network.json").write_text("torn")
    assert model_folder(place.source) == entry / "model"
    assert not partial.exists()


def test_an_import_that_fails_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segunc.verbs.model_cache.write_record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model_folder(place.source, trust=True)
    assert [*cache_folder().iterdir()] == []


def test_a_full_disk_is_one_line_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("segunc.networks.model_folder.write_file", fill)
    with pytest.raises(PartialFailure, match="No space left on device; SEGUNC_CACHE=DIR names"):
        model_folder(place.source, trust=True)
    assert [*cache_folder().iterdir()] == []


def test_a_cache_that_cannot_be_written_is_one_line(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGUNC_CACHE", str(place.image / "below a file"))
    with pytest.raises(InputError, match="cannot be written") as error:
        segunc.load(place.source, trust=True)
    assert "SEGUNC_CACHE=DIR names another folder" in error.value.hint


def test_two_processes_at_once_make_one_entry(place: Place) -> None:
    code = f"import segunc; print(segunc.load({place.source!r}, trust=True).posterior_sha256)"
    processes = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            cwd=place.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    printed = []
    for process in processes:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        printed.append(out)
    assert printed[0] == printed[1]
    assert len(place.entries()) == 1
    assert not [*cache_folder().glob(f".*{PARTIAL_SUFFIX}")]


def test_who_is_waited_for_is_said_at_once(place: Place) -> None:
    segunc.load(place.source, trust=True)
    (entry,) = place.entries()
    shutil.rmtree(entry)
    lock = Lock(entry.with_name(f".{entry.name}.lock"), "the entry")
    threading.Timer(0.5, lock.release).start()
    notes = notes_of(lambda: segunc.load(place.source))
    (waiting,) = [note for note in notes if "waiting for it" in note]
    assert f"is being written by another run (process {os.getpid()} on " in waiting
    assert waiting.endswith("waiting for it, at most 15 minutes")
    assert notes[0] == waiting
    assert place.entries() == [entry]


def test_every_verb_with_a_model_takes_a_source(place: Place) -> None:
    doctor = segunc.doctor(place.source, draws=2, device="cpu", trust=True)
    assert doctor.failure == ""
    export = segunc.export(model=place.source, to="pt2", out="exported", draws=2)
    assert export.path.exists()


def test_finetune_takes_the_network_or_the_model_of_a_source(place: Place) -> None:
    settings = segunc.ABNN(members=2, alpha=0.2, statistics="frozen")
    segunc.finetune(base=place.source, out="abnn", settings=settings, trust=True)
    assert segunc.load("abnn").posterior.members == 2
    segunc.finetune(base=place.source, out="tta", method="tta")
    assert segunc.load("tta").posterior.method == "tta"
    command = json.loads((place.folder / "tta/history.json").read_text())["commands"][-1]
    assert f"--base {place.source}" in command["command"]


def test_the_manifest_names_the_source_and_no_place_of_the_cache(place: Place) -> None:
    segunc.predict(place.source, place.image, out="maps", device="cpu", trust=True)
    text = (place.folder / "maps/manifest.json").read_text()
    assert json.loads(text)["model"]["provenance"]["source"] == place.source
    assert str(cache_folder()) not in text


def test_the_hint_comes_once_and_only_for_a_source(place: Place) -> None:
    other = place.folder / "other.png"
    other.write_bytes(place.image.read_bytes())
    inputs = [place.image, other]
    result = segunc.predict(place.source, inputs, out="two", device="cpu", trust=True)
    assert result.hint.startswith(f"segunc finetune --base {place.source} --method anomaly")
    named = segunc.predict(place.source, place.image, out="named", device="cpu", scores=["entropy"])
    assert named.hint == ""
    (entry,) = place.entries()
    folder = segunc.predict(entry / "model", place.image, out="folder", device="cpu")
    assert folder.hint == ""


def test_evaluate_and_report_take_a_source_to_the_end(
    place: Place, toy_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"python:{place.module}:of_toy_scenes"
    data = ["--dataset", "toy", "--root", str(toy_set), "--split", "anomaly"]
    how = ["--device", "cpu", "--draws", "2", "--scores", "entropy,msp", "--model", source]
    result = ["--replicates", "0", "--out"]
    assert main(["evaluate", *how, *data, *result, "of_model.json", "--trust"]) == 0
    frames = str(toy_set / "leftImg8bit/anomaly")
    assert main(["predict", *how, "--input", frames, "--out", "maps"]) == 0
    assert main(["evaluate", "--maps", "maps", *data, *result, "of_maps.json"]) == 0
    of_model = json.loads(Path("of_model.json").read_text())
    of_maps = json.loads(Path("of_maps.json").read_text())
    assert of_model["counts"]["labelled_frames"] == 4
    assert of_model["segmentation"] == of_maps["segmentation"]
    assert of_model["selective"] == of_maps["selective"]
    assert of_model["run"]["base_sha256"] == of_maps["run"]["base_sha256"]

    inputs = ["--runs", "of_model.json", "--maps", "maps", *data]
    capsys.readouterr()
    assert main(["report", "--model", source, *inputs, "--out", "report"]) == 0
    assert f"note: {source} is taken from " in capsys.readouterr().out
    report = json.loads(Path("report/report.json").read_text())
    assert report["name"] == source
    assert report["model"]["base_sha256"] == of_model["run"]["base_sha256"]
    assert report["results"][0]["content"]["segmentation"] == of_model["segmentation"]
    assert str(cache_folder()) not in Path("report/index.html").read_text()


def test_a_report_of_a_source_takes_no_results_of_another_model(
    place: Place, toy_set: Path
) -> None:
    how: dict[str, Any] = {"draws": 2, "device": "cpu", "replicates": 0, "trust": True}
    data: dict[str, Any] = {"dataset": "toy", "root": toy_set, "split": "anomaly"}
    segunc.evaluate(model=f"python:{place.module}:of_toy_scenes", out="other.json", **how, **data)
    message = f"other.json is of another model than {place.source}"
    with pytest.raises(InputError, match=message):
        segunc.report(model=place.source, runs=["other.json"], out="report", trust=True)
