"""A command beside a task: its processes, and its bytes within a window each way.

Its processes are those below its *keeper*, a fork of the agent that starts it and adopts all that it leaves: they are
known whatever session or environment they have, and never count as those of the task. They end with the call: they get
TERM, or HUP in a terminal, and KILL after the grace period of the run. What a command that has ended leaves behind gets
two seconds.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import time
from contextlib import suppress
from functools import partial
from typing import Any, Dict, Mapping, Tuple

from tflaunch_worker import fields, linux, offload, process_ends, procfs, schema, spawn
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts
from tflaunch_worker.agent.task_processes import SUCCESS_PATIENCE
from tflaunch_worker.features import background
from tflaunch_worker.process_state import TaskSettings

_Streams = Tuple[int, Dict[int, str], Tuple[int, int, int]]

WINDOW = 128 * 1024
"""Maximum of bytes on the way in one direction: on a slow link, keep-alives wait for no more than these."""

PART = 32 * 1024
"""Maximum of bytes in one message."""

_KILL_AGAIN = 1.0  # seconds
_DIES_WITHIN = 5.0  # seconds after KILL
_LONGEST_WAIT = 3600.0  # seconds; for a system call that takes no infinite ones
check_size = schema.integer(0, 2**15)
"""Checks rows or columns of a terminal."""


class RunningCommand:
    """A process and its streams; its call carries output until nothing of it is left."""

    def __init__(self, agent: AgentParts, call: Call, command: spawn.Command, size: tuple[int, int] | None) -> None:
        """Start it or raise `OSError`; ``size``: rows and columns of a terminal, or None."""
        self._loop = agent.loop
        self._call = call
        self._command = command
        self._told_by = signal.SIGHUP if size else signal.SIGTERM  # which interactive shells ignore
        self._input = bytearray()
        self._is_input_over = False
        self._untaken = 0
        self._is_over = False
        self._result = (spawn.NOT_EXECUTABLE, "its processes were killed")
        self._stdin, self._outputs, theirs = _open_terminal(size) if size else _open_pipes()
        keep = partial(_keep, command, agent.host.settings, theirs)
        try:
            be_keeper = partial(background.be_keeper, kept=(*theirs, *command.namespaces))
            self._keeper, _ = offload.run_in_fork(self._loop, keep, self._ended_with, be_keeper)
        except OSError:
            _close(self._stdin, *self._outputs)
            raise
        finally:
            _close(*set(theirs))
        for descriptor in (self._stdin, *self._outputs):
            os.set_blocking(descriptor, False)
        self._started = agent.host.adopted.started
        self._started.add(self._keeper)
        self._resume()

    # ---- the caller

    def hear(self, message: dict[str, Any]) -> None:
        """Obey the caller: input and its end, output taken, the terminal's size.

        Raises `ValueError` if it is anything else.
        """
        what = check_told(message, len(message["body"]))
        if what == "input":
            if len(self._input) + len(message["body"]) > WINDOW:
                raise ValueError("more input than there is room for")
            self._input += message["body"]
            self._write()
        elif what == "end_input":
            self._is_input_over = True
            self._write()
        elif what == "took":
            self._untaken -= min(message["size"], self._untaken)
            self._resume()
        elif self._stdin >= 0:
            _set_size(self._stdin, message["rows"], message["columns"])

    def end(self, grace: float) -> None:
        """End it with the grace period, and discard its output: its caller has left."""
        for pid in procfs.descendants(self._keeper) if grace and not self._is_over else ():
            linux.kill(pid, None, self._told_by)
            linux.kill(pid, None, signal.SIGCONT)  # a stopped process acts only after it is continued
        self._untaken = 0
        self._resume()
        self._loop.call_at(self._loop.now() + grace, self._kill)

    # ---- streams

    def _write(self) -> None:
        size = len(self._input)
        try:
            while self._input and self._stdin >= 0:
                del self._input[: os.write(self._stdin, self._input)]
        except BlockingIOError:
            pass
        except OSError:
            self._close_input()  # it reads no more
        if self._stdin < 0:
            self._input.clear()
        if len(self._input) < size:
            self._call.tell(what="took", size=size - len(self._input))
        if self._is_input_over and not self._input:
            self._close_input()
        if self._stdin >= 0:
            self._loop.forget(self._stdin)
            if self._input:
                self._loop.watch(self._stdin, self._write)
                self._loop.watch_writable(self._stdin, True)

    def _close_input(self) -> None:
        if self._stdin >= 0:
            self._loop.forget(self._stdin)
            _close(self._stdin)
            self._stdin = -1

    def _read(self, descriptor: int) -> None:
        """Tell the caller some output; read no more while it has not taken that."""
        try:
            data = os.read(descriptor, min(PART, WINDOW - self._untaken))
        except BlockingIOError:
            if not self._is_over:
                return
            data = b""  # something that we cannot find has it open
        except OSError:
            data = b""  # EIO: no process has the terminal open
        if not data:
            self._loop.forget(descriptor)
            _close(descriptor)
            del self._outputs[descriptor]
            self._finish()
            return
        if self._call.is_open:
            self._untaken += len(data)
            self._call.tell(data, what=self._outputs[descriptor])
        if self._untaken == WINDOW:
            for each in self._outputs:
                self._loop.forget(each)

    def _resume(self) -> None:
        """Read output while there is room for it; at the end, what is left of it at once."""
        for descriptor in list(self._outputs):
            self._loop.forget(descriptor)
            if self._untaken < WINDOW:
                self._loop.watch(descriptor, partial(self._read, descriptor))
            while self._is_over and descriptor in self._outputs and self._untaken < WINDOW:
                self._read(descriptor)

    # ---- the end

    def _kill(self) -> None:
        """Have its keeper kill it; again, as one just forked does not hear it."""
        if not self._is_over:
            linux.kill(self._keeper, None, signal.SIGTERM)
            self._loop.call_at(self._loop.now() + _KILL_AGAIN, self._kill)

    def _ended_with(self, result: tuple[int, str] | None) -> None:
        """Take the exit code at the command's end; None if its keeper was killed."""
        if result is not None:
            self._result = (result[0], result[1])
        self._is_over = True
        self._started.discard(self._keeper)
        self._close_input()
        self._resume()
        self._finish()

    def _finish(self) -> None:
        if self._is_over and not self._outputs:
            code, problem = self._result
            self._call.answer(code=code, problem=problem)


