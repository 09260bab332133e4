"""Students: one pass, the draws z + d and z - d, what is trained, what is refused."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from segunc.baselines.distil import DistilConfig, Learner, Student
from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network
from segunc.networks.network import SegmentationNetwork
from segunc.sampling import Sampler
from segunc.uncertainty import energy, entropy_from_probabilities

TOY = label_map("toy")
SCORES = ("epistemic", "entropy", "aleatoric", "mean-energy", "deterministic-energy")
OPTIONS: dict[str, Any] = {"decoder_channels": 16, "decoder_atrous_rates": [2, 3, 4]}


def network(seed: int, **changed: Any) -> SegmentationNetwork:
    torch.manual_seed(seed)
    description = NetworkDescription("DeepLabV3Plus", "mobilenet_v2", TOY.classes, TOY.palette, OPTIONS)
    return build_network(replace(description, **changed)).eval()


def frames(height: int, width: int, count: int = 1) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


def flops(work: Any) -> int:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        work()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_student_is_two_draws_in_one_pass(precision: Any) -> None:
    learner = Learner(network(0), DistilConfig(head_channels=8))
    base = copy.deepcopy(learner.network)
    student = Student(learner.network, learner.head, learner.place.module)
    sampler = Sampler(student.network, student, scores=SCORES, precision=precision)
    tolerance = 1e-4 if precision == "float32" else 0.1
    for images in (frames(64, 96, 2), frames(50, 70), frames(64, 96, 2).flip(0, -1)):
        made = sampler(images, keep_probabilities=True)
        with torch.inference_mode():
            draws, plain = learner.logits(images).unflatten(0, (2, -1)), base(images)
        probabilities = draws.softmax(2)
        mean, nats = probabilities.mean(0), math.log(len(TOY.classes))
        expected = entropy_from_probabilities(probabilities.flatten(0, 1)).unflatten(0, (2, -1)).mean(0)
        epistemic = entropy_from_probabilities(mean) - expected
        torch.testing.assert_close(made.probabilities, mean, atol=tolerance, rtol=0)
        torch.testing.assert_close(made.scores["epistemic"], epistemic / nats, atol=tolerance, rtol=0)
        torch.testing.assert_close(
            made.scores["mean-energy"],
            energy(draws.flatten(0, 1)).unflatten(0, (2, -1)).mean(0),
            atol=tolerance,
            rtol=0,
        )
        torch.testing.assert_close(made.scores["deterministic-energy"], energy(plain), atol=tolerance, rtol=0)
        assert float(made.scores["epistemic"].mean()) > 1e-6
    images = frames(64, 96)
    sampler(images)  # the first pass of a size is watched
    head = flops(lambda: learner.head(torch.zeros(1, 16, 16, 24)))
    assert 0 < head == flops(lambda: sampler(images)) - flops(lambda: base(images))
