"""A tiny toy set and what the verbs make of it, made once for all tests that need them."""

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from segunc.core.files import write_record
from segunc.toyroads import ToyConfig, generate_toy
from tests.verbs.processes import succeed

TOY = ToyConfig(seed=3, train=8, val=4, test=2, anomaly=4, video_frames=12, size=(64, 128))
"""Frames of 64x128: the smallest size at which the stride of 32 leaves something to upsample."""
TRAIN = """\
seed: 0
network:
  architecture: FPN
  encoder: mobilenet_v2
  options: {{decoder_pyramid_channels: 32, decoder_segmentation_channels: 32}}
data: {{dataset: toy, root: {root}, crop: [64, 64], batch_size: 4}}
trainer: {{max_epochs: 1, precision: 32-true}}
"""
FINETUNE = """\
data: {{dataset: toy, root: {root}, crop: [64, 64], batch_size: 4}}
abnn: {{members: 2, alpha: 0.1, epochs: 1, lr: 0.005, random_classes: 3, statistics: frozen}}
trainer: {{precision: 32-true}}
"""


@pytest.fixture(autouse=True, scope="module")
def denormals() -> Iterator[None]:
    """Keep denormals, which some tests compare bit by bit and tests of networks may flush."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="module")
def few_units() -> Iterator[None]:
    """Give intervals to sets as small as the toy scenes, which have too few units for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segunc.evaluation.resampling.MIN_UNITS", 2)
        yield


@dataclass(frozen=True)
class Job:
    """Paths of one small job: data, configurations and what was made of them."""

    data: Path
    train_config: Path
    finetune_config: Path
    base: Path
    abnn: Path
    maps: Path

    @property
    def frames(self) -> Path:
        return self.data / "leftImg8bit" / "anomaly"

    @property
    def masks(self) -> Path:
        return self.data / "gtAnomaly" / "anomaly"

    @property
    def video(self) -> Path:
        return self.data / "video" / "crossing.webm"


@pytest.fixture(scope="session")
def toy_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("job") / "toy"
    generate_toy(root, TOY)
    return root


@pytest.fixture(scope="session")
def trained(toy_set: Path) -> Job:
    """A base network of one epoch; the later folders are not there yet."""
    root = toy_set.parent
    job = Job(
        data=toy_set,
        train_config=root / "train.yaml",
        finetune_config=root / "tune.yaml",
        base=root / "base",
        abnn=root / "abnn",
        maps=root / "maps",
    )
    job.train_config.write_text(TRAIN.format(root=toy_set), encoding="utf-8")
    job.finetune_config.write_text(FINETUNE.format(root=toy_set), encoding="utf-8")
    succeed("train", "--config", job.train_config, "--out", job.base, "--device", "cpu")
    return job


@pytest.fixture(scope="session")
def finetuned(trained: Job) -> Job:
    """The trained job with an ABNN posterior of two members."""
    words = ("--base", trained.base, "--config", trained.finetune_config, "--out", trained.abnn)
    succeed("finetune --device cpu", *words)
    return trained


@pytest.fixture(scope="session")
def predicted(finetuned: Job) -> Job:
    """The fine-tuned job with maps of the anomaly split: four draws, float32."""
    words = ("--model", finetuned.abnn, "--input", finetuned.frames, "--out", finetuned.maps)
    succeed("predict --draws 4 --precision float32 --device cpu --overlay", *words)
    return finetuned


@pytest.fixture(scope="session")
def overconfident(trained: Job) -> Job:
    """The trained job with a base and an ABNN whose best temperature is near 2.

    They are made without a training.
    """
    from tests.training.overconfident import save_overconfident

    out = trained.data.parent / "overconfident"
    base, abnn = save_overconfident(trained.base, trained.data, out)
    return replace(trained, base=base, abnn=abnn)


def change_record(path: Path, without: Collection[str] = (), **changes: Any) -> dict[str, Any]:
    """Change what a record says and seal it again, as a forger would.

    Other links to the file keep their content.

    Args:
        path: the record.
        without: keys to remove.
        changes: new values by key.

    Returns:
        What the record says now.
    """
    content = json.loads(path.read_text())
    content.update(changes)
    for key in ("record_sha256", *without):
        content.pop(key, None)
    path.unlink()
    write_record(path, content)
    return dict(content)
