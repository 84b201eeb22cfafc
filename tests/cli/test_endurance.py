"""A long run uses no more memory at its end than at its start."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from support.launch import PATIENCE, Launch
from tflaunch.tui import backlog

pytestmark = pytest.mark.cli

RESTARTS = int(os.environ.get("TFLAUNCH_TEST_RESTARTS", "200"))
LINES = RESTARTS * 2000
TALK = """
import os, time
for start in range(0, LINES, 200):
    os.write(1, "".join(f"line {number:09d}\\n" for number in range(start, start + 200)).encode())
while not os.path.exists("go"):
    time.sleep(0.05)
"""
ENDING = "echo attempt $TFLAUNCH_ATTEMPT; exit $((1 + TFLAUNCH_ATTEMPT % 2))"
GROWTH = 4 * 2**20
"""Bytes; finds a leak of 26 KB per restart or 13 bytes per line; in a night, one of 520 bytes per restart."""


def test_many_restarts_and_lines_leave_no_trace_in_memory(launch: Launch) -> None:
    """In a night, as many as may occur in days; and no line is lost."""
    spec = launch.spec(
        cluster={"worker": 1, "evaluator": 1},
        strategy="none",
        command=["python3", "-c", TALK.replace("LINES", str(LINES))],
        # Alternate two exit codes: the same one repeatedly is a crash loop.
        roles={"evaluator": {"command": ["sh", "-c", ENDING]}},
        restart={"max": 20 * RESTARTS, "window": "1d", "backoff": [0, 0]},
    )
    launch.prefix = ["sh", "-c", 'exec "$@" 2> said', "sh"]  # it is not read, and each restart is reported there
    running = launch.start("up", spec)
    assert running.stdout is not None
    enough = min(1.2 * backlog.MEMORY, 10 * LINES)
    while not any(path.stat().st_size > enough for path in launch.home.glob("runs/*/logs/worker-0.log")):
        assert running.poll() is None
        time.sleep(0.05)  # what waits for a reader that stands still is memory, too: it is full before the first look
    early: list[int] = []
    lines = restarts = 0
    for line in running.stdout:
        if line.startswith("evaluator:0"):
            restarts = int(line.split()[-1])
        elif line.startswith("worker:0"):
            assert line.endswith(f"line {lines:09d}\n")
            lines += 1
        if not early and restarts > RESTARTS / 5 and lines > LINES / 5:
            early = _memory(running.pid)
        if lines == LINES and restarts >= RESTARTS:
            break
    late = _memory(running.pid)
    (launch.directory / "go").touch()
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, (launch.directory / "said").read_text()[-1000:]
    assert [name for name in zip(early, late, strict=True) if name[1] - name[0] > GROWTH] == []


def _memory(launcher: int) -> list[int]:
    """Resident bytes of launcher, guard and agent."""
    guard = psutil.Process(launcher).children()[0]
    agent = guard.children()[0]
    return [process.memory_info().rss for process in (psutil.Process(launcher), guard, agent)]
