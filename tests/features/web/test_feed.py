"""A run is followed as long as a page shows it, and not longer."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.launch import PATIENCE
from support.web_pages import SimulatedRun
from tflaunch.client.observer import current_status
from tflaunch.explain.run_status import Status
from tflaunch.features.web.feed import Feeds, RunFeed

pytestmark = pytest.mark.web


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SimulatedRun, Path]]:
    """A live run, and its directory."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    run = SimulatedRun(tmp_path, 2)
    yield run, tmp_path / "runs" / run.name
    run.end()


def in_a_loop(test: Coroutine[None, None, None]) -> None:
    """Run a test in an event loop of its own; in this thread, the browser of other tests may have one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, test).result()


async def newer_status(feed: RunFeed, changed: asyncio.Event) -> None:
    """Wait until a feed has a status that it had not when the event was set last."""
    known = feed.pieces.get("status")
    while feed.pieces.get("status") is known:
        changed.clear()
        await asyncio.wait_for(changed.wait(), PATIENCE)


def test_a_run_that_no_page_shows_is_not_asked(followed: tuple[SimulatedRun, Path]) -> None:
    run, directory = followed

    async def look() -> None:
        feeds = Feeds()
        feed = feeds[directory]
        changed = feed.enter()
        await newer_status(feed, changed)
        feed.leave(changed)
        assert await asyncio.to_thread(run.is_left.wait, PATIENCE)
        asked = run.asked
        again = feeds[directory]
        changed = again.enter()
        assert again is not feed
        await newer_status(again, changed)
        assert run.asked - asked in (1, 2)  # the second one may be on its way
        again.leave(changed)

    in_a_loop(look())


def test_a_run_that_ends_while_it_is_asked_is_shown_as_ended(
    followed: tuple[SimulatedRun, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no later status that could tell."""
    run, directory = followed

    def ask_and_end(path: Path) -> Status:
        status = current_status(path)
        run.end()
        return status

    monkeypatch.setattr("tflaunch.features.web.feed.current_status", ask_and_end)

    async def look() -> None:
        feed = Feeds()[directory]
        changed = feed.enter()
        while not feed.is_over:
            await asyncio.wait_for(changed.wait(), PATIENCE)
            changed.clear()
        status = json.loads(feed.pieces["status"].partition(b"data: ")[2])
        assert (status["supervisor"] == "alive", status["exit_code"]) == (False, 143)
        feed.leave(changed)

    in_a_loop(look())


def test_pages_of_one_run_share_what_follows_it(followed: tuple[SimulatedRun, Path]) -> None:
    _, directory = followed

    async def look() -> None:
        feeds = Feeds()
        first = feeds[directory]
        changed, also_changed = first.enter(), feeds[directory].enter()
        assert feeds[directory] is first
        first.leave(also_changed)
        await newer_status(first, changed)
        first.leave(changed)

    in_a_loop(look())
