"""What an agent tells about tasks that it was not asked to start."""

from __future__ import annotations

import pytest

from support.joined_host import joined_host
from tflaunch.features.memory.memory_monitor import watch_memory

pytestmark = pytest.mark.unit


def test_only_memory_of_tasks_that_it_was_asked_to_start_is_passed_on() -> None:
    """Of an earlier attempt, or a task of another host, nothing is judged."""
    host = joined_host()
    told: list[list[str]] = []
    watch_memory(host.session, lambda vitals, _: told.append(list(vitals.tasks)))
    for known, attempt in (("worker:0", 0), ("worker:0", 1), ("worker:1", 0)):
        host.tells("told", call=2, time=1.0, room=None, tasks={known: {"attempt": attempt, "rss": 1}})
    assert told == [["worker:0"], [], []]
    assert not host.lost()
