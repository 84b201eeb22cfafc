"""The positions and waits of tasks' processes, without stops or signals.

Two samples are taken some seconds apart: what has not changed in between has not moved. The agent reads the stacks
itself, because Linux may let only the ancestors of a process read its memory (Yama).
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any, Callable, ClassVar, Dict, List

from tflaunch_worker import procfs
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.network import listening_sockets
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.agent.task import Task
from tflaunch_worker.features import python_stacks
from tflaunch_worker.features.hang.traffic import Traffic, namespace_of, sockets_of
from tflaunch_worker.features.python_runtime import UnreadableError
from tflaunch_worker.inspect.usage import owners_of

Facts = Dict[str, List[Dict[str, Any]]]
"""The processes of each task."""

BETWEEN = 3.0
"""Seconds between the two samples."""

_MOST_PROCESSES = 16  # of a task, the oldest first; also of the threads of C++ of a process
_MOST_SOCKETS = 20
_MOST_FRAMES = 4000  # of a task
_LONGEST_PATH, _LONGEST_NAME = 300, 200  # characters
_TICKS = os.sysconf("SC_CLK_TCK")
_ON_DESCRIPTOR = ("pipe", "fifo", "sock", "skb", "tcp", "unix", "wait_woken", "inet", "fuse", "nfs", "tty")
_ON_LOCK = ("flock", "locks_lock", "setlk")
_ON_FILE = (*_ON_LOCK, "pipe", "fifo", "partner", "fuse", "request_wait", "nfs", "rpc", "folio", "io_sched")
_STATES = {1: "established", 2: "connecting", 10: "listening"}  # of the kernel's numbering


class TaskEvidence(Service):
    """Finds out where tasks are; answers one question at a time."""

    CALLS: ClassVar = {"find_signs": {}, "gather_evidence": {}}

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._waiting: list[Callable[[Facts], None]] = []

    def find_signs(self, call: Call, message: dict[str, Any]) -> None:
        """Tell when each task last wrote or reported something; it costs next to nothing."""
        for name in self.agent.pids():
            self._tell(call, name)
        call.answer()

    def gather_evidence(self, call: Call, message: dict[str, Any]) -> None:
        """Tell, too, where the processes of each task are."""
        self.ask(partial(self._answer, call))

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Wait until all tasks are sampled, for which the supervisor asks, too."""
        self.ask(lambda _: looked())

    def _answer(self, call: Call, facts: Facts) -> None:
        for name, processes in facts.items():
            self._tell(call, name, processes=processes)
        call.answer()

    def _tell(self, call: Call, name: str, **more: Any) -> None:
        task = self.agent.tasks[name]
        silence = None if task.spoke_at is None else self.agent.loop.now() - task.spoke_at
        known = {"task": name, "attempt": task.attempt, "silence": silence}
        call.tell(**known, progress=task.progress() or None, **more)

    def ask(self, answer: Callable[[Facts], None]) -> None:
        """Call ``answer`` after `BETWEEN` seconds with the processes of each task.

        A question during another one gets the same answer. The fields of processes are those of
        `tflaunch.features.hang.evidence.Process`.
        """
        self._waiting.append(answer)
        if len(self._waiting) > 1:
            return
        before: dict[str, list[_Sample]] = {}
        after: dict[str, list[_Sample]] = {}
        loop = self.agent.loop
        again = lambda: self._sample(after, lambda: self._answer_all(before, after))  # noqa: E731
        self._sample(before, lambda: loop.call_at(loop.now() + BETWEEN, again))

    def _sample(self, samples: dict[str, list[_Sample]], done: Callable[[], object]) -> None:
        """Sample one task per round of the loop, then call ``done``."""
        pids, loop = self.agent.pids(), self.agent.loop
        leaders = {pid: task for task, pid in pids.items()}
        members: dict[str, list[int]] = {task: [] for task in pids}
        for pid, task in owners_of(procfs.processes(), leaders).items():
            members[task].append(pid)
        left = list(members.items())

        def sample_next() -> None:
            if not left:
                done()
                return
            task, found = left.pop(0)
            known = (_read_process(pid, loop.now()) for pid in sorted(found)[:_MOST_PROCESSES])
            samples[task] = [sample for sample in known if sample is not None]
            loop.call_at(loop.now(), sample_next)

        sample_next()

    def _answer_all(self, before: dict[str, list[_Sample]], after: dict[str, list[_Sample]]) -> None:
        earlier = {sample.pid: sample for samples in before.values() for sample in samples}
        facts: Facts = {}
        tables: dict[str, dict[int, dict[str, Any]]] = {"": {}}  # by network namespace; "" is that of a dead process
        traffic = Traffic()
        for task, samples in after.items():
            facts[task] = []
            for sample in samples:
                namespace = namespace_of(sample.pid)
                if namespace not in tables:
                    tables[namespace] = _connections(f"/proc/{sample.pid}/net")
                process = _compare(sample, earlier.get(sample.pid), tables[namespace])
                facts[task].append({**process, "traffic": traffic.of(sample.pid)})
            left = _MOST_FRAMES
            for process in facts[task]:
                for thread in process["threads"]:
                    thread["frames"] = thread["frames"][:left]
                    left -= len(thread["frames"])
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(facts)


