"""Settings of a training: what words and files stand for, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from segunc.core.errors import InputError, NoteWarning
from segunc.networks import NetworkDescription
from segunc.training.base import (
    _load_first_weights,
    is_measured,
    train_members,
    trainer_settings,
)
from segunc.training.config import NetworkConfig, TrainConfig, parse_config, recorded_commands

DATA = ["--data.dataset=camvid", "--data.root=camvid"]
OTHER_MEAN = (0.0, 0.0, 0.0)


def test_a_key_that_is_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("1: {epochs: 2}\n")
    with pytest.raises(InputError, match=r"configuration .*train\.yaml: "):
        parse_config(TrainConfig, path, DATA)


def test_a_setting_below_a_value_is_refused() -> None:
    with pytest.raises(InputError, match=r"data\.root\.left. is below a key with a value"):
        parse_config(TrainConfig, None, [*DATA, "--data.root.left=1"])


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--batch-size", "did you mean --data.batch_size VALUE?"),
        ("--lr", "did you mean --optimisation.lr VALUE?"),
        ("--epochs", "did you mean --trainer.max_epochs VALUE?"),
        ("--paint", "write --section.key VALUE"),
    ],
)
def test_a_setting_without_its_section_is_refused_with_its_name(word: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_config(TrainConfig, None, [*DATA, word, "3"])
    assert refused.value.hint == hint


def test_a_word_for_a_text_is_not_read_as_a_number() -> None:
    config = parse_config(TrainConfig, None, [*DATA, "--network.encoder=1e3"])
    assert config.network.encoder == "1e3"


def test_the_last_of_two_values_counts_and_a_note_says_so() -> None:
    words = [*DATA, "--seed", "3", "--network.encoder", "resnet18", "--seed=4"]
    with pytest.warns(NoteWarning, match="--seed is given twice; 4 counts, 3 does not"):
        config = parse_config(TrainConfig, None, words)
    assert config.seed == 4


def test_the_same_value_twice_needs_no_note(recwarn: pytest.WarningsRecorder) -> None:
    parse_config(TrainConfig, None, [*DATA, "--seed", "3", "--seed", "3"])
    assert not [warning for warning in recwarn if warning.category is NoteWarning]


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\ndata: {dataset: toy, root: here}\nseed: 2\n")
    with pytest.raises(InputError, match="the key seed is given twice, in lines 1 and 3"):
        parse_config(TrainConfig, path, [])


MISTAKEN = ["010", "-010", "0x10", "0b11", "1_000", "1_000.5", "yes", "No", "on", "OFF"]
"""Words for which YAML 1.1 has another value than people see."""


@pytest.mark.parametrize("word", [*MISTAKEN, "12:30:00", "2026-11-30", "08"])
def test_a_text_of_a_file_keeps_its_letters(tmp_path: Path, word: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"data: {{dataset: toy, root: here, validation: leave-sequence-out, sequence: '^.', "
        f"held_out: {word}, anomaly_class: [{word}]}}\n"
    )
    config = parse_config(TrainConfig, path, [])
    assert config.data["held_out"] == word
    assert config.data["anomaly_class"] == [word]


@pytest.mark.parametrize("word", MISTAKEN)
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("data: {{dataset: toy, root: here, batch_size: {}}}", "data: batch_size '{}': input"),
        ("seed: {}", "seed '{}' is not"),
        ("trainer: {{max_epochs: {}}}", "trainer.max_epochs {} is a text, but may be meant"),
        ("trainer: {{deterministic: {}}}", "trainer.deterministic {} is a text, but may be"),
        ("network: {{options: {{a: [1, {}]}}}}", "network.options.a {} is a text, but may be"),
    ],
)
def test_a_text_for_a_number_or_a_truth_value_is_refused_with_its_key(
    tmp_path: Path, lines: str, message: str, word: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(lines.format(word))
    with pytest.raises(InputError, match=re.escape(message.format(word))):
        parse_config(TrainConfig, path, DATA)


def test_a_time_of_the_trainer_is_no_number_of_seconds(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("trainer: {max_time: 00:12:00:00}")
    assert parse_config(TrainConfig, path, DATA).trainer["max_time"] == "00:12:00:00"


def test_decimal_numbers_and_truth_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "seed: 10\noptimisation: {lr: 1e-3, weight_decay: .5}\n"
        "network: {options: {a: true, b: False, c: -0.5, d: null, e: +2}}\n"
    )
    config = parse_config(TrainConfig, path, DATA)
    assert (config.seed, config.optimisation.lr, config.optimisation.weight_decay) == (
        10,
        0.001,
        0.5,
    )
    assert config.network.options == {"a": True, "b": False, "c": -0.5, "d": None, "e": 2}


def test_a_number_for_a_text_that_may_be_none_stays_a_text() -> None:
    config = parse_config(TrainConfig, None, [*DATA, "--network.weights=12"])
    assert config.network.weights == "12"


@pytest.mark.parametrize("commands", [["segunc train"], [{"command": 1}], [{"date": "today"}]])
def test_a_history_that_holds_no_commands_is_refused(tmp_path: Path, commands: list[Any]) -> None:
    history = {"kind": "segunc history", "version": 1, "commands": commands}
    (tmp_path / "history.json").write_text(json.dumps(history))
    with pytest.raises(InputError, match="does not hold a list of commands"):
        recorded_commands(tmp_path)


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:3", 3)])
def test_a_training_runs_on_the_gpu_that_is_named(tmp_path: Path, device: str, number: int) -> None:
    settings = trainer_settings({"precision": "32-true"}, tmp_path, device, nn.Identity())
    assert settings["accelerator"] == "gpu"
    assert settings["devices"] == [number]


def test_a_file_of_another_form_is_not_what_a_training_measured(tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    path.write_text("half")
    assert not is_measured(path)


@pytest.mark.parametrize(
    ("seeds", "shown"),
    [
        ([0, 1, 0], "0,1,0"),
        ([0, -1], "0,-1"),
    ],
)
def test_seeds_that_are_equal_or_negative_are_refused(
    tmp_path: Path, seeds: list[int], shown: str
) -> None:
    config = TrainConfig(data={})
    with pytest.raises(InputError, match=f"seeds. {shown} are not different numbers"):
        next(train_members(config, seeds, tmp_path))


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A file of the weights of a convolution, all of them 2."""
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.full((1, 3, 1, 1), 2.0), "bias": torch.full((1,), 2.0)}, path)
    return str(path)


