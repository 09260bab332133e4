"""How fast the review page opens, scrolls and plays, and how large it is, measured in Chromium.

    python -m tools.measure_gallery --frames 10000 --out gallery.json
    python -m tools.measure_gallery --maps DIR [--repeat 2000] [--exact]

The frames of the first are generated: the table is that of real pages (ten scores, three statistics, labels), every frame has its own
two thumbnails, and no maps, which the gallery never loads. The second writes the page of real maps, whose frames may be repeated
under new names. Prints a Markdown table; needs Playwright and a Chromium.
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
from segunc.maps.reader import MapsReader
from segunc.maps.shards import FRAMES_NAME, MANIFEST_NAME, iterate_lines
from segunc.maps.store import MapsWriter
from segunc.maps.sums import seal_line
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


def repeated(maps: Path, out: Path, images: Path, count: int) -> Path:
    """A maps folder of so many frames, whose files are those of a finished one of images under new names, and a folder of its images."""
    out.mkdir(parents=True)
    images.mkdir()
    source = Path(MapsReader(maps).manifest["run"]["input"])  # type: ignore[index]
    shutil.copy(maps / MANIFEST_NAME, out)
    records = [record for _, record in iterate_lines(maps / FRAMES_NAME)]
    for file in {file for record in records for file in record["files"].values()}:
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).hardlink_to(maps / file)
    lines = []
    for place in range(count):
        record = records[place % len(records)]
        picture = next(source.glob(f"{record['name']}.*"))
        (images / f"{place:06d}{picture.suffix}").symlink_to(picture)
        look = f"{place * 2654435761 % 2**64:016x}"
        lines.append(seal_line(record | {"name": f"{place:06d}", "index": place, "look": look}))
    (out / FRAMES_NAME).write_bytes(b"".join(lines))
    return out


def measure_frames(index: Path) -> dict[str, Any]:
    """Of real maps: milliseconds to the first frame and the next ones, and frames a second of playing, without and with what a threshold
    flags."""
    from playwright.sync_api import sync_playwright

    walk = """async (count) => { const times = [];
      for (let i = 0; i < count; i++) { const start = performance.now(); segunc.frame.step(1); await segunc.frame.ready();
        await new Promise(requestAnimationFrame); times.push(performance.now() - start); }
      return times; }"""
    play = """async (flags) => { const seen = [];
      segunc.state.set({ flags, threshold: 0.5, frame: segunc.table.name(0) }); await segunc.frame.ready();
      document.getElementById('speed').value = 4;
      let last = null;
      segunc.state.onChange((now, changed) => { if (changed.has('frame')) segunc.frame.ready().then(() => seen.push(performance.now())); });
      segunc.timeline.togglePlay(); const from = performance.now();
      while (performance.now() - from < 6000 && segunc.timeline.playing()) await new Promise((done) => setTimeout(done, 50));
      if (segunc.timeline.playing()) segunc.timeline.togglePlay();
      return seen.length > 2 ? 1000 * (seen.length - 1) / (seen.at(-1) - seen[0]) : null; }"""
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": 1500, "height": 900}).new_page()
        page.goto(index.as_uri())
        page.wait_for_selector("html[data-ready]")
        start = time.perf_counter()
        page.evaluate(
            "async () => { segunc.state.set({ view: 'frame', moments: 'all' }); await segunc.frame.ready(); }"
        )
        first = 1000 * (time.perf_counter() - start)
        following = page.evaluate(walk, 20)
        result = {"first_frame_ms": first, "next_frame_ms": sorted(following)}
        result |= {"play_fps": page.evaluate(play, False), "play_flagged_fps": page.evaluate(play, True)}
        browser.close()
    return result


def report_real(maps: Path, root: Path, repeat: int | None, exact: bool, runs: int) -> dict[str, Any]:
    """Write the page of real maps, measure it, and print the table."""
    images = None if repeat is None else root / "images"
    given = maps if images is None else repeated(maps, root / "maps", images, repeat or 0)
    started = time.perf_counter()
    index = write_review(
        given, root / "review", exact=exact, scores=["all"] if exact else None, fps=25.0, images=images
    )
    seconds = time.perf_counter() - started
    frames = len(MapsReader(given).frames)
    sizes = {
        part: sum(path.stat().st_size for path in (index.parent / part).rglob("*") if path.is_file())
        for part in ("", "frames", "thumbnails")
    }
    result = {
        "frames": frames,
        "exact": exact,
        "write_s": seconds,
        "page_bytes": sizes[""],
        **measure(index, runs),
        **measure_frames(index),
    }
    rows = {
        "page, MB": f"{sizes[''] / 1e6:.1f}",
        "page, MB a frame": f"{sizes[''] / 1e6 / frames:.2f}",
        "writing the page, s": f"{seconds:.1f}",
        "first cards, ms": f"{np.median(result['open_ms']):.0f}",
        "first frame, ms": f"{result['first_frame_ms']:.0f}",
        "next frame, median (longest), ms": f"{np.median(result['next_frame_ms']):.0f} ({max(result['next_frame_ms']):.0f})",
        "playing, frames/s": f"{result['play_fps']:.1f}",
        "playing with flagged regions, frames/s": f"{result['play_flagged_fps']:.1f}",
    }
    print(f"| {frames} frames, {'exact' if exact else 'condensed'}, Chromium {result['chromium']} | |\n|---|---:|")
    print("\n".join(f"| {words} | {value} |" for words, value in rows.items()))
    return result


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
    parser.add_argument("--maps", metavar="DIR", help="a finished maps folder of segunc: measure its page")
    parser.add_argument("--repeat", type=int, metavar="N", help="with --maps: so many frames of it, under new names")
    parser.add_argument("--exact", action="store_true", help="with --maps: carry the maps of all scores, whole")
    parser.add_argument("--out", metavar="JSON", help="also write the numbers here")
    arguments = parser.parse_args()
    if arguments.maps:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            result = report_real(Path(arguments.maps), root, arguments.repeat, arguments.exact, arguments.runs)
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        return
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
