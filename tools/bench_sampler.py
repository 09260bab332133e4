"""How near the sampler comes to the limit: S times the best network pass to low-resolution logits.

    python -m tools.bench_sampler --network DeepLabV3Plus --encoder resnet18 --size 512x1024 \\
        --draws 16 --json out.json

Every row runs in a process of its own, for its peak memory, and is the best of --repeats after a
warm-up. The weights are random: time and memory do not depend on them. Rows:

network_pass          one image to logits before the last upsampling: the best of eager, compiled
                      (inductor, frozen weights) and batch sizes, each of which is a row too
limit                 S times network_pass
deterministic         one image to an entropy map at full resolution, S times it is
                      deterministic_times_draws
maps                  the sampler: prediction, msp, entropy, aleatoric, epistemic and the base
                      network's scores (one more pass)
maps_SCOPE            maps with fewer stochastic layers
loop                  what people write by hand: S forward passes in float32, one noise a channel,
                      a stack of softmaxes
loop_element          the same with one noise for each element of every normalisation's output, as
                      public code does

Ratios: maps_over_limit = maps / limit, maps_over_deterministic = maps / (S x deterministic),
loop_over_maps = loop_element / maps, loop_over_decoder_maps = loop_element / maps_decoder,
extra_gib = peak memory of maps above that of deterministic, in GiB.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc import (
    ABNNPosterior,
    AffineLayout,
    NetworkDescription,
    Sampler,
    SegmentationNetwork,
    build_network,
    convert,
)
from segunc.core.device import Precision, choose_precision, resolve_device
from segunc.core.memory import keep_freed_memory
from segunc.options import image_size
from segunc.sampling.engine import Engine, bfloat16_copy
from segunc.uncertainty import entropy_from_probabilities
from tools.measuring import in_own_process, peak_bytes, provenance

ALPHA = 0.1
SCOPES = ("encoder", "decoder", "last:8", "every:4")
BATCHES = (1, 2, 4)
PROFILED = 12


class ElementNoise(nn.Module):
    """A batch norm with ``gamma (1 + alpha eps) x_hat + beta`` and one eps an element, as written
    by hand.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        normalised = F.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)
        weight, bias = norm.weight.view(1, -1, 1, 1), norm.bias.view(1, -1, 1, 1)
        return weight * (1 + ALPHA * torch.randn_like(normalised)) * normalised + bias


