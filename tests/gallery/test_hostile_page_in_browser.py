"""A page made of a stranger's maps and verdicts: every name and note is a text, and what would
still be inserted cannot run.
"""

from pathlib import Path
from typing import Any

import numpy as np

from segunc.gallery.review_page import run_id, write_verdicts
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from segunc.maps.verdicts import read_verdicts
from tests.maps.fakes import PALETTE
from tests.support.scenes import SIZE, write_page
from tests.support.visits import Visit

OWN = "window.owned=1"
FRAMES = (
    f'"><img src=x onerror={OWN}>',
    f"</script><script>{OWN}</script>",
    f"<svg onload={OWN}>",
    f"';{OWN};'",
    f"${{{OWN}}}",
    f"javascript:{OWN}",
    "--><!--<plaintext>",
    "\u2028\u202e{{constructor}}",
)
CLASSES = (
    f"<img src=x onerror={OWN}>",
    f"</option></select><script>{OWN}</script>",
    f'" onfocus={OWN} autofocus="',
)
NOTE = (
    f"<iframe srcdoc='<script>parent.{OWN}</script>'></iframe><script>{OWN}</script>\n"
    "=cmd|' /C calc'!A0"
)
INSERTED = (
    "script:not([src]), script[src^='data:'], svg[onload], img[src='x'], "
    "iframe, plaintext, object, embed"
)


def hostile_maps(root: Path) -> Path:
    """Maps whose classes, model and settings have hostile names, too."""
    run: dict[str, Any] = {
        "draws": 8,
        "seed": 1,
        "scope": CLASSES[0],
        "input": CLASSES[1],
    }
    model: dict[str, Any] = {
        "architecture": CLASSES[0],
        "method": CLASSES[1],
        "members": 4,
        "provenance": {NOTE: NOTE},
    }
    manifest = build_manifest(
        run, ("entropy",), device=NOTE, classes=CLASSES, palette=PALETTE, model=model
    )
    with MapsWriter(root / "maps", manifest) as writer:
        for place, name in enumerate(FRAMES):
            prediction = np.full(SIZE, place % 3, np.uint8)
            writer.write(
                name, {"prediction": prediction, "entropy": np.full(SIZE, place / 9, np.float32)}
            )
    return root / "maps"


def assert_nothing_ran(visit: Visit) -> None:
    assert visit.page.evaluate("window.owned") is None
    assert visit.page.locator(INSERTED).count() == 0


def test_names_and_notes_are_texts(tmp_path: Path, visit: Visit) -> None:
    maps = hostile_maps(tmp_path)
    index = write_page(maps, tmp_path / "review", scores=["all"])
    visit.page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    page = visit.open(index, "order=source")
    policy = page.locator("meta[http-equiv='Content-Security-Policy']").get_attribute("content")
    assert policy == (
        "default-src 'none'; script-src 'self' file:; style-src 'self' file:; "
        "img-src 'self' file: blob: data:"
    )
    assert sorted(visit.names()) == sorted(FRAMES)
    assert_nothing_ran(visit)
    for name in FRAMES:
        visit.open_frame(index, name)
        page.keyboard.press("1")
        assert_nothing_ran(visit)
    page.keyboard.press("m")
    page.keyboard.type(CLASSES[0])  # a reviewer's name
    page.keyboard.press("Enter")
    page.fill("#note", NOTE)
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.click("#export-json")
    download.value.save_as(tmp_path / "verdicts.json")
    run = run_id(MapsReader(maps))
    verdicts = read_verdicts(tmp_path / "verdicts.json", run, MapsReader(maps).frames)
    (verdict,) = verdicts
    assert verdict.frame == FRAMES[-1]
    assert verdict.note == NOTE
    assert verdict.reviewer == CLASSES[0]
    # Laid beside the page, and imported into another's.
    write_verdicts(index.parent, run, verdicts)
    second = Visit(page.context.browser)  # type: ignore[arg-type]
    second.open(index, "view=run")
    second.page.set_input_files("#import-file", tmp_path / "verdicts.json")
    second.shown("#notices", "0 verdicts taken, 1 were already here")
    second.open_frame(index, FRAMES[-1])
    second.shown("#others", CLASSES[0])
    assert_nothing_ran(second)
    second.close()
