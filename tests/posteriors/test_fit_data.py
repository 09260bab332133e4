"""What a fit takes its frames from: loaders, data modules, settings, images."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import segunc
from segunc.baselines.anomaly import Anomaly
from segunc.baselines.chains import HMC, SGLD
from segunc.baselines.class_sets import PredictionSets
from segunc.baselines.features import FeatureDensity
from segunc.baselines.laplace import Laplace
from segunc.baselines.mcbn import MCBN
from segunc.baselines.swag import SWAG
from segunc.baselines.temperature import Temperature
from segunc.baselines.variational import Variational
from segunc.core.errors import NoteWarning
from segunc.data.module import DataConfig, SegmentationDataModule
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD
from segunc.posteriors.map_records import chosen_on
from segunc.training.fit_data import GivenImages, LoaderData, as_image, content_name, data_source
from tests.conftest import Job
from tests.data.miniatures import write_frame

CLASSES = ("road", "car", "sky")
MEAN = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
STD = torch.tensor(IMAGENET_STD).view(3, 1, 1)
Batches = list[tuple[Tensor, Tensor]]


def module() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    made[1].running_var.uniform_(0.5, 2)
    return made.eval()


def base() -> segunc.Model:
    return segunc.wrap(module(), CLASSES)


@torch.no_grad()
def batches(count: int = 3, seed: int = 1) -> Batches:
    """Frames whose labels are mostly what the network says."""
    generator = torch.Generator().manual_seed(seed)
    loader = []
    for _ in range(count):
        images = torch.randint(0, 256, (2, 3, 16, 16), generator=generator).float() / 255
        logits = module()((images - MEAN) / STD)
        chosen = torch.rand(2, 16, 16, generator=generator) < 0.7
        other = torch.randint(0, 3, (2, 16, 16), generator=generator)
        labels = logits.argmax(1).where(chosen, other)
        loader.append((images, labels))
    return loader


IN_FLOAT32 = {"precision": "32-true"}
TRAINED = [
    segunc.ABNN(epochs=1, class_weight_power=0.5),
    SWAG(epochs=2, burn_in=0, collect_every=1, rank=2),
    Variational(epochs=1),
    Laplace(images=6, samples=8),
    MCBN(batches=2, batch_size=2),
]
CHAINS = [
    SGLD(cycles=1, cycle_steps=4, states_per_cycle=2),
    HMC(chains=1, samples=2, warmup=1, trajectory=0.001),
]


@pytest.mark.parametrize("settings", [*TRAINED, *CHAINS], ids=lambda settings: settings.method)
def test_a_posterior_is_fitted_on_batches(settings: Any) -> None:
    options = {} if settings in CHAINS else {"trainer": IN_FLOAT32}
    fitted = settings.fit(base(), batches(), **options)
    again = settings.fit(base(), DataLoader(batches(), batch_size=None), **options)
    assert fitted.posterior_sha256 == again.posterior_sha256
    assert fitted.posterior.method == settings.method


TWO_PROCESSES = """
import segunc
from tests.posteriors.test_fit_data import base, batches

