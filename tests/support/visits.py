"""A visitor of the review page in a headless Chromium."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from tests.support.scenes import SIZE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Visit:
    """One visitor of a page, with the addresses that it asked for and everything that it complained
    of.
    """

    def __init__(self, browser: "Browser", **settings: Any) -> None:
        settings.setdefault("viewport", {"width": 1400, "height": 900})
        self._context = browser.new_context(accept_downloads=True, **settings)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._on_failed)

    def _on_console(self, message: Any) -> None:
        # The page reads no canvas back; tests do.
        if message.type in ("error", "warning") and "willReadFrequently" not in message.text:
            self.complaints.append(message.text)

    def _on_failed(self, request: Any) -> None:
        # A picture that is still on its way when the visitor leaves or reloads the page is given
        # up, not missing.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.url}: {request.failure}")

    def open(self, index: Path, fragment: str = "") -> "Page":
        """Open a page from disk and wait until it stands."""
        self.page.goto("about:blank")  # a new fragment alone would not load it anew
        self.page.goto(f"{index.as_uri()}#{fragment}")
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def open_frame(self, index: Path, name: str, more: str = "") -> None:
        """Open the view of a frame and wait for its picture and, where a pixel is asked for, the
        values of all of its maps.
        """
        self.open(index, f"view=frame&frame={quote(name, safe='')}{more}")
        self.shown("#frame-name", name)
        self.valued()

    def valued(self) -> None:
        self.until(
            "[...document.querySelectorAll('#values dd')].every((cell) => cell.textContent !== '…')"
        )

    def names(self) -> list[str]:
        return self.page.locator("#cards .name").all_inner_texts()

    def pixels(self, canvas: str) -> npt.NDArray[np.int64]:
        """Colours of a canvas, ``[pixels, 4]`` of red, green, blue and alpha, row by row."""
        data = self.page.evaluate(
            f"(() => {{ const c = document.querySelector('{canvas}');"
            " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; })()"
        )
        return np.array(data, np.int64).reshape(-1, 4)

    def shown(self, selector: str, text: str) -> None:
        """Wait until an element holds a text; the error says what it holds instead."""
        # Where Playwright is missing, tests skip before this.
        from playwright.sync_api import TimeoutError as Late

        try:
            self.page.locator(selector, has_text=text).first.wait_for()
        except Late as error:
            instead = self.page.locator(selector).all_inner_texts()
            raise AssertionError(
                f"{selector} holds {instead} in place of '{text}'; {self.complaints}"
            ) from error

    def until(self, expression: str) -> None:
        """Wait until an expression holds. Playwright's own waiting evaluates text in the page,
        which the page forbids.
        """
        deadline = time.monotonic() + 30
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(20)

    def close(self) -> None:
        """End the visit; the page must have been silent and must have asked for nothing but its own
        files.
        """
        self._context.close()
        assert not self.complaints, self.complaints
        strangers = [
            url for url in self.requests if not url.startswith(("file://", "blob:", "about:blank"))
        ]
        assert not strangers, strangers


def name_reviewer(visit: Visit, name: str) -> None:
    visit.page.click("#reviewer-button")
    visit.page.fill("#reviewer-name", name)
    visit.page.keyboard.press("Enter")
    visit.shown("#reviewer-button", name)


def inside_of(path: str) -> set[tuple[int, int]]:
    """Return the pixels (x, y) that an outline of horizontal and vertical steps encloses: those
    with an odd number of vertical ones to the left."""
    walls = np.zeros(SIZE, int)
    for x, top, bottom in re.findall(r"M(\d+) (\d+)V(\d+)", path):
        walls[int(top) : int(bottom), int(x)] += 1
    return {(x, y) for y, x in np.argwhere(np.cumsum(walls, axis=1) % 2)}
