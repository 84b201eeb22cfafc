"""Processes of a task attempt: its leader and what it started, wherever it moved.

This is what every signal is sent to, what is waited for, and what counts as use: nothing else decides which they are.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Callable, Mapping, Sequence

from tflaunch_worker import linux, orphans, process_ends, procfs
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.readable import printable

SUCCESS_PATIENCE = 2.0
"""Seconds for what a successful program has left behind to end by itself."""

_LOOK_AGAIN = 0.02  # seconds
_LAST_ACT = 10.0  # seconds
_NO_WORK = 0.1  # seconds of CPU that a program may use which only starts another one
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"))
_MOST_NAMED = 3
_LONGEST_COMMAND = 60
_HELPERS = re.compile(r"multiprocessing[.-]|\bloky\b")  # they end with their parent, or soon after


class Adopted:
    """Orphaned processes of this host's tasks, adopted by the guard or the agent.

    It is made when the agent starts. The guard adopts them. Once it was killed, the agent's parent is that of half the
    machine: then the agent adopts them itself, and finds by one look at the whole machine what the guard had adopted
    before.
    """

    def __init__(self) -> None:
        self._agent, self._guard = os.getpid(), os.getppid()
        self._strays: list[int] | None = None
        self.started: set[int] = set()
        """The agent's own children, which start what users want; it has not adopted these."""

    def below(self, *roots: int) -> list[int]:
        """Return the processes below ``roots``, and adopted ones, each after its parent."""
        if os.getppid() == self._guard:
            return procfs.descendants(*roots, self._guard, without={self._agent})
        if self._strays is None:
            linux.adopt_orphans()
            known = {pid for pid in procfs.pids() if orphans.task_of(pid)}
            self._strays = sorted(known.difference(procfs.descendants(self._agent)))
        others = self.started.difference(roots)
        return [*self._strays, *procfs.descendants(*roots, self._agent, *self._strays, without=others)]


class TaskProcesses:
    """Processes of an attempt: the leader's descendants, and known adopted ones.

    Known are those seen below the leader before, those of its session, those with the environment with which it was
    started, and what descends from any of them.
    """

    def __init__(self, task: str, attempt: int, env: Mapping[str, str], adopted: Adopted) -> None:
        """Know the attempt, which has no process yet."""
        self.leader = 0
        self._is_leader_reaped = False
        self._adopted = adopted
        self._seen: dict[int, int] = {}  # pid to start
        self._marks = {
            os.fsencode(f"TFLAUNCH_RUN={env.get('TFLAUNCH_RUN', '')}"),
            os.fsencode(f"TFLAUNCH_TASK={task}"),
            os.fsencode(f"TFLAUNCH_ATTEMPT={attempt}"),
        }

    def begin(self, leader: int) -> None:
        """Know the process that was started for the attempt."""
        self.leader = leader
        self._adopted.started.add(leader)

    def note_reaped(self) -> None:
        """Know that the leader is gone, so that another process may have its pid."""
        self._is_leader_reaped = True
        self._adopted.started.discard(self.leader)

    def look(self) -> tuple[list[int], list[int]]:
        """Return the task's living processes, and adopted ones that may be further ones.

        A process that is just executing another program shows no environment; the caller looks again.
        """
        leader = [] if self._is_leader_reaped else [self.leader]
        earlier = [pid for pid in self._seen if self.has_seen(pid)]
        found = [*leader, *earlier, *self._adopted.below(*leader, *earlier)]
        members: dict[int, int] = {}
        unknown: list[int] = []
        for pid in found:
            place = procfs.place_of(pid)
            if place is None or pid in members:
                continue
            is_known = pid in leader or self._seen.get(pid) == place.since or place.parent in members
            if is_known or place.session == self.leader or self._marks <= procfs.environment_of(pid):
                members[pid] = place.since
            elif not procfs.environment_of(pid):
                unknown.append(pid)
        if found:  # the guard may have adopted the children of one that has exited during the look
            unknown += set(self._adopted.below()).difference(found)
        self._seen = members
        return list(members), unknown

    def has_seen(self, pid: int) -> bool:
        """Return whether a process that was seen before still lives."""
        place = procfs.place_of(pid)
        return place is not None and self._seen.get(pid) == place.since

    def signal_group(self, number: int) -> int:
        """Signal the leader's group, or the leader while it has no group of its own.

        Returns the group, or 0 if the leader is gone, so that its pid may be that of a stranger.
        """
        if self._is_leader_reaped:
            return 0
        try:
            os.killpg(self.leader, number)
        except ProcessLookupError:
            os.kill(self.leader, number)
        except PermissionError:
            pass  # the program has changed its user; what may be signalled was signalled
        return self.leader

    def signal_others(self, number: int, group: int, before: int) -> None:
        """Signal the processes that are not in a ``group`` that has got the signal.

        Those that began later than ``before`` (see `procfs.clock`) may have been started because of the signal, say to
        save, and must not get it.
        """
        for pid in self.look()[0]:
            place = procfs.place_of(pid)
            if place is not None and place.group != group and place.since < before:
                linux.kill(pid, None, number)

    def kill(self, members: Sequence[int], spares_cleaners: bool) -> bool:
        """Kill these processes; return whether helpers were spared.

        Args:
            members: what `look` has returned.
            spares_cleaners: let helpers end by themselves once all others are dead (see `process_ends`). Otherwise,
                what their group has started since is killed, too: before, that may be such a helper.
        """
        helpers = filter(process_ends.may_be_cleaner, members) if spares_cleaners else ()
        spared = set(helpers).difference((self.leader,))
        if not spares_cleaners:
            self.signal_group(signal.SIGKILL)
        for pid in members:
            if pid not in spared:
                linux.kill(pid, None, signal.SIGKILL)
        return bool(spared)

    def when_dead(self, members: list[int], loop: Loop, call: Callable[[], None]) -> None:
        """Call back once all of these are dead: looks at all would be quadratic."""
        while members and not self.has_seen(members[-1]):
            members.pop()
        pidfd = linux.open_pidfd(members[-1]) if members else None
        if pidfd is None:
            loop.call_at(loop.now() + (_LOOK_AGAIN if members else 0), call)
            return

        def died() -> None:
            loop.forget(pidfd)
            os.close(pidfd)
            self.when_dead(members, loop, call)

        loop.watch(pidfd, died, urgent=True)

    def find_suspended(self) -> str:
        """Return which process is stopped, by SIGSTOP or a debugger, or ""."""
        pids = [] if self._is_leader_reaped else [self.leader]
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
        """Return the fields of an exit about processes that a success left behind.

        A shell, or a program that has done no work itself, which ends right after it has started others has put the
        training in the background: the task has not succeeded. What other programs leave behind, or what was started
        longer before the end or after progress was reported, is a helper of a training that is done.

        The leader has used the CPU for ``worked`` seconds; ``has_trained``: whether progress was reported.
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


def _command_of(pid: int) -> str:
    """Return the command line of a process, cut and printable; "" if it is gone."""
    return printable(procfs.command_of(pid), _LONGEST_COMMAND)
