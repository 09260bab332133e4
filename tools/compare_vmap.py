"""Could `torch.func.vmap` over the affine draws of a plain network replace the converted network and its engine?

    python -m tools.compare_vmap --size 256x512 --draws 6

CPU seconds of S draws of one frame of DeepLabV3+ ResNet-18 on one thread, the best of three after a warm-up, and the
logits' largest difference from the loop. Rows, in float32 and under bfloat16 autocast (the sampler: bfloat16 weights):

loop        S plain passes, each with the parameters of its draw
vmap 1, S   the same pass under vmap, one draw at a time and all at once
converted   the converted network with the draws as a batch, nothing shared, nothing left out
sampler     from the frame to its maps, the base network's too, a draw at a time
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from itertools import pairwise
from typing import cast, get_args

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from segunc import ABNNPosterior, AffineLayout, NetworkDescription, Sampler, build_network, convert
from segunc.core.device import Precision
from segunc.options import image_size
from tools.measuring import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=image_size, default=(256, 512), metavar="HxW")
    parser.add_argument("--draws", type=int, default=6, metavar="S")
    options = parser.parse_args()
    print(json.dumps(provenance()))
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    description = NetworkDescription("DeepLabV3Plus", "resnet18", tuple(map(str, range(19))))
    plain, network = (build_network(description).eval().to(memory_format=torch.channels_last) for _ in range(2))
    network.load_state_dict(plain.state_dict())
    convert(network)
    posterior = ABNNPosterior.around(layout := AffineLayout(network), 0.1)
    draws = posterior.affine(layout, list(range(options.draws)), 0)
    affine, expected = dict[str, Tensor](), torch.empty(0)
    for kind, values in (("weight", draws.weight), ("bias", draws.bias)):
        affine |= zip([f"{name}.{kind}" for name in layout.names], values.split(list(layout.channels), 1), strict=True)
    frame = torch.rand(1, 3, *options.size).contiguous(memory_format=torch.channels_last)

    def one(parameters: dict[str, Tensor]) -> Tensor:
        return cast(Tensor, functional_call(plain, parameters, frame))

    def loop() -> Tensor:
        return torch.stack([one({name: of[s] for name, of in affine.items()}) for s in range(options.draws)])

    def converted() -> Tensor:
        with layout.active(draws):
            return cast(Tensor, network(torch.cat([frame] * options.draws))[:, None])

    rows = {"loop": loop, "vmap 1": partial(vmap(one, chunk_size=1), affine), "vmap S": partial(vmap(one), affine)}
    for precision in get_args(Precision):
        sampler = Sampler(network, posterior, draws=options.draws, chunk=1, precision=precision)
        for name, run in (rows | {"converted": converted, "sampler": partial(sampler, frame)}).items():
            half = precision == "bfloat16" and name != "sampler"
            try:
                with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                    times = [(found := run(), time.process_time())[1] for _ in range(4)]
                said = f"{min(after - before for before, after in pairwise(times)):7.2f} s"
                if isinstance(found, Tensor):
                    expected = found if name == "loop" else expected
                    said += f" {float((found - expected).abs().max()):9.1e}"
            except Exception as error:  # that vmap has no rule for something is a result
                said = str(error).splitlines()[0]
            print(f"{precision:9s} {name:10s} {said}", flush=True)


if __name__ == "__main__":
    main()
