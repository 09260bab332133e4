"""The sampler: its maps are those of its draws one by one, whatever the chunk, the company and the
temperature.
"""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn.functional import interpolate

from segunc.affine.draws import AffineLayout
from segunc.baselines.anomaly import ScoreSum, Standard, Surprise
from segunc.baselines.class_sets import ClassSets
from segunc.core.device import Precision, threads
from segunc.core.errors import InputError, NotFiniteError
from segunc.maps.encoding import encode_unit
from segunc.posteriors.abnn import ABNNPosterior
from segunc.sampling import Prediction, Sampler, sampler as sampler_module
from segunc.sampling.sampler import Fitted
from segunc.sampling.tail_native import native_tail
from segunc.scores import DEFAULT_SCORES, EVIDENCE, SCORES
from segunc.uncertainty import Calibrator, energy, entropy_from_probabilities, max_softmax
from tests.affine.networks import Pixelwise, SequenceFirst, randomise, small_network
from tests.sampling.plain import (
    assert_maps_of_a_plain_loop,
    assert_mean_of,
    draw_logits,
    posterior_of,
)

IMAGES = torch.rand(3, 3, 20, 28, generator=torch.Generator().manual_seed(0))
SHARES = ("msp", "entropy", "aleatoric", "epistemic")


def model(alpha: float = 0.4, members: int = 2) -> tuple[nn.Module, ABNNPosterior]:
    network = small_network()
    return network, posterior_of(network, alpha, members)


@pytest.mark.parametrize(
    ("members", "temperature"),
    [
        (1, 1.0),
        (3, 1.0),
        (2, 1.7),
    ],
)
def test_maps_are_those_of_the_draws_one_by_one(members: int, temperature: float) -> None:
    """The temperature divides the logits of draws and base network, but not the max logit."""
    network, posterior = model(0.4, members)
    result = Sampler(network, posterior, draws=7, seed=5, fitted=Fitted(temperature))(
        IMAGES, keep_probabilities=True
    )
    draws = [logits / temperature for logits in draw_logits(network, posterior, IMAGES, 7, 5)]
    assert_mean_of(result, draws)
    with torch.no_grad():
        base = small_network()(IMAGES)
    p = (base / temperature).softmax(1)
    expected = {
        "msp": 1 - torch.stack(draws).softmax(2).mean(0).amax(1),
        "deterministic-msp": max_softmax(p),
        "deterministic-entropy": entropy_from_probabilities(p) / math.log(4),
        "deterministic-max-logit": -base.amax(1),
        "deterministic-energy": energy(base, temperature=temperature),
    }
    assert set(result.scores) == set(DEFAULT_SCORES) == set(expected) | set(SHARES)
    for name, values in expected.items():
        torch.testing.assert_close(result.scores[name], values, rtol=1e-4, atol=1e-5, msg=name)
    assert float(result.scores["epistemic"].mean()) > 1e-5


CALIBRATORS = (Calibrator(1.7), Calibrator(0.6))


def dense(calibrator: Calibrator, p: torch.Tensor) -> torch.Tensor:
    """What a calibrator makes of probabilities ``[..., C]`` float64, written out."""
    powers = p ** (1 / calibrator.temperature)
    return powers / powers.sum(-1, keepdim=True)


OF_PIXELS = [name for name in SCORES if name != "rba"]
"""Scores of a network that gives logits of pixels."""
OF_DRAWS_OR_BASE = [name for name in OF_PIXELS if SCORES[name].sources <= {"draws", "base"}]


def calibrated(calibrator: Calibrator | None, size: tuple[int, int] | None) -> Prediction:
    fitted = Fitted(calibrator=calibrator)
    sampler = Sampler(*model(), draws=6, seed=3, scores=OF_DRAWS_OR_BASE, fitted=fitted)
    return sampler(IMAGES, size=size, keep_probabilities=True)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=str)
