"""Files of a run on the page: listed, downloaded, and never run."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.launch import Launch
from support.web_pages import newest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.web

SECRET = "correct-horse-battery"
PAGE = "<script>document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def collecting(place: Launch) -> str:
    """A run that has collected a page with a script, under the name of one."""
    script = f"mkdir -p out && echo \"{PAGE}\" > 'out/<img src=x onerror=alert(1)>.html'"
    directory = place.directory / "collecting"
    directory.mkdir()
    spec = place.shell(
        script,
        1,
        name="collecting.json",
        strategy="none",
        collect=["out/**"],
        workdir=str(directory),
        env={"API_KEY": SECRET},
    )
    assert place.up(spec).returncode == 0
    return newest(place, "collecting")


def text_of(page: Page, selector: str) -> str:
    """Download what a link offers; return its text."""
    with page.expect_download() as begun:
        page.click(selector)
    return Path(begun.value.path()).read_text()


def test_files_are_listed_and_downloaded(page: Page, collecting: str) -> None:
    """With size and age; a page among them is stored and not opened, and a spec has no secret."""
    page.goto(f"/#/{collecting}")
    page.wait_for_selector(".table .row:has-text('worker:0')")
    page.keyboard.press("7")
    page.wait_for_selector(".files h2:text-is('Collected')")
    name = "worker-0/out/<img src=x onerror=alert(1)>.html"
    assert page.locator(".files table[aria-label='Collected'] a").all_text_contents() == [name]
    assert page.locator(".files img").count() == 0
    assert "s ago" in (page.text_content(".files table[aria-label='Collected'] tr") or "")
    assert " to download" in (page.text_content(".files .note") or "")
    assert PAGE in text_of(page, ".files table[aria-label='Collected'] a")
    assert page.title() == f"{collecting} · tflaunch"
    spec = text_of(page, "a:text-is('spec.json')")
    assert '"API_KEY"' in spec
    assert SECRET not in spec
    with page.expect_download() as begun:
        page.click("a:text-is('report')")
    with tarfile.open(begun.value.path()) as report:
        names = report.getnames()
    assert f"{collecting}-report/events.jsonl" in names
    assert not any("/logs/" in name for name in names)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_files_collected_at_the_end_appear(page: Page, place: Launch) -> None:
    directory = place.directory / "late"
    directory.mkdir()
    script = "while ! [ -e go ]; do sleep 0.1; done; echo 1 > result.txt"
    spec = place.shell(script, 1, name="late.json", strategy="none", collect=["result.txt"], workdir=str(directory))
    started = place.run("up", "-d", spec)
    assert started.returncode == 0, started.stderr
    page.goto(f"/#/{started.stdout.strip()}/files")
    page.wait_for_selector(".files h2:text-is('Logs')")
    page.wait_for_selector("code:has-text('tflaunch profile')")
    assert page.locator(".files h2:text-is('Collected')").count() == 0
    (directory / "go").touch()
    page.wait_for_selector(".files a:text-is('worker-0/result.txt')")


def test_a_board_that_does_not_run_has_its_command(page: Page, place: Launch) -> None:
    run = "tflaunch tensorboard "
    board = place.spec("board.json", cluster={"worker": 1}, command=["true"], strategy="none", tensorboard="logs/")
    place.up(board)
    page.goto(f"/#/{newest(place, 'board')}/files")
    page.wait_for_selector(f"code:has-text('{run}{newest(place, 'board')}')")
