"""One server for all tests of the page, and runs to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browser_pages import PATIENCE, signed_in
from support.launch import Launch, clean_launch
from support.needs import need, program
from support.web_pages import Server, newest, run_to_end
from tflaunch.features.history.history_recorder import HistoryWriter
from tflaunch.store.history import Figures, Moment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TASKS = ("worker:0", "worker:1", "worker:2")
MOMENTS = 60
BROKEN = """
import os, pathlib, time
pathlib.Path("begun-" + os.environ["TFLAUNCH_TASK"]).touch()
if os.environ["TFLAUNCH_TASK"] == "worker:2":
    while len([*pathlib.Path().glob("begun-*")]) < 4:
        time.sleep(0.02)
    images = []
    images[3]
time.sleep(9999)
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """A home that all tests of the page share; no process is left at the end."""
    with clean_launch(tmp_path_factory.mktemp("web")) as place:
        place.preload = None
        yield place


@pytest.fixture(scope="session")
def server(place: Launch) -> Iterator[Server]:
    """`tflaunch web`, which a browser has signed in to."""
    server = Server(place)
    server.sign_in()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def failed_run(place: Launch) -> str:
    """A run that has failed because of worker:2."""
    (place.directory / "broken.py").write_text(BROKEN)
    spec = place.spec(
        "broken.json",
        cluster={"worker": 4},
        command=["python3", "-S", "broken.py"],
        restart={"max": 0},
        env={"API_KEY": "correct-horse-battery"},
    )
    assert place.up(spec).returncode == 1
    return newest(place, "broken")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    need("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"], timeout=PATIENCE)
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    yield from signed_in(browser, server)


@pytest.fixture(scope="session")
def restarted_run(place: Launch) -> str:
    """A run of three tasks that was restarted once, whose first loss is 60 and last loss is 1."""
    script = '[ "$TFLAUNCH_ATTEMPT" = 0 ] && [ "$TFLAUNCH_TASK" = worker:1 ] && sleep 1 && exit 3; sleep 3'
    run = run_to_end(place, script, 3, name="curves", restart={"max": 1, "backoff": ["0s", "0s"]})
    begun = place.status(run)["started"]
    directory = place.home / "runs" / run
    (directory / "history.jsonl").unlink(missing_ok=True)
    recorded = HistoryWriter(directory)
    for at in range(MOMENTS):
        figures = {
            name: Figures(
                at * 10, 5.0, 50.0, 1 << 30, metrics={"loss": MOMENTS - at + number, "accuracy": at / MOMENTS}
            )
            for number, name in enumerate(TASKS)
        }
        recorded.add(Moment(begun + at * 3 / MOMENTS, figures))
    return run
