"""Cold start, latency of single frames and peak memory of an exported file, or of the sampler: `python -m tools.latency EXPORTED [MODEL]`."""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from segunc import Sampler, load
from segunc.exporting.check import check_frames
from segunc.exporting.graph import open_onnx

record = json.loads((Path(sys.argv[1]) / "model.json").read_text())
frame, start = check_frames(tuple(record["input"]["shape"][2:]))[0], time.perf_counter()
if sys.argv[2:]:
    model = load(sys.argv[2])
    run = Sampler(model.network, model.posterior if model.bayesian else None, draws=record["draws"], scores=[*record["scores"]])
else:
    run = open_onnx(Path(sys.argv[1]) / "model.onnx")
seconds = [(run(frame), time.perf_counter())[1] for _ in range(101)]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
times = ", ".join(f"{q:.3f}" for q in np.percentile(np.diff(seconds), (50, 95, 99)))
print(f"first maps after {seconds[0] - start:.2f} s; p50, p95, p99 {times} s; peak {peak:.2f} GiB; {torch.get_num_threads()} threads")