@pytest.mark.parametrize("size", [None, (37, 51)])
def test_a_calibrator_does_not_act_on_the_draws(
    calibrator: Calibrator, size: tuple[int, int] | None
) -> None:
    with_calibrator = calibrated(calibrator, size)
    plain = calibrated(None, size)
    for name in set(OF_DRAWS_OR_BASE) - {"msp", "entropy"}:
        assert torch.equal(with_calibrator.scores[name], plain.scores[name]), name
    if size is None:
        assert torch.equal(with_calibrator.prediction, plain.prediction)


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=str)
@pytest.mark.parametrize("size", [None, (37, 51)])
def test_a_calibrator_acts_on_the_mean(
    calibrator: Calibrator, size: tuple[int, int] | None
) -> None:
    draws = [logits.double().softmax(1) for logits in draw_logits(*model(), IMAGES, 6, 3)]
    mean = torch.stack(draws).mean(0)
    expected = dense(calibrator, mean.movedim(1, -1)).movedim(-1, 1)
    entropy = entropy_from_probabilities(expected) / math.log(4)
    if size is not None:
        expected = interpolate(expected, size, mode="bilinear", align_corners=False)
        entropy = interpolate(entropy[None], size, mode="bilinear", align_corners=False)[0]
    result = calibrated(calibrator, size)
    probabilities = result.probabilities
    assert probabilities is not None
    torch.testing.assert_close(probabilities, expected.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.scores["entropy"], entropy.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(result.scores["msp"], max_softmax(probabilities))
    chosen = probabilities.gather(1, result.prediction.long()[:, None])[:, 0]
    assert torch.equal(chosen, probabilities.amax(1))


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_epistemic_is_never_negative_and_the_same_with_any_calibrator(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sharpening calibrator puts the entropy below the aleatoric one: their difference would be
    negative.
    """
    monkeypatch.setattr("segunc.sampling.sampler.choose_backend", lambda device: (backend, ""))
    sharp = Calibrator(0.2)
    found = Sampler(*model(), draws=4, fitted=Fitted(calibrator=sharp))(IMAGES).scores
    raw = Sampler(*model(), draws=4)(IMAGES).scores
    assert bool((found["entropy"] < found["aleatoric"]).any())
    assert torch.equal(found["epistemic"], raw["epistemic"])
    assert float(found["epistemic"].min()) >= 0 < float(found["epistemic"].max())


def assert_same_codes(first: Prediction, second: Prediction, frame: slice = slice(None)) -> None:
    for name in SHARES:
        assert codes_apart(first.scores[name][frame].numpy(), second.scores[name].numpy()) <= 1, (
            name
        )


@pytest.mark.parametrize(
    ("precision", "amx", "frame", "chunk"),
    [
        ("float32", True, (512, 1024), 1),
        ("bfloat16", False, (512, 1024), 1),
        ("bfloat16", True, (512, 1024), 4),
        ("bfloat16", True, (1024, 2048), 1),
    ],
)
def test_amx_takes_more_draws_at_once(
    monkeypatch: pytest.MonkeyPatch,
    precision: Precision,
    amx: bool,
    frame: tuple[int, int],
    chunk: int,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    sampler = Sampler(*model(), draws=16, precision=precision)
    assert sampler.chunk_for(1, frame, 19) == chunk


def test_any_chunk_and_any_company_give_the_same_codes() -> None:
    network, posterior = model(0.3)
    together = Sampler(network, posterior, draws=8, chunk=8)(IMAGES)
    for chunk in (1, 3, 4, None):
        sampler = Sampler(network, posterior, draws=8, chunk=chunk)
        result = sampler(IMAGES)
        assert_same_codes(together, result)
        assert torch.equal(together.prediction, result.prediction)
    for index in (2, 0, 1):
        frame = slice(index, index + 1)
        assert_same_codes(together, sampler(IMAGES[frame]), frame)
    same, other = (
        Sampler(network, posterior, draws=8, chunk=8, seed=s)(IMAGES).scores["epistemic"]
        for s in (0, 1)
    )
    assert torch.equal(same, together.scores["epistemic"])
    assert not torch.equal(same, other), "the seed decides"


def test_a_network_that_another_chunk_has_run_has_not_changed() -> None:
    """``predict`` runs each input with a copy of one sampler."""
    sampler = Sampler(*model(0.3), draws=8)
    sampler.warns = False
    sampler.with_chunk(4)(IMAGES[:1])
    runners = [*sampler._runners]
    second = sampler.with_chunk(2)
    second(IMAGES[:1])
    assert [*second._runners] == runners
    assert not [note for note in second.report.messages if "has changed" in note]
    with torch.no_grad():
        next(sampler.network.parameters()).mul_(2)
    sampler.with_chunk(4)(IMAGES[:1])
    assert [note for note in sampler.report.messages if "has changed" in note]


def test_without_noise_the_draws_are_the_deterministic_network() -> None:
    deterministic = Sampler(small_network(), draws=24, scores=[*DEFAULT_SCORES, "logit-variance"])
    for sampler in (Sampler(*model(0.0, 1), draws=5), deterministic):
        found = sampler(IMAGES).scores
        assert sampler.report.messages == []
        assert float(found["epistemic"].max()) < 1e-6
        for name in ("msp", "entropy"):
            torch.testing.assert_close(
                found[name], found[f"deterministic-{name}"], atol=1e-5, rtol=1e-5
            )
    assert not found["logit-variance"].any()


def test_a_network_that_reorders_the_batch_runs_one_draw_at_a_time() -> None:
    network = randomise(Pixelwise(SequenceFirst()).eval())
    sampler = Sampler(network, posterior_of(network, 0.4, 1), draws=4)
    assert_maps_of_a_plain_loop(sampler, IMAGES)
    assert not sampler.report.batched
    assert any("one at a time" in message for message in sampler.report.messages)


def test_layers_that_are_never_called_are_reported() -> None:
    network = small_network()
    network.forward = lambda x: network.head(network.decoder(network.encoder(x)))  # type: ignore[method-assign]
    network.add_module("unused", nn.BatchNorm2d(4))
    sampler = Sampler(network, posterior_of(network, 0.1, 1), draws=2)
    sampler(IMAGES)
    assert sampler.report.unreached == ("unused",)


class OfFeatures:
    gives = frozenset(name for name, evidence in EVIDENCE.items() if evidence.source == "frame")

    def __call__(self, images: torch.Tensor, needs: Any, *_: Any) -> dict[str, torch.Tensor]:
        return {name: images.mean(1) for name in needs}


SURPRISE = Surprise((-1.0, 0.0, 4.0), 0.5)


@pytest.fixture(scope="module")
def every_score() -> Prediction:
    """Maps of all scores at the frames' own size."""
    total = ScoreSum(
        parts=("entropy", "knn"),
        weights=(1.0, 2.0),
        scales=(Standard(0.1, 0.5), Standard(0.2, 0.25)),
        surprise=SURPRISE,
        fitted_on={},
        frames=1,
        draws=4,
        temperature=1.0,
        base_sha256="",
        posterior_sha256=None,
        features_sha256=None,
    )
    sets = ClassSets(
        threshold=0.9,
        level=0.1,
        frames=20,
        risk=0.05,
        mean_size=2.0,
        promise="",
        condition="",
        draws=4,
        seed=0,
        fitted_on={},
        base_sha256="",
        posterior_sha256=None,
        temperature=1.0,
        calibrator_sha256=None,
    )
    fitted = Fitted(providers=[OfFeatures(), total, sets])
    sampler = Sampler(*model(), draws=4, scores=OF_PIXELS, fitted=fitted)
    return sampler(IMAGES, size=(37, 51), keep_probabilities=True)


def test_every_score_is_within_its_bounds(every_score: Prediction) -> None:
    assert list(every_score.scores) == OF_PIXELS
    assert every_score.prediction.shape == (3, 37, 51)
    for name, values in every_score.scores.items():
        score = SCORES[name]
        assert values.shape == (3, 37, 51)
        assert torch.isfinite(values).all(), name
        assert score.lower is None or float(values.min()) >= 0, name
        assert score.upper is None or float(values.max()) <= score.upper, name


def test_scores_of_one_frame_belong_together(every_score: Prediction) -> None:
    maps = every_score.scores
    expected = SURPRISE((maps["entropy"] - 0.1) / 0.5 + 2 * (maps["knn"] - 0.2) / 0.25)
    torch.testing.assert_close(maps["anomaly"], expected)
    torch.testing.assert_close(maps["msp"], 1 - every_score.probabilities.amax(1))  # type: ignore[union-attr]
    difference = maps["entropy"] - maps["aleatoric"]
    torch.testing.assert_close(maps["epistemic"], difference.clamp_min(0))


def test_rba_of_a_network_that_gives_logits_of_pixels_is_refused() -> None:
    with pytest.raises(
        InputError, match="rba is defined for networks that classify masks"
    ) as error:
        Sampler(*model(), draws=2, scores=["rba"])
    assert "deterministic-energy" in error.value.hint


def test_nan_weights_and_dead_alpha_are_errors() -> None:
    network, posterior = model(0.1, 2)
    dead = posterior.with_alpha(1e38)
    with pytest.raises(NotFiniteError, match="a draw gives NaN"):
        Sampler(network, dead, draws=2)(IMAGES)
    with torch.no_grad():
        network.head.weight[0] = float("nan")
    with pytest.raises(NotFiniteError, match="NaN or infinite logits"):
        Sampler(network, posterior, draws=2)(IMAGES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"draws": 1}, "1 draw is too few for 2 members"),
        ({"chunk": 0}, "chunk"),
        ({"scores": ["msp", "sharpness"]}, "no score 'sharpness'. Hint: choose one of msp, "),
        ({"scores": ["knn"]}, "finetune --method features"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Sampler(*model(), **given)


def test_networks_and_temperatures_that_cannot_be() -> None:
    for temperature in (0.0, math.nan):
        with pytest.raises(InputError, match="temperature"):
            Fitted(temperature)
    with pytest.raises(InputError, match="is not converted"):
        Sampler(small_network(), model()[1])
    pooled = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match="logits"):
        Sampler(pooled, posterior_of(pooled, 0.1, 1), draws=2)(IMAGES)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu() -> None:
    network, posterior = model(0.3)
    cpu = Sampler(network, posterior, draws=6)(IMAGES)
    network.cuda()
    gpu = Sampler(network, ABNNPosterior.around(AffineLayout(network), 0.3, 2), draws=6)(IMAGES)
    for name, values in cpu.scores.items():
        torch.testing.assert_close(gpu.scores[name].cpu(), values, atol=1e-4, rtol=1e-3)


AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
OTHERS = {
    "the same": {},
    "two threads": {"THREADS": "2"},
    "AVX2": AVX2,
}


def write_maps(path: Path) -> None:
    from safetensors.torch import save_file

    network, posterior = model(0.3)
    with threads(int(os.environ.get("THREADS", "1"))):
        result = Sampler(network, posterior, draws=6)(IMAGES[:2])
    save_file({**result.scores, "prediction": result.prediction.to(torch.uint8)}, path)


def made_by(environment: dict[str, str], folder: Path) -> dict[str, np.ndarray]:
    code = (
        "import sys; from pathlib import Path; "
        "from tests.sampling.test_sampler import write_maps; write_maps(Path(sys.argv[1]))"
    )
    path = folder / "maps.safetensors"
    subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, env={**os.environ, **environment}
    )
    return load_file(path)


@pytest.mark.parametrize("other", OTHERS)
def test_maps_of_another_process(other: str, tmp_path: Path) -> None:
    found = made_by(OTHERS[other], tmp_path)
    with threads(1):
        here = Sampler(*model(0.3), draws=6)(IMAGES[:2])
    for name, tensor in {**here.scores, "prediction": here.prediction}.items():
        values = tensor.numpy()
        if other == "the same" or name == "prediction":
            np.testing.assert_array_equal(found[name], values, err_msg=name)
        elif name in SHARES:
            assert codes_apart(found[name], values) <= 1, name
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.skipif(
    native_tail().functions is None, reason=f"no compiled tail: {native_tail().reason}"
)
def test_maps_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Sampler(*model(0.3), draws=6)(IMAGES)
    monkeypatch.setattr(
        sampler_module, "choose_backend", lambda device: ("reference", "no compiler")
    )
    found = Sampler(*model(0.3), draws=6)(IMAGES)
    assert found.scores.keys() == compiled.scores.keys()
    for name in SHARES:
        assert codes_apart(found.scores[name].numpy(), compiled.scores[name].numpy()) <= 2, name


def codes_apart(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(encode_unit(first).astype(int) - encode_unit(second)).max())
