"""Training of a base network: it goes on after a kill, stops at NaN, a configuration runs no code,
and losses have their closed forms.
"""

import json
import math
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import Mock

import lightning as L
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

import segunc
from segunc.baselines.dynamics import SGLD
from segunc.cli.main import main
from segunc.core.bounds import Settings
from segunc.core.errors import InputError, PartialFailure
from segunc.data.module import SegmentationDataModule
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.fit_run import FitRun
from segunc.training.base import (
    LastEpochValidation,
    SegmentationTask,
    WholeCheckpoints,
    repeated_frames,
    train_members,
    train_network,
)
from segunc.training.config import (
    FinetuneConfig,
    FitConfig,
    OptimisationConfig,
    TrainConfig,
    dump_config,
    parse_config,
    read_config,
)
from segunc.training.fit_data import data_source
from segunc.training.lightning_runs import fit, sole_run
from segunc.training.losses import balanced_weights, make_schedule, segmentation_loss
from tests.conftest import Job
from tests.verbs.processes import refuse


class PowerFailureError(RuntimeError):
    """Ends a training between two steps, as SIGKILL does: nothing is written after it."""


def broken_at(step: int, config: TrainConfig, out: Path) -> dict[str, torch.Tensor]:
    """The weights of a run that ends before a step (or does not), is moved, and is run again."""

    def end(self: L.LightningModule, *_: Any) -> None:
        if self.global_step == step:
            raise PowerFailureError

    if step:
        killed = out.with_name(f"killed-{out.name}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(L.LightningModule, "on_train_batch_start", end)
            with pytest.raises(PowerFailureError):
                train_network(config, killed, device="cpu")
        assert not (killed / "network.safetensors").exists()
        killed.rename(out)
    train_network(config, out, device="cpu")
    return load_file(out / "network.safetensors")


def test_a_training_goes_on_from_its_last_epoch_and_says_so(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps an epoch, and one validation, after the fourth. Where it was killed decides the
    weights, the moment within the epoch does not; the best ones may lie in a checkpoint from
    before.
    """
    config = parse_config(
        TrainConfig,
        trained.train_config,
        ["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"],
    )
    # A validation after the last epoch would choose among epochs after the kill.
    monkeypatch.setattr(LastEpochValidation, "on_train_epoch_start", lambda *_: None)
    steps = {"whole": 0, "second": 2, "third": 3, "fifth": 5}
    runs = {name: broken_at(step, config, tmp_path / name) for name, step in steps.items()}
    assert equal_weights(runs["fifth"], runs["whole"])
    assert equal_weights(runs["third"], runs["second"])
    assert not equal_weights(runs["third"], runs["whole"])
    for name, step in steps.items():
        provenance = json.loads((tmp_path / name / "network.json").read_text())["provenance"]
        assert provenance["resumed"] == (step > 0)
        assert provenance["steps"] == 6
        assert provenance["epochs"] == 3
        assert provenance["best_epoch"] == 2


def test_a_run_is_not_continued_by_another_number_of_processes(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes take half as many steps an epoch, so the schedule would end in its middle."""
    config = parse_config(TrainConfig, trained.train_config, ["--trainer.max_epochs=2"])
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("segunc.training.base.processes_of", lambda _: 2)
        with pytest.raises(InputError, match=r"was begun by 2 processes, .* continued by 1"):
            broken_at(2, config, out)
    # What is finished is not trained, whatever the number of processes.
    broken_at(0, config, tmp_path / "finished")
    monkeypatch.setattr("segunc.training.lightning_runs.processes_of", lambda _: 2)
    monkeypatch.setattr("segunc.training.lightning_runs._check_share", lambda *_: None)
    _, measured = train_network(config, tmp_path / "finished", device="cpu")
    assert measured["processes"] == 1


def test_processes_validate_each_frame_once() -> None:
    """Where processes share frames out, some of them take frames that others have taken."""
    for frames, processes, size in product(range(1, 12), range(1, 5), range(1, 4)):
        counted: list[int] = []
        for process in range(processes):
            sampler = DistributedSampler(
                range(frames), num_replicas=processes, rank=process, shuffle=False
            )
            loader: DataLoader[int] = DataLoader(range(frames), size, sampler=sampler)  # type: ignore[arg-type]
            for number, batch in enumerate(loader):
                kept = max(0, len(batch) - repeated_frames(loader, number))
                counted += batch[:kept].tolist()
        assert sorted(counted) == [*range(frames)], (frames, processes, size)


def equal_weights(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weights[name], values) for name, values in others.items())


def first_batches(
    verb: str, config: TrainConfig, base: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the first batch on which a run would train."""
    batches: list[dict[str, Any]] = []

    def look(*_: Any, datamodule: Any = None, train_dataloaders: Any = None, **__: Any) -> None:
        loader = train_dataloaders or datamodule.train_dataloader()
        batches.append(next(iter(loader)))
        raise PowerFailureError

    module = "training.base" if verb == "train" else "posteriors.finetune_run"
    monkeypatch.setattr(f"segunc.{module}.fit", look)
    run: Callable[[], object] = partial(train_network, config, out, device="cpu")
    if verb == "finetune":
        settings = ABNN(epochs=1, seed=config.seed)
        model = segunc.load(base)
        run = partial(settings.fit, model, config.data, device="cpu", checkpoints=out)
    with pytest.raises(PowerFailureError):
        run()
    (batch,) = batches
    return batch


def with_own_list(trained: Job, folder: Path) -> TrainConfig:
    """The configuration of the toy training over a list of frames and a label map of its own."""
    labels = sorted((trained.data / "gtFine" / "train").rglob("*_labelIds.png"))
    rows = ["split,image,label"]
    for number, label in enumerate(labels[:4]):
        split = "val" if number == 3 else "train"
        name = label.relative_to(trained.data).as_posix()
        image = name.replace("gtFine_labelIds", "leftImg8bit").replace("gtFine/", "leftImg8bit/")
        rows.append(f"{split},{image},{name}")
    folder.mkdir()
    (folder / "frames.csv").write_text("\n".join(rows) + "\n")
    return parse_config(
        TrainConfig,
        trained.train_config,
        [
            "--data.dataset=folder",
            f"--data.frames={folder / 'frames.csv'}",
            "--data.labels=toy",
            "--data.batch_size=2",
            "--trainer.max_epochs=1",
            "--trainer.check_val_every_n_epoch=1",
        ],
    )


def test_a_run_is_not_continued_with_another_split_of_the_frames(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the network of the old split would pass for one that never saw its test frames."""
    config = with_own_list(trained, tmp_path / "own")
    network, _ = train_network(config, tmp_path / "run", device="cpu")
    assert "frames_sha256" in network.description.provenance
    settings = network.description.provenance["data"]
    assert settings["crop"] == list(config.data["crop"])
    assert not {"root", "frames"} & settings.keys()
    train_network(config, tmp_path / "run", device="cpu")
    assert "is finished; nothing is trained again" in capsys.readouterr().out
    frames = tmp_path / "own" / "frames.csv"
    frames.write_text(frames.read_text().replace("train,", "test,", 1))
    with pytest.raises(InputError, match=r"frames\.csv has changed since .* was trained with it"):
        train_network(config, tmp_path / "run", device="cpu")


def killed_in_its_second_epoch(run: Callable[[], object]) -> None:
    """Run a training of two steps an epoch until the second epoch."""

    def end(self: L.LightningModule, *_: Any) -> None:
        if self.global_step == 3:
            raise PowerFailureError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(L.LightningModule, "on_train_batch_start", end)
        with pytest.raises(PowerFailureError):
            run()


def add_frames(root: Path, split: str) -> None:
    """Add copies of the frames of a split under other names."""
    for folder in ("leftImg8bit", "gtFine"):
        for path in sorted((root / folder / split).rglob("*.png")):
            shutil.copy(path, path.with_name(f"more_{path.name}"))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_is_not_continued_with_other_frames_of_its_folder(
    trained: Job, tmp_path: Path, split: str
) -> None:
    """Its schedule is laid out over the frames, and its best epoch was the best on those of val."""
    shutil.copytree(trained.data, tmp_path / "toy")
    words = [f"--data.root={tmp_path / 'toy'}", "--trainer.max_epochs=2"]
    config = parse_config(TrainConfig, trained.train_config, words)
    out = tmp_path / "run"
    killed_in_its_second_epoch(lambda: train_network(config, out, device="cpu"))
    add_frames(tmp_path / "toy", split)
    with pytest.raises(InputError, match=r"frames have come or gone in .* was trained with them"):
        train_network(config, out, device="cpu")


def test_a_finished_member_of_other_frames_is_refused(trained: Job, tmp_path: Path) -> None:
    shutil.copytree(trained.data, tmp_path / "toy")
    words = [f"--data.root={tmp_path / 'toy'}"]
    config = parse_config(TrainConfig, trained.train_config, words)
    assert len(list(train_members(config, [0], tmp_path / "run", device="cpu"))) == 1
    add_frames(tmp_path / "toy", "train")
    with pytest.raises(InputError, match="frames have come or gone"):
        list(train_members(config, [0, 1], tmp_path / "run", device="cpu"))


def test_a_finetuning_is_not_continued_with_other_frames(trained: Job, tmp_path: Path) -> None:
    shutil.copytree(trained.data, tmp_path / "toy")
    data = {"dataset": "toy", "root": str(tmp_path / "toy"), "crop": (64, 64), "batch_size": 4}
    settings = ABNN(epochs=2)
    fit_settings = partial(
        settings.fit, segunc.load(trained.base), data, device="cpu", checkpoints=tmp_path / "run"
    )
    killed_in_its_second_epoch(fit_settings)
    add_frames(tmp_path / "toy", "train")
    with pytest.raises(InputError, match="frames have come or gone"):
        fit_settings()


def while_training(act: Callable[[], None], run: Callable[[], object]) -> None:
    """Run a training, and do something before its second step."""

    def begin(self: L.LightningModule, *_: Any) -> None:
        if self.global_step == 1:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(L.LightningModule, "on_train_batch_start", begin)
        run()


def test_a_run_keeps_others_out_of_its_folder(trained: Job, tmp_path: Path) -> None:
    """Each would take the checkpoints of the other for its own."""
    first = parse_config(TrainConfig, trained.train_config, ["--trainer.max_epochs=1"])
    second = replace(first, seed=1)
    out = tmp_path / "run"
    refused: list[str] = []

    def start_another() -> None:
        with pytest.raises(InputError, match="is being written by another run") as raised:
            train_network(second, out, device="cpu")
        refused.append(raised.value.hint)

    while_training(start_another, lambda: train_network(first, out, device="cpu"))
    assert len(refused) == 1
    assert "give another --out" in refused[0]
    assert json.loads((out / "network.json").read_text())["provenance"]["seed"] == 0
    assert not (out / ".lock").exists()


def test_a_finetuning_keeps_others_out_of_its_folder(trained: Job, tmp_path: Path) -> None:
    data = {"dataset": "toy", "root": str(trained.data), "crop": (64, 64), "batch_size": 4}
    base = segunc.load(trained.base)
    refused: list[str] = []

    def fit_into(settings: ABNN) -> None:
        settings.fit(base, data, device="cpu", checkpoints=tmp_path / "run")

    def start_another() -> None:
        with pytest.raises(InputError, match="is being written by another run") as raised:
            fit_into(ABNN(epochs=1, seed=1))
        refused.append(raised.value.message)

    while_training(start_another, lambda: fit_into(ABNN(epochs=1, members=1)))
    assert len(refused) == 1


def test_other_processes_of_a_run_share_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sole_run(tmp_path):
        monkeypatch.setattr("segunc.training.lightning_runs.is_first_process", lambda: False)
        with sole_run(tmp_path):
            assert (tmp_path / ".lock").exists()
        assert (tmp_path / ".lock").exists()


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_a_stopped_run_leaves_the_records_of_the_model_before(
    trained: Job, tmp_path: Path, verb: str
) -> None:
    """Otherwise the settings of the stopped run would pass for those of the model that is there."""
    shutil.copytree(trained.base, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    words = ["--data.crop=[96,96]", "--trainer.max_epochs=2"]
    config = parse_config(TrainConfig, trained.train_config, words)
    run: Callable[[], object] = partial(train_network, config, tmp_path / "run", device="cpu")
    if verb == "finetune":
        run = partial(
            ABNN(epochs=2).fit,
            segunc.load(trained.base),
            config.data,
            device="cpu",
            checkpoints=tmp_path / "run",
        )
    killed_in_its_second_epoch(run)
    assert read_config(tmp_path / "run" / "data.json")["crop"] == [64, 64]
    assert read_config(tmp_path / "run" / "train.yaml")["data"]["crop"] == [64, 64]
    assert not (tmp_path / "run" / "finetune.yaml").exists()


def test_the_score_of_a_network_is_that_of_its_weights(trained: Job, tmp_path: Path) -> None:
    """A run may be killed after it has written its best checkpoint, before it notes that."""
    config = parse_config(TrainConfig, trained.train_config, ["--trainer.max_epochs=3"])
    scores = iter([0.2, 0.5, 0.1, 0.1])

    def log(self: SegmentationTask) -> None:
        self.log("val/miou", next(scores))
        self.val_confusion.reset()

    write = WholeCheckpoints.save_checkpoint

    def end(self: WholeCheckpoints, checkpoint: Any, path: Any, **options: Any) -> None:
        if Path(path).name == "last.ckpt" and checkpoint["epoch"] == 1:
            raise PowerFailureError
        write(self, checkpoint, path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentationTask, "on_validation_epoch_end", log)
        with pytest.MonkeyPatch.context() as kill:
            kill.setattr(WholeCheckpoints, "save_checkpoint", end)
            with pytest.raises(PowerFailureError):
                train_network(config, tmp_path / "run", device="cpu")
        _, measured = train_network(config, tmp_path / "run", device="cpu")
    assert (measured["best_epoch"], measured["val_miou"]) == (2, pytest.approx(0.5))


def test_the_last_epoch_is_validated_whatever_the_interval(trained: Job, tmp_path: Path) -> None:
    config = parse_config(
        TrainConfig,
        trained.train_config,
        ["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"],
    )
    validated: list[int] = []

    def note(self: SegmentationTask) -> None:
        validated.append(self.current_epoch + 1)
        self.log("val/miou", 0.5)
        self.val_confusion.reset()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentationTask, "on_validation_epoch_end", note)
        train_network(config, tmp_path / "run", device="cpu")
    assert validated == [2, 3]


@pytest.mark.parametrize(
    ("options", "seen", "note"),
    [
        (["network.inference_size=[32,64]"], (32, 64), "at 64x128, but predict"),
        (["data.size=[32,64]"], (32, 64), "at 32x64, but predict"),
        (["data.size=[32,64]", "network.inference_size=[32,64]"], (32, 64), ""),
        (["network.inference_size=[62,126]"], (62, 126), ""),
    ],
)
def test_the_epoch_is_chosen_on_frames_as_the_network_sees_them(
    trained: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    seen: tuple[int, int],
    note: str,
) -> None:
    sizes = set()

    def look(self: SegmentationTask, batch: dict[str, Any], index: int) -> None:
        sizes.add(tuple(batch["image"].shape[2:]))
        sizes.add(tuple(batch["label"].shape[1:]))
        raise PowerFailureError

    monkeypatch.setattr(SegmentationTask, "validation_step", look)
    words = [f"--{option}" for option in (*options, "data.crop=[32,32]")]
    config = parse_config(TrainConfig, trained.train_config, words)
    with pytest.raises(PowerFailureError):
        train_network(config, tmp_path / "out", device="cpu")
    assert sizes == {seen}
    said = capsys.readouterr()
    assert ("where objects have another size" in said.out + said.err) == bool(note)
    assert note in said.out + said.err


@pytest.mark.parametrize("size", [None, (32, 64), (64, 128)])
def test_a_fit_says_that_it_sees_frames_at_another_size_than_predict(
    trained: Job, size: tuple[int, int] | None
) -> None:
    said: list[str] = []
    data = {"dataset": "toy", "root": str(trained.data), "crop": (32, 32), "size": size}
    settings = segunc.Temperature()
    base = segunc.load(trained.base)
    run = FitRun(base, FitConfig(settings), data_source(data), say=said.append)
    assert len(run.data.dataset("val")) == 4
    if size == (32, 64):
        (line,) = said
        assert "frames are shown at 32x64, but predict shows such frames" in line
        assert "--data.size none, or predict --size 32x64" in line
    else:
        assert said == []


def test_a_finetuning_says_that_its_crops_are_of_another_size(trained: Job) -> None:
    said: list[str] = []
    data = {"dataset": "toy", "root": str(trained.data), "crop": (32, 32)}
    base = segunc.load(trained.base)
    description = base.network.description
    base.network.description = replace(description, inference_size=(32, 64))
    ABNN(epochs=0, statistics="reestimated").fit(base, data, device="cpu", say=said.append)
    (line,) = [line for line in said if "another size" in line]
    assert "training crops are of frames at 64x128, but predict" in line
    assert "--data.size [32,64]" in line


@pytest.mark.parametrize("verb", ["train", "finetune"])
@pytest.mark.parametrize("workers", [0, 1])
def test_two_seeds_see_other_crops_in_another_order(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, workers: int
) -> None:
    batches: list[dict[str, Any]] = []
    for seed in (0, 1):
        words = [f"--seed={seed}", f"--data.workers={workers}"]
        config = parse_config(TrainConfig, trained.train_config, words)
        batch = first_batches(verb, config, trained.base, tmp_path, monkeypatch)
        batches.append(batch)
        # The seed is added to data.seed, so that seed 0 changes nothing.
        data = SegmentationDataModule(**{**config.data, "seed": seed})
        alone = next(iter(data.train_dataloader()))
        assert alone["name"] == batch["name"]
        if workers:
            assert torch.equal(alone["image"], batch["image"])
    first, other = batches
    assert first["name"] != other["name"]
    for image in first["image"]:
        assert not any(torch.equal(image, other_image) for other_image in other["image"])


def test_a_member_is_finished_where_its_network_is_of_the_settings_asked_for(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(TrainConfig, trained.train_config, ["--optimisation.lr=0.001"])
    other = parse_config(TrainConfig, trained.train_config, ["--optimisation.lr=0.01"])

    def trainings(config: TrainConfig) -> int:
        return sum(1 for _ in train_members(config, [0], tmp_path, device="cpu"))

    assert trainings(config) == 1
    assert trainings(config) == 0
    with pytest.raises(InputError, match=r"optimisation\.lr 0\.001 there, 0\.01 asked for"):
        trainings(other)
    # Where the checkpoints are gone, the configuration of the network decides.
    shutil.rmtree(tmp_path / "seed-0" / "checkpoints")
    assert trainings(config) == 0
    with monkeypatch.context() as patch:
        patch.setattr("segunc.training.base.fit", Mock(side_effect=PowerFailureError))
        with pytest.raises(PowerFailureError):
            trainings(other)
    assert trainings(other) == 1
    assert trainings(other) == 0


UNUSED_SETTINGS = [(ABNN, "--seed=1"), (SGLD, "--trainer.max_epochs=3")]


@pytest.mark.parametrize(("settings", "word"), UNUSED_SETTINGS)
def test_a_setting_that_no_run_of_the_method_reads_is_left_alone_in_a_file(
    trained: Job, settings: type[Settings], word: str
) -> None:
    parse_config(FinetuneConfig, trained.train_config, [], settings)


@pytest.mark.parametrize(("settings", "word"), UNUSED_SETTINGS)
def test_a_setting_that_no_run_of_the_method_reads_is_refused_where_it_is_typed(
    trained: Job, settings: type[Settings], word: str
) -> None:
    with pytest.raises(InputError, match=r"unknown key '(seed|trainer)'"):
        parse_config(FinetuneConfig, trained.train_config, [word], settings)


def test_a_checkpoint_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = WholeCheckpoints(tmp_path)
    checkpoints.save_checkpoint({"step": 1}, tmp_path / "last.ckpt")

    def full(content: object, file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save_checkpoint({"step": 2}, tmp_path / "last.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.load(tmp_path / "last.ckpt") == {"step": 1}


def test_no_checkpoint_lies_in_a_folder_taken_away(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    checkpoints = WholeCheckpoints(folder)
    checkpoints.save_checkpoint({"step": 1}, folder / "last.ckpt")
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        checkpoints.save_checkpoint({"step": 2}, folder / "last.ckpt")


BATCH = {"image": torch.rand(2, 3, 8, 8), "label": torch.zeros(2, 8, 8, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (0, InputError),
        (7, PartialFailure),
    ],
)
def test_a_loss_that_is_not_finite_stops_and_no_such_checkpoint_is_written(
    tmp_path: Path, step: int, kind: type[Exception]
) -> None:
    task = SegmentationTask(nn.Conv2d(3, 2, 1), 2)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path
    )
    progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress
    progress.optimizer.step.total.completed = step
    task.trainer = trainer
    trainer.strategy.connect(task)
    task.on_save_checkpoint({"state_dict": task.state_dict()})
    task.network.bias.data[0] = float("nan")
    where = "before the first step" if step == 0 else f"at step {step}"
    with pytest.raises(kind, match=f"the loss .* NaN or infinite {where}.*lower the learning rate"):
        task.training_step(BATCH, 0)
    with pytest.raises(kind, match=f"network.bias .* NaN or infinite {where}"):
        task.on_save_checkpoint({"state_dict": task.state_dict()})


def test_a_training_that_breaks_ends_with_one_line_and_its_last_good_state(
    trained: Job, tmp_path: Path
) -> None:
    words = ("--config", trained.train_config, "--out", tmp_path / "out", "--device", "cpu")
    rate = (
        "--optimisation.lr",
        1e30,
        "--optimisation.optimizer",
        "sgd",
        "--optimisation.schedule",
        "constant",
    )
    line = refuse("train", *words, *rate, "--trainer.max_epochs", 3, code=1, apart=True)
    assert "NaN or infinite at step" in line
    assert not (tmp_path / "out" / "network.safetensors").exists()
    for path in (tmp_path / "out" / "checkpoints").glob("*.ckpt"):
        state = torch.load(path, weights_only=True)["state_dict"]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


@pytest.mark.parametrize(
    ("size", "crop", "refused"),
    [
        (1, (8, 8), True),
        (2, (8, 8), False),
        (1, (16, 8), False),
    ],
)
def test_a_batch_of_one_before_a_batchnorm_of_one_value(
    size: int, crop: tuple[int, int], refused: bool
) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4)).train()

    def step(*_: object, **__: object) -> None:
        network(torch.rand(size, 3, *crop))

    trainer: Any = SimpleNamespace(
        fit=step, interrupted=False, global_step=0, num_devices=1, num_nodes=1
    )
    task: Any = None
    with pytest.raises(InputError, match=r"data\.batch_size` 2") if refused else nullcontext():
        fit(trainer, task, None)


THEIRS = """
from pathlib import Path

Path("ran").touch()


class Note:
    def __init__(self, *_, **__):
        Path("ran").touch()
"""
NOTE = "{class_path: their_callbacks.Note, init_args: {}}"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_callbacks", raising=False)
    Path("their_callbacks.py").write_text(THEIRS)


CODE_IN_TRAINER = [
    f"callbacks: [{NOTE}]",
    f"callbacks: {NOTE}",
    f"logger: {NOTE}",
    f"strategy: {NOTE}",
    f"plugins: {NOTE}",
    f"accelerator: {NOTE}",
    f"profiler: {NOTE}",
    "callbacks: EarlyStopping",
    "default_root_dir: elsewhere",
    "logger: their_callbacks.Note",
]
CODE_IN_OPTIONS = [
    ["--trainer.callbacks", NOTE],
    ["--trainer.strategy", NOTE],
    ["--trainer.logger.class_path", "their_callbacks.Note"],
    ["--optimisation", "their_callbacks.Note"],
]


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("trainer", "options", "section"),
    [
        *((f"{setting},", [], "") for setting in CODE_IN_TRAINER),
        *(("", options, "") for options in CODE_IN_OPTIONS),
        ("", [], f"\noptimisation: {{lr: {NOTE}}}"),
    ],
)
def test_a_configuration_runs_no_code_and_starts_no_training(
    trainer: str,
    options: list[str],
    section: str,
    trained: Job,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = trained.train_config.read_text().replace("max_epochs: 1,", f"max_epochs: 1, {trainer}")
    Path("train.yaml").write_text(text + section)
    words = ["--config", "train.yaml", "--out", "base", "--device", "cpu", *options]
    assert main(["train", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for name in ("ran", "base/network.json", "elsewhere"):
        assert not Path(name).exists()


def test_cross_entropy_with_weights_and_ignored_pixels() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 9.0]], [[0.0, 1.0, -9.0]]]])
    labels = torch.tensor([[[0, 1, 255]]])
    first = math.log1p(math.exp(-2.0))
    second = math.log1p(math.exp(-1.0))
    assert segmentation_loss(logits, labels).item() == pytest.approx((first + second) / 2)
    weighted = segmentation_loss(logits, labels, torch.tensor([1.0, 3.0]))
    assert weighted.item() == pytest.approx((first + 3 * second) / 4)


