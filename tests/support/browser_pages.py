"""Pages of the server in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from support import waiting
from support.web_pages import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 1000 * waiting.PATIENCE  # milliseconds


def signed_in(browser: Browser, server: Server) -> Iterator[Page]:
    """Yield a page that is signed in; it must load nothing from elsewhere, and print no error."""
    context = browser.new_context(base_url=f"http://localhost:{server.port}", viewport={"width": 1280, "height": 860})
    name, _, value = server.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": f"http://localhost:{server.port}"}])
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if "//localhost:" in request.url else trouble.append(request.url))
    yield page
    context.close()
    trouble = [what for what in trouble if not what.startswith("data:")]
    assert not trouble, trouble


def fits_a_phone(page: Page) -> bool:
    """Return whether nothing on a page is wider than the screen of a phone."""
    page.set_viewport_size({"width": 390, "height": 844})
    fits: bool = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return fits