trainer = {"devices": 2, "accelerator": "cpu", "strategy": "ddp", "precision": "32-true"}
made = segunc.ABNN(epochs=1).fit(base(), batches(count=3), trainer=trainer)
print("steps:", made.record["provenance"]["steps"])
"""


@pytest.mark.slow
def test_two_processes_say_that_each_trains_on_the_whole_loader(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "PYTHONPATH": str(Path(segunc.__file__).parents[1])}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # A batch of each process is a step: three steps have all three batches twice.
    assert "steps: 3" in done.stdout
    assert "each of the 2 processes trains on all batches of the loader" in done.stderr


def test_class_weights_come_from_the_labels_of_a_loader() -> None:
    rare = [(images, torch.where(labels == 2, 0, labels)) for images, labels in batches()]
    rare[0][1][0, 0, 0] = 2
    settings = segunc.ABNN(epochs=1, class_weight_power=1.0)
    weighted = settings.fit(base(), rare, trainer=IN_FLOAT32)
    plain = segunc.ABNN(epochs=1).fit(base(), rare, trainer=IN_FLOAT32)
    assert not torch.equal(weighted.posterior.gamma, plain.posterior.gamma)
    counts = torch.stack([labels for _, labels in rare]).flatten().bincount(minlength=3)
    expected = (counts / counts.sum()).tolist()
    assert LoaderData({"train": rare}, 3).class_frequencies() == pytest.approx(expected)


def test_a_class_of_batches_that_are_not_counted_is_rare_and_not_absent() -> None:
    without = [(images, torch.where(labels == 2, 0, labels)) for images, labels in batches()]
    data = LoaderData({"train": without}, 3)
    assert 0 < data.class_frequencies(limit=4)[2] < 0.01
    assert data.class_frequencies(limit=6)[2] == 0


def nll_of(train: Batches, temperature: float) -> float:
    """Mean negative log-likelihood of all pixels, by plain torch."""
    images = torch.cat([images for images, _ in train])
    labels = torch.cat([labels for _, labels in train])
    with torch.no_grad():
        logits = module()((images - MEAN) / STD)
    return float(nn.functional.cross_entropy(logits / temperature, labels))


def test_a_temperature_is_the_best_of_all_pixels_of_a_loader() -> None:
    model = base()
    fitted = Temperature(pixels=10**6).fit(model, batches())
    calibration = fitted.attachments["calibration"]
    assert calibration.frames == 6
    assert calibration.pixels == 6 * 16 * 16
    expected = nll_of(batches(), fitted.temperature)
    assert calibration.nll_after == pytest.approx(expected, rel=1e-5)
    for other in (0.9, 1.1):
        assert nll_of(batches(), other * fitted.temperature) > calibration.nll_after


def test_sets_are_calibrated_on_a_loader() -> None:
    many = batches(count=20)
    fitted = PredictionSets(level=0.2).fit(base(), many)
    sets = fitted.attachments["class_sets"]
    assert sets.frames == 40
    assert sets.fitted_on["dataset"] == "data of a program"
    assert "not recorded" not in sets.condition


def test_sets_on_a_loader_say_that_their_frames_may_have_chosen_something() -> None:
    calibrated = Temperature().fit(base(), batches())
    said = "whether the model got its temperature on these frames is not recorded, and the promise"
    with pytest.warns(NoteWarning, match=said):
        fitted = PredictionSets(level=0.2).fit(calibrated, batches(count=20, seed=5))
    assert said in fitted.attachments["class_sets"].condition


@pytest.mark.parametrize("settings", [*TRAINED, *CHAINS])
def test_a_posterior_records_that_its_frames_are_of_a_program(settings: Any) -> None:
    made = settings.fit(base(), batches(), trainer=IN_FLOAT32 if settings in TRAINED else None)
    provenance = made.record["provenance"]
    assert provenance["dataset"] == "data of a program"
    assert provenance["seen_splits"] == [{"dataset": "data of a program", "split": "train"}]
    (record,) = chosen_on({}, {}, provenance)
    assert record == {"what": "posterior", "dataset": "data of a program", "split": "train"}


def test_a_posterior_of_no_frames_records_none() -> None:
    made = segunc.ABNN(statistics="frozen").fit(base(), batches())
    assert made.record["provenance"]["dataset"] is None
    assert chosen_on({}, {}, made.record["provenance"]) == []


def test_a_posterior_records_the_split_of_a_data_set(finetuned: Job) -> None:
    provenance = segunc.load(finetuned.abnn).record["provenance"]
    assert provenance["dataset"] == "toy"
    assert provenance["seen_splits"] == [{"dataset": "toy", "split": "train"}]


def test_a_loader_without_a_length_is_one_with_a_length() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(batches())

    stream = DataLoader(Stream(), batch_size=None)
    first = Temperature(pixels=50).fit(base(), stream)
    second = Temperature(pixels=50).fit(base(), batches())
    assert first.temperature == second.temperature


def test_frames_of_a_loader_are_read_as_they_were_written() -> None:
    frames = LoaderData({"train": batches()}, 3).dataset("train")
    images = torch.cat([images for images, _ in batches()])
    labels = torch.cat([labels for _, labels in batches()])
    assert len(frames) == 6
    for index in (0, 1, 5, 2):  # also backwards
        image, ids = frames.read(index)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, (images[index] * 255).byte().permute(1, 2, 0))
        np.testing.assert_array_equal(ids, labels[index])


def test_an_image_between_two_codes_stays_a_float() -> None:
    image = torch.full((3, 2, 2), 0.5)
    assert as_image(image).dtype == np.float32
    assert as_image(torch.full((3, 2, 2), 51 / 255)).dtype == np.uint8


class OwnModule(L.LightningDataModule):
    """A data module of a program."""

    def train_dataloader(self) -> Any:
        return DataLoader(batches(seed=1), batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader(batches(seed=2), batch_size=None)


def test_a_data_module_gives_its_splits() -> None:
    fitted = Temperature(pixels=50).fit(base(), OwnModule())
    of_validation = Temperature(pixels=50).fit(base(), batches(seed=2))
    of_training = Temperature(pixels=50, split="train").fit(base(), OwnModule())
    assert fitted.temperature == of_validation.temperature
    assert of_training.temperature != fitted.temperature
    with pytest.raises(segunc.InputError, match="no split test"):
        Temperature(split="test").fit(base(), OwnModule())


def test_data_sets_are_given_in_many_ways(finetuned: Job, tmp_path: Path) -> None:
    model = segunc.load(finetuned.abnn)
    data = {"dataset": "toy", "root": str(finetuned.data)}
    config = tmp_path / "data.yaml"
    config.write_text(f"data: {{dataset: toy, root: {finetuned.data}}}\n")
    ways: list[Any] = [
        data,
        DataConfig(**data),
        SegmentationDataModule(**data),
        f"toy:{finetuned.data}",
        config,
        str(config),
        None,  # that of the training
    ]
    samples = [
        data_source(way, model.folder).open_for(model.network.description).dataset("val").samples
        for way in ways
    ]
    assert all(names == samples[0] for names in samples)


def test_a_module_of_a_data_set_stays_as_it_is(finetuned: Job) -> None:
    data = SegmentationDataModule("toy", str(finetuned.data), crop=(64, 64), batch_size=4)
    segunc.ABNN(seed=3).fit(segunc.load(finetuned.base), data, device="cpu")
    assert data.seed == 0


def data_of_classes(folder: Path, classes: Sequence[str]) -> dict[str, Any]:
    """Write a data set of three classes, and return its settings."""
    rows = ["id,name,train_id,red,green,blue"]
    for number, name in enumerate(classes):
        rows.append(f"{number},{name},{number},{number},0,9")
    (folder / "classes.csv").write_text("\n".join(rows))
    frames = ["split,image,label"]
    for split in ("train", "val"):
        write_frame(folder / f"{split}.png", folder / f"{split}_ids.png", [0, 1, 2])
        frames.append(f"{split},{split}.png,{split}_ids.png")
    (folder / "frames.csv").write_text("\n".join(frames))
    return {
        "dataset": "folder",
        "root": str(folder),
        "frames": str(folder / "frames.csv"),
        "labels": str(folder / "classes.csv"),
    }


@pytest.mark.parametrize("is_module", [False, True])
@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("car", "road", "sky"), "another order: class 0 is 'car', and the network's is 'road'"),
        (("road", "car", "tree"), "other classes .*: class 2 is 'tree', and the network's is"),
        (("road", "sky", "tree"), "other classes .*: class 1 is 'sky', and the network's is 'car'"),
    ],
)
def test_other_classes_than_those_of_the_network_are_refused(
    tmp_path: Path, is_module: bool, classes: Sequence[str], message: str
) -> None:
    settings = data_of_classes(tmp_path, classes)
    data = SegmentationDataModule(**settings) if is_module else settings
    with pytest.raises(segunc.InputError, match=message):
        Temperature().fit(base(), data)


@pytest.mark.parametrize(
    ("classes", "outputs"),
    [
        (("Road", "traffic sign", "sky"), ("road", "Traffic_Sign", "sky")),
        (("road", "car", "sky"), ("0", "1", "2")),
        (("road", "car", "sky"), ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)
def test_other_spellings_and_numbers_of_classes_are_no_other_classes(
    tmp_path: Path, classes: Sequence[str], outputs: tuple[str, ...]
) -> None:
    source = data_source(data_of_classes(tmp_path, classes))
    description = replace(base().network.description, classes=outputs)
    data = source.open_for(description)
    assert data.label_map.classes == tuple(classes)


def test_images_without_labels_are_held_out_in_turn() -> None:
    images = [np.random.default_rng(n).integers(0, 256, (16, 16, 3), np.uint8) for n in range(3)]
    with_features = FeatureDensity(layers=["body.1"]).fit(base(), images)
    names = with_features.attachments["features"].frames
    assert names == tuple(content_name(image) for image in images)
    fitted = Anomaly(parts=["entropy", "knn"]).fit(with_features, images)
    total = fitted.attachments["anomaly"]
    assert total.frames == 3
    assert total.scales[1].mean > 1e-3, "no frame is compared with itself"
    folds = GivenImages(images).folds()
    for number, fold in enumerate(folds):
        assert [sample.name for sample in fold.dataset("val").samples] == [names[number]]
        assert len(fold.dataset("train")) == 2


def test_frames_that_the_features_have_seen_do_not_scale_a_sum() -> None:
    with_features = FeatureDensity(layers=["body.1"]).fit(base(), batches())
    settings = Anomaly(parts=["entropy", "knn"])
    with pytest.raises(segunc.InputError, match="one that the features were fitted on"):
        settings.fit(with_features, batches())
    fitted = settings.fit(with_features, batches(seed=9))
    assert fitted.attachments["anomaly"].scales[1].mean > 1e-3


def test_a_model_says_in_a_few_lines_what_it_is(tmp_path: Path) -> None:
    model = FeatureDensity(layers=["body.1"]).fit(segunc.ABNN().fit(base(), batches()), batches())
    first, network, *others = repr(model).splitlines()
    classes = len(model.network.description.classes)
    assert first == f"Model: abnn, {classes} classes"
    assert network == f"  network: Sequential, hash {model.sha256[:12]}"
    assert others[1:] == ["  fitted on it: features"]
    assert repr(base()).startswith(f"Model: deterministic, {classes} classes\n")
    model.save(tmp_path / "model")
    loaded = segunc.load(tmp_path / "model", network=base())
    assert repr(loaded).splitlines()[-1] == f"  folder: {tmp_path / 'model'}"


def test_fits_in_memory_add_up(tmp_path: Path) -> None:
    model = segunc.ABNN().fit(base(), batches())
    model = FeatureDensity(layers=["body.1"]).fit(model, batches())
    model = Anomaly(parts=["entropy", "knn"], draws=2).fit(model, batches(seed=9))
    assert list(model.attachments) == ["features", "anomaly"]
    maps = model(np.zeros((16, 16, 3), np.uint8), draws=4, scores=("entropy", "anomaly"))
    assert np.isfinite(maps.anomaly).all()
    again = FeatureDensity(layers=["body.1"], seed=1).fit(model, batches(seed=3))
    assert list(again.attachments) == ["features"], "a sum over former features is gone"
    assert list(model.attachments) == ["features", "anomaly"], "the model stays as it is"
    model.save(tmp_path)
    loaded = segunc.load(tmp_path, network=module())
    assert loaded.attachments == model.attachments


@pytest.mark.parametrize(
    ("settings", "data", "said"),
    [
        (Temperature(), None, "the method temperature needs data"),
        (Temperature(), 3, "data of type int hold no batches"),
        (Temperature(), "nowhere", "neither a YAML file nor NAME:FOLDER"),
        (Temperature(), {"dataset": "toy"}, "root is missing"),
        (Temperature(), [np.zeros((4, 4, 3), np.float32)], "expected RGB uint8"),
        (Temperature(), [(torch.rand(1, 3, 8, 8),)], "neither .image, label. nor a dictionary"),
        (Temperature(), [(torch.rand(1, 3, 8, 8), torch.full((1, 8, 8), 300))], "label 300"),
        (segunc.ABNN(epochs=1), [(torch.rand(1, 3, 8, 8), torch.full((1, 8, 8), 7))], "7"),
        (SWAG(epochs=1, burn_in=0, collect_every=1), iter(batches()), "gone through once"),
        (SWAG(), [np.zeros((4, 4, 3), np.uint8)], "the method swag needs labels, and a list"),
        (segunc.ABNN(), [np.zeros((4, 4, 3), np.uint8)], "the method abnn needs labels"),
        (SGLD(), [np.zeros((4, 4, 3), np.uint8)], "the method sgld needs labels"),
        (Temperature(), [np.zeros((4, 4, 3), np.uint8)], "the method temperature needs labels"),
        (
            PredictionSets(level=0.5, split="train"),
            [np.zeros((4, 4, 3), np.uint8)],
            "the method class-sets needs labels",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused(settings: Any, data: Any, said: str) -> None:
    with pytest.raises(segunc.InputError, match=said):
        settings.fit(base(), data)


def test_a_trainer_is_refused_where_nothing_is_trained() -> None:
    with pytest.raises(segunc.InputError, match="trains nothing with Lightning"):
        Temperature().fit(base(), batches(), trainer=IN_FLOAT32)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(segunc.InputError, match=r"of type Sequential, not a segunc\.Model"):
        segunc.ABNN().fit(module())  # type: ignore[arg-type]


def test_a_training_goes_on_in_its_folder_of_checkpoints(tmp_path: Path) -> None:
    class BrokenError(RuntimeError):
        """In the place of a power failure."""

    class Broken:
        """It is looked at before the training, and breaks in the second epoch."""

        passes = 0

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            self.passes += 1
            if self.passes == 3:
                raise BrokenError
            return iter(batches())

    settings = segunc.ABNN(epochs=2, alpha=0.2)
    whole = settings.fit(base(), batches(), trainer=IN_FLOAT32)
    with pytest.raises(BrokenError):
        settings.fit(base(), Broken(), trainer=IN_FLOAT32, checkpoints=tmp_path)
    with pytest.warns(NoteWarning, match="whether it saw the same data is not known"):
        continued = settings.fit(base(), batches(), trainer=IN_FLOAT32, checkpoints=tmp_path)
    assert continued.record["provenance"]["resumed"]
    torch.testing.assert_close(continued.posterior.gamma, whole.posterior.gamma)


def test_a_fit_shows_nothing_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    segunc.ABNN(epochs=1).fit(base(), batches(), trainer=IN_FLOAT32)
    Temperature(pixels=50).fit(base(), batches())
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == ""
    lines: list[str] = []
    segunc.ABNN().fit(base(), batches(), say=lines.append)
    assert lines[0].startswith("converted the network")
