"""`up --resume`: a supervisor that was killed is replaced, and the tasks never notice; also one of another release.

Commands of this release, and a run that another one has started.
"""

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, Launch
from support.releases import VERSION, release
from support.waiting import wait_until
from tflaunch.store.run_dir import JOURNAL_NAME
from tflaunch_worker.wire import PROTOCOL

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
    run = other.detach(other.shell(UNTIL_GO, **fields))
    other.wait_for_log("worker:0", "begun")
    return run


def pids(launch: Launch) -> list[int]:
    return [task["pid"] for task in launch.status()["tasks"]]


def test_a_living_run_is_watched_restarted_and_followed(launch: Launch, other: Launch) -> None:
    """Its supervisor and agents are those of the other release."""
    run = detached(other, strategy="none", restart={"max": 3})
    assert [task["state"] for task in launch.status()["tasks"]] == ["running", "running"]
    launch.succeed("restart", "worker:0")
    launch.wait_for_log("worker:0", "begun", 2)
    following = launch.start("attach", until="| begun")
    (launch.directory / "go").touch()
    out, _ = following.communicate(timeout=PATIENCE)
    assert (following.returncode, "| went on" in out) == (7, True)
    assert launch.run("wait", run).returncode == 7


def test_a_run_without_supervisor_is_taken_over(launch: Launch, other: Launch) -> None:
    """Its agents and tasks live on, and obey the new supervisor."""
    run = detached(other)
    before = pids(launch)
    other.kill_supervisor()
    launch.succeed("up", "--resume", run, "-d")
    assert pids(launch) == before
    (launch.directory / "go").touch()
    assert launch.run("wait", run).returncode == 7
    logs = [launch.log(task) for task in ("worker:0", "worker:1")]  # the first that exits stops the other
    assert max(log.count("went on") for log in logs) == 1


def test_agents_of_another_protocol_keep_their_tasks(launch: Launch, other_protocol: Launch) -> None:
    """They are neither taken over nor stopped; the other release can do that afterwards.

    A journal that names no protocol is of 0.2.0, whose agents speak protocol 5.
    """
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
    path = launch.run_directory() / JOURNAL_NAME
    written = path.read_text()
    first, _, rest = written.partition("\n")
    earlier = {name: value for name, value in json.loads(first).items() if name not in ("protocol", "version")}
    path.write_text(f"{json.dumps(earlier)}\n{rest}")
    refused = launch.run("down", run, code=2)
    assert "was started by tflaunch 0.2.0 or earlier, whose agents speak protocol 5, not " in refused.stderr
    path.write_text(written)
    assert other_protocol.run("up", "--resume", run, "-d").returncode == 0
    assert pids(launch) == before
    launch.succeed("down", run)


LINES, PART = 400, 80
WAIT = f"test $((i % {PART})) = 0 && test $i != {LINES} && until test -e after$i; do sleep 0.01; done"
COUNT = f"for i in $(seq {LINES}); do echo line $i of $TFLAUNCH_TASK; sleep 0.01; {WAIT}; done; true"
"""Tasks that go on after each part of their lines when there is a file: they must not end before they are asked to."""
GRACE = {"lease": PATIENCE, "grace": 0.2}


def begin(launch: Launch, spec: Path, words: str) -> str:
    """Start a run, kill its supervisor after some output, and return the run's name."""
    running = launch.start("up", spec, until=words)
    running.kill()
    running.communicate(timeout=PATIENCE)
    return launch.run_directory().name


def test_tasks_never_notice_that_their_supervisors_are_killed(launch: Launch) -> None:
    """Four in a row: the same processes, every line once and in order, and the job's own exit code."""
    run = begin(launch, launch.shell(COUNT, timeouts=GRACE, strategy="none"), "line 20 of")
    for line in range(PART, LINES, PART):
        (launch.directory / f"after{line}").touch()
        if line + PART < LINES:
            running = launch.start("up", "--resume", run, until=f"line {line + 50} of")
            running.kill()
            running.communicate(timeout=PATIENCE)
    ended = launch.succeed("up", "--resume", run)
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
    ended = launch.succeed("up", "--resume", run)
    assert "up 1" in ended.stdout
    assert not launch.survivors()


def test_only_a_run_without_a_supervisor_can_be_taken_over(launch: Launch) -> None:
    running = launch.start("up", launch.shell("echo up; sleep 9999", timeouts=GRACE, strategy="none"), until="up")
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


@pytest.mark.parametrize("lease", [0, 30])
def test_a_run_that_lacks_only_its_end_gets_it(launch: Launch, lease: int) -> None:
    """Its supervisor was killed when all tasks had ended."""
    launch.run("up", launch.shell("exit 7", timeouts={"lease": lease}, restart={"max": 0}), code=7)
    journal = launch.run_directory() / "events.jsonl"
    *records, end = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(records))
    assert "exited with code 7" in launch.run("up", "--resume", launch.run_directory().name, code=7).stderr
    assert {**launch.journal()[-1], "time": 0} == {**json.loads(end), "time": 0, "seq": len(records) + 1}


def test_without_a_lease_there_is_nothing_to_take_over(launch: Launch) -> None:
    """The agent killed the tasks the moment its supervisor died, and the message says so."""
    run = begin(launch, launch.shell("echo up; sleep 9999"), "up")
    ended = launch.run("up", "--resume", run, code=125)
    assert "timeouts.lease is 0" in ended.stderr
    assert launch.status()["next_commands"] == []
    wait_until(lambda: not launch.survivors())  # its guard may not have exited yet


def test_a_supervisor_that_was_killed_before_it_began(launch: Launch) -> None:
    run = "job-20260102-030405-6789"
    (launch.home / "runs" / run).mkdir(parents=True)
    for command in (["up", "--resume"], ["ps"], ["wait"]):
        ended = launch.run(*command, run, code=125)
        what = "has not begun; if its supervisor was killed, start its spec again"
        assert ended.stderr == f"tflaunch: run {run} {what}\n"
    assert [run["state"] for run in json.loads(launch.run("ls", "--json").stdout)] == ["not begun"]
