"""`notify`: the user's command runs exactly once for each occurrence, whatever happens to supervisors."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from support.launch import LONG, PATIENCE, Launch

pytestmark = pytest.mark.cli

TELL = {"exec": ["sh", "-c", "echo $TFLAUNCH_EVENT $TFLAUNCH_EXIT_CODE >>told; cat"]}
FAIL_ONCE = "sleep 0.2; test $TFLAUNCH_ATTEMPT = 1 || exit 7"
ROUNDS = 200 if LONG else 3
SEED = 24


def told(launch: Launch) -> list[str]:
    """Return what the command was told so far."""
    file = launch.directory / "told"
    return file.read_text().splitlines() if file.exists() else []


def test_a_restart_and_the_end(launch: Launch) -> None:
    """In order, with the summary on stdin, and recorded."""
    spec = launch.shell(FAIL_ONCE, workers=1, strategy="none", restart={"backoff": [0, 0]}, notify=TELL)
    ended = launch.up(spec)
    assert ended.returncode == 0, ended.stderr
    assert told(launch) == ["restarted", "done 0"]
    first, last = (launch.run_directory() / "notify.log").read_text().splitlines()
    assert first == "restart 1 of 3: worker:0 exited with code 7"
    assert last.startswith("done: 1 task, after 1 restart, in ")
    assert [r["name"] for r in launch.journal() if r["kind"] == "notified"] == ["restarted-1", "end"]


def test_a_failure(launch: Launch) -> None:
    """With the exit code; other occurrences were not asked for."""
    spec = launch.shell(
        "exit 5", workers=1, strategy="none", restart={"max": 0}, notify={**TELL, "on": ["failed", "done"]}
    )
    assert launch.up(spec).returncode == 5
    assert told(launch) == ["failed 5"]


def test_supervisors_that_are_killed(launch: Launch) -> None:
    """At any moment, three in a row: no gap, and nothing twice."""
    spec = launch.shell(
        FAIL_ONCE,
        workers=1,
        strategy="none",
        restart={"backoff": [0, 0]},
        timeouts={"lease": 60, "grace": 0.2, "connect": 60, "heartbeat": 20},
        notify=TELL,
    )
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        (launch.directory / "told").unlink(missing_ok=True)
        known = set(journals(launch))
        running = launch.start("up", spec)
        while not (begun := set(journals(launch)) - known):
            time.sleep(0.005)
        run = begun.pop().parent.name
        for _ in range(3):
            time.sleep(chance.uniform(0, 0.9))
            running.kill()
            running.communicate(timeout=PATIENCE)
            running = launch.start("up", "--resume", run)
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0 or "has ended with exit code 0" in said, said
        moment = time.monotonic() + PATIENCE
        while len(told(launch)) < 2 and time.monotonic() < moment:
            time.sleep(0.01)  # a command outlives the supervisor that has started it
        # In any order: the first command may stand still while the next supervisor starts the second one.
        assert sorted(told(launch)) == ["done 0", "restarted"], f"round {number}: {said}"
    while launch.survivors() and time.monotonic() < moment:
        time.sleep(0.01)  # so does an agent of one that was killed at the end of its job


def journals(launch: Launch) -> list[Path]:
    """Return the journals of all runs that have begun."""
    return [path for path in launch.home.glob("runs/*/events.jsonl") if "\n" in path.read_text()]
