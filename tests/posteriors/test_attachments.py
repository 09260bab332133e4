"""What is fitted on a model stays with that model: it comes back whole, and beside any other it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from segunc.baselines.max_logit import MaxLogitStatistics
from segunc.core.errors import InputError
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.posteriors.files import load_model
from segunc.posteriors.model import ATTACHMENTS, Model, attachments_in, copy_model
from segunc.posteriors.temperature import Calibration
from segunc.uncertainty import Calibrator
from tests.conftest import change_record
from tests.training.overconfident import save_abnn

EARLIER = Path(__file__).parent / "earlier"
"""As a version wrote them that named each in its code."""
SMALL = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}


def save_base(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    save_network(build_network(NetworkDescription("FPN", "mobilenet_v2", ("road", "car"), options=SMALL)), folder)
    return folder


def calibration(model: Model, temperature: float = 1.5) -> Calibration:
    where = {"dataset": "toy", "split": "val", "size": None, "date": "2024-01-01", "torch": "2"}
    hashes = (model.sha256, model.posterior_sha256)
    return Calibration(temperature, where, 3, 300, 0.5, 0.4, 7, 8, *hashes)


def statistics(model: Model) -> MaxLogitStatistics:
    return MaxLogitStatistics((3.0, 2.5), (1.0, 0.5), (90, 10), {"dataset": "toy"}, 4, model.sha256)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def abnn(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_abnn(base, tmp_path_factory.mktemp("abnn"))


@pytest.mark.parametrize("kind", ["base", "abnn"])
def test_they_come_back_with_a_copy_of_the_model(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source: Path = request.getfixturevalue(kind)
    plain = load_model(source)
    assert (plain.temperature, plain.attachments) == (1.0, {})
    copy_model(source, tmp_path / "copy")
    calibration(plain).write(tmp_path / "copy")
    statistics(plain).write(tmp_path / "copy")
    again = load_model(tmp_path / "copy")
    assert again.temperature == 1.5
    assert again.attachments == {"calibration": calibration(plain), "max_logit_statistics": statistics(plain)}
    assert (again.sha256, again.posterior_sha256) == (plain.sha256, plain.posterior_sha256)
    # The copy is another model: what was fitted on it did not creep into its source, and goes with it further.
    assert load_model(source).attachments == {}
    copy_model(tmp_path / "copy", tmp_path / "second")
    assert load_model(tmp_path / "second").attachments == again.attachments


def test_those_of_another_base_are_refused(base: Path, tmp_path: Path) -> None:
    other = save_base(tmp_path / "other", seed=1)
    for attachment in (calibration(load_model(base)), statistics(load_model(base))):
        attachment.write(other)
        with pytest.raises(InputError, match=rf"{attachment.file} was fitted on a base network with the hash"):
            load_model(other)
        (other / attachment.file).unlink()


def test_a_temperature_of_another_posterior_is_refused_and_statistics_of_the_same_base_are_not(
    base: Path, abnn: Path, tmp_path: Path
) -> None:
    # The same members with another alpha: the tensors are the same file, the draws are not.
    wider = save_abnn(base, tmp_path / "wider", alpha=0.3)
    statistics(load_model(abnn)).write(wider)
    assert load_model(wider).attachments.keys() == {"max_logit_statistics"}
    calibration(load_model(abnn)).write(wider)
    with pytest.raises(InputError, match="fitted on a posterior with the hash"):
        load_model(wider)
    calibration(load_model(base)).write(wider)
    with pytest.raises(InputError, match="fitted on a posterior with the hash None"):
        load_model(wider)


@pytest.mark.parametrize(("change", "said"), [({"format": 3}, "format 2"), ({"surplus": 2}, "surplus")])
def test_records_of_another_form_are_refused(base: Path, tmp_path: Path, change: dict[str, object], said: str) -> None:
    copy_model(base, tmp_path)
    calibration(load_model(tmp_path)).write(tmp_path)
    change_record(tmp_path / Calibration.file, **change)
    with pytest.raises(InputError, match=said):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (Calibration.file, {"temperature": 1.6}),
        (Calibration.file, {"record_sha256": None}),
        ("posterior.json", {"alpha": 0.3}),
        ("posterior.json", {"extra": 1}),
    ],
)
def test_what_a_record_says_cannot_change_unnoticed(
    abnn: Path, tmp_path: Path, file: str, change: dict[str, Any]
) -> None:
    copy_model(abnn, tmp_path)
    calibration(load_model(tmp_path)).write(tmp_path)
    path = tmp_path / file
    whole = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps(dict(reversed(whole.items()))))  # the order of keys says nothing
    load_model(tmp_path)
    path.write_text(json.dumps(whole | change))
    with pytest.raises(InputError, match=rf"{file} has changed since it was written") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"conversion": None},
        {"alpha": [0.1]},
        {"alpha": -1},
        {"noise": "x"},
        {"method": "ensemble"},
        {"method": "temperature"},
        {"method": "ensemble", "parts": [{"folder": "../x"}]},
        {"method": "tta", "scales": [1], "flip": 1, "inner": 5},
    ],
    ids=str,
)
def test_a_record_of_the_wrong_types_is_one_line(abnn: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    copy_model(abnn, tmp_path)
    change_record(tmp_path / "posterior.json", **change)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_one_that_acts_on_the_mean_leaves_the_logits(abnn: Path, tmp_path: Path) -> None:
    copy_model(abnn, tmp_path)
    for of_mean in (
        replace(calibration(load_model(abnn)), applies="mean"),
        replace(
            calibration(load_model(abnn)),
            **{
                "applies": "mean",
                "kind": "dirichlet",
                "temperature": None,
                "bias": (0.5, -0.5),
                "penalty": "mu 1, lambda 1",
            },
            weight=(1.0, 0.25, -0.25, 1.0),
        ),
    ):
        of_mean.write(tmp_path)
        model = load_model(tmp_path)
        assert model.attachments["calibration"] == of_mean
        assert model.temperature == 1.0
        assert model.calibrator == of_mean.calibrator
        assert model.fitted(["entropy"]).calibrator == of_mean.calibrator
    assert str(of_mean) == "dirichlet of 2 classes, of the mean"


def test_a_deterministic_model_does_not_go_into_the_folder_of_a_bayesian_one(
    base: Path, abnn: Path, tmp_path: Path
) -> None:
    copy_model(abnn, tmp_path)
    with pytest.raises(InputError, match="holds a Bayesian model"):
        copy_model(base, tmp_path)
    copy_model(tmp_path, tmp_path)
    assert load_model(tmp_path).bayesian


def test_those_of_an_earlier_version_are_read_written_and_recorded_to_the_byte(tmp_path: Path) -> None:
    nothing: Any = None
    model = Model(nothing, nothing, "base", "posterior", None, {}, EARLIER)
    for kind in attachments_in(EARLIER):
        found = model.attachments[Path(kind.file).stem] = kind.load(EARLIER, model)
        found.write(tmp_path)
        assert (tmp_path / kind.file).read_bytes() == (EARLIER / kind.file).read_bytes()
    assert list(model.attachments) == ["calibration", "features", "max_logit_statistics", "anomaly"]
    calibrator = model.calibrator
    assert (model.temperature, calibrator) == (1.0, Calibrator((1.0, 0.5), (0.1, -0.1)))
    assert model.attachments["features"].gives == {"feature distance", "negative log density", "virtual logit"}
    summed = model.attachments["anomaly"].record()["anomaly"]
    assert (summed["parts"], summed["weights"]) == (("deterministic-energy", "knn"), (1.0, 2.0))
    assert summed["scales"] == ({"mean": 0.25, "std": 0.5}, {"levels": (0.0, 0.5, 1.0), "excess": 0.125})
    assert summed["surprise"] == {"levels": (0.0, 1.0), "excess": 0.5}
    records = [one.record() for one in model.used(["knn", "standardized-max-logit"])]
    statistics = "dfdea3efefee66f437cd7a0892d855644ab16a20ca4d7353e0494b2339027df8"
    assert records == [{"features_sha256": "tensors"}, {"max_logit_statistics_sha256": statistics}]
    assert [one.file for one in model.used(["anomaly"])] == ["features.json", "anomaly.json"]
    for name in ("base_sha256", "posterior_sha256", "features_sha256", "temperature", "calibrator_sha256"):
        other: Any = SimpleNamespace(hashes=model.hashes | {name: 1.5 if name == "temperature" else "other"})
        with pytest.raises(InputError, match=r"anomaly\.json was fitted on a"):
            ATTACHMENTS["anomaly"].load(EARLIER, other)


def test_the_hash_of_statistics_is_of_the_numbers_that_decide_the_score(base: Path) -> None:
    found = statistics(load_model(base))
    assert found.record() == replace(found, frames=99).record()
    assert found.record() != replace(found, std=(1.0, 0.6)).record()
