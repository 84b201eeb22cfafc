"""Hosts without a shared directory are destroyed with their disks in mid-training, and come back empty."""

import itertools
import random
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import checkpoint_program
from support.launch import LONG, Launch, wait_for_end
from support.netns_hosts import Bed
from support.waiting import wait_until

HOSTS = ("h1", "h2", "h3")
TIMEOUTS = {"connect": 20, "heartbeat": 4, "lease": 12, "grace": 0.5}
EVERY, PACE = 10, 0.1  # steps; seconds per step
DRILLS = 8 if LONG else 2


def start(bed: Bed, launch: Launch, goal: Path) -> subprocess.Popen[str]:
    """Start three workers whose checkpoints are on the disks of their hosts."""
    shutil.copy(checkpoint_program.__file__, launch.directory / "train.py")
    fields: dict[str, Any] = {
        "cluster": {"worker": list(HOSTS)},
        "hosts": {name: {"python": sys.executable} for name in HOSTS},
        "command": ["python", "train.py", "state", str(EVERY), str(PACE), str(goal)],
        "sync": {"paths": ["train.py"]},
        "checkpoints": {"dir": "state"},
        "restart": {"max": 100, "backoff": [0, 0]},
        "timeouts": TIMEOUTS,
    }
    return bed.control(launch).start("up", launch.spec(**fields))


def starts_after(launch: Launch, number: int) -> list[dict[str, Any]]:
    """Return the starts of worker:2 after its first ``number`` and one more."""
    return launch.records("task_started", task="worker:2")[number + 1 :]


def copied_since(launch: Launch, seq: int) -> list[dict[str, Any]]:
    """Return the records of checkpoints that were copied to another host after a record."""
    return [one for one in launch.records("checkpoint_copied") if one["seq"] > seq and len(one["hosts"].split()) > 1]


def attempts(launch: Launch, task: str) -> list[tuple[int, int]]:
    """Return the first and the last step of each attempt of a task."""
    texts = re.split(r"---- tflaunch: .* attempt \d+ ----\n", launch.log(task))
    found = []
    for text in texts:
        begun = re.search(r"begins at step (\d+)", text)
        if begun:
            steps = [int(number) for number in re.findall(r"^step (\d+)$", text, re.MULTILINE)]
            found.append((int(begun[1]), steps[-1] if steps else int(begun[1])))
    return found


def have_begun(launch: Launch, restarts: int) -> bool:
    """Return whether all workers have said with which step they begin after this many restarts."""
    return all(len(attempts(launch, f"worker:{index}")) > restarts for index in range(3))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12 if LONG else 1))
def test_hosts_are_destroyed(bed: Bed, launch: Launch, tmp_path: Path, seed: int) -> None:
    """Any of three, one after the other: little is done again, and the weights are those of an undisturbed training."""
    choice, goal = random.Random(seed), tmp_path / "goal"
    running, seq = start(bed, launch, goal), -1
    lost: list[int] = []
    copied: list[int] = []
    for number in range(DRILLS):
        seq = wait_until(partial(copied_since, launch, seq), running)[-1]["seq"]
        wait_until(partial(have_begun, launch, number), running)  # all of them, or they say nothing
        # clock: a host is destroyed at a random moment between two checkpoints
        time.sleep(choice.random() * EVERY * PACE)
        lost.append(choice.randint(1, 3) if LONG else 1 + number)
        copied.append(copied_since(launch, seq - 1)[-1]["step"])
        bed.power_off(lost[-1])
        bed.power_on(lost[-1])
        assert not [*bed.home_of(lost[-1]).rglob("ckpt-*")], "its disk is empty"
        seq = wait_until(partial(starts_after, launch, number), running)[-1]["seq"]
    wait_until(lambda: copied_since(launch, seq), running)
    (tmp_path / "written").write_text(str(attempts(launch, "worker:0")[-1][1] + 8 * EVERY))
    (tmp_path / "written").rename(goal)  # tasks read it at any moment
    _, err = wait_for_end(running)
    end = int(goal.read_text())
    for index in range(3):
        assert f"ends with {end} {checkpoint_program.state_at(end)}\n" in launch.log(f"worker:{index}")
    begun = [[first for first, _ in attempts(launch, f"worker:{index}")] for index in range(3)]
    assert begun[0] == begun[1] == begun[2], "all start with the same checkpoint"
    of_chief = attempts(launch, "worker:0")
    redone = [last - first for (_, last), (first, _) in itertools.pairwise(of_chief)]
    print("drills:", list(zip(lost, redone, strict=True)))
    for host, steps, step, (first, _) in zip(lost, redone, copied, of_chief[1:], strict=True):
        # The checkpoint before the last one counts if its host is destroyed while it is being copied. On a busy
        # machine that takes longer than the chief's steps.
        assert first >= step, (lost, copied, of_chief)
        assert steps < (5 * EVERY if host == 1 else EVERY), (lost, redone)
    assert "starts with checkpoint ckpt-" in err