def test_cross_entropy_of_classes_without_weight_is_0_with_a_gradient_of_0() -> None:
    """Members may weigh some classes with 0, and a crop may hold nothing else."""
    logits = torch.zeros(1, 2, 4, 4, requires_grad=True)
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    labels[0, 0] = 255
    loss = segmentation_loss(logits, labels, torch.tensor([0.0, 1.0]))
    loss.backward()
    assert float(loss) == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_cross_entropy_of_ignored_pixels_alone_is_0_with_a_gradient_of_0() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 9.0]], [[0.0, 1.0, -9.0]]]], requires_grad=True)
    loss = segmentation_loss(logits, torch.full((1, 1, 3), 255))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) == 0.0


@pytest.mark.parametrize("value", [-1, 3, 254])
def test_a_label_that_is_no_class_is_named(value: int) -> None:
    logits = torch.randn(2, 3, 1, 2)
    labels = torch.tensor([[[0, 2]], [[value, 255]]])
    with pytest.raises(InputError, match=f"label {value} in frame 1"):
        segmentation_loss(logits, labels)


FREQUENCIES = [0.64, 0.32, 0.04, 0.0]


def test_balanced_weights() -> None:
    assert balanced_weights(FREQUENCIES, 0.0) == [1.0, 1.0, 1.0, 1.0]
    half = balanced_weights(FREQUENCIES, 0.5, limit=100)
    mean = sum(f * w for f, w in zip(FREQUENCIES, half, strict=True))
    assert mean == pytest.approx(1.0)
    assert half[2] / half[0] == pytest.approx(4.0)


