"""Runs that wait for their hosts, as all commands see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.recorded_run import record
from tflaunch.client import follow, requests, run_list, runs
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import TflaunchError
from tflaunch.features.queue import run_queue
from tflaunch.features.queue.location import QueuedRun
from tflaunch.features.queue.run_queue import Order, Refusal
from tflaunch.store.run_dir import RunDirectory

pytestmark = pytest.mark.unit

ORDER = Order({}, "logs", {}, "/", 0o77, {}, "python", [])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


def queue(path: Path) -> Path:
    """Put a run into the queue."""
    run_queue.add_entry(path, ORDER, {}, {"lr": "0.1"})
    return path


def refuse(path: Path) -> Path:
    """Refuse a run of the queue."""
    run_queue.refuse(path, Refusal("no room", 3))
    return path


def test_a_run_is_found_by_its_mark_until_it_has_left_the_queue(path: Path) -> None:
    """Whether it waits or was refused."""
    assert type(locate_run(queue(path))) is QueuedRun
    assert type(locate_run(refuse(path))) is QueuedRun


def test_a_run_that_has_left_the_queue_is_here(path: Path) -> None:
    """From then on nothing of the queue is asked."""
    run_queue.remove_entry(queue(path).name)
    assert type(locate_run(path)) is RunLocation


def test_what_is_shown_of_a_run_that_waits(path: Path) -> None:
    """It is not live, but would begin when others have ended."""
    location = locate_run(queue(path))
    entry = run_list.entry_of(path)
    assert (entry["state"], entry["matrix"]) == ("queued", {"lr": "0.1"})
    assert (location.is_live(), location.begins_after_others()) == (False, True)
    with pytest.raises(TflaunchError, match="has not begun; `tflaunch queue` says what it waits for"):
        Observer(path)
    with pytest.raises(TflaunchError, match="`tflaunch queue` says"):
        runs.plan_of(path)


def test_what_is_shown_of_a_run_that_could_not_begin(path: Path) -> None:
    location = locate_run(refuse(path))
    entry = run_list.entry_of(path)
    assert (entry["state"], entry["exit_code"]) == ("failed", 3)
    assert not location.begins_after_others()
    with pytest.raises(TflaunchError, match="could not begin: no room") as refused:
        follow.watch_to_end(location, print, lambda _: 0)
    assert refused.value.exit_code == 3
    said: list[str] = []
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert said == [f"run {path.name} could not begin: no room"]


def test_a_run_that_is_stopped_before_it_has_begun_leaves_nothing(path: Path) -> None:
    """Who follows it is told."""
    location, said = locate_run(queue(path)), list[str]()
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert (said, path.exists(), run_queue.has_entries()) == ([f"took {path.name} out of the queue"], False, False)
    with pytest.raises(TflaunchError, match="was taken out of the queue") as withdrawn:
        follow.watch_to_end(location, print, lambda _: 0)
    assert withdrawn.value.exit_code == 143


def empty(entry: Path) -> None:
    """As a crash leaves it."""
    entry.write_text("")


def exchange(entry: Path) -> None:
    """Put a directory in its place."""
    entry.unlink()
    entry.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "empty": empty,
    "a directory": exchange,
    "a list": lambda path: path.write_text("[]"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_with_a_damaged_entry_can_be_stopped(path: Path, name: str) -> None:
    said: list[str] = []
    location = locate_run(queue(path))
    DAMAGES[name](next(run_queue.waiting_directory().iterdir()))
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert (said, path.exists(), run_queue.has_entries()) == ([f"took {path.name} out of the queue"], False, False)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_with_a_damaged_entry_is_not_waited_for(path: Path, name: str) -> None:
    """The dispatcher, which finds the damage, ends."""
    location = locate_run(queue(path))
    DAMAGES[name](next(run_queue.waiting_directory().iterdir()))
    with pytest.raises(TflaunchError, match=r"its entry in the queue is (lost|damaged)") as refused:
        follow.watch_to_end(location, print, lambda _: 0)
    assert refused.value.exit_code == 125
    assert not run_queue.has_entries()


def test_a_dispatcher_that_ends_at_its_start_is_not_waited_for(path: Path) -> None:
    """Its last words are told."""
    location = locate_run(queue(path))
    (run_queue.queue_directory() / run_queue.DISPATCHER_LOCK).mkdir()
    with pytest.raises(TflaunchError, match=r"ends as soon as it starts, and says in \S+: IsADirectoryError"):
        follow.watch_to_end(location, print, lambda _: 0)


def test_a_run_without_a_supervisor_is_taken_out(path: Path) -> None:
    requests.request_stop(queue(path), None)
    assert not path.exists()


def test_a_run_that_has_begun_is_stopped_as_one_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its entry may be there for a moment."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    path = queue(record(has_ended=True))
    location = QueuedRun(path)
    assert location.describe_wait() is None
    run_queue.remove_entry(path.name)
    assert location.stop_run(None, print, lambda: 9) == 9
