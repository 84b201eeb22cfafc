"""Copies of checkpoints on this machine: what another supervisor knows of them, and what remains."""

import shutil
import sys
from pathlib import Path

import psutil

from support import checkpoint_program
from support.launch import Launch, read_errors_until, read_until, wait_for_end
from support.waiting import wait_until

EVERY = 10


def test_a_killed_supervisor_loses_no_copy(launch: Launch, tmp_path: Path) -> None:
    """The next one goes on copying, and `ps` shows what is safe, although the directory of a checkpoint is lost."""
    goal = tmp_path / "goal"
    spec = launch.spec(
        "mine.json",
        cluster={"worker": 1},
        strategy="none",
        command=[sys.executable, checkpoint_program.__file__, "state", str(EVERY), "0.05", str(goal)],
        checkpoints={"dir": "state"},
        restart={"max": 3, "backoff": [0, 0]},
    )
    assert launch.up(spec, "-d").returncode == 0
    copies = launch.run_directory() / "checkpoints"
    _wait_for(copies, 1)
    launch.kill_supervisor()
    resumed = launch.start("up", "--resume", "mine")
    read_errors_until(resumed, "is restored")
    count = len(list(copies.iterdir()))
    _wait_for(copies, count + 1)
    safe = launch.status()["checkpoint"]
    assert safe["step"] >= EVERY
    assert safe["hosts"] == ["localhost"]
    assert f"newest safe checkpoint: {safe['name'][:5]}" in launch.run("ps").stdout
    task = psutil.Process(launch.status()["tasks"][0]["pid"])
    task.suspend()
    wait_until(lambda: task.status() == psutil.STATUS_STOPPED)  # it would save beside the removal
    shutil.rmtree(launch.directory / "state")
    launch.succeed("kill", "-s", "KILL", "mine", "worker:0")
    begun = int(read_until(resumed, "begins at step ", 1).rpartition("begins at step ")[2])
    assert begun >= safe["step"]
    goal.write_text(str(begun + 2 * EVERY))
    _, err = wait_for_end(resumed)
    end = begun + 2 * EVERY
    assert f"ends with {end} {checkpoint_program.state_at(end)}" in launch.log("worker:0")
    assert "attempt 1 starts with checkpoint ckpt-" in err
    assert len(list(copies.glob("*-ckpt-*"))) <= 3
    assert not list((launch.run_directory() / "agents").rglob("checkpoints/*")), "copies on hosts end with the run"


def _wait_for(copies: Path, count: int) -> None:
    # As many as there is room for, and the index.
    wait_until(lambda: len(list(copies.glob("*"))) > count or len(list(copies.glob("*-ckpt-*"))) >= 3)
