"""Folders in which somebody has put files of their own: no training, ensemble or export removes or
replaces them."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import segunc
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from segunc.evaluation.resampling import load_results, sidecar_path
from segunc.frames.sources import plan_inputs
from segunc.options import EvaluateOptions
from segunc.training.base import WholeCheckpoints, run_loggers
from segunc.training.lightning_runs import claim_checkpoints, no_half_folder
from segunc.verbs.evaluate import evaluate
from segunc.verbs.export import _Files
from tests.evaluation.runs import make_run, write_run
from tests.maps.fakes import folder_bytes
from tests.support.fits import ensemble_of

SIZE = (16, 24)


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 3, 1),
    )


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("models") / f"seed-{seed}"
        model = segunc.wrap(
            build(seed),
            ("road", "car", "sky"),
            inference_size=SIZE,
            factory=f"{__name__}:build",
            arguments={"seed": seed},
        )
        segunc.ABNN(members=2, alpha=0.1).fit(model).save(folder)
        folders.append(folder)
    return folders


@pytest.mark.parametrize("name", ["thesis.tex", "0/thesis.tex", "members.txt"])
def test_an_ensemble_removes_nobodys_members(bases: list[Path], tmp_path: Path, name: str) -> None:
    mine = tmp_path / "members" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("all of it")
    with pytest.raises(InputError, match=f"holds members/{name}, which is no file of the run"):
        ensemble_of(bases, tmp_path)
    assert folder_bytes(tmp_path) == {f"members/{name}": b"all of it"}


def test_an_ensemble_is_made_again_in_its_place(bases: list[Path], tmp_path: Path) -> None:
    ensemble_of(bases, tmp_path)
    made = segunc.load(tmp_path).posterior_sha256
    ensemble_of(bases, tmp_path)
    assert segunc.load(tmp_path).posterior_sha256 == made


def test_the_members_of_an_ensemble_are_no_link(bases: list[Path], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/members").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="members"):
        ensemble_of(bases, tmp_path / "out")
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def fail_after(out: Path, *, mine: dict[str, str]) -> None:
    """Begin a training that fails before its first checkpoint, while somebody writes files into its
    folder."""
    with no_half_folder(out):
        claim_checkpoints(out, "train", {"seed": 0})
        run_loggers(out)
        (out / "logs").mkdir(exist_ok=True)
        (out / "logs/metrics.csv").write_text("step\n")
        for name, text in mine.items():
            (out / name).write_text(text)
        raise InputError("the first frame is damaged")


def test_a_training_that_fails_at_once_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged"):
        fail_after(tmp_path / "out", mine={})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["notes.txt", "logs/notes.txt", "checkpoints/run.json"])
def test_a_training_that_fails_at_once_leaves_what_others_put_there(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InputError, match="damaged"):
        fail_after(tmp_path / "out", mine={name: "mine"})
    assert folder_bytes(tmp_path / "out") == {name: b"mine"}


@pytest.mark.parametrize("name", ["../thesis.ckpt", "thesis.tex", "folder/last.ckpt", "mine.ckpt"])
def test_a_strangers_checkpoint_names_no_file_to_remove(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    path.write_text("all of it")
    WholeCheckpoints(folder).remove_checkpoint(path)
    assert path.read_text() == "all of it"


def test_a_run_removes_its_own_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "best.ckpt").write_text("")
    WholeCheckpoints(tmp_path).remove_checkpoint(tmp_path / "best.ckpt")
    assert not (tmp_path / "best.ckpt").exists()


@pytest.mark.parametrize("name", ["checkpoints", "logs", "tensorboard"])
def test_a_training_writes_behind_no_link(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    outside = tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (out / name).symlink_to(outside)
    begin = partial(claim_checkpoints, out, "train", {})
    if name != "checkpoints":
        begin = partial(run_loggers, out)
    with pytest.raises(InputError, match=f"{name} leads out of"):
        begin()
    assert [*outside.iterdir()] == []


def test_maps_of_several_inputs_lie_behind_no_link(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b").symlink_to(tmp_path / "b")
    with pytest.raises(InputError, match="leads out of"):
        plan_inputs([str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / "out")


@pytest.mark.parametrize("name", ["draws.npy", "model.json", "model.pt2"])
def test_an_export_replaces_nobodys_files(bases: list[Path], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(InputError, match=f"{name}"):
        segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2, draws_as_input=True)
    assert folder_bytes(tmp_path) == {name: b"mine"}


def test_an_export_takes_the_place_of_an_earlier_one(bases: list[Path], tmp_path: Path) -> None:
    segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2, draws_as_input=True)
    record = json.loads((tmp_path / "model.json").read_text())
    assert record["files"].keys() == {"model.pt2", "draws.npy"}
    segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2)
    assert folder_bytes(tmp_path).keys() == {"model.pt2", "model.json"}


def test_an_export_leaves_a_file_that_no_earlier_one_wrote(
    bases: list[Path], tmp_path: Path
) -> None:
    segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2)
    np.save(tmp_path / "draws.npy", np.zeros(3))
    segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2)
    assert np.array_equal(np.load(tmp_path / "draws.npy"), np.zeros(3))


def test_an_export_with_a_changed_record_is_not_replaced(bases: list[Path], tmp_path: Path) -> None:
    segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2)
    record = tmp_path / "model.json"
    record.write_text(record.read_text().replace('"draws": 2', '"draws": 3'))
    with pytest.raises(InputError, match="is not the whole record of an export"):
        segunc.export(model=bases[0], out=tmp_path, to="pt2", draws=2)


@pytest.mark.parametrize("last", ["record", "remove_draws"])
def test_an_export_that_was_killed_is_made_again(
    bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    words: dict[str, Any] = {"model": bases[0], "out": tmp_path, "to": "pt2"}
    segunc.export(**words, draws=2, draws_as_input=True)
    ended = getattr(_Files, last)

    def kill(files: _Files, *given: Any) -> None:
        ended(files, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Files, last, kill)
        with pytest.raises(KeyboardInterrupt):
            segunc.export(**words, draws=3, draws_as_input=True)
    segunc.export(**words, draws=4, draws_as_input=True)
    assert 4 in np.load(tmp_path / "draws.npy").shape
    assert json.loads((tmp_path / "model.json").read_text())["draws"] == 4


def test_a_triton_model_lies_behind_no_link(bases: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/1").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="leads out of"):
        segunc.export(model=bases[0], out=tmp_path / "out", to="triton", draws=2)
    assert [*(tmp_path / "outside").iterdir()] == []


def test_a_result_removes_nobodys_file_beside_it(tmp_path: Path) -> None:
    mine = sidecar_path(tmp_path / "metrics.json")
    mine.write_bytes(b"mine")
    with pytest.raises(InputError, match="is not what evaluate writes beside a result"):
        evaluate(EvaluateOptions(maps=tmp_path, out=tmp_path / "metrics.json"))
    assert mine.read_bytes() == b"mine"


def test_a_result_is_bound_to_the_replicates_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path, make_run())
    masks = tmp_path / "anomaly"
    for name, score in (("a", "entropy"), ("b", "msp")):
        out = tmp_path / f"{name}.json"
        segunc.evaluate(
            maps=tmp_path / "maps", anomaly_labels=masks, scores=[score], out=out, replicates=40
        )
        recorded = json.loads(out.read_text())["run"]["replicates_sha256"]
        assert recorded == file_sha256(sidecar_path(out))
        assert load_results([out])[0].replicates is not None
    shutil.copy(sidecar_path(tmp_path / "a.json"), sidecar_path(tmp_path / "b.json"))
    with pytest.raises(InputError, match=r"does not hold the replicates of b\.json"):
        load_results([tmp_path / "b.json"])


def test_logs_of_a_run_before_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/metrics.csv").write_text("third")
    (tmp_path / "logs/metrics-2.csv").write_text("second")
    run_loggers(tmp_path)
    assert (tmp_path / "logs/metrics-2.csv").read_text() == "second"
    assert (tmp_path / "logs/metrics-1.csv").read_text() == "third"
