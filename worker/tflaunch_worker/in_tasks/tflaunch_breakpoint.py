"""`breakpoint()` in a task: Python's debugger, used from a terminal or an editor with `tflaunch debug`.

PYTHONBREAKPOINT names `stop`, and PYTHONPATH leads here, so that programs need not have tflaunch installed. The thread
that stops connects to a socket in the task's directory and waits for commands; the agent passes them on. The messages
are frames as in `tflaunch_worker.wire`, without a body: to the agent ``stopped`` (file, line, function), ``asks``,
``output`` (text), ``resumed``, ``quit`` and ``left``; from it ``attached`` and ``line`` (text). When the agent hangs
up, the program continues.

After ``editor`` from the agent, the process answers ``editor`` (directory: its own) with a socket, or
``editor_refused`` (text: why). An editor speaks the debug adapter protocol with debugpy over that socket
(`tflaunch_editor`). If the agent closes the socket before it has sent anything, the process asks again.

Standard library only, Python >= 3.8: this module runs in tasks.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import pdb  # noqa: T100 - this is the debugger
import select
import socket
import struct
import sys
import threading
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, List, Optional

SOCKET_NAME = "breakpoint.sock"
"""Socket in the task's directory at which its agent listens."""

_HEADER = struct.Struct("!II")
_PART = 16 * 1024  # characters of output in one message
_WRAPPERS = ("tensorflow.python.autograph.", "tensorflow.python.util.")
_SKIPPED = [*(f"{package}*" for package in _WRAPPERS), __name__]
"""Modules in which no step stops: AutoGraph replaces each call in a tf.function by several of its own."""

_LOCAL = threading.local()
_EDITOR = "tflaunch_editor"


def _editors() -> ModuleType:
    """Return the module for editors, which is beside this one."""
    return import_module(_EDITOR)


def stop(*, header: Optional[str] = None, commands: Optional[List[str]] = None) -> None:
    """Stop the calling thread in its caller until `tflaunch debug` continues it, like `pdb.set_trace`.

    Args:
        header: shown before the first prompt.
        commands: commands of the debugger that are executed first.
    """
    frame = _without_wrappers(sys._getframe(1))  # noqa: SLF001 - documented
    if _EDITOR in sys.modules and _editors().stop_at(frame):
        return
    debugger: Optional[_Debugger] = getattr(_LOCAL, "debugger", None)
    if debugger is None or debugger.is_over:
        channel = _connect()
        if channel is None:
            return
        _LOCAL.debugger = debugger = _Debugger(channel)
    debugger.header = header
    debugger.rcLines.extend(commands or [])
    debugger.set_trace(frame)


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
        self.editor: Optional[socket.socket] = None
        """A connection to an editor that is to debug this process from now on, instead of a terminal."""
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
            if message["kind"] == "editor":
                if self._wait_for_editor():
                    return ""
                self.say("asks")
            if message["kind"] == "attached" and self.debugger is not None:
                self.debugger.show_again()
                self.say("asks")

    def write(self, text: str) -> int:
        """Send output."""
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

    def _wait_for_editor(self) -> bool:
        """Give the agent a connection to debugpy; return whether an editor has used it."""
        problem = _editors().why_impossible()
        if problem is not None:
            self.say("editor_refused", text=problem)
            return False
        ours, theirs = socket.socketpair()
        try:
            descriptors = struct.pack("i", theirs.fileno())
            head = json.dumps({"kind": "editor", "directory": _directory()}).encode("ascii")
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
            self._socket.sendmsg([_HEADER.pack(len(head), 0) + head], [rights])
        except OSError:
            self.is_over = True
        theirs.close()
        ready = select.poll()
        ready.register(ours, select.POLLIN)
        ready.poll()
        if not self.is_over and ours.recv(1, socket.MSG_PEEK):
            self.editor = ours
            return True
        ours.close()
        return False

    def wait_for_end(self) -> None:
        """Wait until the agent hangs up."""
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


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


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
        """Whether this debugger will not stop its thread any more, or is that of a parent process."""
        return self._channel.is_over or self._process != os.getpid()

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Follow the program; once there is an editor, stop for that in the current line."""
        following = super().trace_dispatch(frame, event, arg)
        editor = self._channel.editor
        if editor is None or self.is_over:
            return following
        self._channel.editor = None
        _editors().serve(editor, self._channel, frame)
        self._channel.is_over = True
        return frame.f_trace  # that of debugpy

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
        if self._channel.editor is not None:
            return  # it takes over in `trace_dispatch`
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
        """Not possible here: statements can be entered at the prompt, with `!` before them."""
        self.error("not possible in a task; enter statements here, with ! before them")
