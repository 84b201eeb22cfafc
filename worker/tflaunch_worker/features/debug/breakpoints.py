"""Processes at a `breakpoint()`, and the terminal that debugs one of them.

A process connects to a socket in the task's directory (`in_tasks.tflaunch_breakpoint` has its messages). One is served
at a time; the next ones wait in the socket's queue, which costs nothing. A terminal that leaves, or whose link is lost,
changes nothing: the process keeps waiting for the next one. Output is sent part by part, each after the terminal has
shown the one before, so that neither a slow link nor a program that prints without end delays anything else.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Any, Callable, ClassVar

from tflaunch_worker import fields, linux, spawn, wire
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.agent.task import Task
from tflaunch_worker.event_loop import Timer
from tflaunch_worker.features.debug import FEATURE

SOCKET_NAME = "breakpoint.sock"
"""Socket in the task's directory."""

MOST_OUTPUT = 128 * 1024
"""Maximum bytes of output in one message."""

LONGEST_LINE = 32 * 1024
"""Maximum characters of a command."""

_VARIABLE = "PYTHONBREAKPOINT"
_RECEIVE = 64 * 1024
_MOST_MESSAGE = 256 * 1024
_LONGEST_PATH, _LONGEST_NAME = 1000, 300  # characters
_PATIENCE = 1.0  # seconds from a step until the program counts as running again
_BURST, _INTERVAL = 10.0, 0.5  # seconds: of 20 reports at once, and then two per second


class HostBreakpoints(Service):
    """The breakpoints of all tasks of this host."""

    CALLS: ClassVar = {"attach_debugger": {"task": orders.task, "attempt": orders.attempt}}

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._next_report_at = 0.0
        self._tasks: dict[tuple[str, int], Breakpoints] = {}

    def begin_task(self, task: Task, command: spawn.Command) -> None:
        """Serve the processes of an attempt, unless they have another debugger."""
        ours = FEATURE.variables[_VARIABLE].value
        listener = listen(self.agent.host.task_directory(task.name)) if command.env.get(_VARIABLE) == ours else None
        if listener is not None:
            self._tasks[task.name, task.attempt] = Breakpoints(listener, task, self.agent, self._take_turn)

    def attach_debugger(self, call: Call, message: dict[str, Any]) -> None:
        """Attach a terminal to an attempt's waiting process; answer when it has left."""
        found = self._tasks.get((message["task"], message["attempt"]))
        if found is None:
            call.answer(reason="ended")
        else:
            found.attach(call)

    def stop_task(self, name: str) -> None:
        """Continue a task's waiting processes: it was sent TERM, and may want to save."""
        self._close(name, "stopped")

    def end_task(self, name: str) -> None:
        """Close the listeners of a task that is gone."""
        self._close(name, "ended")

    def _close(self, name: str, reason: str) -> None:
        for about in [about for about in self._tasks if about[0] == name]:
            self._tasks.pop(about).close(reason)

    def _take_turn(self) -> float:
        """Return when the next report may be made: supervisors limit them."""
        now = self.agent.loop.now()
        self._next_report_at = max(self._next_report_at, now - _BURST) + _INTERVAL
        return max(self._next_report_at, now)


