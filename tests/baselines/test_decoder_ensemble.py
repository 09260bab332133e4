"""Decoder ensembles: what is trained, what is kept, and that a frame goes through the encoder once."""

import copy
import gc
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from segunc.affine.convert import ORIGIN
from segunc.affine.posterior import Branch, Deterministic
from segunc.baselines.decoder_ensemble import DecoderEnsemble, decoder_state
from segunc.baselines.decoder_task import DecoderTask
from segunc.baselines.mixtures import Ensemble
from segunc.core.errors import InputError
from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network, load_network, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.options import DoctorOptions, EvaluateOptions, FinetuneOptions
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.sampling.engine import own_tensors
from segunc.sampling.shortcuts import Prefix
from segunc.verbs.doctor import doctor
from segunc.verbs.evaluate import evaluate
from segunc.verbs.training import finetune

TOY = label_map("toy")
OPTIONS = {"decoder_channels": 16, "decoder_atrous_rates": [2, 3, 4]}


def network(seed: int, architecture: str = "DeepLabV3Plus", **options: Any) -> SegmentationNetwork:
    torch.manual_seed(seed)
    options = OPTIONS if architecture == "DeepLabV3Plus" else options
    return build_network(NetworkDescription(architecture, "mobilenet_v2", TOY.classes, TOY.palette, options)).eval()


def heads() -> DecoderEnsemble:
    return DecoderEnsemble(network(0), [decoder_state(network(seed)) for seed in (1, 2, 3)])


def flops(work: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


def frames(height: int, width: int, count: int = 1) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_heads_are_whole_networks_whose_encoder_runs_once_a_frame(precision: Any) -> None:
    ensemble = heads()
    parts = [copy.deepcopy(part.network) for part in ensemble.parts]
    apart = Ensemble([Branch(part, Deterministic()) for part in parts])
    shared = Sampler(ensemble.parts[0].network, ensemble, precision=precision, chunk=2)
    whole = Sampler(parts[0], apart, precision=precision)
    # Several frames, another size between, and other frames of the same size.
    for images in (frames(64, 96, 2), frames(96, 64), frames(64, 96, 2).flip(0, -1), frames(50, 70)):
        made, expected = (sampler(images, keep_probabilities=True) for sampler in (shared, whole))
        assert torch.equal(made.probabilities, expected.probabilities)  # type: ignore[arg-type]
        assert all(torch.equal(made.scores[name], expected.scores[name]) for name in made.scores)
        assert float(made.scores["epistemic"].mean()) > 1e-6
    images, base = frames(64, 96), ensemble.parts[0].network
    one, encoder = flops(lambda: base(images)), flops(lambda: base.body.encoder(images))  # type: ignore[union-attr, operator]
    shared(images), whole(images)  # the first pass of a size is watched
    assert flops(lambda: shared(images)) == encoder + 4 * (one - encoder)
    assert flops(lambda: whole(images)) == 4 * one
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Prefix], "features go with their frame"
    assert not any(hasattr(tensor, ORIGIN) for part in ensemble.parts for tensor in part.network.parameters())
    names = own_tensors([part.network for part in ensemble.parts])
    assert names
    assert not any("encoder" in name or name in ("mean", "std") for name in names)
    assert own_tensors([network(0), network(1)]) == frozenset()
    if precision == "bfloat16":
        encoders = {id(engine._run.body.encoder) for engine in shared._engines.values()}  # type: ignore[union-attr]
        assert len(encoders) == 1, "one copy of the encoder"


