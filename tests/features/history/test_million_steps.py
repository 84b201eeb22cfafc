"""A million reported steps: the memory of supervisor and agent stays flat, and what is written stays bounded."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from support.launch import LONG, Launch
from tflaunch.store.history import last_moment

STEPS = 1_000_000
REPORTS = {
    "plain": '{"step": %d, "metrics": {"loss": 0.5}}',
    "fifty metrics": '{"step": %d, "metrics": {' + ", ".join(f'"metric{number}": 0.5' for number in range(50)) + "}}",
    "other names": '{"step": %d, "metrics": {"' + "x" * 58 + '%d": null, "' + "x" * 58 + '%d": 0.5}}',
}
"""The last one has a new metric in each step."""
TRAINING = """
import os, sys, time
report, steps = sys.argv[1], int(sys.argv[2])
with open(os.environ["TFLAUNCH_PROGRESS"], "w") as pipe:
    for step in range(1, steps + 1):
        values = (step, step - 1, step)[: report.count("%d")]
        pipe.write(report % values + "\\n")
        pipe.flush()
print("done", flush=True)
time.sleep(600)
"""
WARM = 10.0  # seconds after which all is imported, and the first measurements were taken
MOST_GROWTH = 4e6  # bytes of memory
MOST_ON_DISK = 1_200_000  # bytes


@pytest.mark.cli
@pytest.mark.skipif(not LONG, reason="takes minutes: in `make nightly` only")
@pytest.mark.parametrize("kind", REPORTS)
def test_memory_and_disk_stay_bounded(launch: Launch, kind: str) -> None:
    (launch.directory / "train.py").write_text(TRAINING)
    command = ["python3", "-S", "train.py", REPORTS[kind], str(STEPS)]
    spec = launch.spec("job.json", cluster={"worker": 1}, command=command, strategy="none")
    assert launch.run("up", "-d", spec).returncode == 0
    supervisor, began, samples = launch.supervisor(), time.monotonic(), []
    guards = supervisor.children(recursive=True)
    while not is_done(launch):
        samples.append((time.monotonic() - began, *map(memory, (supervisor, *guards[:2]))))
        time.sleep(1)
    warm = next((sample for sample in samples if sample[0] >= WARM), samples[0])
    moment = last_moment(launch.run_directory())
    size = sum(path.stat().st_size for path in launch.run_directory().rglob("*") if path.is_file())
    print(f"{kind}: {samples[-1][0]:.0f} s; {warm} -> {samples[-1]}; {size} bytes; {moment}")
    assert samples[-1][1] - warm[1] < MOST_GROWTH
    assert size < MOST_ON_DISK
    assert launch.run("down", "-t", "0").returncode == 0


def is_done(launch: Launch) -> bool:
    """Return whether the task has taken all steps."""
    log = Path(launch.run_directory() / "logs" / "worker-0.log")
    return log.exists() and "done" in log.read_text()


def memory(process: psutil.Process) -> int:
    """Return the resident memory of a process, in bytes."""
    return int(process.memory_info().rss)
