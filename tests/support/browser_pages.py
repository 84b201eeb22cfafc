"""Pages of the server in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from support import waiting
from support.web_pages import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 1000 * waiting.PATIENCE  # milliseconds
_CHANGED = "ERR_NETWORK_CHANGED"
_MOST_LOADS = 20


def signed_in(browser: Browser, server: Server) -> Iterator[Page]:
    """Yield a page that is signed in; it must load nothing from elsewhere, and print no error.

    Chromium ends its requests when the machine gets or loses a network interface, as it does for tests with Docker: a
    page that loses a part of itself so is loaded again.
    """
    context = browser.new_context(base_url=f"http://localhost:{server.port}", viewport={"width": 1280, "height": 860})
    name, _, value = server.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": f"http://localhost:{server.port}"}])
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    lost: list[str] = []
    page.on("requestfailed", lambda request: lost.append(request.url) if _CHANGED in (request.failure or "") else None)
    page.on("request", lambda request: None if "//localhost:" in request.url else trouble.append(request.url))
    load = page.goto

    def goto(path: str) -> None:
        again: Callable[[], object] = partial(load, path)
        for _ in range(_MOST_LOADS):
            lost.clear()
            try:
                again()
            except Exception as error:
                if _CHANGED not in str(error):
                    raise
            else:
                if not lost:
                    return
                again = page.reload  # the same address would only be gone to within the page

    page.goto = goto  # type: ignore[assignment, method-assign]
    yield page
    context.close()
    trouble = [what for what in trouble if not what.startswith("data:") and _CHANGED not in what]
    assert not trouble, trouble


def show(page: Page, path: str, selector: str) -> None:
    """Open a view, and wait until it has something."""
    page.goto(path)
    page.wait_for_selector(selector)


def press(page: Page, key: str, selector: str, **how: Any) -> None:
    page.keyboard.press(key)
    page.wait_for_selector(selector, **how)


def click(page: Page, what: str, selector: str) -> None:
    page.click(what)
    page.wait_for_selector(selector)


def fits_a_phone(page: Page) -> bool:
    """Return whether nothing on a page is wider than the screen of a phone."""
    page.set_viewport_size({"width": 390, "height": 844})
    fits: bool = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return fits
