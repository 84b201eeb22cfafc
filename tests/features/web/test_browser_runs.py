"""The list of runs in a real browser: where a live run stands, and where it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browser_pages import signed_in
from support.launch import Launch, clean_launch
from support.web_pages import Server, SimulatedRun
from tflaunch.client.file_tree import tree_size
from tflaunch.features.history.history_writer import HistoryWriter
from tflaunch.store.history import Figures, Moment
from tflaunch.store.run_dir import JOURNAL_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.web

MANY = 1000


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


def test_a_run_shows_what_it_takes_on_the_disk(page: Page, place: Launch, failed_run: str) -> None:
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


def test_a_thousand_runs_are_sorted_and_filtered(page_of_many: Page) -> None:
    page = page_of_many
    page.goto("/#/")
    page.locator(".table .row a", has_text="job0-lr0-").wait_for()
    assert page.locator(".table .space .row").count() < 40
    for column, first in (("loss", "job16-lr96-"), ("Run", "job0-lr0-")):
        page.get_by_role("button", name=column, exact=True).click()
        page.locator(".table .row a", has_text=first).wait_for()
    page.fill("input[type=search]", "job11-")
    page.locator(".table .row a", has_text="job11-lr11-").wait_for()
