"""Measure how long it takes until training continues after one of two hosts lost power, with and without a spare one.

The hosts are network namespaces of this machine, joined by virtual cables (tests/support/netns_hosts.py); that needs
root. One is powered off: its processes are killed and its cable is cut, so that nobody is told. Without a spare host
the job waits until it returns, `AWAY` seconds later.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import peers
from parts import Bench, Part, journal, last_line, own_directory
from process_tree import StuckError, workshop
from rounds import Found, Sample, figure, in_turn, measured, remarks, table, values

LIMIT = 300.0
LOOK_EVERY = 0.02  # seconds
AWAY = 60.0
"""Seconds until a host that was powered off is on again."""
TIMEOUTS = {"heartbeat": 2, "lease": 6, "grace": 1, "connect": 30}
FENCE = TIMEOUTS["lease"] + TIMEOUTS["grace"] + 5
"""Seconds from the loss of a link until the tasks of its host are certainly dead."""
PRELOADED, COLD, NONE = "spare host, preload", "spare host", "no spare host, preload"
WAYS = (NONE, COLD, PRELOADED)
WORDS = {
    "detected": "host certainly dead",
    "started": "from then until all new processes run",
    "stepped": "from then until the first new step",
}
TEXT = f"""\
The host of one of two mirrored workers loses power, with `"heartbeat": {TIMEOUTS["heartbeat"]}`, \
`"lease": {TIMEOUTS["lease"]}` and `"grace": {TIMEOUTS["grace"]}`: its link is lost after the heartbeat, and its tasks \
are certainly dead {FENCE:g} s after that. Without a spare host the job waits for it; it is on again after {AWAY:g} s. \
All hosts share the cores of this machine.
"""
PROGRAM = """
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total():
    return strategy.reduce("SUM", strategy.run(lambda: tf.ones(1000)), axis=None)
while True:
    assert total()[0] == 2
    print("step", time.monotonic(), flush=True)
    time.sleep(0.05)
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all ways."""
    return {"": Found(in_turn("spares", WAYS, bench.repeats, _one), {})}


def _one(way: str) -> Sample:
    """Train on two hosts, power one off, and return the seconds until each of `WORDS`."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from support.netns_hosts import Bed  # only with root
    from support.sshd import Keyring

    with workshop("spares") as (_, scratch):
        keys = scratch / "keys"
        keys.mkdir()
        with Bed(scratch / "bed", Keyring(keys)) as bed:
            return _on_bed(bed, own_directory(scratch), way)


def _on_bed(bed: Any, directory: Path, way: str) -> Sample:
    (directory / "train.py").write_text(PROGRAM)
    spec = {
        "cluster": {"worker": ["h1", "h2"]},
        "hosts": {bed.name(i): {"python": sys.executable} for i in bed.hosts},
        "spares": [] if way == NONE else ["h3"],
        "command": [sys.executable, str(directory / "train.py")],
        "preload": [] if way == COLD else ["tensorflow"],
        "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
        "timeouts": TIMEOUTS,
        "restart": {"max": 50},
    }
    (directory / "job.json").write_text(json.dumps(spec))
    env = {**os.environ, "TFLAUNCH_HOME": str(directory / "home"), "HOME": str(bed.client_home)}
    argv = [*bed.run_prefix, peers.tflaunch(), "up", "job.json"]
    with (directory / "output").open("wb") as output:
        run = subprocess.Popen(argv, cwd=directory, env=env, stdout=output, stderr=output)
    wait = partial(_wait, run, directory)
    wait(lambda: _steps(directory, 0))
    time.sleep(10)  # the spare host imports TensorFlow
    lost = time.monotonic()
    bed.power_off(2)
    if way == NONE:
        wait(lambda: time.monotonic() > lost + AWAY)
        bed.power_on(2)
    (stepped, *_) = wait(lambda: _steps(directory, lost + 1))
    run.terminate()
    run.wait(LIMIT)
    known = journal(directory)
    dead = _abandoned_at(known)
    started = [record["now"] for record in known if record["kind"] == "task_started" and record["now"] > dead]
    return {"detected": dead - lost, "started": started[1] - dead, "stepped": stepped - dead}


def _abandoned_at(known: list[dict[str, Any]]) -> float:
    """Return the time of the event with which the host was given up; actions follow their event in the journal."""
    now = 0.0
    for record in known:
        now = record.get("now", now)
        if record["kind"] == "abandon_host" and record["host"] == "h2":
            return float(now)
    raise StuckError("the host was never given up")


def _steps(directory: Path, since: float) -> list[float]:
    """Return when the steps of both workers' latest attempts ended that began later than ``since``."""
    found = []
    for log in directory.glob("home/runs/*/logs/worker-*.log"):
        last = log.read_text().rpartition("---- tflaunch: ")[2] if since else log.read_text()
        whole = last[: last.rfind("\n") + 1].splitlines()
        steps = [float(line.partition(" ")[2]) for line in whole if line.startswith("step ")]
        found.append([moment for moment in steps if moment > since])
    both = len(found) == 2 and all(found) and (not since or _has_restarted(directory))
    return [max(steps[0] for steps in found)] if both else []


def _has_restarted(directory: Path) -> bool:
    return any(record["kind"] == "task_started" and record["attempt"] for record in journal(directory))


def _wait(run: "subprocess.Popen[bytes]", directory: Path, look: Any) -> Any:
    end = time.monotonic() + LIMIT
    while not (seen := look()):
        if run.poll() is not None or time.monotonic() > end:
            run.terminate()
            raise StuckError(f"it did not go on: {last_line(directory / 'output')}")
        time.sleep(LOOK_EVERY)
    return seen


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    head = ["", *(f"{words}: {what}" for words in WORDS.values() for what in ("s", "max"))]
    rows = [[way, *(cell for name in WORDS for cell in _cells(found[""], way, name))] for way in WAYS]
    return [*table(head, rows), "", *remarks(found)]


def _cells(found: Found, way: str, name: str) -> list[str]:
    middle, _ = measured([found], way, NONE, name)
    return [middle, figure(max(values(found, way, name), default=None))]


PART = Part("Spare hosts", TEXT, measure, section)