class Breakpoints:
    """Those of one attempt of a task.

    The supervisor gets ``breakpoint_reached`` when one waits, and ``breakpoint_left`` when none does any more. A
    terminal is a call: it receives where the process waits, output, and that a command is asked for, and answered with
    the reason why it is not attached any more.
    """

    def __init__(self, listener: socket.socket, task: Task, agent: AgentParts, take_turn: Callable[[], float]) -> None:
        self._listener = listener
        self._about = {"task": task.name, "attempt": task.attempt}
        self._loop = agent.loop
        self._link = agent.link
        self._take_turn = take_turn
        self._process: socket.socket | None = None
        self._terminal: Call | None = None
        self._place: dict[str, object] | None = None
        self._reported: dict[str, object] | None = None
        self._report_timer: Timer | None = None
        self._forget_process()
        self._loop.watch(listener.fileno(), self._accept)

    def _forget_process(self) -> None:
        self._decoder = wire.Decoder(_MOST_MESSAGE)
        self._unread: deque[dict[str, Any]] = deque()
        self._asks = False
        self._is_shown = False
        self._is_paused = False
        self._ending = "ended"

    def close(self, reason: str) -> None:
        """Continue all waiting processes, as the task is being stopped, or is gone."""
        if self._listener.fileno() < 0:
            return
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        if self._ending == "ended":
            self._ending = reason  # also of a process that TERM has ended already
        if self._process is not None:
            self._read()  # a task that continues may be gone before its last message is read
        if self._process is not None:
            self._end("continued" if self._ending == "continued" else "stopped")

    # ---- the process

    def _accept(self) -> None:
        try:
            self._process, _ = self._listener.accept()
        except OSError:
            return
        self._process.setblocking(False)
        self._loop.forget(self._listener.fileno())  # until this process is done
        self._loop.watch(self._process.fileno(), self._read)

    def _read(self) -> None:
        assert self._process is not None
        try:
            data = self._process.recv(_RECEIVE)
            self._unread.extend(message for message, _ in self._decoder.feed(data))
        except BlockingIOError:
            return
        except (OSError, wire.WireError):
            data = b""
        self._obey_all()
        if not data and self._process is not None:
            self._end(self._ending)

    def _obey_all(self) -> None:
        try:
            while self._unread and not self._is_paused:
                self._obey(self._unread.popleft())
        except ValueError:
            self._end(self._ending)  # it is not our module that speaks

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "stopped":
            self._stop_at(
                {
                    "file": fields.text(message, "file", _LONGEST_PATH),
                    "line": fields.integer(message, "line"),
                    "function": fields.text(message, "function")[:_LONGEST_NAME],
                }
            )
        elif kind == "resumed":
            self._place, self._asks = None, False
            self._schedule(self._loop.now() + _PATIENCE, self._report_left)
        elif kind == "output":
            self._show(fields.text(message, "text"))
        elif kind == "asks":
            self._take_question()
        elif kind == "quit":
            self._place = None
            self._schedule(self._take_turn(), lambda: self._report_left(is_quit=True))
            self._part("quit")
        elif kind == "left":
            self._ending = "continued"

    def _take_question(self) -> None:
        """Ask the terminal for a command, once the process has shown it where it is."""
        if self._terminal is not None and not self._is_shown:
            self._show_again()
        else:
            self._asks = True
            self._tell(what="asks")

    def _show_again(self) -> None:
        """Let the process show where it is, and then ask again."""
        self._asks = False
        self._is_shown = True
        self._send("attached")

    def _stop_at(self, place: dict[str, object]) -> None:
        self._place = place
        if self._reported is None:
            self._schedule(self._take_turn(), self._report_reached)
        else:
            self._cancel_report()

    def _show(self, text: str) -> None:
        """Send output, read on once it is shown; without a terminal, it is shown later."""
        body = text.encode("utf-8", "replace")[:MOST_OUTPUT]
        if self._process is not None and self._terminal is not None and self._is_shown and body:
            self._is_paused = True
            self._loop.forget(self._process.fileno())
            self._terminal.tell(body, what="output")

    def _end(self, reason: str) -> None:
        """Disconnect from the process, and accept the next one."""
        assert self._process is not None
        self._loop.forget(self._process.fileno())
        self._process.close()
        self._process = None
        self._place = None
        self._forget_process()
        self._report_left()
        self._part(reason)
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _send(self, kind: str, **about: object) -> None:
        if self._process is not None:
            try:
                self._process.send(wire.encode({"kind": kind, **about}))
            except OSError:
                pass  # it does not read, because it runs, or is dead; the latter is noticed when reading

    # ---- reports to the supervisor

    def _schedule(self, when: float, report: Callable[[], None]) -> None:
        self._cancel_report()
        if when <= self._loop.now():
            report()
        else:
            self._report_timer = self._loop.call_at(when, report)

    def _cancel_report(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None

    def _report_reached(self) -> None:
        if self._place is not None:
            self._reported = self._place
            self._link.say("breakpoint_reached", **self._about, **self._place)

    def _report_left(self, is_quit: bool = False) -> None:
        self._cancel_report()
        if self._reported is not None or is_quit:
            self._reported = None
            self._link.say("breakpoint_left", **self._about, is_quit=is_quit)

    # ---- the terminal

    def attach(self, terminal: Call) -> None:
        """Let a terminal debug the process that waits, instead of any earlier one."""
        self._part("replaced")
        if self._process is None or self._place is None:
            terminal.answer(reason="ended")
            return
        self._terminal = terminal
        terminal.when_told = self._hear
        terminal.when_ended = self._leave
        self._is_shown = False
        self._tell(what="attached", **self._place)
        if self._asks:
            self._show_again()

    def _hear(self, message: dict[str, Any]) -> None:
        """Obey the terminal: a command, an acknowledgement of output, or a detachment."""
        what = fields.text(message, "what")
        if what == "line":
            text = fields.text(message, "text", LONGEST_LINE)
            if self._asks:
                self._asks = False
                self._send("line", text=text)
            return
        if what == "continue" and self._process is not None:
            self._process.shutdown(socket.SHUT_WR)
        self._resume_reading()

    def _leave(self) -> None:
        """Forget the terminal, which has left; the process keeps waiting."""
        self._terminal = None
        self._resume_reading()
        if self._place is not None and self._reported not in (None, self._place):
            self._schedule(self._take_turn(), self._report_reached)  # it has moved on since

    def _resume_reading(self) -> None:
        if self._is_paused and self._process is not None:
            self._is_paused = False
            self._loop.watch(self._process.fileno(), self._read)
            self._obey_all()

    def _part(self, reason: str) -> None:
        if self._terminal is not None:
            self._terminal.answer(reason=reason)
            self._terminal = None

    def _tell(self, **about: object) -> None:
        if self._terminal is not None:
            self._terminal.tell(**about)


def listen(directory: str) -> socket.socket | None:
    """Listen for processes of the task with this directory; return None on failure."""
    path = os.path.join(directory, SOCKET_NAME)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener = linux.bind_to(directory, SOCKET_NAME)
    except OSError:
        return None
    listener.listen(128)
    listener.setblocking(False)
    return listener
