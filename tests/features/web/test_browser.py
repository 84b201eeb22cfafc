"""The page in a real browser: Debian's chromium without a window."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.browser_pages import PATIENCE, click, press, show, signed_in
from support.launch import Launch, clean_launch
from support.readable import AGES, DURATIONS, SIGNALS
from support.web_pages import TRAINING, Server, SimulatedRun, begin, newest, run_to_end
from tflaunch.features.history.history_recorder import HistoryWriter
from tflaunch.store.history import Figures, Moment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.web

TASKS = 1000
LATER = """([selector, step]) => {
  const steps = document.querySelector(selector).textContent.matchAll(/step (\\d+)/g);
  return Math.max(0, ...[...steps].map((found) => Number(found[1]))) > step + 2;
}"""
"""Whether an element shows a later step."""
AT_END = """() => {
  const { scrollTop, clientHeight, scrollHeight } = document.querySelector(".logs .virtual");
  return scrollHeight - scrollTop - clientHeight < 30;
}"""
"""Whether the end of the log is shown."""


class Matrix(NamedTuple):
    """Runs of a matrix and their server."""

    server: Server
    better: str
    worse: str
    failed: str


@pytest.fixture
def thousand(place: Launch, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRun]:
    """A live run of 1,000 tasks without any process."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(place.home))
    run = SimulatedRun(place.home, TASKS)
    yield run
    run.end()


def step_in(page: Page, selector: str) -> int:
    """Return the largest step that an element shows, 0 if none."""
    return max(map(int, re.findall(r"step (\d+)", page.text_content(selector) or "")), default=0)


def test_the_link_of_the_terminal_opens_the_page(browser: Browser, server: Server, failed_run: str) -> None:
    """Once; a second browser gets a page that says what to do."""
    link = server.link
    for expected in (failed_run, "This page opens with the link that tflaunch web prints"):
        context = browser.new_context()
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        show(page, link, f"text={expected}")
        context.close()
    server.link = server.next_link()


def test_durations_ages_and_signals_read_as_in_the_terminal(page: Page) -> None:
    page.goto("/")
    for function, expected in (("duration", DURATIONS), ("ago", AGES), ("signalName", SIGNALS)):
        parts = "import('/static/parts.js')"
        shown = page.evaluate(f"values => {parts}.then((it) => values.map(it.{function}))", [*expected])
        assert dict(zip(expected, shown, strict=True)) == expected


def test_a_training_is_followed_live(page: Page, place: Launch) -> None:
    """Steps grow in the table, charts appear, the log follows and can be searched."""
    run = begin(place, TRAINING, 3, name="night")
    page.goto(f"/#/{run}")
    page.wait_for_function(LATER, arg=[".facts", step_in(page, ".facts")])
    page.wait_for_selector(".chart canvas")
    page.wait_for_function("() => document.querySelector('.chart').getAttribute('aria-label') === 'loss'")
    assert page.locator(".table .space .badge:visible").all_text_contents() == ["running"] * 3
    press(page, "2", ".logs .row:has-text('of worker:2')")
    page.wait_for_function(LATER, arg=[".logs .space", step_in(page, ".logs .space")])
    page.wait_for_function(AT_END)
    page.keyboard.press("/")
    page.keyboard.type("step 2 of worker:1")
    page.wait_for_function("() => document.querySelectorAll('.logs .row:not([hidden])').length === 1")
    assert page.text_content(".logs mark") == "step 2 of worker:1"
    press(page, "Enter", "text=1 lines of the whole log")
    page.fill(".logs input[type=search]", "qqq")
    page.wait_for_selector(".logs .empty:visible:text-is('No line matches.')")
    assert place.run("down", "-t", "0", run).returncode == 0


def test_the_guilty_task_is_two_clicks_away(page: Page, failed_run: str) -> None:
    """From the list of runs: the failed run, then the task that its panel names; there is its traceback."""
    page.goto("/")
    click(page, f"text={failed_run}", ".table .row:has-text('SIGTERM')")
    assert "worker:2 exited with code 1" in (page.text_content(".panel.bad .verdict") or "")
    click(page, ".panel .culprit", "h1:text-is('worker:2')")
    page.wait_for_selector(".logs .row.grave:has-text('IndexError')")
    assert "IndexError: list index out of range" in (page.text_content(".panel.bad pre") or "")
    page.wait_for_selector(".plan pre:has-text('\"index\": 2')")
    assert "correct-horse" not in page.content()
    page.keyboard.press("b")
    page.keyboard.press("3")
    lane = page.wait_for_selector(".lane i.bad")
    assert "exited with code 1 (IndexError" in (lane.get_attribute("title") or "")
    assert page.locator(".lane i:visible").count() == 4
    ticks = page.locator(".axis i").all_text_contents()
    assert len(set(ticks)) == len(ticks) == 5, ticks


def test_a_run_that_does_not_exist_is_named(browser: Browser, server: Server) -> None:
    page = next(signed_in(browser, server))
    for path in ("/#/no-such-run", "/#/no-such-run/task/worker:0"):
        page.goto("about:blank")
        show(page, path, ".panel:visible:has-text('no-such-run')")
        assert "open the link" not in (page.text_content("body") or "")
        assert page.locator("button:has-text('Restart'):visible").count() == 0
    page.context.close()  # its console has the refusal, too


