"""The wall clock that drills step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.wall_clock import WallClock, need_wall_clock

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
    need_wall_clock()
    clock = WallClock(tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", READ],
        env={**os.environ, **clock.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for step in (0, 7200, -3600, 0):
            clock.step(step)
            before, monotonic = time.time(), time.monotonic()
            print("read", file=reader.stdin, flush=True)
            read, also_read, began, took = map(float, reader.stdout.readline().split())
            assert before <= read - step <= time.time()
            assert before <= also_read - step <= time.time()
            assert monotonic <= began <= time.monotonic()
            assert 0.1 <= took <= time.monotonic() - monotonic
        assert clock.is_read_by(reader.pid)
        assert not clock.is_read_by(os.getpid())
        reader.stdin.close()