def _keep(command: spawn.Command, settings: TaskSettings, streams: tuple[int, int, int]) -> tuple[int, str]:
    """Run the command; return its exit code and start problem once nothing is left."""
    agent = os.getppid()
    try:
        pid, report = spawn.fork_program(command, settings, streams)
    except OSError as error:
        return spawn.NOT_EXECUTABLE, f"no process: {error.strerror}"
    _close(*set(streams))
    result, until = (spawn.NOT_EXECUTABLE, ""), float("inf")
    while os.getppid() == agent and (left := until - time.monotonic()) > 0:
        try:
            died, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if died == pid:
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            result = spawn.describe_start_failure(os.read(report, 100), command) or (code, "")
            until = time.monotonic() + SUCCESS_PATIENCE
        elif not died:
            came = signal.sigtimedwait((signal.SIGCHLD, signal.SIGTERM), min(left, _LONGEST_WAIT))
            if came is not None and came.si_signo == signal.SIGTERM:
                break
    process_ends.kill_below(patience=_DIES_WITHIN)
    return result


def check_told(message: Mapping[str, Any], size: int) -> str:
    """Return what a message tells a command, or raise `ValueError`.

    ``size``: that of its body.
    """
    what = fields.text(message, "what")
    if what == "took":
        fields.integer(message, "size", 1, WINDOW)
    elif what == "resize":
        check_size("rows", message.get("rows"))
        check_size("columns", message.get("columns"))
    elif what != "end_input" and not (what == "input" and 0 < size <= PART):
        raise ValueError(f"a command cannot be told {what[:40]!r}")
    return what


def _open_terminal(size: tuple[int, int]) -> _Streams:
    """Open a terminal; return its input, its outputs, and its processes' descriptors."""
    ours, theirs = os.openpty()
    _set_size(ours, *size)
    return os.dup(ours), {ours: "output"}, (theirs, theirs, theirs)


def _open_pipes() -> _Streams:
    """Return the same of three pipes."""
    (stdin, ours), (output, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
    return ours, {output: "output", errors: "errors"}, (stdin, stdout, stderr)


def _set_size(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal; the kernel notifies its processes (SIGWINCH)."""
    with suppress(OSError):  # it is a pipe
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
