"""Latency of single frames, as JSON for `report --latency`, of an export or of the sampler: `python
-m tools.latency EXPORTED [MODEL]`.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from segunc import Sampler, load
from segunc.exporting.check import check_frames
from segunc.exporting.graph import open_onnx
from tools.measuring import provenance

record = json.loads((Path(sys.argv[1]) / "model.json").read_text())
size = [
    side or usual for side, usual in zip(record["input"]["shape"][2:], (512, 1024), strict=True)
]
frame, start = check_frames(tuple(size))[0], time.perf_counter()
if sys.argv[2:]:
    model, scores = load(sys.argv[2]), [*record["scores"]]
    record |= {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256}
    run = Sampler(
        model.network,
        model.posterior,
        draws=record["draws"],
        scores=scores,
        fitted=model.fitted(scores),
    )
else:
    run = open_onnx(Path(sys.argv[1]) / "model.onnx")
seconds = [(run(frame), time.perf_counter())[1] for _ in range(101)]
found = {
    "kind": "segunc latency",
    "version": 1,
    **{key: record[key] for key in ("base_sha256", "posterior_sha256", "draws")},
}
found |= {
    "what": "sampler" if sys.argv[2:] else "ONNX Runtime",
    "size": size,
    "frames": len(seconds) - 1,
}
found |= {
    "first": seconds[0] - start,
    **dict(zip(("p50", "p95", "p99"), np.percentile(np.diff(seconds), (50, 95, 99)), strict=True)),
}
print(
    json.dumps(
        found
        | {
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            **provenance(),
        },
        indent=2,
    )
)
