"""`breakpoint()` in a task: Python's debugger, used with `tflaunch debug`.

PYTHONBREAKPOINT names `stop`, and PYTHONPATH leads here, so that programs need not have tflaunch installed. The thread
that stops connects to a socket in the task's directory and waits for commands; the agent passes them on. The messages
are frames as in `tflaunch_worker.wire`, without a body: to the agent ``stopped`` (file, line, function), ``asks``,
``output`` (text), ``resumed``, ``quit`` and ``left``; from it ``attached`` and ``line`` (text). When the agent hangs
up, the program continues.

Standard library only, Python >= 3.8: this module runs in tasks.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import pdb  # noqa: T100 - this is the debugger
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from types import FrameType

SOCKET_NAME = "breakpoint.sock"
"""Socket in the task's directory at which its agent listens."""

_HEADER = struct.Struct("!II")
_PART = 16 * 1024  # characters of output in one message
_WRAPPERS = ("tensorflow.python.autograph.", "tensorflow.python.util.")
_SKIPPED = [*(f"{package}*" for package in _WRAPPERS), __name__]
"""Modules in which no step stops: AutoGraph replaces each call in a tf.function by several of its own."""

_LOCAL = threading.local()


def stop(*, header: Optional[str] = None, commands: Optional[list[str]] = None) -> None:
    """Stop the caller's thread, like `pdb.set_trace`, until `tflaunch debug` goes on.

    ``header`` is shown before the first prompt; ``commands`` of the debugger are executed first.
    """
    debugger: Optional[_Debugger] = getattr(_LOCAL, "debugger", None)
    if debugger is None or debugger.is_over:
        channel = _connect()
        if channel is None:
            return
        _LOCAL.debugger = debugger = _Debugger(channel)
    debugger.header = header
    debugger.rcLines.extend(commands or [])
    debugger.set_trace(_without_wrappers(sys._getframe(1)))  # noqa: SLF001 - documented


def _without_wrappers(frame: FrameType) -> FrameType:
    """Return the frame of the user's code that has called `breakpoint`."""
    found: Optional[FrameType] = frame
    while found is not None and str(found.f_globals.get("__name__")).startswith(_WRAPPERS):
        found = found.f_back
    return frame if found is None else found


def _connect() -> Optional[_Channel]:
    """Return a connection to the agent, None without one; the program then continues."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(None)  # the program may have set a default
    try:
        directory = os.open(os.environ["TFLAUNCH_TASK_DIR"], os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")  # its own path may be too long
        finally:
            os.close(directory)
    except (KeyError, OSError) as error:
        connection.close()
        sys.stderr.write(f"tflaunch: a breakpoint() is ignored, as its agent cannot be reached: {error}\n")
        return None
    return _Channel(connection)


class _Channel(io.TextIOBase):
    """The debugger's input and output: a connection to the agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.is_over = False
        self.debugger: Optional[_Debugger] = None
        self._socket = connection
        self._received = bytearray()

    def readline(self, size: Optional[int] = -1) -> str:  # type: ignore[override]
        """Return the next command with its newline, "" when there will be none."""
        self.say("asks")
        while True:
            message = self._receive()
            if message is None:
                return ""
            if message["kind"] == "line":
                return str(message["text"]) + "\n"
            if message["kind"] == "attached" and self.debugger is not None:
                self.debugger.show_again()
                self.say("asks")

    def write(self, text: str) -> int:
        valid = text.encode("utf-8", "backslashreplace").decode("utf-8")
        for start in range(0, len(valid), _PART):
            self.say("output", text=valid[start : start + _PART])
        return len(text)

    def say(self, kind: str, **fields: object) -> None:
        """Send a message, unless the agent is gone."""
        head = json.dumps({"kind": kind, **fields}).encode("ascii")
        try:
            self._socket.sendall(_HEADER.pack(len(head), 0) + head)
        except OSError:
            self.is_over = True

    def wait_for_end(self) -> None:
        while self._receive() is not None:
            pass

    def hang_up(self) -> None:
        """Tell the agent that this thread goes on without a debugger."""
        self.say("left")
        self.is_over = True
        self._socket.close()

    def _receive(self) -> Optional[dict[str, Any]]:
        """Return the next message, None when the agent has hung up."""
        while not self.is_over:
            if len(self._received) >= _HEADER.size:
                end = _HEADER.size + _HEADER.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    message: dict[str, Any] = json.loads(self._received[_HEADER.size : end])
                    del self._received[:end]
                    return message
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b""
            self._received += data
            self.is_over = not data
        return None


class _Debugger(pdb.Pdb):
    """Python's debugger for one thread, with its terminal elsewhere."""

    def __init__(self, channel: _Channel) -> None:
        terminal: Any = channel
        super().__init__(stdin=terminal, stdout=terminal, skip=_SKIPPED, nosigint=True)
        self.header: Optional[str] = None
        self._channel = channel
        self._process = os.getpid()
        self._is_done = False
        channel.debugger = self

    @property
    def is_over(self) -> bool:
        """Whether this debugger stops its thread no more, or is that of a parent process."""
        return self._channel.is_over or self._process != os.getpid()

    def interaction(self, frame: Optional[FrameType], *about: Any) -> None:
        """Wait for commands at a frame."""
        if self.is_over:  # after a fork, the connection is the parent's
            self._go_on()
            return
        assert frame is not None
        self._is_done = False
        code = frame.f_code
        self._channel.say("stopped", file=code.co_filename[-1000:], line=frame.f_lineno or 0, function=code.co_name)
        super().interaction(frame, *about)
        if self._is_done:
            self._channel.hang_up()
        else:
            self._channel.say("resumed")

    def show_again(self) -> None:
        """Show the current line and a prompt to a terminal that was just attached."""
        if self.header is not None:
            self.message(self.header)
        frame, line = self.stack[self.curindex]
        code = frame.f_code  # `print_stack_entry` would look at the frame's variables, and so undo assignments to them
        source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
        self.message(f"> {self.canonic(code.co_filename)}({line}){code.co_name}()\n-> {source}")
        self._channel.write(self.prompt)

    def set_continue(self) -> None:
        """Continue; without breakpoints of its own, the debugger is done."""
        super().set_continue()
        self._is_done = not self.breaks

    def _go_on(self) -> None:
        self.clear_all_breaks()
        self.set_continue()

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - pdb's name
        """Leave the debugger: the program continues, without the breakpoints set here."""
        self._go_on()
        return True

    def do_quit(self, arg: str) -> Optional[bool]:
        """Stop the whole run, like `tflaunch down`."""
        self._channel.say("quit")
        self._channel.wait_for_end()
        return super().do_quit(arg)

    do_q = do_exit = do_quit

    def do_run(self, arg: str) -> None:
        """Not possible here: `tflaunch restart` starts tasks again."""
        self.error("not possible in a task; `tflaunch restart` starts tasks again")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """Not possible here: enter statements at the prompt, with `!` before them."""
        self.error("not possible in a task; enter statements here, with ! before them")
