"""What the page changes, and what it says where nothing can be done, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browser_pages import click, press, show, signed_in
from support.launch import Launch
from support.web_pages import Server, begin, newest, run_to_end

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.web

TRAINING = """trap 'echo heard; exit 3' USR1
i=0
while :; do i=$((i + 1)); echo "step $i"; sleep 0.2; done"""


@pytest.fixture
def restartable(place: Launch) -> Iterator[str]:
    """A live run whose tasks continue until they get USR1."""
    run = begin(place, TRAINING, name="asked", restart={"max": 3, "backoff": ["0s", "0s"]})
    yield run
    place.run("down", "-t", "0", run)


def question(page: Page) -> str:
    """Return what the open dialog says."""
    page.wait_for_selector("dialog[open]")
    return page.text_content("dialog") or ""


def test_an_ended_run_is_run_again_after_a_question(page: Page, place: Launch) -> None:
    """The page goes on to the new run; the old one has not changed."""
    run = run_to_end(place, "true", name="again")
    page.goto(f"/#/{run}")
    page.click("button:has-text('Run again')")
    assert f"Run {run} again?" in question(page)
    press(page, "Escape", "dialog", state="detached")
    assert newest(place, "again") == run
    page.click("button:has-text('Run again')")
    assert page.locator("dialog .danger").count() == 0
    page.click("dialog button:has-text('Run again')")
    page.wait_for_function("run => location.hash.startsWith('#/again-') && !location.hash.includes(run)", arg=run)
    page.wait_for_selector("h1 + .badge:text-is('succeeded')")
    assert place.status(run)["exit_code"] == 0


def test_tasks_are_restarted_and_signalled_after_questions(page: Page, restartable: str, place: Launch) -> None:
    show(page, f"/#/{restartable}/task/worker:1", ".logs .row:has-text('step 2')")
    page.click("button:has-text('Signal')")
    assert "Send a signal to worker:1?" in question(page)
    page.get_by_label("Signal", exact=True).select_option("SIGUSR1")
    click(page, "dialog .danger", ".logs .row:has-text('heard')")
    page.wait_for_selector(".figures div:has(dt:text-is('Attempt')) dd:text-is('1')")
    page.click(".actions button:has-text('Restart')")
    assert "Restart worker:1?" in question(page)
    click(page, "dialog .danger", ".figures div:has(dt:text-is('Attempt')) dd:text-is('2')")
    page.goto(f"/#/{restartable}")
    page.click(".actions button:has-text('Restart')")
    assert "Restart all tasks that train?" in question(page)
    press(page, "Escape", "dialog", state="detached")
    assert place.status(restartable)["state"] == "running"
    page.focus("button:has-text('Stop')")
    page.keyboard.press("Enter")  # the keyboard is enough
    assert "Stop" in question(page)
    press(page, "Enter", "h1 + .badge:text-is('stopped')")
    assert page.locator("button:has-text('Stop'):visible").count() == 0
    assert place.status(restartable)["exit_code"] == 143


@pytest.mark.thorough
def test_a_lost_server_and_an_ended_session_are_named(browser: Browser, restartable: str, place: Launch) -> None:
    """At once, on the page and in the dialog of an action; what was known stays."""
    own_server = Server(place)
    own_server.sign_in()
    page = next(signed_in(browser, own_server))
    show(page, f"/#/{restartable}", "h1 + .badge:text-is('first step')")
    own_server.process.kill()
    own_server.process.wait()
    page.wait_for_selector("#trouble:has-text('No answer since')")
    assert page.is_visible("h1 + .badge:text-is('first step')")
    page.click(".actions button:has-text('Stop')")
    click(page, "dialog .danger", "dialog .trouble:text-is('no answer: tflaunch web has ended or cannot be reached')")
    page.keyboard.press("Escape")
    again = Server(place, "--port", own_server.port)
    page.wait_for_selector(".panel:has-text('tflaunch web was started again: open the link that it printed')")
    again.stop()
    page.context.close()