class _Sample:
    """A process at one moment: CPU ticks, and its main, Python and blocked threads."""

    def __init__(self, pid: int, at: float) -> None:
        self.pid = pid
        self.at = at
        self.name, self.state, self.ticks = _stat(f"/proc/{pid}")
        self.cpu_wait = _cpu_wait(pid)
        self.unread = ""
        self.threads: list[_ThreadSample] = []


class _ThreadSample:
    def __init__(self, pid: int, number: int, frames: list[python_stacks.Frame]) -> None:
        self.number = number
        self.frames = frames
        place = f"/proc/{pid}/task/{number}"
        self.state = _stat(place)[1] if number else ""
        self.wchan = (procfs.read(f"{place}/wchan") or "").strip("0\n") if number else ""
        self.switches = _switches(procfs.read(f"{place}/status") or "") if number else None
        self.target = _target(pid, place) if any(part in self.wchan for part in _ON_DESCRIPTOR) else ""
        if any(part in self.wchan for part in _ON_LOCK):
            self.target = f"{_target(pid, place) or 'a file'}{_lock_holder(pid)}"

    def has_moved(self, earlier: _ThreadSample) -> bool:
        """Return whether the thread has run since an earlier sample."""
        return self.frames != earlier.frames or self.switches != earlier.switches or self.state == "R"


def _read_process(pid: int, at: float) -> _Sample | None:
    """Return a sample of a process, None if it is gone."""
    sample = _Sample(pid, at)
    if not sample.state:
        return None
    threads: list[python_stacks.Thread] = []
    if sample.state not in "ZX":
        try:
            threads = python_stacks.read_threads(pid)
        except UnreadableError as error:
            sample.unread = str(error)
    numbers = [thread.id for thread in threads]
    if pid not in numbers:  # before 3.11, Python does not keep them; the first one is the main thread
        numbers[:1] = [pid]
    frames = [list(thread.frames) for thread in threads] or [[]]
    if all(numbers):  # known from Python 3.11 on; otherwise, those of Python could not be told apart
        numbers += _waiting_for_files(pid, numbers)
        frames += [[] for _ in numbers]
    sample.threads = [_ThreadSample(pid, number, frames[place]) for place, number in enumerate(numbers)]
    return sample


def _waiting_for_files(pid: int, without: list[int]) -> list[int]:
    """Return the threads of a process that wait in the kernel for a file."""
    others = sorted({int(name) for name in procfs.threads_of(pid)}.difference(without))
    waits = {number: procfs.read(f"/proc/{pid}/task/{number}/wchan") or "" for number in others}
    return [number for number, wchan in waits.items() if any(part in wchan for part in _ON_FILE)][:_MOST_PROCESSES]


def _stat(place: str) -> tuple[str, str, int]:
    """Return name, state and CPU ticks of a process or thread; "" if it has ended."""
    head, _, rest = (procfs.read(f"{place}/stat") or "").rpartition(")")
    fields = rest.split()
    return (head.partition("(")[2], fields[0], int(fields[11]) + int(fields[12])) if fields else ("", "", 0)


def _switches(status: str) -> int | None:
    """Return how often a thread has given up or lost its CPU."""
    counts = [int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line]
    return sum(counts) if counts else None


