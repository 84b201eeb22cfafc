"""Sample the Python stacks of a process for some seconds, by reading its memory.

The agent samples itself and not in a fork, because Linux may let only the ancestors of a process read its memory
(Yama). All tasks of a host together get a small share of its CPUs, so that training is hardly slowed by it, and
keep-alives and output are not delayed.
"""

from __future__ import annotations

import functools
import time
import zlib
from typing import Any, Callable, ClassVar

from tflaunch_worker import procfs, wire
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.features import python_stacks
from tflaunch_worker.features.python_runtime import UnreadableError
from tflaunch_worker.schema import number

LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0
"""The shortest and longest time for which a task is profiled."""

PER_SECOND = 100.0
"""Samples per second, at most."""

_FEWEST_PER_SECOND = 5.0
_SHARE = 0.03  # of the host's CPUs, for all tasks that are sampled
_MOST_SHARE = 0.3  # of the agent's time
_MOST_STACKS = 20_000  # different ones
_LONGEST_TEXT = 128 * 1024 * 1024


class HostProfiles(Service):
    """Makes the profiles that the supervisor asks for."""

    CALLS: ClassVar = {
        "profile_task": {"task": orders.task, "attempt": orders.attempt, "seconds": number(LEAST_SECONDS, MOST_SECONDS)}
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._running: set[Call] = set()

    def profile_task(self, call: Call, message: dict[str, Any]) -> None:
        """Sample the Python stacks of a task, and answer with them or with a problem."""
        task = self.agent.tasks.get(message["task"])
        if task is None or task.attempt != message["attempt"] or task.is_gone or not task.pid:
            call.answer(problem="it does not run")
            return

        def done(sampler: StackSampler) -> None:
            self._running.discard(call)
            call.answer(sampler.result, problem=sampler.problem)

        def cancel() -> None:
            self._running.discard(call)
            sampler.cancel()

        seconds = message["seconds"]
        sampler = StackSampler(self.agent.loop, task.pid, seconds, lambda: len(self._running), done)
        self._running.add(call)
        call.when_ended = cancel


class StackSampler:
    """Samples one process. ``problem``: why there is no ``result``, or "".

    The result is packed text (see `unpack`): a line per stack, the outermost frame first and frames separated by ``;``,
    then a space and in how many samples it was seen. The first frame names the thread.
    """

    def __init__(
        self, loop: Loop, pid: int, seconds: float, count: Callable[[], int], done: Callable[[StackSampler], None]
    ) -> None:
        """Begin; ``done`` is called when the time is over, or the process has ended.

        ``count`` returns how many profiles are made at the same time, this one included.
        """
        self.problem = ""
        self._count_samplers = count
        self._share = min(_SHARE * procfs.usable_cores(), _MOST_SHARE)
        self._loop = loop
        self._pid = pid
        self._until = loop.now() + seconds
        self._done = done
        self._counts: dict[tuple[str, ...], int] = {}
        self.result = b""
        self._process: python_stacks.PythonProcess | None = None
        self._timer = loop.call_at(loop.now(), self._sample)

    def cancel(self) -> None:
        """Stop sampling; `done` is not called any more."""
        self._timer.cancel()
        self._close()

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _sample(self) -> None:
        try:
            if self._process is None:
                self._process = python_stacks.PythonProcess(self._pid)
            began = time.process_time()
            threads = self._process.read_threads()
        except UnreadableError as error:
            if not self._counts:
                self.problem = str(error)
            self._finish()
            return
        for thread in threads:
            name = "main thread" if thread.id == self._pid else f"thread {thread.id}" if thread.id else "thread"
            stack = (name, *map(_label, reversed(thread.frames)))
            if stack in self._counts or len(self._counts) < _MOST_STACKS:
                self._counts[stack] = self._counts.get(stack, 0) + 1
        now = self._loop.now()
        if now >= self._until:
            self._finish()
            return
        pause = (time.process_time() - began) * self._count_samplers() / self._share
        pause = min(max(pause, 1 / PER_SECOND), 1 / _FEWEST_PER_SECOND)
        self._timer = self._loop.call_at(min(now + pause, self._until), self._sample)

    def _finish(self) -> None:
        self._close()
        if not self._counts and not self.problem:
            self.problem = "it runs no Python"
        if not self.problem:
            self.result = pack(self._counts)
        self._done(self)


@functools.lru_cache(maxsize=_MOST_STACKS)
def _label(frame: python_stacks.Frame) -> str:
    file = frame.file.rpartition("/")[2]
    return f"{frame.function} ({file}:{frame.line})".replace(";", ",").replace("\n", " ")[:300]


def pack(counts: dict[tuple[str, ...], int]) -> bytes:
    """Pack counted stacks into one message's body, if need be without the rarest."""
    stacks = sorted(counts, key=lambda stack: -counts[stack])
    while True:
        lines = "".join(f"{';'.join(stack)} {counts[stack]}\n" for stack in sorted(stacks))
        packed = zlib.compress(lines.encode("utf-8", "replace"))
        if len(packed) <= wire.MAX_BODY:
            return packed
        del stacks[len(stacks) // 2 :]


def unpack(packed: bytes) -> str:
    """Return the text of packed stacks, or raise `ValueError` (damaged, or too long)."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _LONGEST_TEXT)
    except zlib.error:
        raise ValueError("a profile is damaged") from None
    if not unpacker.eof:
        raise ValueError("a profile is incomplete or too long")
    return text.decode("utf-8", "replace")
