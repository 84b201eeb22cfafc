"""Measure what copying checkpoints of 100 MB costs the training that writes them."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import peers
import psutil
from parts import Bench, Part, finish, own_directory
from process_tree import StuckError, workshop
from rounds import Found, Sample, figure, in_turn, median, ratio, remarks, table, values

LIMIT = 600.0
LOOK_EVERY = 0.1  # seconds
WITHOUT, WITH = "without copies", "with copies"
STEPS, EVERY, SECONDS = 80, 40, 0.5
MEGABYTES = 100
COPIES = (STEPS - 1) // EVERY
TEXT = f"""\
A program computes {STEPS} steps of {SECONDS:g} s of processor time on one core, and writes a new checkpoint of
{MEGABYTES} MB after every {EVERY}; `checkpoints` copies them, or not, in turn. The agent and the process that copies
share the core with the program; the supervisor, which is on another machine in practice, has the others. Times of
steps are without the program's own writing. Processor time of copying is that of the agent and its forks beyond what
it needs without copies; the last column sets it against the time from one checkpoint to the next.
"""
PROGRAM = f"""
import hashlib
import os
import struct
import time
from pathlib import Path
data, state = os.urandom(1 << 20), Path("state")
state.mkdir(exist_ok=True)
times = []
for step in range(1, {STEPS} + 1):
    begun = time.monotonic()
    until = time.process_time() + {SECONDS}
    while time.process_time() < until:
        hashlib.sha256(data).digest()
    times.append(time.monotonic() - begun)
    if step % {EVERY} == 0 and step < {STEPS}:
        with open(state / f"ckpt-{{step}}.data-00000-of-00001", "wb") as file:
            for _ in range({MEGABYTES}):
                file.write(os.urandom(1_000_000))
        (state / f"ckpt-{{step}}.index").write_bytes(struct.pack("<Q", 0xDB4775248B80FB57))
print("found", sum(times) / len(times), flush=True)
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Train with and without copies in turn."""
    return {"": Found(in_turn("checkpoints", (WITHOUT, WITH), bench.repeats, _train), {})}


def _train(way: str) -> Sample:
    """Train once; return seconds per step, and the processor time of the agent."""
    with workshop("checkpoints") as (_, scratch):
        directory = own_directory(scratch)
        (directory / "train.py").write_text(PROGRAM)
        spec = {"cluster": {"worker": 1}, "strategy": "none", "command": [sys.executable, "train.py"]}
        copied = {"checkpoints": {"dir": "state"}} if way == WITH else {}
        (directory / "job.json").write_text(json.dumps({**spec, **copied}))
        env = {**os.environ, "TFLAUNCH_HOME": str(directory / "home")}
        cores = sorted(os.sched_getaffinity(0))
        with (directory / "output").open("wb") as output:
            argv = ["taskset", "-c", str(cores[-1]), peers.tflaunch(), "up", "job.json"]
            started = subprocess.Popen(argv, cwd=directory, env=env, stdout=output, stderr=output)
        agents = _Agents(started, set(cores[:-1]) or set(cores))
        finish(started, LIMIT, directory / "output")
        (log,) = directory.glob("home/runs/*/logs/worker-0.log")
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("found ")]
        count = len(list(directory.glob("home/runs/*/checkpoints/*-ckpt-*")))
        if way == WITH and count != COPIES:
            raise StuckError(f"{count} checkpoints were copied")
        return {"step": float(line.partition(" ")[2]), "agent": agents.seconds()}


class _Agents:
    """Notes the processor time of a run's agent with its forks, and gives the supervisor cores of its own."""

    def __init__(self, run: subprocess.Popen[bytes], cores: set[int]) -> None:
        self._run = run
        self._cores = cores
        self._seen: dict[int, float] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        is_moved = False
        while self._run.poll() is None:
            for process in _descendants(self._run.pid):
                try:
                    if any(word.startswith("tflaunch-agent") for word in process.cmdline()):
                        used = process.cpu_times()
                        self._seen[process.pid] = used.user + used.system + _of_forks(process)
                        if not is_moved:
                            _move(self._run.pid, self._cores)
                            is_moved = True
                except psutil.Error:
                    continue
            time.sleep(LOOK_EVERY)

    def seconds(self) -> float:
        """Return the seconds of processor time."""
        self._thread.join()
        return max(self._seen.values(), default=0.0)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _of_forks(agent: psutil.Process) -> float:
    """Return the processor time of the forks that an agent has reaped, and of those that live; no task is one."""
    used = agent.cpu_times()
    living = [child.cpu_times() for child in agent.children() if "train.py" not in child.cmdline()]
    return used.children_user + used.children_system + sum(times.user + times.system for times in living)


def _move(pid: int, cores: set[int]) -> None:
    """Move all threads of a process to other cores."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    (one,) = found.values()
    own = [
        with_ - without
        for with_, without in zip(values(one, WITH, "agent"), values(one, WITHOUT, "agent"), strict=True)
    ]
    cost = sorted(own)[len(own) // 2] / COPIES if own else None
    share = None if cost is None else 100 * cost / (EVERY * SECONDS)
    rows = [
        [way, figure(median(one, way, "step")), figure(ratio(one, way, WITHOUT, "step")), *cells]
        for way, cells in ((WITHOUT, ["", ""]), (WITH, [figure(cost), figure(share)]))
    ]
    head = ["", "s per step", "ratio", "processor time of copying, s per checkpoint", "% of a core"]
    ratios = [a / b for a, b in zip(values(one, WITH, "step"), values(one, WITHOUT, "step"), strict=True)]
    spread = f"The ratios of single rounds are from {min(ratios):.3f} to {max(ratios):.3f}." if ratios else ""
    return [*table(head, rows), "", spread, *remarks(found)]


PART = Part("Copies of checkpoints", TEXT, measure, section)
