"""What drills do to processes: a wall clock that is stepped."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.wall_clock import WallClock
from support.needs import need

pytestmark = pytest.mark.agent

READ = """
import datetime, sys, threading, time
for line in sys.stdin:
    began, waited = time.monotonic(), threading.Condition()
    time.sleep(0.05)
    with waited:
        waited.wait(0.05)
    print(time.time(), datetime.datetime.now().timestamp(), began, time.monotonic() - began, flush=True)
"""


def test_a_step_is_seen_by_those_that_have_the_clock(tmp_path: Path) -> None:
    """In all ways to read it, while they run; other clocks and waits are as before, and so is everybody else's."""
    need("gcc")
    clock = WallClock(tmp_path / "clock")
    argv, pipe, env = [sys.executable, "-c", READ], subprocess.PIPE, {**os.environ, **clock.environ}
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True) as reader:
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
