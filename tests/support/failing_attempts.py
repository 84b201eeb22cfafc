"""Attempts that all fail, with a culprit, victims that die of it a little later, and the culprit named for each."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tflaunch.core import replay
from tflaunch.core.job_state import Phase
from tflaunch.store import journal

ATTEMPTS = 50

_PROGRAM = """
import os, random, signal, time
def is_dead(pid, namespace):
    if namespace != os.readlink("/proc/self/ns/pid"):
        return True  # it was on another host
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as TensorFlow does
me, attempt = int(os.environ["TFLAUNCH_TASK"].split(":")[1]), int(os.environ["TFLAUNCH_ATTEMPT"])
if attempt == {attempts}:
    raise SystemExit(0)
culprit = random.Random(attempt).randrange({workers})
names = [f"{place}/{{attempt}}-{{number}}" for number in range({workers})]
for name in names:
    try:
        os.mkfifo(name)
    except FileExistsError:
        pass
if me == culprit:
    held = [open(name, "w") for name in names if name != names[me]]
    for pipe in held:
        print(os.getpid(), os.readlink("/proc/self/ns/pid"), file=pipe, flush=True)
    os._exit(50 + attempt)
culprit = open(names[me]).read().split()  # a process that dies closes its files first
while not is_dead(*culprit):
    time.sleep(0.001)
time.sleep(random.uniform(*{later}))
os._exit(1)
"""


def program(place: Path, workers: int, attempts: int = ATTEMPTS, later: tuple[float, float] = (0.005, 0.05)) -> str:
    """Return the source of the program; all tasks share the directory ``place``.

    Args:
        place: the directory.
        workers: the number of tasks.
        attempts: the number of the attempt that succeeds.
        later: how long after the culprit the victims die, in seconds: at least, at most.
    """
    return _PROGRAM.format(place=place, workers=workers, attempts=attempts, later=later)


FIELDS: dict[str, Any] = {
    "strategy": "none",
    "restart": {"max": 2 * ATTEMPTS, "window": "1d", "backoff": [0, 0]},
    "timeouts": {"grace": 30},
}


def culprits(workers: int, attempts: int = ATTEMPTS) -> list[str]:
    """Return the task that fails first in each attempt."""
    return [f"worker:{random.Random(attempt).randrange(workers)}" for attempt in range(attempts)]


def named(run: Path) -> list[str]:
    first, *rest = journal.read_journal(run)
    before, names = replay.first_job(first), []
    for transition in replay.transitions(before, rest):
        if before.phase is Phase.STOPPING and transition.job.phase is not Phase.STOPPING:
            assert before.culprit is not None
            names.append(before.culprit.name)
        before = transition.job
    return names
