"""Commands read the runs of tflaunch 0.2, whose journals have events that this version no longer has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from tflaunch.core import event_records
from tflaunch.store import journal
from tflaunch.store.run_dir import JOURNAL_NAME

pytestmark = pytest.mark.cli

EVENTS: dict[str, list[dict[str, Any]]] = {
    "a task that is late": [
        {
            "kind": "task_fell_behind",
            "host": "localhost",
            "task": "worker:1",
            "attempt": 0,
            "share": 0.31,
            "reason": "it waits for its input: its generator sleeps (data.py, line 40)",
        },
        {"kind": "task_caught_up", "host": "localhost", "task": "worker:1", "attempt": 0},
    ],
}
"""Events while tasks run, with their fields as 0.2 wrote them."""


def add_events(directory: Path, events: list[dict[str, Any]]) -> None:
    """Add events to the journal of a run, after the start of its last task."""
    path = directory / JOURNAL_NAME
    records = [json.loads(line) for line in path.read_text().splitlines()]
    place = max(number for number, record in enumerate(records) if record["kind"] == "task_started")
    moment = {"time": records[place]["time"], "now": records[place]["now"]}
    records[place + 1 : place + 1] = [{**moment, **event} for event in events]
    path.write_text("".join(f"{journal.encode_record({**each, 'seq': seq})}\n" for seq, each in enumerate(records)))


@pytest.mark.parametrize("name", EVENTS)
def test_events_that_are_gone_change_nothing_but_the_events(launch: Launch, name: str) -> None:
    """`ps`, `logs` and `rerun` pass over them, and `events` prints them as they are."""
    ended = launch.up(launch.shell("echo trained; exit 3", strategy="none"))
    assert ended.returncode == 3, ended.stderr
    directory = launch.run_directory()
    status, logs, job = launch.status(), launch.run("logs").stdout, journal.read_job(directory)[1]
    add_events(directory, EVENTS[name])
    assert all(event_records.from_record(event) is None for event in EVENTS[name])

    assert launch.status() == status
    assert launch.run("ps").returncode == 0
    assert journal.read_job(directory)[1] == job
    assert launch.run("logs").stdout == logs
    assert "trained" in logs
    printed = [json.loads(line) for line in launch.run("events", "--json").stdout.splitlines()]
    for event in EVENTS[name]:
        assert any(event.items() <= record.items() for record in printed), event
        assert f" {event['kind']} host=localhost " in launch.run("events").stdout
    again = launch.run("rerun", directory.name)
    assert again.returncode == 3, again.stderr
