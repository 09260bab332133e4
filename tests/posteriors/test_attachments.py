"""What is fitted on a model stays with that model: it comes back whole, and beside any other it is
refused.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from segunc.affine.posterior import Deterministic
from segunc.baselines.temperature import Calibration
from segunc.core.errors import InputError
from segunc.core.files import file_sha256, write_record
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.options import SamplingOptions
from segunc.posteriors.model import ATTACHMENTS, Model, attachments_in, copy_model, load_model
from segunc.scores import DEFAULT_SCORES
from segunc.uncertainty import Calibrator
from segunc.verbs.execution import make_sampler
from tests.conftest import change_record
from tests.support.sampled import SMALL_DECODER
from tests.training.overconfident import save_abnn

EARLIER = Path(__file__).parent / "earlier"
"""As an earlier version wrote them."""


def save_base(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    save_network(
        build_network(
            NetworkDescription("FPN", "mobilenet_v2", ("road", "car"), options=SMALL_DECODER)
        ),
        folder,
    )
    return folder


def calibration(model: Model) -> Calibration:
    where = {
        "dataset": "toy",
        "split": "val",
        "size": None,
        "date": "2024-01-01",
        "torch": "2",
    }
    return Calibration(1.5, where, 3, 300, 0.5, 0.4, 7, 8, model.sha256, model.posterior_sha256)


def write(attachment: Any, folder: Path) -> None:
    write_record(folder / attachment.file, asdict(attachment))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def abnn(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_abnn(base, tmp_path_factory.mktemp("abnn"))


@pytest.mark.parametrize("kind", ["base", "abnn"])
def test_they_come_back_with_a_copy_of_the_model(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source: Path = request.getfixturevalue(kind)
    plain = load_model(source)
    assert (plain.temperature, plain.attachments) == (1.0, {})
    copy_model(source, tmp_path / "copy")
    write(calibration(plain), tmp_path / "copy")
    again = load_model(tmp_path / "copy")
    assert again.temperature == 1.5
    assert again.attachments == {"calibration": calibration(plain)}
    assert (again.sha256, again.posterior_sha256) == (plain.sha256, plain.posterior_sha256)
    # What was fitted on the copy did not creep into its source, and goes with it further.
    assert load_model(source).attachments == {}
    copy_model(tmp_path / "copy", tmp_path / "second")
    assert load_model(tmp_path / "second").attachments == again.attachments


def test_those_of_another_model_are_refused(base: Path, abnn: Path, tmp_path: Path) -> None:
    other = save_base(tmp_path / "other", seed=1)
    write(calibration(load_model(base)), other)
    with pytest.raises(
        InputError, match=rf"{Calibration.file} was fitted on another model, whose base_sha256"
    ):
        load_model(other)
    # The same members with another alpha: the tensors are the same file, the draws are not.
    wider = save_abnn(base, tmp_path / "wider", alpha=0.3)
    for model in (load_model(abnn), load_model(base)):
        write(calibration(model), wider)
        with pytest.raises(InputError, match="whose posterior_sha256"):
            load_model(wider)
    with pytest.raises(InputError, match="holds a Bayesian model"):
        copy_model(base, wider)


@pytest.mark.parametrize("file", [Calibration.file, "posterior.json"])
@pytest.mark.parametrize("change", [{"temperature": 1.6}, {"record_sha256": None}, {"alpha": 0.3}])
def test_what_a_record_says_cannot_change_unnoticed(
    abnn: Path, tmp_path: Path, file: str, change: dict[str, Any]
) -> None:
    copy_model(abnn, tmp_path)
    write(calibration(load_model(tmp_path)), tmp_path)
    path = tmp_path / file
    whole = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps(whole | change))
    with pytest.raises(InputError, match=rf"{file} has changed since it was written") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": -1},
        {"alpha": "by layer"},
        {"format": 3},
        {"method": "temperature"},
        {"method": "ensemble", "parts": [{"folder": "../x"}]},
        {"method": "tta", "scales": [1], "flip": 1, "inner": 5},
    ],
    ids=str,
)
def test_a_record_of_another_form_is_one_line(
    abnn: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    copy_model(abnn, tmp_path)
    change_record(tmp_path / "posterior.json", **change)
    with pytest.raises(InputError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_one_that_acts_on_the_mean_leaves_the_logits(abnn: Path, tmp_path: Path) -> None:
    copy_model(abnn, tmp_path)
    of_mean = replace(calibration(load_model(abnn)), applies="mean")
    write(of_mean, tmp_path)
    model = load_model(tmp_path)
    assert model.attachments["calibration"] == of_mean
    assert model.temperature == 1.0
    assert model.fitted(["entropy"]).calibrator == model.calibrator == of_mean.calibrator
    own = load_model(abnn).record["alpha"]
    assert (
        make_sampler(model, SamplingOptions(device="cpu", alpha=own)).fitted.calibrator
        == model.calibrator
    )
    with pytest.raises(
        InputError,
        match=f"calibration.json was fitted on draws of alpha {own}, and `alpha` 3 makes others",
    ):
        make_sampler(model, SamplingOptions(device="cpu", alpha=3.0))


@pytest.fixture
def earlier() -> Model:
    """A model whose attachments were written by an earlier version."""
    nothing: Any = None
    model = Model(nothing, Deterministic(), "base", "posterior", None, {}, EARLIER)
    for kind in attachments_in(EARLIER):
        model.attachments[Path(kind.file).stem] = kind.load(EARLIER, model)
    return model


def test_what_depends_on_others_is_loaded_last(earlier: Model) -> None:
    *others, last = earlier.attachments
    assert sorted(others) == ["calibration", "features"]
    assert last == "anomaly"


def test_a_model_computes_its_anomaly_where_no_score_is_named(
    earlier: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    network: Any = SimpleNamespace(description=SimpleNamespace(channels=3))
    monkeypatch.setattr(Model, "_maps_of", lambda _, image, sampling: asked.append(sampling.scores))
    image = np.zeros((4, 4, 3), np.uint8)
    earlier.network = network
    earlier(image)
    list(earlier.maps([image[None]]))
    earlier(image, scores=["msp"])
    plain = Model(network, earlier.posterior, "base", "posterior", None, {}, EARLIER)
    plain(image)
    assert asked == [(*DEFAULT_SCORES, "anomaly")] * 2 + [("msp",), DEFAULT_SCORES]


def test_a_calibration_of_an_earlier_version_is_read(earlier: Model) -> None:
    assert earlier.temperature == 1.0
    assert earlier.calibrator == Calibrator(1.25)


def test_a_sum_of_an_earlier_version_is_read(earlier: Model) -> None:
    assert earlier.attachments["features"].gives == {"feature distance"}
    summed = earlier.attachments["anomaly"].record()["anomaly"]
    assert summed["parts"] == ("deterministic-energy", "knn")
    assert summed["weights"] == (1.0, 2.0)
    assert summed["scales"] == ({"mean": 0.25, "std": 0.5}, {"mean": 0.5, "std": 0.125})
    assert summed["surprise"] == {"levels": (0.0, 1.0), "excess": 0.5}


def test_only_what_scores_need_is_recorded(earlier: Model) -> None:
    assert [used.record() for used in earlier.used(["knn"])] == [{"features_sha256": "tensors"}]
    files = [used.file for used in earlier.used(["anomaly"])]
    assert files == ["features.json", "anomaly.json"]


def test_a_damaged_bank_of_features_is_found(earlier: Model, tmp_path: Path) -> None:
    bank = tmp_path / "features.safetensors"
    bank.write_bytes(b"tensors")
    whole = replace(earlier.attachments["features"], tensors_sha256=file_sha256(bank))
    whole.check_tensors(tmp_path)
    bank.write_bytes(b"tensorS")
    with pytest.raises(InputError, match=r"features\.safetensors has changed since features\.json"):
        whole.check_tensors(tmp_path)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("base_sha256", "other"),
        ("posterior_sha256", "other"),
        ("features_sha256", None),  # a sum without the bank of its parts
        ("temperature", 1.5),
        ("calibrator_sha256", "other"),
    ],
)
def test_a_sum_is_refused_where_one_hash_is_another(
    earlier: Model, name: str, changed: Any
) -> None:
    other: Any = SimpleNamespace(hashes=earlier.hashes | {name: changed})
    refusal = r"anomaly\.json was fitted (on another model|with other features)"
    with pytest.raises(InputError, match=refusal):
        ATTACHMENTS["anomaly"].load(EARLIER, other)