def _target(pid: int, place: str) -> str:
    """Describe the descriptor on which a thread waits; "" if unknown."""
    words = (procfs.read(f"{place}/syscall") or "").split()
    try:
        target = os.readlink(os.fsencode(f"/proc/{pid}/fd/{int(words[1], 16)}"))
        return target.decode("utf-8", "replace")[-_LONGEST_PATH:]
    except (OSError, ValueError, IndexError):
        return ""


def _cpu_wait(pid: int) -> float:
    """Return the seconds for which living threads waited for a CPU; 0 if unknown."""
    waited = 0.0
    for thread in procfs.threads_of(pid):
        words = (procfs.read(f"/proc/{pid}/task/{thread}/schedstat") or "").split()  # None: it has ended
        waited += int(words[1]) / 1e9 if len(words) > 1 else 0.0
    return waited


def _lock_holder(pid: int) -> str:
    """Return ``, which python (pid 7) has locked`` for a process; "" if unknown."""
    holders: dict[str, str] = {}
    for line in (procfs.read("/proc/locks") or "").splitlines():  # a lock is followed by those who wait for it
        words = line.split()
        if "->" not in words and len(words) > 4:
            holders[words[0]] = words[4]
        elif len(words) > 5 and words[5] == str(pid) and words[0] in holders:
            holder = holders[words[0]]
            return f", which {_stat(f'/proc/{holder}')[0] or 'a process'} (pid {holder}) has locked"
    return ""


def _compare(sample: _Sample, earlier: _Sample | None, table: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Describe a process after its second sample."""
    before = {} if earlier is None else {each.number or -place: each for place, each in enumerate(earlier.threads)}
    passed = 0.0 if earlier is None else sample.at - earlier.at
    ticks = 0 if earlier is None else sample.ticks - earlier.ticks
    waited = 0.0 if earlier is None else max(sample.cpu_wait - earlier.cpu_wait, 0.0)  # of threads that have ended
    sockets = {inode: table[inode] for inode in sorted(sockets_of(sample.pid) & table.keys())}
    peers = {f"socket:[{inode}]": known["peer"] for inode, known in sockets.items()}
    threads = []
    for place, thread in enumerate(sample.threads):
        then = before.get(thread.number or -place)
        threads.append(
            {
                "id": thread.number,
                "state": thread.state,
                "wchan": thread.wchan,
                "target": f"connection to {peers[thread.target]}" if thread.target in peers else thread.target,
                "has_moved": then is None or thread.has_moved(then),
                "frames": [
                    [frame.file[-_LONGEST_PATH:], frame.line, frame.function[:_LONGEST_NAME]] for frame in thread.frames
                ],
            }
        )
    return {
        "pid": sample.pid,
        "name": sample.name,
        "state": sample.state,
        "cpu": round(ticks / _TICKS / passed, 3) if passed > 0 else 0.0,
        "cpu_wait": round(waited / passed, 3) if passed > 0 else 0.0,
        "cpu_seconds": sample.ticks / _TICKS,
        "wait_seconds": round(sample.cpu_wait, 3),
        "unread": sample.unread,
        "threads": threads,
        "sockets": [known for known in sockets.values() if known["state"] != "established" or known["is_stuck"]][
            :_MOST_SOCKETS
        ],
    }


def _connections(directory: str) -> dict[int, dict[str, Any]]:
    """Return a namespace's TCP sockets, listening or connected, by their inodes."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (procfs.read(f"{directory}/{name}") or "").splitlines()[1:]:
            words = line.split()
            state = _STATES.get(int(words[3], 16)) if len(words) > 9 else None
            if state is None:
                continue
            unsent = int(words[4].partition(":")[0], 16)
            found[int(words[9])] = {
                "state": state,
                "local": _address(words[1], family),
                "peer": _address(words[2], family),
                "unsent": unsent,
                "is_stuck": bool(unsent and int(words[6], 16)),  # words[6]: retransmissions without an answer
            }
    return found


def _address(text: str, family: int) -> str:
    address, port = listening_sockets.read_address(text, family)
    if "." in address:  # of IPv4, also in a socket of IPv6
        return f"{address.rpartition(':')[2]}:{port}"
    return f"[{address}]:{port}"