def test_a_log_says_that_it_begins_later(page: Page, place: Launch, failed_run: str) -> None:
    """Its first lines are found by the search of the whole log."""
    words = ".logs .note:visible:has-text('Earlier lines are left out here')"
    show(page, f"/#/{run_to_end(place, 'seq 100000 103000', name='long')}/logs", words)
    page.fill(".logs input[type=search]", "100007")
    press(page, "Enter", ".logs .row:has-text('100007')")
    show(page, f"/#/{failed_run}/logs", ".logs .row:has-text('IndexError')")
    assert page.locator(words).count() == 0


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Two runs of a matrix that have ended, the first of which is better, and one that has failed.

    They have a home of their own, as a queue waits for the other runs of its home.
    """
    script = TRAINING.replace("0.5}", "{matrix.lr}$i}").replace("sleep 0.2", "sleep 0.02; [ $i = 16 ] && exit")
    with clean_launch(tmp_path_factory.mktemp("matrix")) as place:
        assert place.up(place.shell("exit 1", 1, strategy="none", name="broken.json", restart={"max": 0})).returncode
        place.succeed("up", place.shell(script, 1, strategy="none", name="sweep.json"), "--matrix", "lr=0.1,0.2", "-q")
        server = Server(place)
        server.sign_in()
        yield Matrix(server, newest(place, "sweep-lr0.1"), newest(place, "sweep-lr0.2"), newest(place, "broken"))
        server.stop()


@pytest.fixture
def page_of_matrix(browser: Browser, matrix: Matrix) -> Iterator[Page]:
    yield from signed_in(browser, matrix.server)


def test_the_best_run_of_a_matrix_is_found_and_compared_in_four_clicks(page_of_matrix: Page, matrix: Matrix) -> None:
    """The column of its loss, two boxes, and Compare; then curves, and what differs."""
    page, runs = page_of_matrix, [matrix.better, matrix.worse]
    page.goto("/#/")
    page.get_by_role("button", name="loss").dblclick()
    first = page.locator(".table .space .row:not([hidden])").first
    page.wait_for_function("name => document.querySelector('.table .space a')?.textContent === name", arg=matrix.better)
    assert first.locator("span", has_text="0.116").count() == 1
    for run in runs:
        page.get_by_label(f"Choose {run}").check()
    page.get_by_role("button", name="Compare 2").click()
    page.wait_for_selector(".compared .uplot")
    assert page.locator(".compared .chart").first.get_attribute("aria-label") == "loss"
    assert page.locator(".legend a").all_text_contents() == runs
    cells = page.locator(".plan tr", has_text="matrix.lr").locator("td").all_text_contents()
    assert cells == ["0.1", "0.2"]
    press(page, "Escape", "[aria-label='Filter runs']")


def test_runs_are_filtered_by_state_and_job_and_grouped(page_of_matrix: Page, matrix: Matrix) -> None:
    page = page_of_matrix
    page.goto("/#/")
    names = page.locator(".table .space .row:not([hidden]):not(.grouped) a")
    page.wait_for_selector(f"text={matrix.failed}")
    page.get_by_label("State").select_option("failed")
    assert names.all_text_contents() == [matrix.failed]
    page.get_by_label("Job").select_option("sweep")
    assert page.is_visible("text=No run matches.")
    page.get_by_label("State").select_option("all states")
    assert set(names.all_text_contents()) == {matrix.better, matrix.worse}
    page.get_by_role("button", name="Group by job").click()
    assert page.locator(".row.grouped:not([hidden]) .group").all_text_contents() == ["sweep · 2 runs"]


def test_of_a_thousand_tasks_only_those_in_view_are_rows(page: Page, thousand: SimulatedRun) -> None:
    show(page, f"/#/{thousand.name}", ".table .row:has-text('worker:0')")
    assert page.locator(".table .space .row").count() < 40
    page.evaluate("document.querySelector('.table .virtual').scrollTop = 79 * 400")
    page.wait_for_selector(".table .row:has-text('worker:93')")
    assert page.locator(".table .space .row").count() < 40
    click(page, ".head button:has-text('Memory')", ".table .space .row:has-text('worker:999')")
    page.fill("input[type=search]", "worker:77")
    page.wait_for_function("() => document.querySelector('.table .space').style.height === `${11 * 34}px`")


def test_nothing_is_wider_than_a_phone(page: Page, failed_run: str) -> None:
    """That text has contrast, in both themes, axe-core says (test_browser_access.py)."""
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/#/", f"/#/{failed_run}", f"/#/{failed_run}/timeline", f"/#/{failed_run}/task/worker:2"):
        show(page, path, "h1")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


# ---- the list of runs: where a live run stands, and where it runs


@pytest.fixture
def halfway(place: Launch, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRun]:
    """A live run that has taken 500 of 1,000 steps, ten in a second."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(place.home))
    run = SimulatedRun(place.home, 12)
    writer = HistoryWriter(place.home / "runs" / run.name)
    later = time.time() + 3600  # clock: a moment of a run
    writer.add(Moment(later, {"worker:0": Figures(500, 10.0, total=1000), "worker:1": Figures()}))
    yield run
    run.end()


def test_a_live_run_shows_where_it_stands_and_where_it_is(page: Page, halfway: SimulatedRun, failed_run: str) -> None:
    """Nothing is guessed of a run that has ended, or does not tell how many steps it has."""
    page.goto("/#/")
    row = page.locator(f".table .row:has-text('{halfway.name}')")
    for shown in ("500 of 1000", "1 h", "2 hosts"):
        row.locator(f"span:text-is('{shown}')").wait_for()
    other = page.locator(f".table .row:has-text('{failed_run}')")
    other.locator("span:text-is('localhost')").wait_for()
    assert "of" not in (other.locator("span.number").first.text_content() or "")
