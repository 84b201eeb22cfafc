"""A run that another release of tflaunch has started, or 0.2 has recorded, and the commands of this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.releases import VERSION, release
from tflaunch.core import event_records
from tflaunch.core.record_check import JOURNAL_FORMAT
from tflaunch.store import journal
from tflaunch.store.run_dir import JOURNAL_NAME
from tflaunch_worker.wire import PROTOCOL

pytestmark = pytest.mark.cli

UNTIL_GO = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo went on; exit 7"


@pytest.fixture
def other(launch: Launch) -> Launch:
    """Return a release with this protocol and journal format."""
    made = release(launch.directory)
    assert made.run("--version").stdout == f"tflaunch {VERSION}\n"  # otherwise the tests below show nothing
    return made


@pytest.fixture
def other_protocol(launch: Launch) -> Launch:
    """Return a release whose agents do not understand this one."""
    return release(launch.directory, PROTOCOL=PROTOCOL + 1)


def detached(other: Launch, **fields: Any) -> str:
    """Start a run in the background; return its name."""
    run = other.detach(other.shell(UNTIL_GO, **fields))
    other.wait_for_log("worker:0", "begun")
    return run


def pids(launch: Launch) -> list[int]:
    """Return the processes of the tasks."""
    return [task["pid"] for task in launch.status()["tasks"]]


def test_a_living_run_is_watched_restarted_and_followed(launch: Launch, other: Launch) -> None:
    """Its supervisor and agents are those of the other release."""
    run = detached(other, strategy="none", restart={"max": 3})
    assert [task["state"] for task in launch.status()["tasks"]] == ["running", "running"]
    assert launch.run("restart", "worker:0").returncode == 0
    launch.wait_for_log("worker:0", "begun", 2)
    following = launch.start("attach")
    read_until(following, "| begun")
    (launch.directory / "go").touch()
    out, _ = following.communicate(timeout=PATIENCE)
    assert (following.returncode, "| went on" in out) == (7, True)
    assert launch.run("wait", run).returncode == 7


@pytest.mark.parametrize("command", ["resume", pytest.param("down", marks=pytest.mark.thorough)])
def test_a_run_without_supervisor_is_taken_over(launch: Launch, other: Launch, command: str) -> None:
    """Its agents and tasks live on, and obey the new supervisor."""
    run = detached(other)
    before = pids(launch)
    other.kill_supervisor()
    if command == "down":
        assert launch.run("down", run).returncode == 0
        assert launch.status(run)["state"] == "stopped"
        return
    assert launch.run("up", "--resume", run, "-d").returncode == 0
    assert pids(launch) == before
    (launch.directory / "go").touch()
    assert launch.run("wait", run).returncode == 7
    logs = [launch.log(task) for task in ("worker:0", "worker:1")]  # the first that exits stops the other
    assert max(log.count("went on") for log in logs) == 1


def test_agents_of_another_protocol_keep_their_tasks(launch: Launch, other_protocol: Launch) -> None:
    """They are neither taken over nor stopped; the other release can do that afterwards."""
    run = detached(other_protocol, timeouts={"lease": "10m"})
    before = pids(launch)
    other_protocol.kill_supervisor()
    speaks = f"whose agents speak protocol {PROTOCOL + 1}, not {PROTOCOL}"
    for command in (("up", "--resume"), ("down",)):
        refused = launch.run(*command, run)
        assert (refused.returncode, refused.stdout, refused.stderr) == (
            2,
            "",
            f"tflaunch: run {run} was started by tflaunch {VERSION}, {speaks}: only that version can resume or stop "
            "it; without a supervisor its tasks end after 10 min (timeouts.lease)\n",
        )
    assert other_protocol.run("up", "--resume", run, "-d").returncode == 0
    assert pids(launch) == before
    assert launch.run("down", run).returncode == 0


@pytest.mark.thorough
def test_a_journal_that_names_no_protocol_is_of_an_earlier_release(launch: Launch) -> None:
    """Of 0.2.0, whose agents speak protocol 5."""
    run = detached(other := release(launch.directory, PROTOCOL=5), timeouts={"lease": "10m"})
    other.kill_supervisor()
    path = launch.run_directory() / "events.jsonl"
    first, _, rest = path.read_text().partition("\n")
    earlier = {name: value for name, value in json.loads(first).items() if name not in ("protocol", "version")}
    path.write_text(f"{json.dumps(earlier)}\n{rest}")
    refused = launch.run("down", run)
    assert refused.returncode == 2
    assert "was started by tflaunch 0.2.0 or earlier, whose agents speak protocol 5, not " in refused.stderr
    assert other.run("down", run).returncode == 0


@pytest.mark.thorough
def test_a_journal_of_another_format_is_not_touched(launch: Launch) -> None:
    """Each command that reads it says which versions can; the run goes on."""
    other = release(launch.directory, JOURNAL_FORMAT=JOURNAL_FORMAT + 1)
    run = detached(other)
    reason = f"run {run} was recorded by another version of tflaunch (journal format {JOURNAL_FORMAT + 1}; this version"
    for command in ("events", "attach", "wait", "logs", "ps", "down"):
        if command == "ps":
            other.kill_supervisor()
        refused = launch.run(command, run)
        assert refused.returncode != 0, command
        assert refused.stderr.startswith(f"tflaunch: {reason}"), command
    assert other.run("up", "--resume", run, "-d").returncode == 0
    (launch.directory / "go").touch()
    assert other.run("wait", run).returncode == 7


EVENTS: list[dict[str, Any]] = [
    {
        "kind": "task_fell_behind",
        "host": "localhost",
        "task": "worker:1",
        "attempt": 0,
        "share": 0.31,
        "reason": "it waits for its input: its generator sleeps (data.py, line 40)",
    },
    {"kind": "task_caught_up", "host": "localhost", "task": "worker:1", "attempt": 0},
]
"""Events while tasks run, with their fields as 0.2 wrote them."""


def add_events(directory: Path) -> None:
    """Add these events to the journal of a run, after the start of its last task."""
    path = directory / JOURNAL_NAME
    records = [json.loads(line) for line in path.read_text().splitlines()]
    place = max(number for number, record in enumerate(records) if record["kind"] == "task_started")
    moment = {"time": records[place]["time"], "now": records[place]["now"]}
    records[place + 1 : place + 1] = [{**moment, **event} for event in EVENTS]
    path.write_text("".join(f"{journal.encode_record({**each, 'seq': seq})}\n" for seq, each in enumerate(records)))


@pytest.mark.thorough
def test_events_that_are_gone_change_nothing_but_the_events(launch: Launch) -> None:
    """`ps`, `logs` and `rerun` pass over them, and `events` prints them as they are."""
    ended = launch.up(launch.shell("echo trained; exit 3", strategy="none"))
    assert ended.returncode == 3, ended.stderr
    directory = launch.run_directory()
    status, logs, job = launch.status(), launch.run("logs").stdout, journal.read_job(directory)[1]
    add_events(directory)
    assert all(event_records.from_record(event) is None for event in EVENTS)

    assert launch.status() == status
    assert launch.run("ps").returncode == 0
    assert journal.read_job(directory)[1] == job
    assert launch.run("logs").stdout == logs
    assert "trained" in logs
    printed = [json.loads(line) for line in launch.run("events", "--json").stdout.splitlines()]
    for event in EVENTS:
        assert any(event.items() <= record.items() for record in printed), event
        assert f" {event['kind']} host=localhost " in launch.run("events").stdout
    again = launch.run("rerun", directory.name)
    assert again.returncode == 3, again.stderr
