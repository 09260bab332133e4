"""The shadows at the right edge of tables that can be scrolled, as a browser paints them."""

from __future__ import annotations

from typing import Any

SCROLLS = "(element) => element.scrollWidth > element.clientWidth"
HIDE = "(element) => { element.style.background = 'none'; }"
IMAGES = "(elements) => elements.map((element) => getComputedStyle(element).backgroundImage)"


def shadows_where_nothing_scrolls(page: Any, selector: str) -> list[int]:
    """Return the numbers of the elements in which nothing scrolls and that look otherwise without
    their background.
    """
    shadowed = []
    elements = page.query_selector_all(selector)
    for number, element in enumerate(elements):
        if element.evaluate(SCROLLS):
            continue
        before = element.screenshot()
        element.evaluate(HIDE)
        if element.screenshot() != before:
            shadowed.append(number)
    assert elements
    return shadowed


def backgrounds(page: Any, selector: str) -> set[str]:
    """Return the background images of all elements of a selector."""
    return set(page.eval_on_selector_all(selector, IMAGES))
