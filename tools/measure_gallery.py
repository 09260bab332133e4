"""How fast the review gallery opens and scrolls with many frames, measured in Chromium.

    python -m tools.measure_gallery --frames 10000 --out gallery.json

The frames are generated: the table is that of real pages (ten scores, three statistics, labels), every frame has its own
two thumbnails, and no maps, which the gallery never loads. Prints a Markdown table; needs Playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.files import write_file
from segunc.gallery.frame_files import IMAGE, SHARES, STATISTICS, THUMBNAILS, FrameRow, write_data
from segunc.gallery.page import frame_table, write_review
from segunc.maps.encoding import encode_jpeg
from segunc.maps.manifest import build_manifest, tool_commit
from segunc.maps.store import MapsWriter
from segunc.scores import SCORES

PERCENTILES = {"median": 50, "95th percentile": 95, "longest": 100}
SCROLL = """async (leaps) => {
  const box = document.getElementById('scroller'), times = [];
  const place = box.getBoundingClientRect(), left = place.left + 60, middle = place.top + place.height / 2;
  const card = (height) => document.elementFromPoint(left, height)?.closest('li');
  let last = await new Promise(requestAnimationFrame), empty = 0;
  box.scrollTop = 0;
  for (let step = 0; step < 120; step++) {
    box.scrollTop += leaps ? box.scrollHeight / 121 : 120;
    const now = await new Promise((done) => requestAnimationFrame((time) => setTimeout(() => done(time))));
    times.push(now - last);
    last = now;
    // Two heights, because one may fall between two rows.
    if (!card(middle) && !card(middle + 40)) empty++;
  }
  return { times, empty };
}"""


def build(root: Path, frames: int, seed: int) -> Path:
    """A page of generated frames; the path of its index.html."""
    generator = np.random.default_rng(seed)
    manifest = build_manifest(
        {"draws": 24, "seed": seed, "scope": "all"},
        SCORES,
        device="generated",
        classes=("road", "other"),
        palette=((128, 64, 128), (0, 0, 142)),
    )
    with MapsWriter(root / "maps", manifest) as writer:
        zeros = np.zeros((64, 128), np.float32)
        writer.write("0", {"prediction": zeros.astype(np.uint8), **dict.fromkeys(SCORES, zeros)})
    index = write_review(root / "maps", root / "review")
    values = generator.random((frames, len(SCORES), len(STATISTICS) + len(SHARES)))
    rows = []
    for place in range(frames):
        row = FrameRow(f"drive/{place:06d}", place, (540, 960), [IMAGE, "prediction", *SCORES, "anomaly"])
        for number, score in enumerate(SCORES):
            drawn = [float(f"{value:.9g}") for value in values[place, number]]
            row.statistics[score] = dict(zip(STATISTICS, drawn[: len(STATISTICS)], strict=True))
            row.found[score] = dict(zip(SHARES, drawn[len(STATISTICS) :], strict=True))
        row.objects = place % 3
        rows.append(row)
        for content in (IMAGE, "entropy"):
            small = generator.integers(0, 256, (23, 40, 3), np.uint8)
            picture = np.repeat(np.repeat(small, 8, axis=0), 8, axis=1)[:180, :320]
            folder = index.parent / THUMBNAILS / f"{place:06d}"
            write_file(folder / f"{content}.jpg", encode_jpeg(np.ascontiguousarray(picture)))
    write_data(index.parent / "data" / "frames.js", "frames", frame_table(rows, SCORES, [None] * frames))
    return index


def measure(index: Path, runs: int) -> dict[str, Any]:
    """Times of ``runs`` visits in milliseconds: opening, sorting, searching, and frames while scrolling."""
    from playwright.sync_api import sync_playwright

    opened, sorted_, searched = [], [], []
    intervals: dict[str, list[float]] = {"wheel": [], "leaps": []}
    empty = 0
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(runs):
            context = browser.new_context(viewport={"width": 1500, "height": 900})
            page = context.new_page()
            start = time.perf_counter()
            page.goto(index.as_uri())
            page.wait_for_selector("html[data-ready]")
            # Two frames later the first cards have been painted; their pictures are waited for as well.
            page.evaluate("async () => Promise.all([...document.querySelectorAll('#cards img')].map(i => i.decode()))")
            opened.append(1000 * (time.perf_counter() - start))
            for way, times in intervals.items():
                scrolled = page.evaluate(SCROLL, way == "leaps")
                times += scrolled["times"]
                empty += scrolled["empty"]
            act = "async (changes) => { const start = performance.now(); segunc.state.set(changes);"
            act += " await new Promise(requestAnimationFrame); return performance.now() - start; }"
            sorted_.append(page.evaluate(act, {"score": "epistemic", "statistic": "p99"}))
            searched.append(page.evaluate(act, {"search": "99"}))
            context.close()
        version = browser.version
        browser.close()
    return {
        "chromium": version,
        "open_ms": sorted(opened),
        "sort_ms": sorted(sorted_),
        "search_ms": sorted(searched),
        "scroll_frame_ms": {
            way: {name: float(np.percentile(times, share)) for name, share in PERCENTILES.items()}
            for way, times in intervals.items()
        },
        "steps_without_a_card": empty,
    }


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="visits, each in a fresh profile (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="JSON", help="also write the numbers here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index = build(Path(folder), arguments.frames, arguments.seed)
        table_bytes = (index.parent / "data" / "frames.js").stat().st_size
        result = {"frames": arguments.frames, "table_bytes": table_bytes, **measure(index, arguments.runs)}
    result |= {"machine": platform.platform(), "processor": platform.machine(), "commit": tool_commit()}
    print(f"| gallery of {arguments.frames} generated frames, Chromium {result['chromium']} | ms |\n|---|---:|")
    for name, words in (("open", "opening, first pictures decoded"), ("sort", "sorting"), ("search", "searching")):
        print(f"| {words}, median of {arguments.runs} | {np.median(result[f'{name}_ms']):.0f} |")
        print(f"| {words}, slowest | {max(result[f'{name}_ms']):.0f} |")
    for way, words in (
        ("wheel", "scrolling by 120 pixels a frame"),
        ("leaps", "leaping through all frames in 120 steps"),
    ):
        for name, value in result["scroll_frame_ms"][way].items():
            print(f"| between two painted frames, {words}, {name} | {value:.1f} |")
    print(f"\n{result['steps_without_a_card']} of {240 * arguments.runs} scroll steps met a place without a card.")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
