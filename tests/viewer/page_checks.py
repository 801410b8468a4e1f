"""What every page of the viewer is held to, and keys pressed in it."""

from __future__ import annotations

import json
from typing import Any

from browser import Page

_NAMELESS_CONTROLS = """
[...document.querySelectorAll('button, input, select, textarea, a[href], [role=img], [tabindex="0"]')]
  .filter(e => e.checkVisibility())
  .filter(e => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim() || e.title))
  .map(e => e.outerHTML.slice(0, 120))
"""


def check_page(page: Page) -> None:
    """Everything has a name, nothing is wider than the window, and the console is silent."""
    assert page.evaluate(_NAMELESS_CONTROLS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.getElementById('main').scrollWidth <= document.getElementById('main').clientWidth")
    assert page.messages == []


def check_sizes_and_themes(page: Page) -> None:
    """The page that is shown, wide and narrow, light and dark."""
    page.evaluate("localStorage.clear(); delete document.documentElement.dataset.theme")
    for width, scheme in ((1400, "light"), (400, "light"), (400, "dark"), (1400, "dark")):
        page.resize(width, 900)
        page.prefer(scheme)
        check_page(page)
        ink, paper = (luminance(page, name) for name in ("color", "background-color"))
        assert (ink < paper) == (scheme == "light")
    page.prefer("light")


def luminance(page: Page, name: str) -> float:
    """How light a colour of the page is, from 0 to 255."""
    color = str(page.evaluate(f"getComputedStyle(document.body).getPropertyValue({json.dumps(name)})"))
    red, green, blue = (float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3])
    return (red + green + blue) / 3


def press(page: Page, key: str) -> None:
    """A real key, as a keyboard sends it. One character types itself."""
    text: dict[str, Any] = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
    page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def texts(page: Page, selector: str) -> list[str]:
    """The text of each element that matches."""
    found = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent.trim())"
    return list(page.evaluate(found))


def choose(page: Page, selector: str, value: str) -> None:
    """Choose an option of a list, as a reader does."""
    where = json.dumps(selector)
    page.evaluate(
        f"(() => {{ const list = document.querySelector({where}); list.value = {json.dumps(value)};"
        " list.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def write_into(page: Page, selector: str, value: str) -> None:
    """Type into a field or move a slider."""
    where = json.dumps(selector)
    page.evaluate(
        f"(() => {{ const field = document.querySelector({where}); field.value = {json.dumps(value)};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
