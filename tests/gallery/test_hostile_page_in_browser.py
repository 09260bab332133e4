"""A page made of a stranger's maps and verdicts: every name and note is a text, and what would still be inserted cannot run."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.gallery.page import run_id, write_verdicts
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from segunc.maps.verdicts import read_verdicts
from tests.gallery.browser import Visit
from tests.gallery.scenes import SIZE, write_page
from tests.maps.fakes import PALETTE
from tests.maps.foreign import write_map

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
CLASSES = (f"<img src=x onerror={OWN}>", f"</option></select><script>{OWN}</script>", f'" onfocus={OWN} autofocus="')
NOTE = f"<iframe srcdoc='<script>parent.{OWN}</script>'></iframe><script>{OWN}</script>\n=cmd|' /C calc'!A0"
INSERTED = "script:not([src]), script[src^='data:'], svg[onload], img[src='x'], iframe, plaintext, object, embed"


def ours(root: Path) -> Path:
    """Maps of this tool, whose classes, model and settings have hostile names, too."""
    run: dict[str, Any] = {"draws": 8, "seed": 1, "scope": CLASSES[0], "input": CLASSES[1]}
    model: dict[str, Any] = {"architecture": CLASSES[0], "method": CLASSES[1], "members": 4, "provenance": {NOTE: NOTE}}
    manifest = build_manifest(run, ("entropy",), device=NOTE, classes=CLASSES, palette=PALETTE, model=model)
    with MapsWriter(root / "maps", manifest) as writer:
        for place, name in enumerate(FRAMES):
            prediction = np.full(SIZE, place % 3, np.uint8)
            writer.write(name, {"prediction": prediction, "entropy": np.full(SIZE, place / 9, np.float32)})
    return root / "maps"


def foreign(root: Path) -> Path:
    """Maps of any tool, whose score has such a name."""
    for place, name in enumerate(FRAMES):
        for score in ("entropy", CLASSES[0], f"<svg onload={OWN}>"):
            write_map(root / "maps" / score / f"{name}.png", np.full(SIZE, 20 * place, np.uint8))
        write_map(root / "maps" / "prediction" / f"{name}.png", np.zeros(SIZE, np.uint8))
    return root / "maps"


def assert_nothing_ran(visit: Visit) -> None:
    assert visit.page.evaluate("window.owned") is None
    assert visit.page.locator(INSERTED).count() == 0


@pytest.mark.parametrize("write", [ours, foreign])
def test_names_and_notes_are_texts(tmp_path: Path, visit: Visit, write: Any) -> None:
    maps = write(tmp_path)
    index = write_page(maps, tmp_path / "review", scores=["all"])
    visit.page.on("dialog", lambda dialog: visit.complaints.append(dialog.message))
    page = visit.open(index, "order=source")
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
    assert [(one.frame, one.note, one.reviewer) for one in verdicts] == [(FRAMES[-1], NOTE, CLASSES[0])]
    # Laid beside the page, and imported into another's.
    write_verdicts(index.parent, run, verdicts)
    second = Visit(page.context.browser)  # type: ignore[arg-type]
    for fragment in ("", "view=run"):
        second.open(index, fragment)
        second.shown("#progress", "1 of 8 judged")
        assert_nothing_ran(second)
    second.page.set_input_files("#import-file", tmp_path / "verdicts.json")
    second.open_frame(index, FRAMES[-1])
    assert_nothing_ran(second)
    second.close()


INSERTIONS = """
const add = (tag, settings) => document.body.append(Object.assign(document.createElement(tag), settings));
add("script", { textContent: OWN });
add("script", { src: `data:text/javascript,${OWN}` });
add("script", { src: THERE });
add("div", { innerHTML: `<img src=x onerror=${OWN}><svg onload=${OWN}></svg><iframe srcdoc="<script>parent.${OWN}</script>">` });
add("a", { href: `javascript:${OWN}`, id: "link" });
document.getElementById("link").click();
add("img", { src: THERE });
add("iframe", { src: THERE });
add("link", { rel: "stylesheet", href: THERE });
add("object", { data: THERE });
const refused = [];
for (const call of [
  () => eval(OWN), () => setTimeout(OWN, 0), () => new Function(OWN)(), () => fetch(THERE).catch(() => 0),
  () => navigator.sendBeacon(THERE), () => new WebSocket(THERE.replace("http", "ws")), () => new Worker(THERE),
]) {
  try { call(); } catch { refused.push(1); }
}
document.documentElement.dataset.inserted = refused.length;
"""


def test_what_is_inserted_all_the_same_cannot_run_or_call(tmp_path: Path, browser: Any) -> None:
    """The page's policy, as Chromium keeps it: no inline code, no text as code, no connection, no frame. It is tried by a script of the
    page itself, for what a driver evaluates is above the policy."""
    index = write_page(ours(tmp_path), tmp_path / "review")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/"
        constants = f"const [OWN, THERE] = {json.dumps([OWN, there])};"
        (index.parent / "assets" / "inserted.js").write_text(constants + INSERTIONS)
        text = index.read_text(encoding="utf-8")
        index.write_text(text.replace("</body>", '<script src="assets/inserted.js"></script></body>'), encoding="utf-8")
        visit = Visit(browser)
        page = visit.open(index)
        page.wait_for_selector("html[data-inserted]")
        page.wait_for_timeout(300)
        assert page.evaluate("window.owned") is None
        # Chromium may open a connection ahead of asking the policy about a frame; nothing may be sent over it.
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = server.accept()
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError), connection:
                    assert connection.recv(1) == b""
    refused = [text for text in visit.complaints if "Content Security Policy" in text]
    assert len(refused) >= 15, visit.complaints
    page.context.close()
