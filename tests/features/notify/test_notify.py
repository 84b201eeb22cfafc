"""`notify`: the user's command runs exactly once for each occurrence, whatever happens to supervisors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.launch import LONG, PATIENCE, Launch
from support.waiting import wait_until

pytestmark = pytest.mark.cli

TELL = {"exec": ["sh", "-c", "echo $TFLAUNCH_EVENT $TFLAUNCH_EXIT_CODE >>told; cat"]}
FAIL_ONCE = "test $TFLAUNCH_ATTEMPT = 1 || exit 7"
ROUNDS = 200 if LONG else 3
SEED = 24


def told(launch: Launch) -> list[str]:
    file = launch.directory / "told"
    return file.read_text().splitlines() if file.exists() else []


def test_a_restart_and_the_end(launch: Launch) -> None:
    spec = launch.shell(FAIL_ONCE, workers=1, strategy="none", restart={"backoff": [0, 0]}, notify=TELL)
    launch.succeed("up", spec)
    assert told(launch) == ["restarted", "done 0"]
    first, last = (launch.run_directory() / "notify.log").read_text().splitlines()
    assert first == "restart 1 of 3: worker:0 exited with code 7"
    assert last.startswith("done: 1 task, after 1 restart, in ")
    assert [r["name"] for r in launch.journal() if r["kind"] == "notified"] == ["restarted-1", "end"]


@pytest.mark.thorough
def test_supervisors_that_are_killed(launch: Launch) -> None:
    """At any moment, three in a row: no gap, and nothing twice."""
    spec = launch.shell(
        FAIL_ONCE,
        workers=1,
        strategy="none",
        restart={"backoff": [0, 0]},
        timeouts={"lease": 60, "connect": 60, "heartbeat": 20},
        notify=TELL,
    )
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        (launch.directory / "told").unlink(missing_ok=True)
        earlier = set(journals(launch))
        running = launch.start("up", spec)
        journal = wait_until(lambda earlier=earlier: set(journals(launch)) - earlier).pop()  # type: ignore[misc]
        for _ in range(3):
            lines = length(journal) + chance.randrange(8)
            wait_until(lambda: running.poll() is not None or length(journal) >= lines)  # noqa: B023 - called at once
            running.kill()
            running.communicate(timeout=PATIENCE)
            running = launch.start("up", "--resume", journal.parent.name)
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0 or "has ended with exit code 0" in said, said
        wait_until(lambda: len(told(launch)) >= 2)  # a command outlives the supervisor that has started it
        # In any order: the first command may stand still while the next supervisor starts the second one.
        assert sorted(told(launch)) == ["done 0", "restarted"], f"round {number}: {said}"
    wait_until(lambda: not launch.survivors())  # so does an agent of one that was killed at the end of its job


def length(journal: Path) -> int:
    return journal.read_text().count("\n")


def journals(launch: Launch) -> list[Path]:
    """Return the journals of all runs that have begun."""
    return [path for path in launch.home.glob("runs/*/events.jsonl") if "\n" in path.read_text()]
