"""The disk never waits for a terminal: a reader that stops affects neither the job nor the log."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from support.launch import Launch
from support.specs import TFLAUNCH
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.cli

SIZE = 60_000_000
"""Bytes that the task writes."""
PAUSE = 8.0
"""Seconds for which a reader stops."""
LINE = "x" * 90
LINES = "".join(f"{number:09}{LINE}\n" for number in range(10_000)).encode()
PROGRAM = f"""\
import os
lines = "".join(f"{{number:09}}{LINE}\\n" for number in range(10_000)).encode()
for _ in range({{count}}):
    os.write(1, lines)
"""
SUPERVISOR_MEMORY = 200_000_000
"""Bytes: the interpreter and the allowed buffers; not the output of the tasks."""


def program(launch: Launch, after: str = "", size: int = SIZE) -> Path:
    """Return a spec of one task that writes that many bytes and then runs more code."""
    (launch.directory / "task.py").write_text(PROGRAM.replace("{count}", str(size // len(LINES))) + after)
    return launch.spec(cluster={"worker": 1}, command=["python3", "task.py"], strategy="none")


def is_whole(launch: Launch, size: int = SIZE) -> bool:
    """Whether the log has every byte of the task, and nothing else."""
    (log,) = launch.home.glob("runs/*/logs/worker-0.log")
    with log.open("rb") as file:
        return all(file.read(len(LINES)) == LINES for _ in range(size // len(LINES))) and not file.read(1)


def wait_for(launch: Launch, kind: str) -> None:
    """Wait until the journal of the only run has a record of a kind."""
    wait_until(lambda: launch.records(kind), otherwise=f"no {kind}")


def test_a_reader_that_stops_costs_no_byte(launch: Launch) -> None:
    """300 MB in 8 s: the job ends first; a reader that resumes gets everything, and memory stays flat."""
    size = 300_000_000
    running = launch.start("up", program(launch, size=size))
    until = time.monotonic() + PAUSE
    wait_for(launch, "ended")
    assert launch.run("wait").returncode == 0
    time.sleep(max(until - time.monotonic(), 0))
    assert is_whole(launch, size)
    assert running.poll() is None
    assert psutil.Process(running.pid).memory_info().rss < SUPERVISOR_MEMORY
    out, err = running.communicate(timeout=PATIENCE)
    assert len(out) == size + size // 100 * len("worker:0 | ")
    assert (running.returncode, "done: 1 task" in err, "not shown" in out + err) == (0, True, False)


def test_a_reader_that_never_reads_can_be_left(launch: Launch) -> None:
    """Ctrl-C stops waiting for it; the exit code is that of a user who does not want the rest."""
    running = launch.start("up", program(launch))
    wait_for(launch, "ended")
    assert running.stderr is not None
    while "done: 1 task" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 130
    assert is_whole(launch)
    assert not launch.survivors()


def test_ctrl_c_does_not_wait_for_a_reader_that_never_reads(launch: Launch) -> None:
    """Tasks get their grace, then the command ends and states how much was not shown."""
    running = launch.start("up", program(launch, "open('wrote', 'w').close(); import time; time.sleep(300)"))
    while not (launch.directory / "wrote").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 130
    assert running.stderr is not None
    assert "the end of the output is not shown" in running.stderr.read()
    assert not launch.survivors()


def test_stderr_has_a_reader_of_its_own(launch: Launch) -> None:
    """Messages of tflaunch come at once, even if its output is not read, and they need not be read."""
    program(launch, "raise SystemExit(7)")
    spec = launch.spec(cluster={"worker": 1}, command=["python3", "task.py"], strategy="none", restart={"max": 0})
    running = launch.start("up", spec)
    assert running.stderr is not None
    said = ""
    while "worker:0 exited with code 7" not in said:
        said += running.stderr.readline()
    assert running.poll() is None
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 7


def test_a_pipe_that_another_program_made_non_blocking_is_waited_for(launch: Launch) -> None:
    """It is not mistaken for a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    running = subprocess.Popen(
        [str(TFLAUNCH), "up", str(program(launch, size=2_000_000))],
        cwd=launch.directory, env=launch.env, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    wait_for(launch, "ended")
    with open(reader, "rb") as out:
        assert len(out.read()) == 2_000_000 + 20_000 * len("worker:0 | ")
    assert running.wait(PATIENCE) == 0


def test_a_terminal_that_stops_misses_only_what_is_stated(launch: Launch) -> None:
    """Ctrl-S: the log is complete, and the terminal shows the end and how much it has skipped."""
    master, slave = pty.openpty()
    running = subprocess.Popen(
        [str(TFLAUNCH), "up", str(program(launch))],
        cwd=launch.directory, env={**launch.env, "TERM": "dumb", "NO_COLOR": "1"},
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    wait_for(launch, "ended")
    assert is_whole(launch)
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                shown.extend(data)
        except OSError:
            pass  # the terminal has no process any more

    reader = threading.Thread(target=read)
    reader.start()
    assert running.wait(PATIENCE) == 0
    reader.join(PATIENCE)
    os.close(master)
    lines = shown.decode().splitlines()
    (statement,) = [line for line in lines if "not shown" in line]
    missing = float(statement.split()[1]) * 1e6
    assert abs(sum(line.startswith("worker:0") for line in lines) * 100 + missing - SIZE) < 100_000
    assert "tflaunch logs" in statement
    assert lines[-1].startswith("tflaunch: done: 1 task")


def test_attach_waits_for_its_reader_in_little_memory(launch: Launch) -> None:
    """It reads the logs at its reader's pace."""
    started = launch.run("up", "-d", program(launch, "open('wrote', 'w').close(); import time; time.sleep(300)"))
    assert started.returncode == 0, started.stderr
    follower = launch.start("attach", "-n", json.dumps(SIZE))
    assert follower.stdout is not None
    assert os.read(follower.stdout.fileno(), 1000)
    while not (launch.directory / "wrote").exists():
        assert follower.poll() is None
        time.sleep(0.01)
    assert psutil.Process(follower.pid).memory_info().rss < SUPERVISOR_MEMORY
    follower.send_signal(signal.SIGINT)
    assert follower.wait(PATIENCE) == 130
    assert launch.run("down").returncode == 0
