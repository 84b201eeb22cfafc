"""What drills do to processes: memory cgroups, and a wall clock that is stepped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.wall_clock import WallClock
from support.memory_group import memory_group, need_memory_groups
from support.needs import need

pytestmark = pytest.mark.agent

ALLOCATE = "import sys; sys.stdin.read(1); kept = bytearray(256 << 20); kept[:] = b'x' * len(kept)"
READ = """
import datetime, sys, threading, time
for line in sys.stdin:
    began, waited = time.monotonic(), threading.Condition()
    time.sleep(0.05)
    with waited:
        waited.wait(0.05)
    print(time.time(), datetime.datetime.now().timestamp(), began, time.monotonic() - began, flush=True)
"""


def groups_of(pid: int) -> str:
    """Return the cgroups of a process."""
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_the_kernel_kills_what_exceeds_a_limit() -> None:
    """Only the process that was put into the group; another one returns to where it was, and no group is left."""
    need_memory_groups()
    before = groups_of(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ALLOCATE], stdin=subprocess.PIPE) as greedy:
        with memory_group(32 << 20) as group:
            group.add(greedy.pid)
            assert groups_of(greedy.pid) != before
            greedy.communicate(b"x")
            assert group.kills() == 1
        assert greedy.returncode == -signal.SIGKILL
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as modest:
        with memory_group(32 << 20) as group:
            group.add(modest.pid)
        assert groups_of(modest.pid) == before
        modest.communicate()
    with memory_group(32 << 20) as group:
        group.add(greedy.pid)  # it has ended
        assert group.members() == []


def test_a_step_is_seen_by_those_that_have_the_clock(tmp_path: Path) -> None:
    """In all ways to read it, while they run; other clocks and waits are as before, and so is everybody else's."""
    need("gcc")
    clock = WallClock(tmp_path / "clock")
    argv, pipe, env = [sys.executable, "-c", READ], subprocess.PIPE, {**os.environ, **clock.environ}
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for step in (0, 7200, -3600, 0):
            clock.step(step)
            before = time.time(), time.monotonic()  # clock: the other process reads them between these moments
            print("read", file=reader.stdin, flush=True)
            read, also_read, began, took = map(float, reader.stdout.readline().split())
            after = time.time(), time.monotonic()  # clock: as above
            assert before[0] <= read - step <= after[0]
            assert before[0] <= also_read - step <= after[0]
            assert before[1] <= began <= after[1]
            assert 0.1 <= took <= after[1] - before[1]
        assert clock.is_read_by(reader.pid)
        assert not clock.is_read_by(os.getpid())
        reader.stdin.close()
