"""The processes of one attempt of a task: its leader, and those that it has started, wherever they have moved.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import re

from tflaunch_worker import procfs
from tflaunch_worker.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

BESIDE_TASK = "TFLAUNCH_EXEC"
"""Variable of processes that have the environment of a task, and do not belong to it."""

SUCCESS_PATIENCE = 2.0
"""Seconds for what a successful program has left behind to end by itself."""

_BESIDE_TASK = os.fsencode(f"{BESIDE_TASK}=")
_LAST_ACT = 10.0  # seconds
_NO_WORK = 0.1  # seconds of CPU that a program may use which only starts another one
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"))
_MOST_NAMED = 3
_LONGEST_COMMAND = 60
_HELPERS = re.compile(r"multiprocessing[.-]|\bloky\b")  # they end with their parent, or soon after


class TaskProcesses:
    """The processes of an attempt, known by its session, or by the environment with which it was started."""

    def __init__(self, task: str, attempt: int, env: Mapping[str, str]) -> None:
        """Know the attempt; its ``leader`` is set once there is a process."""
        self.leader = 0
        self._marks = {
            os.fsencode(f"TFLAUNCH_RUN={env.get('TFLAUNCH_RUN', '')}"),
            os.fsencode(f"TFLAUNCH_TASK={task}"),
            os.fsencode(f"TFLAUNCH_ATTEMPT={attempt}"),
        }

    def members(self) -> tuple[list[int], list[int]]:
        """Return the task's processes that the guard adopted, wherever they moved, and those that may be further ones.

        A process that is just executing another program shows no environment; the caller checks again.
        """
        members, unknown = [], []
        guard, agent = os.getppid(), os.getpid()
        found = procfs.descendants(guard, without=agent)
        for pid in found:
            environment = procfs.environment_of(pid)
            if procfs.is_zombie(pid):
                continue
            if _is_beside_task(environment):
                continue
            if procfs.session_of(pid) == self.leader or self._marks <= environment:
                members.append(pid)
            elif not environment:
                unknown.append(pid)
        if found:  # the guard may have adopted the children of one that has exited meanwhile
            unknown += set(procfs.descendants(guard, without=agent)).difference(found)
        return members, unknown

    def find_suspended(self, has_exited: bool) -> str:
        """Return which process of the task SIGSTOP or a debugger has stopped, so that it answers no peer; else ""."""
        pids = [] if has_exited else [self.leader]
        for pid in pids:
            state = procfs.describe_wait(pid)[:7]
            if state in ("state T", "state t"):
                return f"{state}, pid {pid}: {_command_of(pid)}"
            # Not those of other threads: a program may have hundreds, and its peers wait to be ended.
            pids += map(int, (procfs.read(f"/proc/{pid}/task/{pid}/children") or "").split())
        return ""

    def describe_left(
        self, members: Sequence[int], argv: Sequence[str], worked: float, has_trained: bool
    ) -> dict[str, object]:
        """Return the fields of a reported exit about what a program that ended with 0 has left behind; {} for nothing.

        A shell, or a program that has done no work itself, which ends right after it has started others has put the
        training in the background: the task has not succeeded. What other programs leave behind, or what was started
        longer before the end or after progress was reported, is a helper of a training that is done.

        Args:
            members: processes that still run.
            argv: the command of the task.
            worked: how many seconds of CPU the leader has used.
            has_trained: whether progress was reported.
        """
        left = [(pid, procfs.age_of(pid), command) for pid in members if (command := _command_of(pid))]
        left = [each for each in left if not _HELPERS.search(each[2])]
        if not left:
            return {}
        shown = ", ".join(f"{pid} ({command})" for pid, _, command in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        is_last_act = any(age is not None and age < _LAST_ACT + SUCCESS_PATIENCE for _, age, _ in left)
        first = os.path.basename(argv[0])
        is_script = first in _SHELLS or first.endswith(".sh") or worked < _NO_WORK
        return {
            "evidence": f"its process{'es' if len(left) > 1 else ''} {shown}{more} still ran",
            "went_to_background": is_last_act and is_script and not has_trained,
        }


def _is_beside_task(environment: set[bytes]) -> bool:
    return any(entry.startswith(_BESIDE_TASK) for entry in environment)


def _command_of(pid: int) -> str:
    """Return the command line of a process, cut and printable; "" if it is gone."""
    words = (procfs.read(f"/proc/{pid}/cmdline") or "").rstrip("\0").replace("\0", " ")
    return printable(words, _LONGEST_COMMAND)
