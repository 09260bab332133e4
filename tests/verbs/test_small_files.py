"""Small files that ask for much: patterns that never end, links in circles, aliases, nesting, and
trust in no folder."""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import segunc
from segunc.affine.draws import in_scope
from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.core.files import parse_json, read_json
from segunc.core.trust import TRUST, Code, check_agreed
from segunc.data.module import DataConfig, sequence_pattern
from segunc.evaluation.resampling import resampled_units
from segunc.maps.shards import file_sum, iterate_lines
from segunc.posteriors.model import copy_model, model_files
from segunc.reporting.inputs import read_domain
from segunc.training.config import read_config, recorded_data
from tests.support.fits import ensemble_of

ENDLESS = r"^(\w+\s?)+$"
LONG_NAME = "a" * 60 + "!"


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 3, 1),
    )


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    folders = []
    for seed in (0, 1):
        model = segunc.wrap(
            build(seed),
            ("road", "car", "sky"),
            inference_size=(16, 24),
            factory=f"{__name__}:build",
            arguments={"seed": seed},
        )
        folder = tmp_path / f"seed-{seed}"
        segunc.ABNN(members=2, alpha=0.1).fit(model).save(folder)
        folders.append(folder)
    ensemble_of(folders, tmp_path / "ensemble")
    return tmp_path / "ensemble"


def scope_of_a_posterior() -> None:
    with pytest.raises(InputError, match="matches no normalisation layer"):
        in_scope(ENDLESS, [LONG_NAME])


def unit_of_a_threshold() -> None:
    unit = resampled_units(ENDLESS, option="the unit of the threshold", of_file=True)
    with pytest.raises(InputError, match="finds nothing in the frame name"):
        unit(LONG_NAME)


def data_sequence() -> None:
    assert sequence_pattern(ENDLESS).search(LONG_NAME) is None


@pytest.mark.parametrize("search", [scope_of_a_posterior, unit_of_a_threshold, data_sequence])
def test_a_pattern_of_a_file_ends(search: Callable[[], None]) -> None:
    start = time.monotonic()
    search()
    assert time.monotonic() - start < 2


def test_an_axis_of_a_domain_ends(tmp_path: Path) -> None:
    (tmp_path / "domain.yaml").write_text(f"axes:\n  time: {{day: '{ENDLESS}', night: 'aa'}}\n")
    start = time.monotonic()
    assert read_domain(tmp_path / "domain.yaml").places([LONG_NAME]) == {LONG_NAME: ("night",)}
    assert time.monotonic() - start < 2


def test_a_bad_axis_of_a_domain_names_file_and_axis(tmp_path: Path) -> None:
    (tmp_path / "domain.yaml").write_text("axes: {time: {day: '('}}\n")
    with pytest.raises(InputError, match=r"domain\.yaml: '\(' of the axis 'time' is not a regular"):
        read_domain(tmp_path / "domain.yaml")


def test_a_sequence_that_goes_back_is_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="only a search that goes back can decide"):
        DataConfig(dataset="toy", root=".", sequence=r"(a)\1", validation="leave-sequence-out")


@pytest.mark.parametrize("target", ["..", ".", "../.."])
def test_members_in_a_circle_are_refused(ensemble: Path, target: str) -> None:
    member = ensemble / "members" / "0"
    member.rename(ensemble.parent / "moved")
    member.symlink_to(target)
    for read in (model_files, segunc.load, recorded_data):
        with pytest.raises(InputError, match="members/0 is a link"):
            read(ensemble)


@pytest.mark.parametrize(
    "name", ["data.json", "network.safetensors", "posterior.json", "members/1/data.json", "members"]
)
def test_a_link_in_a_model_folder_copies_no_private_file(
    ensemble: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "private").write_text("secret")
    path = ensemble / name
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "private")
    with pytest.raises(InputError, match="is a link"):
        copy_model(ensemble, tmp_path / "copy")
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    with pytest.raises(InputError, match="is a link"):
        segunc.load(ensemble)


def test_a_model_folder_that_is_a_link_is_read(ensemble: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ensemble)
    assert segunc.load(tmp_path / "link").posterior.method == "ensemble"


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        nine = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{nine}]")
    return "\n".join(lines)


def test_aliases_of_yaml_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(laughs(9))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"the alias \*a0"):
        read_config(tmp_path / "x.yaml")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize("levels", [40_000, 150])
def test_deep_json_is_one_sentence_with_its_file(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":' * levels + "1" + "}" * levels)
    message = r"x\.json is not valid JSON \(it is nested deeper"
    with pytest.raises(InputError, match=message) as raised:
        read_json(path, "an object")
    assert "\n" not in str(raised.value)


def test_json_of_a_hundred_levels_is_read() -> None:
    text = "[" * 100 + "]" * 100
    assert json.dumps(parse_json(f"{text}".encode())) == text


def test_a_deep_line_of_frames_is_one_sentence_with_its_file(tmp_path: Path) -> None:
    text = f'{{"name":{"[" * 50_000}{"]" * 50_000}}}'.encode()
    line = text[:-1] + f',"sum":"{file_sum(text)[1]}"}}\n'.encode()
    (tmp_path / "frames.jsonl").write_bytes(line)
    with pytest.raises(InputError, match=r"frames\.jsonl is not lines of finished frames"):
        [*iterate_lines(tmp_path / "frames.jsonl")]


def test_deep_yaml_is_one_sentence_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text("data: " + "[" * 20_000 + "]" * 20_000)
    words = ["train", "--config", str(tmp_path / "x.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    line = capsys.readouterr().err.strip()
    assert "x.yaml" in line
    assert "\n" not in line


@pytest.mark.parametrize("folder", ["", ".", "code", "~/code"])
def test_trust_in_a_folder_that_is_no_absolute_path_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    code = Code("nets:build", os.path.realpath(tmp_path / folder))
    monkeypatch.setenv(TRUST, f"nets:build@{folder}")
    with pytest.raises(InputError, match="is not an absolute path, so it agrees to none"):
        check_agreed(code, "--trust")
    monkeypatch.setenv(TRUST, f"nets:build@{code.folder}")
    check_agreed(code, "--trust")
