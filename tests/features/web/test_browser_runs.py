"""The list of runs in a real browser: where a live run stands, and where it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.launch import Launch
from support.web_pages import SimulatedRun
from tflaunch.store.history import Figures, HistoryWriter, Moment

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.web


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
