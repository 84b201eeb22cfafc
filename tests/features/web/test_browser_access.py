"""Everybody can use the page: axe-core finds nothing in any view, and the keyboard reaches everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import axe_playwright_python
import pytest

from support.browser_pages import click, press, show

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.web

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
VIEWS = ["tasks", "logs", "timeline", "stacks", "hosts", "ran", "files", "task/worker:2"]


def findings(page: Page) -> list[str]:
    """Return what axe-core finds on a page, with the first place of each."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")["violations"]
    return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}" for each in found]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_axe_finds_nothing(page: Page, restarted_run: str, failed_run: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    ready = {"": ".table .space a", "compare": ".plan tr", failed_run: ".panel.bad", restarted_run: ".chart canvas"}
    paths = ["", f"compare/{failed_run}/{restarted_run}", restarted_run, *(f"{failed_run}/{view}" for view in VIEWS)]
    found: dict[str, list[str]] = {}
    for path in paths:
        show(page, f"/#/{path}", ready[path.partition("/")[0]])
        found[path] = findings(page)
    press(page, "?", "dialog[open]")
    found["?"] = findings(page)
    page.keyboard.press("Escape")
    page.goto(f"/#/{failed_run}")
    click(page, "button:has-text('Run again')", "dialog[open]")
    found["a question"] = findings(page)
    assert not any(found.values()), found


def test_each_key_does_what_the_list_of_keys_says(page: Page, failed_run: str) -> None:
    """From the list of runs to a task and back, without a pointer."""
    show(page, "/#/", f".table .space a:text-is('{failed_run}')")
    press(page, "?", "dialog dt:text-is('?') + dd:text-is('these keys')")
    assert page.locator("dialog dt").count() == 8
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type(failed_run)
    page.wait_for_function("() => document.querySelectorAll('.table .space .row:not([hidden])').length === 1")
    page.keyboard.press("Escape")
    assert page.input_value("input[type=search]") == failed_run
    page.keyboard.press("j")
    assert page.get_attribute(".table [role=grid]", "aria-activedescendant") == page.get_attribute(".chosen", "id")
    press(page, "Enter", ".panel.bad")
    for number, name in enumerate(page.locator(".tabs a").all_text_contents(), 1):
        press(page, str(number), f".tabs a[aria-current=page]:text-is('{name}')")
    page.keyboard.press("2")
    follow = page.get_by_role("button", name="Follow")
    assert follow.get_attribute("aria-pressed") == "true"
    page.keyboard.press("f")
    assert follow.get_attribute("aria-pressed") == "false"
    page.keyboard.press("1")
    for key in ("j", "ArrowDown", "k", "ArrowUp", "j"):
        page.keyboard.press(key)
    assert page.text_content(".table .chosen a") == "worker:1"
    press(page, "Enter", "h1:text-is('worker:1')")
    press(page, "Escape", f"h1:text-is('{failed_run}')")
    press(page, "b", "h1:text-is('Runs')")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_paper_has_all_tasks_in_ink(page: Page, failed_run: str) -> None:
    """Also those that the screen had no room for; what only a screen can do is left out."""
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1280, "height": 300})
    show(page, f"/#/{failed_run}/logs", ".logs .row:has-text('IndexError')")
    lines = page.locator(".logs .row:not([hidden])").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".logs .row:not([hidden])").count() >= lines
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible("#top")
    assert not page.is_visible(".tabs")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
