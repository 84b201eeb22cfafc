"""Tagged states are counted in constant time, and the core inspects no more tasks as their number grows."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core import time_limits
from tflaunch.core.events import PortOpened, TaskExited, TaskGone, TaskStarted
from tflaunch.core.task_table import StateTable
from tflaunch.explain.messages import Logs, messages_about

pytestmark = pytest.mark.unit

NAMES = some.sampled_from("abcd")
TAGS = some.frozensets(some.sampled_from("xyz"))


class Thing(NamedTuple):
    tags: frozenset[str]


@given(some.dictionaries(NAMES, TAGS), some.lists(some.dictionaries(NAMES, TAGS)))
def test_it_counts_what_a_look_at_each_would(first: dict[str, frozenset[str]], changes: list[Any]) -> None:
    """After any replacements; earlier tables do not change."""
    table = StateTable({name: Thing(tags) for name, tags in first.items()})
    known = dict(first)
    for change in changes:
        earlier, before = table, dict(known)
        table = table.replaced({name: Thing(tags) for name, tags in change.items()})
        known.update(change)
        for one, expected in ((table, known), (earlier, before)):
            assert {name: thing.tags for name, thing in one.items()} == expected
            counts = Counter(tag for tags in expected.values() for tag in tags)
            assert [one.count(tag) for tag in "xyz"] == [counts[tag] for tag in "xyz"]
            assert one.count("x", "z") == counts["x"] + counts["z"]
    assert list(table) == list(known)


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
    original = StateTable.__getitem__

    def count(self: StateTable[Any], name: str) -> Any:
        nonlocal counted
        counted += 1
        return original(self, name)

    looks = []
    with monkeypatch.context() as patch:
        patch.setattr(StateTable, "__getitem__", count)
        name = f"worker:{workers // 2}"
        for event in (
            TaskStarted(HERE, name, 0, 1, 0.0),
            PortOpened(HERE, name, 0),
            TaskExited(HERE, name, 0, 0, None, 0.0),
            TaskGone(HERE, name, 0),
        ):
            counted, before = 0, history.job
            history.happens(event)
            time_limits.next_deadline(history.job)
            messages_about(before, event, history.job, history.now, Logs("", lambda *_: []))
            looks.append(counted)
    return looks
