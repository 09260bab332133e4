"""Fine-tuning that needs no data, what says so, and the help of configurations; a run that fails leaves no half folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from segunc.posteriors.model import load_model
from tests.conftest import Job
from tests.verbs.processes import refuse, succeed

NO_DATA = "--abnn.epochs 0 --abnn.alpha 0.1 --abnn.statistics frozen"
REESTIMATED = """\
data: {dataset: toy, root: nowhere}
abnn: {members: 2, statistics: reestimated}
"""


@pytest.mark.parametrize("config", [None, REESTIMATED])
def test_an_abnn_of_a_given_alpha_needs_no_data(trained: Job, tmp_path: Path, config: str | None) -> None:
    words: list[object] = ["--base", trained.base, "--out", tmp_path / "out", "--device cpu"]
    if config is None:
        words += ["--abnn.statistics frozen"]
    else:
        (tmp_path / "tune.yaml").write_text(config)
        words += ["--config", tmp_path / "tune.yaml", NO_DATA]
    succeed("finetune", *words)
    model = load_model(tmp_path / "out")
    assert (model.posterior.members, model.posterior.settings()["alpha"]) == (2 if config else 1, 0.1)
    assert model.record["provenance"]["dataset"] == ("toy" if config else None)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_a_run_that_fails_at_its_first_step_leaves_no_half_folder(
    trained: Job, tmp_path: Path, verb: str, before: bool
) -> None:
    data, out = Path(shutil.copytree(trained.data, tmp_path / "data")), tmp_path / "out"
    for image in (data / "leftImg8bit" / "train").rglob("*.png"):
        image.write_bytes(b"damaged")
    if before:  # what stands there already is not ours to take away
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    config = trained.train_config if verb == "train" else trained.finetune_config
    more = [] if verb == "train" else ["--base", trained.base, "--abnn.alpha", 0.1]
    refuse(verb, "--config", config, "--out", out, "--device cpu --data.root", data, *more)
    assert out.exists() is before
    assert not before or (out / "notes.txt").read_text() == "mine"