def test_balanced_weights_have_a_limit() -> None:
    assert max(balanced_weights(FREQUENCIES, 1.0, limit=2.0)) == 2.0


def test_a_power_of_class_weights_above_1_is_refused() -> None:
    with pytest.raises(InputError, match="power"):
        OptimisationConfig(class_weight_power=2.0)


@pytest.mark.parametrize("name", ["onecycle", "poly", "constant"])
@pytest.mark.parametrize("steps", [1, 3, 50])
def test_schedules_last_for_their_steps(name: str, steps: int) -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    schedule = make_schedule(optimizer, name, steps, 0.1)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) <= 0.1 + 1e-9
    if name == "poly":
        assert rates[-1] == pytest.approx(0.1 * (1 / steps) ** 0.9)
    if name == "constant":
        assert set(rates) == {0.1}


def test_a_configuration_that_is_written_is_read_again(tmp_path: Path) -> None:
    """Values that stand in two places of a plan are written out in both."""
    size = [64, 96]
    path = tmp_path / "c.yaml"
    path.write_text(dump_config({"data": {"size": size, "crop": size}}))
    assert read_config(path) == {"data": {"size": size, "crop": size}}


@pytest.mark.parametrize(
    "value", ["1e3", ".5e3", "010", "yes", "12:30", "2026-11-30", "~", "", "true", 1e-5, 1e20, 10]
)
def test_a_value_that_is_written_is_read_as_the_same_value(tmp_path: Path, value: object) -> None:
    path = tmp_path / "c.yaml"
    content = {"data": {"held_out": value, "list": [value]}}
    path.write_text(dump_config(content))
    assert read_config(path) == content