def hand_written_norms(
    module: nn.Module, make: Callable[[nn.BatchNorm2d], nn.Module] = ElementNoise
) -> None:
    """Replace every batch norm by its noisy form."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, make(child))
        else:
            hand_written_norms(child, make)


def by_hand(passes: Callable[[int], Tensor], draws: int) -> None:
    """Entropy, aleatoric and epistemic from a stack of softmaxes."""
    stack = torch.stack([passes(s).softmax(1) for s in range(draws)])
    entropy = entropy_from_probabilities(stack.mean(0))
    aleatoric = entropy_from_probabilities(stack, dim=2).mean(0)
    (entropy - aleatoric).clamp_min_(0)


def make_network(arguments: argparse.Namespace) -> SegmentationNetwork:
    """The network of all rows, in eval mode on its device."""
    classes = tuple(f"class {i}" for i in range(arguments.classes))
    network = build_network(NetworkDescription(arguments.network, arguments.encoder, classes))
    return network.eval().to(resolve_device(arguments.device), memory_format=torch.channels_last)


def job(row: str, arguments: argparse.Namespace) -> tuple[Callable[[], object], int]:
    """Return what a row runs, and how many images one run is worth."""
    torch.manual_seed(0)
    network = make_network(arguments)
    images = torch.rand(1, 3, *arguments.size, device=resolve_device(arguments.device))
    kind, _, rest = row.partition(" ")
    if kind == "pass":
        mode, batch = rest.split(" x")
        return pass_of(network, images, mode, int(batch), arguments), int(batch)
    if kind == "deterministic":
        return entropy_of(network, images, arguments), 1
    if kind == "loop_element":
        hand_written_norms(network)
        return lambda: by_hand(lambda draw: network(images), arguments.draws), 1
    convert(network.body)
    posterior = ABNNPosterior.around(AffineLayout(network), ALPHA)
    if kind == "loop":
        return loop_of(network, posterior, images, arguments.draws), 1
    return maps_of(network, posterior, images, rest or None, arguments), 1


def precision_of(network: SegmentationNetwork, arguments: argparse.Namespace) -> Precision:
    return choose_precision(arguments.precision, resolve_device(arguments.device), network)


def pass_of(
    network: SegmentationNetwork,
    images: Tensor,
    mode: str,
    batch: int,
    arguments: argparse.Namespace,
) -> Callable[[], object]:
    """Return a pass of a batch of equal images to logits before the last upsampling."""
    images = torch.cat([images] * batch).contiguous(memory_format=torch.channels_last)
    precision = precision_of(network, arguments)
    if mode == "eager":
        engine = Engine(network, precision)
        ending = engine.ending(images, None)
        return lambda: engine.logits(images, None, ending)[0]
    compiled = compiled_pass(network, precision)
    return lambda: compiled(images)


def entropy_of(
    network: SegmentationNetwork, images: Tensor, arguments: argparse.Namespace
) -> Callable[[], object]:
    """Return a pass to an entropy map at full resolution."""
    engine = Engine(network, precision_of(network, arguments))

    def run() -> Tensor:
        logits = engine.logits(images, None, None)[0]
        return entropy_from_probabilities(logits.float().softmax(1))

    return run


def loop_of(
    network: SegmentationNetwork, posterior: ABNNPosterior, images: Tensor, draws: int
) -> Callable[[], object]:
    """Return one pass for each draw, as people write it by hand."""
    layout = AffineLayout(network)

    def logits_of(draw: int) -> Tensor:
        with layout.active(posterior.affine(layout, [draw], 0)):
            logits: Tensor = network(images)
            return logits

    return lambda: by_hand(logits_of, draws)


def maps_of(
    network: SegmentationNetwork,
    posterior: ABNNPosterior,
    images: Tensor,
    scope: str | None,
    arguments: argparse.Namespace,
) -> Callable[[], object]:
    """Return the sampler's run to all maps."""
    options = {
        name: getattr(arguments, name) for name in ("chunk", "compiled") if name in arguments
    }
    sampler = Sampler(
        network,
        posterior,
        precision=precision_of(network, arguments),
        draws=arguments.draws,
        scope=scope,
        **options,
    )
    return lambda: sampler(images)


def compiled_pass(network: nn.Module, precision: str) -> Callable[[Tensor], Tensor]:
    """The network without its last upsampling through torch.compile, weights frozen on a CPU."""
    import torch._inductor.config as inductor

    inductor.freezing = next(network.parameters()).device.type == "cpu"
    run: Any = bfloat16_copy(network) if precision == "bfloat16" else network
    run.body.segmentation_head[1] = (
        nn.Identity()
    )  # of a network that ends without an upsampling it is one already
    # Not the network's own forward, which refuses logits of another size than its images.
    return torch.compile(lambda images: run.body((images - run.mean) / run.std), dynamic=False)