def test_a_step_trains_all_of_the_decoder_and_goes_through_no_encoder() -> None:
    base = network(0)
    before = copy.deepcopy(base.state_dict())
    task = DecoderTask(base, len(TOY.classes)).train()
    task.train(False).train()
    loss = task(frames(64, 64, 2)).square().mean()
    loss.backward()
    missing = [name for name, p in base.named_parameters() if ("encoder" in name) != (p.grad is None)]
    assert missing == []
    changed = {name for name, tensor in base.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed, "running statistics of the decoder"
    assert not any("encoder" in name for name in changed)


@pytest.fixture(scope="module")
def made(toy_set: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FinetuneOptions, Path]:
    """The options of a small run, and its base."""
    folder = tmp_path_factory.mktemp("decoders")
    save_network(network(0), folder / "base")
    config = folder / "decoders.yaml"
    config.write_text(
        f"data: {{dataset: toy, root: {toy_set}, crop: [64, 64], batch_size: 4}}\n"
        "decoder_ensemble: {heads: 3, epochs: 2, class_weight_power: 0.5}\ntrainer: {precision: 32-true}\n"
    )
    options = FinetuneOptions(base=folder / "base", config=config, out=folder / "model", method="decoder-ensemble", device="cpu")
    assert finetune(options).measured["steps"] == 8
    return options, folder


def test_heads_are_trained_stored_and_read_by_the_verbs(made: tuple[FinetuneOptions, Path], toy_set: Path, tmp_path: Path) -> None:
    _, folder = made
    model, base = load_model(folder / "model"), load_network(folder / "base")
    record = json.loads((folder / "model" / "posterior.json").read_text())
    assert (model.posterior.method, model.posterior.members, record["conversion"]) == ("decoder-ensemble", 3, None)
    states = [each.body.state_dict() for each in model.networks]
    assert len(states) == 3
    for name, tensor in base.body.state_dict().items():
        alike = [torch.equal(state[name], tensor) for state in states]
        if "encoder" in name:
            assert all(alike), name
        elif tensor.ndim == 4:
            assert alike == [True, False, False], name
            assert not torch.equal(states[1][name], states[2][name])
    encoders = {id(each.body.encoder) for each in model.networks}
    assert len(encoders) == 1
    stored = model.posterior.tensors()  # type: ignore[union-attr]
    assert {name.partition(".")[0] for name in stored} == {"1", "2"}
    assert not any("encoder" in name for name in stored)
    found = doctor(DoctorOptions(model=folder / "model", size=(64, 128), device="cpu"))
    assert found.failure == ""
    config, summed = tmp_path / "anomaly.yaml", tmp_path / "summed"
    config.write_text(f"data: {{dataset: toy, root: {toy_set}}}\nanomaly: {{parts: [deterministic-energy, entropy]}}\n")
    finetune(FinetuneOptions(base=folder / "model", out=summed, config=config, method="anomaly", device="cpu"))
    finetune(FinetuneOptions(base=summed, out=tmp_path / "tta", method="tta"))
    assert load_model(tmp_path / "tta").posterior.members == 4
    words: dict[str, Any] = {"dataset": "toy-anomaly", "split": "anomaly", "root": toy_set, "replicates": 0}
    evaluate(EvaluateOptions(model=summed, out=tmp_path / "metrics.json", device="cpu", **words))
    measured = json.loads((tmp_path / "metrics.json").read_text())
    assert 0 < measured["scores"]["anomaly"]["pooled"]["auroc"] <= 1


def test_a_finished_run_takes_no_step_and_gives_the_same_heads(made: tuple[FinetuneOptions, Path]) -> None:
    options, folder = made
    before = (folder / "model" / "posterior.safetensors").read_bytes()
    last = [path.stat().st_mtime_ns for path in sorted(folder.rglob("last.ckpt"))]
    assert len(last) == 2
    assert finetune(options).measured["steps"] == 8
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("last.ckpt"))] == last
    assert (folder / "model" / "posterior.safetensors").read_bytes() == before
    # A kill between two heads: the first is kept, the other is trained as it would have been.
    shutil.rmtree(folder / "model" / "checkpoints" / "heads" / "2")
    assert finetune(options).measured["steps"] == 8
    assert sorted(folder.rglob("last.ckpt"))[0].stat().st_mtime_ns == last[0]
    assert (folder / "model" / "posterior.safetensors").read_bytes() == before
    with pytest.raises(InputError, match=r"decoder_ensemble.lr 0.001 there, 0.5 asked for"):
        finetune(replace(options, settings=["--decoder_ensemble.lr=0.5"]))


def test_networks_that_have_no_decoder_behind_an_encoder_are_refused(
    made: tuple[FinetuneOptions, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = network(0)
    bare.body = nn.Sequential(nn.Conv2d(3, len(TOY.classes), 1))
    monkeypatch.setattr("segunc.baselines.decoder_ensemble.load_network", lambda base: bare)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="no part named encoder or backbone"):
        finetune(replace(made[0], out=out))
    assert not out.exists()
    bare.body = nn.Sequential()
    bare.body.add_module("encoder", nn.Conv2d(3, len(TOY.classes), 1))
    with pytest.raises(InputError, match="nothing behind its encoder"):
        decoder_state(bare)