def untrained(body: nn.Module, **normalisation: Any) -> Any:
    description = NetworkDescription("Unet", "resnet18", ("road", "car"), **normalisation)
    return SimpleNamespace(body=body, description=description)


def test_weights_of_a_network_are_loaded(weights: str) -> None:
    body = nn.Conv2d(3, 1, 1)
    assert _load_first_weights(untrained(body), NetworkConfig(weights=weights)) == []
    assert body.weight.flatten().tolist() == [2.0, 2.0, 2.0]


def test_weights_that_may_expect_another_normalisation_are_noted(weights: str) -> None:
    network = untrained(nn.Conv2d(3, 1, 1), mean=OTHER_MEAN)
    (note,) = _load_first_weights(network, NetworkConfig(weights=weights))
    assert note.startswith("images are normalised by mean (0.0, 0.0, 0.0)")


def test_a_normalisation_that_is_asked_for_is_not_noted(weights: str) -> None:
    network = untrained(nn.Conv2d(3, 1, 1), mean=OTHER_MEAN)
    config = NetworkConfig(weights=weights, mean=OTHER_MEAN)
    assert _load_first_weights(network, config) == []


def test_weights_of_a_network_replace_those_of_its_encoder(weights: str) -> None:
    config = NetworkConfig(weights=weights, encoder_weights="imagenet")
    (note,) = _load_first_weights(untrained(nn.Conv2d(3, 1, 1)), config)
    assert note.startswith("network.encoder_weights imagenet not read")


def test_weights_of_an_encoder_are_loaded_from_a_file(weights: str) -> None:
    body = nn.Module()
    body.encoder = nn.Conv2d(3, 1, 1)
    _load_first_weights(untrained(body), NetworkConfig(encoder_weights=weights))
    assert body.encoder.weight.flatten().tolist() == [2.0, 2.0, 2.0]


def test_a_network_without_weights_stays_random() -> None:
    body = nn.Conv2d(3, 1, 1)
    before = body.weight.clone()
    assert _load_first_weights(untrained(body), NetworkConfig()) == []
    assert torch.equal(body.weight, before)


def test_values_of_one_key_that_blanks_divide_are_shown_with_commas() -> None:
    words = ["--data.root", "ana.json", "ben.json"]
    with pytest.raises(InputError, match=r"ben\.json is not a key") as refused:
        parse_config(TrainConfig, None, words)
    assert refused.value.hint.endswith("between them: --data.root ana.json,ben.json")
