"""`tflaunch debug --debugpy`: an editor debugs the process, by the debugpy that is installed for its Python.

debugpy opens ports that every user of the host could connect to. Its inner part, pydevd, speaks the debug adapter
protocol (DAP) too; it is given a socket that the agent holds the other end of, so that no port is opened. pydevd
publishes no way to do that, and none to stop in the current line, so a few of its names are used here: `start_client`,
`set_suspend`, `do_wait_suspend` and `settrace_forked`. Tried with Python 3.8 to 3.13.

Standard library and debugpy only, Python >= 3.8: this module runs in tasks.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from types import FrameType
    from typing import Any, Dict, Optional, Protocol

    class Channel(Protocol):
        """The connection to the agent."""

        def say(self, kind: str, **fields: object) -> None:
            """Send a message."""

        def wait_for_end(self) -> None:
            """Wait until the agent hangs up."""


_INTERVAL = 0.02  # seconds
_PATIENCE = 3.0  # seconds in which a debugger ends whose editor has left
_LONGEST_NAME = 300  # characters
_settrace = sys.settrace
_CHECK = "PYDEVD_DISABLE_FILE_VALIDATION"
"""Variable that keeps debugpy from writing a warning about frozen modules to the task's output."""


def why_impossible() -> Optional[str]:
    """Return why no editor can debug this process, with the remedy; None if one can."""
    importlib.invalidate_caches()  # it may have been installed since this process was started
    before = os.environ.get(_CHECK)
    os.environ[_CHECK] = "1"
    install = f"`{sys.executable} -m pip install debugpy`"
    try:
        pydevd = _debugger()
        known = all(hasattr(pydevd.PyDB, name) for name in ("set_suspend", "do_wait_suspend"))
        if not known or not hasattr(pydevd, "start_client") or not hasattr(pydevd, "settrace_forked"):
            version = importlib.import_module("debugpy").__version__
            problem = f"its version {version} is not one that tflaunch knows; install another one"
        elif not _wait_for_earlier(pydevd):
            problem = "the program itself uses it"
        else:
            return None
    except ModuleNotFoundError as error:
        name = str(error.name)
        problem = f"{install} installs it" if name.startswith("debugpy") else f"it needs {name}: {install}"
        return f"debugpy is not installed for {sys.executable} (Python {sys.version.split()[0]}); {problem}"
    except Exception as error:  # that of a broken installation can be any
        problem = f"{type(error).__name__}: {error}"
    finally:
        if before is None:
            del os.environ[_CHECK]
        else:
            os.environ[_CHECK] = before
    return f"debugpy cannot be used with {sys.executable}: {problem}"


def _debugger() -> Any:
    """Return debugpy's inner part; raises what a missing or broken installation raises."""
    hook = sys.breakpointhook
    try:
        importlib.import_module("debugpy.server.api")  # it prepares that for the debug adapter protocol
        return importlib.import_module("pydevd")
    finally:
        sys.breakpointhook = hook  # pydevd takes it, but `breakpoint()` must also work without an editor


def _wait_for_earlier(pydevd: Any) -> bool:
    """Wait until an earlier editor is gone; return whether no other user of debugpy remains."""
    until = time.monotonic() + _PATIENCE
    while pydevd.get_global_debugger() is not None:
        if time.monotonic() > until:
            return False
        time.sleep(_INTERVAL)
    return True


def stop_at(frame: FrameType) -> bool:
    """Stop the calling thread in this frame, if an editor debugs the process; return whether one does."""
    session = _Session.current
    if session is None or session.is_over:
        return False
    session.stop(frame)
    return True


def serve(connection: socket.socket, channel: Channel, frame: FrameType) -> None:
    """Let an editor debug the process from now on, and stop the calling thread for it in this frame.

    The editor may leave and so continue the process at any time, or continue it and stay. This returns when the thread
    goes on.
    """
    session = _Session(channel)
    if session.begin(connection):
        session.stop(frame)
    else:
        _settrace(None)


