"""Measure tasks' CPU time, memory and GPUs, if there are any, on request only."""

from __future__ import annotations

import os
from typing import Callable, Dict, List

from tflaunch_worker import linux, offload, orphans, procfs
from tflaunch_worker.event_loop import Loop

Figures = Dict[str, Dict[str, float]]
Rows = Dict[str, List[List[str]]]

PATIENCE = 2.0
"""Timeout in seconds for each query of the driver, which hangs when a GPU hangs."""

SHARED_FOR = 30.0
"""Seconds for which shared memory is not measured again: visiting all pages takes a tenth of a second."""

_QUERIES = {"processes": "--query-compute-apps=pid,gpu_uuid,used_memory", "gpus": "--query-gpu=uuid,utilization.gpu"}


class Measurer:
    """Measurer of a host's tasks; if ``driver`` exists, ``program`` queries the GPUs."""

    def __init__(self, loop: Loop, driver: str = linux.NVIDIA_DRIVER, program: str = "nvidia-smi") -> None:
        self._loop = loop
        self._driver = driver
        self._program = program
        self._is_out = False
        self.forks: set[int] = set()
        """Processes that were forked from a zygote and share memory with it."""
        self._shared: list[list[str]] = []
        self._shared_until = 0.0
        self._waiting: Callable[[Rows], None] | None = None

    def ask(self, pids: Callable[[], dict[str, int]], answer: Callable[[Figures], None]) -> None:
        """Call ``answer`` with what each task uses: at once, or after a query.

        GPUs and shared memory have to be queried. A request during a pending answer is ignored.

        Args:
            pids: returns the leading process of each living task; called when the answer is assembled.
            answer: gets ``cpu_seconds``, ``rss_bytes``, ``gpu_bytes`` and ``gpu_percent`` by task, if known,
                and for a forked task ``shared_bytes``, the part of ``rss_bytes`` shared with other processes.
        """
        if self._waiting is not None:
            return
        self._waiting = lambda rows: answer(_figures(pids(), {"shared": self._shared, **rows}))
        program = self._program if os.path.exists(self._driver) else ""
        forks = self.forks.intersection(pids().values())
        sharing = sorted(forks) if self._loop.now() >= self._shared_until else []
        if self._is_out or not (program or sharing):
            self._tell({})
            return
        self._is_out = True
        timer = self._loop.call_at(self._loop.now() + 2 * PATIENCE, lambda: self._tell({}))

        def answered(rows: Rows | None) -> None:
            self._is_out = False
            timer.cancel()
            if rows and "shared" in rows:
                self._shared, self._shared_until = rows["shared"], self._loop.now() + SHARED_FOR
            self._tell(rows or {})

        offload.run_in_fork(self._loop, lambda: _ask_others(program, sharing), answered)

    def _tell(self, rows: Rows) -> None:
        """Answer unless the timer has: a program in a broken driver cannot be killed."""
        tell, self._waiting = self._waiting, None
        if tell is not None:
            tell(rows)


def _figures(pids: dict[str, int], rows: Rows) -> Figures:
    """Sum up what the processes of each task use, from one snapshot of all processes."""
    processes = procfs.processes()
    tasks = {pid: task for task, pid in pids.items()}
    owners = owners_of(processes, tasks)
    figures: Figures = {task: {} for task in pids}
    for pid, task in owners.items():
        mine, process = figures[task], processes[pid]
        mine["cpu_seconds"] = mine.get("cpu_seconds", 0.0) + process.cpu_seconds
        mine["rss_bytes"] = mine.get("rss_bytes", 0) + process.rss_bytes
    add_gpus(figures, owners, rows)
    for number, shared in rows.get("shared", []):
        if int(number) in tasks:
            figures[tasks[int(number)]]["shared_bytes"] = int(shared)
    return figures


def owners_of(processes: dict[int, procfs.Process], leaders: dict[int, str]) -> dict[int, str]:
    """Return each process's task: by descent from a leader, by session, or adopted.

    ``leaders``: pid to task.
    """
    leaders = {**_find_adopted(processes, set(leaders.values())), **leaders}
    owners: dict[int, str | None] = {}
    for pid in processes:
        way, above = [], pid
        while above in processes and above not in owners:
            process = processes[above]
            owners[above] = leaders.get(above, leaders.get(process.session))
            way.append(above)
            if owners[above] is None:
                above = process.parent
        owners.update(dict.fromkeys(way, owners.get(above)))
    return {pid: task for pid, task in owners.items() if task is not None}


def _find_adopted(processes: dict[int, procfs.Process], tasks: set[str]) -> dict[int, str]:
    """Return the task of each process that the guard, the agent's parent, adopted."""
    agent = processes.get(os.getpid())
    if agent is None or agent.parent <= 1:  # without a guard, all is ending
        return {}
    found = [pid for pid, process in processes.items() if process.parent == agent.parent and pid != os.getpid()]
    return {pid: task for pid in found if (task := orphans.task_of(pid)) in tasks}


def add_gpus(figures: Figures, owners: dict[int, str], rows: Rows) -> None:
    """Add each task's GPU memory, and the average utilization of its GPUs."""
    # What is no number is "[N/A]" or "[Not Supported]".
    busy = {uuid: float(percent) for uuid, percent in rows.get("gpus", []) if percent.isdigit()}
    places: dict[str, set[str]] = {}
    for pid, uuid, megabytes in rows.get("processes", []):
        task = owners.get(int(pid)) if pid.isdigit() else None
        if task is None:
            continue
        places.setdefault(task, set()).add(uuid)
        if megabytes.isdigit():
            figures[task]["gpu_bytes"] = figures[task].get("gpu_bytes", 0) + int(megabytes) * 1024 * 1024
    for task, uuids in places.items():
        known = [busy[uuid] for uuid in uuids if uuid in busy]
        if known:
            figures[task]["gpu_percent"] = sum(known) / len(known)


def _ask_others(program: str, sharing: list[int]) -> Rows:
    """Query the GPU tool and these processes' shared memory, where given; in a fork."""
    rows = _ask_program(program) if program else {}
    if sharing:
        rows["shared"] = [[str(pid), str(procfs.shared_memory(pid))] for pid in sharing]
    return rows


def _ask_program(program: str) -> Rows:
    """Query the GPU tool; what it does not report in time is omitted."""
    import subprocess  # takes 4 ms, and only hosts with GPUs come here

    rows: Rows = {}
    for name, query in _QUERIES.items():
        command = [program, query, "--format=csv,noheader,nounits"]
        width = query.count(",") + 1
        try:
            told = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            break
        lines = told.stdout.decode("ascii", "replace").splitlines()
        cells = ([cell.strip() for cell in line.split(",")] for line in lines)
        rows[name] = [row for row in cells if len(row) == width]
    return rows
