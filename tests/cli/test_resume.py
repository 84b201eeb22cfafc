"""`up --resume`: a supervisor that was killed is replaced, and the tasks never notice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from support.launch import PATIENCE, Launch, read_until
from support.waiting import wait_until

pytestmark = pytest.mark.cli

LINES, PART = 400, 80
WAIT = f"test $((i % {PART})) = 0 && test $i != {LINES} && until test -e after$i; do sleep 0.01; done"
COUNT = f"for i in $(seq {LINES}); do echo line $i of $TFLAUNCH_TASK; sleep 0.01; {WAIT}; done; true"
"""Tasks that go on after each part of their lines when there is a file: they must not end before they are asked to."""
GRACE = {"lease": PATIENCE, "grace": 0.2}


def begin(launch: Launch, spec: Path, words: str) -> str:
    """Start a run, kill its supervisor after some output, and return the run's name."""
    running = launch.start("up", spec)
    read_until(running, words)
    running.kill()
    running.communicate(timeout=PATIENCE)
    return launch.run_directory().name


def test_tasks_never_notice_that_their_supervisors_are_killed(launch: Launch) -> None:
    """Four in a row: the same processes, every line once and in order, and the job's own exit code."""
    run = begin(launch, launch.shell(COUNT, timeouts=GRACE, strategy="none"), "line 20 of")
    for line in range(PART, LINES, PART):
        (launch.directory / f"after{line}").touch()
        if line + PART < LINES:
            running = launch.start("up", "--resume", run)
            read_until(running, f"line {line + 50} of")
            running.kill()
            running.communicate(timeout=PATIENCE)
    ended = launch.run("up", "--resume", run)
    assert ended.returncode == 0, ended.stderr
    assert "tflaunch: done: 2 tasks in " in ended.stderr.splitlines()[-1]
    for task in ("worker:0", "worker:1"):
        assert launch.log(task) == "".join(f"line {number} of {task}\n" for number in range(1, LINES + 1))
    journal = launch.journal()
    assert [record["seq"] for record in journal] == list(range(len(journal)))
    assert sorted(record["task"] for record in journal if record["kind"] == "task_started") == ["worker:0", "worker:1"]
    assert not launch.survivors()


def test_after_the_lease_the_job_starts_anew(launch: Launch) -> None:
    """Its agents have stopped the tasks by themselves, which costs a restart."""
    script = "echo up $TFLAUNCH_ATTEMPT; test $TFLAUNCH_ATTEMPT = 0 && sleep 9999; true"
    spec = launch.shell(script, timeouts={"lease": 6, "grace": 0.2}, strategy="none", restart={"backoff": [0, 0]})
    run = begin(launch, spec, "up 0")
    psutil.wait_procs(launch.survivors(), timeout=PATIENCE)
    ended = launch.run("up", "--resume", run)
    assert ended.returncode == 0, ended.stderr
    assert "up 1" in ended.stdout
    assert not launch.survivors()


def test_only_a_run_without_a_supervisor_can_be_taken_over(launch: Launch) -> None:
    """A live one, one that has ended and one that does not exist are each refused in a sentence."""
    running = launch.start("up", launch.shell("echo up; sleep 9999", timeouts=GRACE, strategy="none"))
    read_until(running, "up")
    run = launch.run_directory().name
    live = launch.run("up", "--resume", run)
    assert (live.returncode, live.stderr) == (
        2,
        f"tflaunch: run {run} has a supervisor already; to follow it: tflaunch attach {run}\n",
    )
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    ended = launch.run("up", "--resume", run)
    assert (ended.returncode, ended.stderr) == (2, f"tflaunch: run {run} has ended with exit code 130\n")
    unknown = launch.run("up", "--resume", "nothing")
    assert unknown.returncode == 2
    assert unknown.stderr == f"tflaunch: there is no run 'nothing'; the runs are {run}\n"
    assert launch.run("up", "--resume", run, "job.json").returncode == 2
    assert launch.run("up").returncode == 2


def test_without_a_lease_there_is_nothing_to_take_over(launch: Launch) -> None:
    """The agent killed the tasks the moment its supervisor died, and the message says so."""
    run = begin(launch, launch.shell("echo up; sleep 9999"), "up")
    ended = launch.run("up", "--resume", run)
    assert ended.returncode == 125
    assert "timeouts.lease is 0" in ended.stderr
    wait_until(lambda: not launch.survivors())  # its guard may not have exited yet


@pytest.mark.parametrize("command", [("up", "--resume"), ("ps",), ("wait",)])
def test_a_supervisor_that_was_killed_before_it_began(launch: Launch, command: tuple[str, ...]) -> None:
    (launch.home / "runs" / "job-20260102-030405-6789").mkdir(parents=True)
    ended = launch.run(*command, "job-20260102-030405-6789")
    what = "has not begun; if its supervisor was killed, start its spec again"
    assert (ended.returncode, ended.stderr) == (125, f"tflaunch: run job-20260102-030405-6789 {what}\n")
    assert [run["state"] for run in json.loads(launch.run("ls", "--json").stdout)] == ["not begun"]