def measure(row: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of the best repeat (for one image) and the peak memory of this process in bytes."""
    torch.set_flush_denormal(True)
    keep_freed_memory()  # as the command line does
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    run, images = job(row, arguments)
    device = resolve_device(arguments.device)
    best = math.inf
    with torch.inference_mode(not row.startswith("pass compiled")), torch.no_grad():
        for repeat in range(arguments.repeats + 1):
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:  # the first is the warm-up
                best = min(best, time.perf_counter() - start)
    return {"seconds": best / images, "peak_bytes": peak_bytes(device)}


def profile(row: str, arguments: argparse.Namespace) -> str:
    """Where the time of one run of a row goes, by operator; the compiled tail and Python are what
    no operator accounts for.
    """
    torch.set_flush_denormal(True)
    keep_freed_memory()  # as the command line does
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    run, _ = job(row, arguments)
    with torch.inference_mode(not row.startswith("pass compiled")), torch.no_grad():
        run()
        start = time.perf_counter()
        with torch.profiler.profile() as profiler:
            run()
        seconds = time.perf_counter() - start
    rows = sorted(profiler.key_averages(), key=lambda e: e.self_cpu_time_total, reverse=True)
    shares = [
        (event.self_cpu_time_total / 1e6 / seconds, event.count, event.key)
        for event in rows[:PROFILED]
    ]
    lines = [f"{share:7.1%} {count:6d} x {key}" for share, count, key in shares]
    accounted = sum(event.self_cpu_time_total for event in rows) / 1e6 / seconds
    return "\n".join([f"{row}: {seconds:.3f} s", *lines, f"{1 - accounted:7.1%} outside operators"])


def run_row(row: str, words: list[str]) -> dict[str, float]:
    """One row in a fresh process; empty if it fails, with the reason on stderr."""
    found = in_own_process(__file__, [*words, "--row", row], row)
    if not found:
        return {}
    print(f"{row:28s} {found['seconds']:9.3f} s {found['peak_bytes'] / 2**30:7.2f} GiB", flush=True)
    return found


def ratios(rows: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """The ratios of the module's text; None where a row is missing."""

    def over(above: str, below: str) -> float | None:
        return (
            rows[above]["seconds"] / rows[below]["seconds"]
            if above in rows and below in rows
            else None
        )

    extra = None
    if "maps" in rows and "deterministic" in rows:
        extra = (rows["maps"]["peak_bytes"] - rows["deterministic"]["peak_bytes"]) / 2**30
    return {
        "maps_over_limit": over("maps", "limit"),
        "maps_over_deterministic": over("maps", "deterministic_times_draws"),
        "loop_over_maps": over("loop_element", "maps"),
        "loop_over_decoder_maps": over("loop_element", "maps_decoder"),
        "extra_gib": extra,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="DeepLabV3Plus")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--size", type=image_size, default=(512, 1024), metavar="HxW")
    parser.add_argument("--draws", type=int, default=16, metavar="S")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true", help="compile no pass for the limit")
    parser.add_argument(
        "--profile",
        metavar="ROW",
        help="print where the time of one row goes, instead of the table",
    )
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.profile:
        print(profile(arguments.profile, arguments))
        return
    if arguments.row:
        print(json.dumps(measure(arguments.row, arguments)))
        return
    modes = ("eager",) if arguments.no_compile else ("eager", "compiled")
    passes = [f"pass {mode} x{batch}" for mode in modes for batch in BATCHES]
    names = [
        *passes,
        "deterministic",
        "maps",
        *(f"maps {s}" for s in SCOPES),
        "loop",
        "loop_element",
    ]
    found = {name.replace("maps ", "maps_"): run_row(name, sys.argv[1:]) for name in names}
    rows = {name: row for name, row in found.items() if row}
    best = min(
        (name for name in passes if name in rows),
        key=lambda name: rows[name]["seconds"],
        default=None,
    )
    if best is not None:
        rows["network_pass"] = rows[best]
        rows["limit"] = {**rows[best], "seconds": arguments.draws * rows[best]["seconds"]}
    if "deterministic" in rows:
        alone = rows["deterministic"]
        rows["deterministic_times_draws"] = {**alone, "seconds": arguments.draws * alone["seconds"]}
    device = resolve_device(arguments.device)
    result = {
        **provenance(device),
        "draws": arguments.draws,
        "precision": choose_precision(arguments.precision, device, make_network(arguments)),
        "best_pass": best,
        "rows": rows,
        "ratios": ratios(rows),
    }
    print(f"best pass: {best}; limit {rows['limit']['seconds']:.3f} s" if best else "no pass ran")
    for name, value in ratios(rows).items():
        print(f"{name:28s} {'not measured' if value is None else f'{value:9.2f}'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
