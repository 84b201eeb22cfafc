"""Files of a run on the page: listed, downloaded, and never run; a profile among them is a flame graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser_pages import fits_a_phone, press, show
from support.launch import Launch
from support.web_pages import begin, run_to_end
from tflaunch.features.profile.profiler import session_in
from tflaunch.store.run_dir import PROFILES_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.web

PAGE = "<script>document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def collecting(place: Launch) -> str:
    """A run that has collected a page with a script, under the name of one."""
    script = f"mkdir -p out && echo \"{PAGE}\" > 'out/<img src=x onerror=alert(1)>.html'"
    directory = place.directory / "collecting"
    directory.mkdir()
    fields: dict[str, Any] = {"collect": ["out/**"], "workdir": str(directory), "env": {"API_KEY": "correct-horse"}}
    return run_to_end(place, script, name="collecting", **fields)


def text_of(page: Page, selector: str) -> str:
    """Download what a link offers; return its text."""
    with page.expect_download() as begun:
        page.click(selector)
    return Path(begun.value.path()).read_text()


def test_files_are_listed_and_downloaded(page: Page, collecting: str) -> None:
    """With size and age; a page among them is stored and not opened, and a spec has no secret."""
    show(page, f"/#/{collecting}", ".table .row:has-text('worker:0')")
    press(page, "7", ".files h2:text-is('Collected')")
    name = "worker-0/out/<img src=x onerror=alert(1)>.html"
    assert page.locator(".files table[aria-label='Collected'] a").all_text_contents() == [name]
    assert page.locator(".files img").count() == 0
    assert "s ago" in (page.text_content(".files table[aria-label='Collected'] tr") or "")
    assert " to download" in (page.text_content(".files .note") or "")
    assert PAGE in text_of(page, ".files table[aria-label='Collected'] a")
    assert page.title() == f"{collecting} · tflaunch"
    assert '"API_KEY"' in text_of(page, "a:text-is('spec.json')")
    assert fits_a_phone(page)


def test_files_collected_at_the_end_appear(page: Page, place: Launch) -> None:
    directory = place.directory / "late"
    directory.mkdir()
    script = "while ! [ -e go ]; do sleep 0.1; done; echo 1 > result.txt"
    run = begin(place, script, 1, name="late", collect=["result.txt"], workdir=str(directory))
    show(page, f"/#/{run}/files", ".files h2:text-is('Logs')")
    page.wait_for_selector("code:has-text('tflaunch profile')")
    assert page.locator(".files h2:text-is('Collected')").count() == 0
    (directory / "go").touch()
    page.wait_for_selector(".files a:text-is('worker-0/result.txt')")


STACKS = """main thread;main (a.py:1);step (a.py:2);forward <img src=x> (a.py:3) 60
main thread;main (a.py:1);step (a.py:2);backward (a.py:4) 25
main thread;main (a.py:1);save (a.py:5) 5
reader (2);read (b.py:1) 10
"""
FORWARD = "forward <img src=x> (a.py:3)"
STAMP = "2026_01_02_03_04_05"


@pytest.fixture(scope="module")
def profiled(place: Launch) -> str:
    """A run with two profiles, one of which is damaged."""
    run = run_to_end(place, "true", 2, name="profiled")
    session = session_in(place.home / "runs" / run / PROFILES_NAME, STAMP)
    session.mkdir(parents=True)
    (session / "worker-0.folded").write_text(STACKS)
    (session / "worker-1.folded").write_text(STACKS + "cut off\n")
    return run


@pytest.fixture
def flame(page: Page, profiled: str) -> Page:
    """A page with the flame graph of worker:0."""
    page.goto(f"/#/{profiled}/files")
    page.click(f"[aria-label='Flame graph of {STAMP}/worker-0.folded']")
    page.wait_for_selector(f".flame h2:text-is('worker-0 · {STAMP}: 90 samples')")
    return page


def frame(page: Page, name: str) -> Locator:
    return page.locator(".frames button").filter(has_text=name)


def share(page: Page, name: str) -> float:
    """Return the width of a frame, as a share of the graph's."""
    whole, part = page.locator(".frames").bounding_box(), frame(page, name).bounding_box()
    assert whole is not None
    assert part is not None
    return part["width"] / whole["width"]


def test_a_frame_is_as_wide_as_its_share(flame: Page) -> None:
    """Its name is text, and the pointer on it shows how much it is; a click zooms."""
    assert share(flame, FORWARD) == pytest.approx(0.6, abs=0.01)
    assert share(flame, "backward") == pytest.approx(0.25, abs=0.01)
    assert flame.locator(".frames img").count() == 0
    frame(flame, FORWARD).hover()
    flame.wait_for_selector(f".flame .note:text-is('{FORWARD}: 60.0%, 60 samples')")
    frame(flame, "step").click()
    assert share(flame, FORWARD) == pytest.approx(60 / 85, abs=0.01)
    assert share(flame, "main (a.py:1)") == pytest.approx(1, abs=0.01)
    assert frame(flame, "save").count() == frame(flame, "reader").count() == 0
    flame.click("text=Whole profile")
    assert share(flame, FORWARD) == pytest.approx(0.6, abs=0.01)
    assert flame.locator("text=Whole profile >> visible=true").count() == 0


def test_the_keyboard_is_enough(flame: Page) -> None:
    """Arrows go from frame to frame, Enter zooms, Escape goes back: out of the zoom, and only then up."""
    frame(flame, "all threads").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowDown", "Enter"):
        flame.keyboard.press(key)
    assert share(flame, FORWARD) == pytest.approx(60 / 85, abs=0.01)
    assert flame.evaluate("document.activeElement.textContent") == "step (a.py:2)"
    for _ in range(3):
        flame.keyboard.press("Escape")
    assert share(flame, FORWARD) == pytest.approx(0.6, abs=0.01)
    press(flame, "Escape", ".tasks")


def test_functions_are_found_and_a_damaged_profile_is_named(flame: Page) -> None:
    """With how many of the samples are in them; the key is that of other searches."""
    flame.keyboard.press("Escape")
    flame.keyboard.press("/")
    flame.keyboard.type("WARD")
    assert flame.locator(".frames .found").all_text_contents() == [FORWARD, "backward (a.py:4)"]
    assert flame.text_content(".flame .note") == "85.0% of the samples are in what was found."
    flame.fill("[aria-label='Find a function']", "qqq")
    assert flame.text_content(".flame .note") == "No function matches."
    flame.click(f"[aria-label='Flame graph of {STAMP}/worker-1.folded']")
    flame.wait_for_selector(".flame .note:text-is('This file does not have the form of sampled stacks.')")
    assert flame.locator(".frames button").count() == 0
    flame.click("text=Close")
    assert flame.evaluate("document.activeElement.textContent") == "flame graph"
    assert fits_a_phone(flame)
