"""Streams that are closed, full or not read to the end: the exit code is the job's, and no traceback."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from support.launch import PATIENCE, Launch
from support.specs import TFLAUNCH

pytestmark = pytest.mark.cli

CLOSED = ["2>&-", ">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]


def shell(launch: Launch, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, which may close its streams."""
    return subprocess.run(
        ["sh", "-c", command],
        cwd=launch.directory, env=launch.env, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.parametrize(("closed", "code"), [*((closed, 0) for closed in CLOSED), (CLOSED[-1], 7)])
def test_up_has_the_exit_code_of_the_job(launch: Launch, closed: str, code: int) -> None:
    """Its logs are complete, and its output reaches no descriptor opened for another purpose."""
    spec = launch.shell(f"echo one; echo two >&2; exit {code}", workers=1, restart={"max": 0})
    ended = shell(launch, f"{TFLAUNCH} up {shlex.quote(str(spec))} {closed}")
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert ("| one" in ended.stdout) == (">&-" not in closed.split())
    assert ("tflaunch: " in ended.stderr) == ("2>&-" not in closed)
    assert sorted(launch.log("worker:0").split()) == ["one", "two"]
    assert launch.journal()[-1]["kind"] == "ended"
    assert not launch.survivors()


@pytest.mark.parametrize("closed", CLOSED[1:4:2])
def test_other_verbs_do_without_streams(launch: Launch, closed: str) -> None:
    """Including a run that goes into the background, whose supervisor outlives the command."""
    spec = launch.shell("echo one", workers=1)
    started = shell(launch, f"{TFLAUNCH} up -d {shlex.quote(str(spec))} {closed}")
    assert (started.returncode, "Traceback" in started.stderr) == (0, False), started.stderr
    for verb in ("wait", "ps", "ls", "logs", "events", f"check {shlex.quote(str(spec))}"):
        ended = shell(launch, f"{TFLAUNCH} {verb} {closed}")
        assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr


@pytest.mark.parametrize("verb", ["ps", "ls", "logs", "events --json"])
def test_a_full_disk_under_stdout_is_told(launch: Launch, verb: str) -> None:
    """With one sentence and the exit code."""
    launch.up(launch.shell("echo one", workers=1))
    ended = shell(launch, f"{TFLAUNCH} {verb} > /dev/full")
    assert ended.returncode == 125
    assert ended.stderr.splitlines() == ["tflaunch: stdout: No space left on device"]


@pytest.mark.parametrize("verb", ["attach", "logs -f", "ps --watch"])
def test_a_follower_ends_when_its_reader_is_gone(launch: Launch, verb: str) -> None:
    """With the next line, as other programs do; the run goes on."""
    started = launch.run("up", "-d", launch.shell("while sleep 0.1; do date; done", workers=1))
    assert started.returncode == 0, started.stderr
    ended = shell(launch, f"(timeout 30 {TFLAUNCH} {verb}; echo $? > code) | head -1")
    assert ended.stdout.count("\n") == 1, ended.stderr
    assert (launch.directory / "code").read_text() == "1\n"
    assert launch.run("down").returncode == 0


def test_output_that_a_full_disk_does_not_take_is_told(launch: Launch) -> None:
    """The exit code is the job's, whose logs are complete."""
    spec = launch.shell("echo one", workers=1, strategy="none")
    ended = shell(launch, f"{TFLAUNCH} up {shlex.quote(str(spec))} > /dev/full")
    told = "tflaunch: warning: output is not shown: stdout: No space left on device; the logs have all of it"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (0, told)
    assert launch.log("worker:0") == "one\n"


@pytest.mark.parametrize("verb", ["logs", "events --json"])
def test_a_reader_may_be_slow_where_stdout_does_not_block(launch: Launch, verb: str) -> None:
    """As where another program, such as node or ssh, has set the flag of the pipe that both write to."""
    launch.up(launch.shell("seq 40000", workers=1, strategy="none"))
    expected = shell(launch, f"{TFLAUNCH} {verb}").stdout
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    command = [str(TFLAUNCH), *verb.split()]
    with open(ours) as reader, subprocess.Popen(command, stdout=theirs, cwd=launch.directory, env=launch.env) as writer:
        os.close(theirs)
        assert reader.read() == expected
    assert writer.returncode == 0
