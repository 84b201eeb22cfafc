"""The list of runs in a real browser: where a live run stands, and where it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pytest

from support.browser_pages import signed_in
from support.launch import LONG, Launch, clean_launch
from support.web_pages import Server, SimulatedRun
from tflaunch.client.file_tree import tree_size
from tflaunch.store.history import Figures, HistoryWriter, Moment
from tflaunch.store.run_dir import JOURNAL_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.web

MANY = 1000
SOON = 200  # milliseconds from a navigation to the first rows
TRIES = 20
PAUSE = 50  # milliseconds
WINDOW = 20.0  # seconds
MOST_OF_SERVER = 5.0  # percent of a core
TIMED = """() => {
  const took = [];
  for (const act of ACTIONS) {
    const begun = performance.now();
    act();
    document.querySelector(".table").getBoundingClientRect();
    took.push(performance.now() - begun);
  }
  return took;
}"""
"""Does something, and lays the table out; returns the milliseconds that each took."""
SORT = TIMED.replace(
    "ACTIONS",
    """["loss", "loss", "Run", "Started"].map((name) => () =>
    [...document.querySelectorAll(".head button")].find((button) => button.textContent === name).click())""",
)
FILTER = TIMED.replace(
    "ACTIONS",
    """["j", "job1", "", "job11-"].map((text) => () => {
    const filter = document.querySelector("input[type=search]");
    filter.value = text;
    filter.dispatchEvent(new Event("input"));
  })""",
)
GROUP = TIMED.replace(
    "ACTIONS",
    """[1, 2, 3].map(() => () =>
    [...document.querySelectorAll("button")].find((button) => button.textContent === "Group by job").click())""",
)
WHEN_SHOWN = """(() => {
  const look = () => {
    if (document.querySelector(".table .space .row a")?.textContent) window.shownAfter = performance.now();
    else setTimeout(look, 1);
  };
  look();
})()"""


@pytest.fixture
def halfway(place: Launch, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRun]:
    """A live run that has taken 500 of 1,000 steps, ten in a second."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(place.home))
    run = SimulatedRun(place.home, 12)
    writer = HistoryWriter(place.home / "runs" / run.name)
    writer.add(Moment(time.time() + 3600, {"worker:0": Figures(500, 10.0, total=1000), "worker:1": Figures()}))
    yield run
    run.end()


def test_a_live_run_shows_where_it_stands_and_where_it_is(page: Page, halfway: SimulatedRun, failed_run: str) -> None:
    """Nothing is guessed of a run that has ended, or does not tell how many steps it has."""
    page.goto("/#/")
    row = page.locator(f".table .row:has-text('{halfway.name}')")
    row.locator("span:text-is('500 of 1000')").wait_for()
    assert row.locator("span:text-is('1 h')").count() == 1
    assert row.locator("span:text-is('2 hosts')").count() == 1
    other = page.locator(f".table .row:has-text('{failed_run}')")
    assert other.locator("span:text-is('localhost')").count() == 1
    assert "of" not in (other.locator("span.number").first.text_content() or "")


def test_a_run_shows_what_it_takes_on_the_disk(page: Page, place: Launch, failed_run: str) -> None:
    """As `prune` counts it: blocks of the file system."""
    page.goto(f"/#/{failed_run}")
    size = tree_size(place.home / "runs" / failed_run)
    page.locator(".facts", has_text=f" {size / 1024:.0f}K on disk").wait_for()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, place: Launch, failed_run: str) -> Iterator[Server]:
    """A server of a home with 1,000 runs that have ended, of twenty jobs."""
    records = (place.home / "runs" / failed_run / JOURNAL_NAME).read_text().splitlines()
    first, last = json.loads(records[0]), json.loads(records[-1])
    with clean_launch(tmp_path_factory.mktemp("many")) as there:
        for number in range(MANY):
            at = last["time"] - 3600 * number
            name, started = f"job{number % 20}-lr{number}", time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
            directory = there.home / "runs" / f"{name}-{started}-{number:04x}"
            directory.mkdir(mode=0o700, parents=True)
            plan = {**first["plan"], "name": name, "matrix": {"lr": str(number)}}
            lines = [
                {**first, "time": at, "run": directory.name, "plan": plan},
                {**last, "time": at + 60, "metrics": {"loss": number % 97 / 97}},
            ]
            (directory / JOURNAL_NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        server = Server(there)
        server.sign_in()
        yield server
        server.stop()


@pytest.fixture
def page_of_many(browser: Browser, many: Server) -> Iterator[Page]:
    """A page of the many runs."""
    yield from signed_in(browser, many)


def test_a_thousand_runs_are_sorted_filtered_and_grouped_without_a_pause(page_of_many: Page) -> None:
    """Only the rows in view exist."""
    page = page_of_many
    page.goto("/#/")
    page.locator(".table .row a", has_text="job0-lr0-").wait_for()
    assert page.locator(".table .space .row").count() < 40
    for action, shown in ((SORT, "job0-lr0-"), (FILTER, "job11-lr11-"), (GROUP, "job11 · 50 runs")):
        took = page.evaluate(action)
        page.locator(".table .row", has_text=shown).first.wait_for()
        assert min(took) < PAUSE, (action, took)  # the others may have waited for other processes


@pytest.mark.skipif(not LONG, reason="measures speed, so it needs a quiet machine: in `make nightly` only")
def test_a_thousand_runs_are_shown_at_once_and_cost_little(page_of_many: Page, many: Server) -> None:
    """The first rows after a navigation, and the server's CPU time while a page shows the list."""
    page = page_of_many
    page.add_init_script(WHEN_SHOWN)
    shown: list[float] = []
    while len(shown) < TRIES and (not shown or min(shown) >= SOON):
        page.goto("about:blank")
        page.goto("/#/", wait_until="commit")
        page.wait_for_timeout(1000)  # to look for the rows would delay them
        shown.append(page.evaluate("window.shownAfter"))
    process = psutil.Process(many.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(WINDOW)
    percent = 100 * (sum(process.cpu_times()[:2]) - before) / WINDOW
    print(f"first rows after {min(shown):.0f} ms; the server takes {percent:.1f} % of a core")
    assert min(shown) < SOON, shown
    assert percent < MOST_OF_SERVER
