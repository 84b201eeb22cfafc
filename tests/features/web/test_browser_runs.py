"""The list of runs in a real browser: where a live run stands, and where it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.launch import Launch
from support.web_pages import SimulatedRun
from tflaunch.client.file_tree import tree_size
from tflaunch.features.history.history_writer import HistoryWriter
from tflaunch.store.history import Figures, Moment

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.web


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
