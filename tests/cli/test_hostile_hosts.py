"""A host that sends anything causes one sentence: no traceback, no endless wait, bounded memory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from cli import hostile_host
from support.launch import PATIENCE, Launch, read_errors_until
from support.waiting import wait_until

pytestmark = pytest.mark.cli

_PERIOD = 0.05  # seconds between looks at the memory
CONNECT = 4.0
GRACE = 1.0
MOST_MEMORY = 100 * 1024  # KiB
MOST_SHOWN = 2**16
"""Bytes of each stream that are kept: a flood is gigabytes."""


class Ended(NamedTuple):
    """How a command ended: its code, the end of its output, and its peak memory in KiB."""

    code: int
    out: str
    err: str
    memory: int


class Stage:
    """Runs tflaunch with a host behind `docker` that plays a part."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        script = f'#!/bin/sh\nunset TFLAUNCH_HOME\nexec {sys.executable} -I -S {hostile_host.__file__} "$@"\n'
        launch.install("docker", script)

    def play(self, mode: str, *arguments: object) -> Ended:
        """Run a command while the host plays a part; in the end it has to give up by itself."""
        self.launch.env["HOSTILE_MODE"] = mode
        process = self.launch.start(*arguments)
        assert process.stdout is not None
        assert process.stderr is not None
        memory, end = 0, os.pidfd_open(process.pid)
        with ThreadPoolExecutor(2) as pool:
            out, err = pool.submit(tail, process.stdout), pool.submit(tail, process.stderr)
            while not select.select([end], [], [], _PERIOD)[0]:
                memory = max(memory, peak(process.pid))
            os.close(end)
            return Ended(process.wait(), out.result(), err.result(), memory)

    def spec(self, **fields: Any) -> Path:
        limits = {"connect": CONNECT, "grace": GRACE, "lease": "8s", "heartbeat": "2s"}
        task: dict[str, Any] = {"cluster": {"worker": ["h1"]}, "strategy": "none", "command": ["train"]}
        return self.launch.spec(**task, hosts={"h1": {"docker": "c1"}}, timeouts=limits, restart={"max": 0}, **fields)


def tail(stream: IO[str]) -> str:
    """Read a stream to its end and return its last characters."""
    kept = ""
    while part := os.read(stream.fileno(), MOST_SHOWN):
        kept = kept[-MOST_SHOWN:] + part.decode(errors="replace")
    return kept


def peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


@pytest.fixture
def stage(launch: Launch) -> Stage:
    return Stage(launch)


def check_words(ended: Ended) -> None:
    """Check that tflaunch's output is its own, and printable."""
    assert "Traceback" not in ended.err, ended
    lines = ended.err.splitlines()
    assert all(line.isprintable() and not line.startswith("tflaunch: done") for line in lines), ended


def check_up(ended: Ended) -> None:
    """Check how a run with this host ended."""
    check_words(ended)
    assert ended.code in (3, 125, 137), ended
    assert ended.err.strip()
    assert ended.memory < MOST_MEMORY, ended


@pytest.mark.parametrize("mode", ["noise", pytest.param("drip", marks=pytest.mark.thorough)])
def test_before_there_is_an_agent(stage: Stage, mode: str) -> None:
    ended = stage.play(mode, "up", stage.spec())
    check_up(ended)
    assert ended.code == 3


def test_a_flood_of_output(stage: Stage) -> None:
    """The run ends, and can be inspected afterwards."""
    check_up(stage.play("flood", "up", stage.spec()))
    shown = stage.play("flood", "events")
    check_words(shown)
    assert shown.code in (0, 3, 125), shown
    assert all(line.isprintable() for line in shown.out.splitlines()), shown


def held(stage: Stage) -> subprocess.Popen[str]:
    """Start a run whose host keeps its link alive and ends no task; return once the task runs."""
    stage.launch.env["HOSTILE_MODE"] = "hold"
    run = stage.launch.start("up", stage.spec())
    read_errors_until(run, "logs in")
    return run


def test_the_third_ctrl_c_ends_tflaunch(stage: Stage) -> None:
    run = held(stage)
    for number in range(1, 4):
        run.send_signal(signal.SIGINT)
        if number < 3:  # signals of one kind that are pending at once are one
            wait_until(lambda: len(stage.launch.records("interrupted")) == number)  # noqa: B023
    assert run.wait(PATIENCE) == 125
