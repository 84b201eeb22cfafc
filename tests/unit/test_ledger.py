"""Tagged states are counted in constant time, and the core inspects no more tasks as their number grows."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core import step
from tflaunch.core.events import PortOpened, TaskExited, TaskGone, TaskStarted
from tflaunch.core.task_table import Ledger
from tflaunch.explain.messages import Logs, news

pytestmark = pytest.mark.unit

NAMES = some.sampled_from("abcd")
MARKS = some.frozensets(some.sampled_from("xyz"))


class Thing(NamedTuple):
    """A state."""

    marks: frozenset[str]


@given(some.dictionaries(NAMES, MARKS), some.lists(some.dictionaries(NAMES, MARKS)))
def test_it_counts_what_a_look_at_each_would(first: dict[str, frozenset[str]], changes: list[Any]) -> None:
    """After any replacements; earlier ledgers do not change."""
    ledger = Ledger({name: Thing(marks) for name, marks in first.items()})
    known = dict(first)
    for change in changes:
        earlier, before = ledger, dict(known)
        ledger = ledger.replaced({name: Thing(marks) for name, marks in change.items()})
        known.update(change)
        for one, expected in ((ledger, known), (earlier, before)):
            assert {name: thing.marks for name, thing in one.items()} == expected
            counts = Counter(mark for marks in expected.values() for mark in marks)
            assert [one.count(mark) for mark in "xyz"] == [counts[mark] for mark in "xyz"]
            assert one.count("x", "z") == counts["x"] + counts["z"]
    assert list(ledger) == list(known)


class Due(NamedTuple):
    """A state that may have a deadline."""

    time: float | None
    marks: tuple[str, ...] = ()

    def moment(self) -> float | None:
        """Return the deadline."""
        return self.time


TIMES = some.dictionaries(
    some.sampled_from([f"host{number}" for number in range(200)]), some.none() | some.floats(0, 9)
)


@given(TIMES, some.lists(TIMES))
def test_the_soonest_is_that_of_a_look_at_each(first: dict[str, float | None], changes: list[Any]) -> None:
    """Even if it was computed before a change."""
    known = {f"host{number}": first.get(f"host{number}") for number in range(200)}
    ledger = Ledger({name: Due(time) for name, time in known.items()})
    for change in changes:
        earlier, before = ledger, dict(known)
        ledger = ledger.replaced({name: Due(time) for name, time in change.items()})
        known.update(change)
        for one, expected in ((ledger, known), (earlier, before)):
            times = [time for time in expected.values() if time is not None]
            assert one.soonest(Due.moment) == min(times, default=None)
        assert {pair for pair in ledger.since(earlier) if pair[0] != pair[1]} == {
            (Due(before[name]), Due(known[name])) for name in known if before[name] != known[name]
        }


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_an_event_costs_no_more_looks_with_more_tasks(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the supervisor, its clock and the messages: one task in the middle of a running job."""
    assert _looks(200, strategy, monkeypatch) == _looks(20, strategy, monkeypatch)


def _looks(workers: int, strategy: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many single tasks are inspected for each of the four events of a task's life."""
    cluster = {"chief": 1, "worker": workers, "ps": 1}
    if strategy != "parameter_server":
        del cluster["ps"]
    history = History(clustered(cluster, strategy=strategy)).start()
    counted = 0
    original = Ledger.__getitem__

    def count(self: Ledger[Any], name: str) -> Any:
        nonlocal counted
        counted += 1
        return original(self, name)

    looks = []
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "__getitem__", count)
        name = f"worker:{workers // 2}"
        for event in (
            TaskStarted(HERE, name, 0, 1, 0.0),
            PortOpened(HERE, name, 0),
            TaskExited(HERE, name, 0, 0, None, 0.0),
            TaskGone(HERE, name, 0),
        ):
            counted, before = 0, history.job
            history.happens(event)
            step.next_deadline(history.job)
            news(before, event, history.job, history.now, Logs("", lambda *_: []))
            looks.append(counted)
    return looks
