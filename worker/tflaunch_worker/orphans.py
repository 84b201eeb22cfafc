"""Find and kill orphans: processes of tasks whose guard and agent are both dead.

PR_SET_PDEATHSIG reaches only the processes that an agent started itself. When guard and agent are killed at the same
time, processes started by a task survive as children of init. Such a process still has its task's environment, which
names the task's directory (TFLAUNCH_TASK_DIR) and thus the agent's directory. It is an orphan if the lock there is
free, because a guard and its agent hold that lock as long as one of them lives.
"""

from __future__ import annotations

import os
import signal
import time

from tflaunch_worker import LOCK_NAME, TASKS_NAME, linux, process_ends, procfs

PATIENCE = 5.0
"""Seconds for killed processes to die; one that waits for an unresponsive disk may take longer."""

_RUN, _TASK, _TASK_DIRECTORY = b"TFLAUNCH_RUN=", b"TFLAUNCH_TASK=", b"TFLAUNCH_TASK_DIR="
_MOST_IN_VAIN = 10  # rounds; on a busy machine some process has always just exited


def sweep(directory: str = "", is_held: bool = False, patience: float = PATIENCE, is_guard: bool = False) -> list[int]:
    """Kill orphans until none is left; return those alive after ``patience`` seconds.

    Agents in whose tasks this process runs are skipped, since `tflaunch` may itself run in a task.

    Args:
        directory: consider only orphans of the agent with this directory; "" for those of all agents of this user.
        is_held: this process holds the lock in ``directory`` and has no tasks, so that all of its agent's processes
            are orphans.
        patience: time limit in seconds.
        is_guard: this process is a guard: do not look again for one of its descendants whose environment cannot be
            read, as those are processes of its own tasks.
    """
    until = time.monotonic() + patience
    seen: set[int] = set()
    in_vain = 0
    while True:
        found, unknown = kill_once(directory, is_held)
        if unknown and is_guard:
            unknown.difference_update(procfs.descendants(os.getpid()))
        left = until - time.monotonic()
        in_vain = 0 if found else in_vain + 1
        if (not found and unknown <= seen) or in_vain == _MOST_IN_VAIN or left <= 0:
            return found
        seen |= unknown
        process_ends.wait_for_death(found, left)


def kill_once(directory: str = "", is_held: bool = False) -> tuple[list[int], set[int]]:
    """Kill the orphans that exist now.

    Returns the processes that were sent KILL, and those with an unreadable environment: a process shows none for a
    moment while it executes another program, and one that has just exited may have forked. Arguments as for `sweep`.
    """
    candidates, unknown = _candidates(directory)
    cleaners = [pid for pid in candidates if process_ends.is_cleaner(pid)]
    found = [pid for pid in candidates if pid not in cleaners and _kill(pid, candidates[pid], is_held)]
    cleaners = [pid for pid in cleaners if _is_orphan(pid, candidates[pid], is_held)]
    if cleaners:
        process_ends.wait_for_death(found, process_ends.CLEAN_UP)
        process_ends.wait_for_death(cleaners, process_ends.CLEAN_UP)
    found += [pid for pid in cleaners if _kill(pid, candidates[pid], is_held)]
    return found, unknown


def _kill(pid: int, agent: str, is_held: bool) -> bool:
    """Kill a process if it is an orphan of this agent; return whether it was killed."""
    pidfd = linux.open_pidfd(pid)
    try:
        return _is_orphan(pid, agent, is_held) and linux.kill(pid, pidfd, signal.SIGKILL)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _is_orphan(pid: int, agent: str, is_held: bool) -> bool:
    """Return whether a process is still one of this agent, and that is dead.

    Locks are checked only after processes are listed: none of them was started by a guard that takes its lock later.
    """
    return _agent_of(procfs.environment_of(pid)) == agent and (is_held or _is_free(pid, agent))


def _candidates(directory: str) -> tuple[dict[int, str], set[int]]:
    """Return tasks' processes, pid to agent directory, and pids that may be some."""
    ancestors = _ancestors()
    spared = {_agent_of(procfs.environment_of(pid)) for pid in ancestors}
    wanted = os.path.realpath(directory) if directory else ""
    candidates, unknown = {}, set()
    for pid in reversed(procfs.pids()):  # the youngest first, since they may exit soon
        if pid in ancestors:
            continue
        environment = procfs.environment_of(pid)
        if not environment:
            if procfs.may_be_program(pid):
                unknown.add(pid)
            continue
        agent = _agent_of(environment)
        if agent and agent not in spared and wanted in ("", os.path.realpath(agent)) and not procfs.is_zombie(pid):
            candidates[pid] = agent
    return candidates, unknown


def task_of(pid: int) -> str:
    """Return the task in whose environment a process was started, or ""."""
    named = (entry for entry in procfs.environment_of(pid) if entry.startswith(_TASK))
    return os.fsdecode(next(named, _TASK)[len(_TASK) :])


def _agent_of(environment: set[bytes]) -> str:
    """Return the agent's directory for the environment of a process; "" for none."""
    directory, is_task = "", False
    for entry in environment:
        if entry.startswith(_TASK_DIRECTORY):
            parent, _, _ = os.fsdecode(entry[len(_TASK_DIRECTORY) :]).rpartition("/")
            directory, _, name = parent.rpartition("/")
            directory = directory if name == TASKS_NAME else ""
        elif entry.startswith(_RUN):
            is_task = True
    return directory if is_task and directory.startswith("/") else ""


def _ancestors() -> list[int]:
    found = []
    pid: int | None = os.getpid()
    while pid:
        found.append(pid)
        pid = procfs.parent_of(pid)
    return found


def _is_free(pid: int, agent: str) -> bool:
    """Return whether no guard holds an agent's lock.

    The path is resolved in the root of the process, which may be in a container, and then in ours.
    """
    for root in (f"/proc/{pid}/root", ""):
        is_free = linux.is_lock_free(f"{root}{agent}/{LOCK_NAME}")
        if is_free is not None:
            return is_free
    return False  # no such agent: nothing shows whether it lives