class _Session:
    """An editor that debugs this process."""

    current: Optional[_Session] = None
    _is_hooked = False

    def __init__(self, channel: Channel) -> None:
        self._pydevd = _debugger()
        self._channel = channel
        self._lock = threading.Lock()
        self._has_moved = False
        self._is_left = False
        self._debugger: Any = None

    def begin(self, connection: socket.socket) -> bool:
        """Wait until the editor has set its breakpoints; return whether it has not left before that."""
        pydevd = self._pydevd
        start_client = pydevd.start_client

        def connect(*_: object) -> socket.socket:
            self._debugger = pydevd.get_global_debugger()
            return connection

        pydevd.start_client = connect
        try:
            pydevd.settrace(
                "127.0.0.1",
                port=1,  # neither is used
                suspend=False,
                wait_for_ready_to_run=False,
                notify_stdin=False,
                dont_trace_start_patterns=(_directory_of("debugpy"), os.path.dirname(__file__)),
            )
        finally:
            pydevd.start_client = start_client
            sys.settrace = _settrace  # pydevd's own writes warnings, also to users of pdb later
        self._debugger.add_dap_messages_listener(self)
        while not importlib.import_module("debugpy").is_client_connected():
            if self.is_over:
                self._end_threads()
                return False
            time.sleep(_INTERVAL)
        _Session.current = self
        if not _Session._is_hooked:
            _Session._is_hooked = True
            os.register_at_fork(after_in_child=_leave_child)
        return True

    def _end_threads(self) -> None:
        """End the threads that pydevd has started after it had lost its editor: the process would wait for them."""
        for name in ("check_alive_thread", "py_db_command_thread"):  # pydevd hides them from `threading.enumerate`
            thread = getattr(self._debugger, name, None)
            if thread is not None:
                thread.do_kill_pydev_thread()

    @property
    def is_over(self) -> bool:
        """Whether the editor has left."""
        return self._is_left or bool(self._debugger.pydb_disposed)

    def stop(self, frame: FrameType) -> None:
        """Stop the calling thread until the editor continues it."""
        thread = threading.current_thread()
        self._pydevd.set_additional_thread_info(thread)
        self._debugger.set_suspend(thread, self._pydevd.CMD_SET_BREAK)
        self._debugger.do_wait_suspend(thread, frame, "line", None)
        if self.is_over:
            self._stop_tracing(frame)

    @staticmethod
    def _stop_tracing(frame: Optional[FrameType]) -> None:
        """Let the calling thread, and new ones, run at full speed again."""
        threading.settrace(None)
        _settrace(None)
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    # ---- what pydevd reports about the messages, each in the thread that reads or writes them

    def before_send(self, message: Dict[str, Any]) -> None:
        """Tell the agent where the process stops, and when it runs on."""
        if message.get("event") == "continued":
            self._say("resumed")
        elif message.get("event") == "stopped":
            self._has_moved = True
        elif message.get("command") == "stackTrace" and message.get("success") and self._has_moved:
            frames = (message.get("body") or {}).get("stackFrames")
            if frames:  # an editor asks for them at once, to show them
                self._has_moved = False
                file = str((frames[0].get("source") or {}).get("path") or "?")[-1000:]
                function = str(frames[0].get("name"))[:_LONGEST_NAME]
                self._say("stopped", file=file, line=max(int(frames[0].get("line") or 0), 0), function=function)

    def after_receive(self, message: Dict[str, Any]) -> None:
        """Note that the editor leaves; end the run instead of this process, which would seem to have succeeded."""
        command, arguments = message.get("command"), message.get("arguments") or {}
        if command == "terminate" or (command == "disconnect" and arguments.get("terminateDebuggee")):
            self._say("quit")
            self._channel.wait_for_end()  # until the process has been sent TERM, whose handler may want to save
            message["command"], message["arguments"] = "disconnect", {"terminateDebuggee": False}
            self._is_left = True
        elif command == "disconnect":
            self._is_left = True

    def _say(self, kind: str, **fields: object) -> None:
        with self._lock:
            self._channel.say(kind, **fields)


def _directory_of(package: str) -> str:
    return os.path.dirname(str(importlib.import_module(package).__file__))


def _leave_child() -> None:
    """Let a forked process run without the debugger, as it has none of the threads of that."""
    session, _Session.current = _Session.current, None
    if session is not None:
        session._pydevd.settrace_forked(setup_tracing=False)  # noqa: SLF001 - of this module
        _settrace(None)
        threading.settrace(None)
