"""Connect an editor of this machine with a task that waits at a breakpoint, through the run's supervisor.

The editor connects to a loopback port of this machine, which accepts one connection: of a process of this user or of
root, that speaks the debug adapter protocol.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.client.debugger_connection import DebuggerConnection
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch_worker import fields, linux
from tflaunch_worker.agent.breakpoints import LONGEST_LINE

HOST = "127.0.0.1"
USUAL_PORT = 5678
"""The port of debugpy's documentation."""

_START = b"Content-Length:"  # of every message of an editor
_ESTABLISHED = "01"
_PATIENCE = 5.0  # seconds for the first message


class Ready(NamedTuple):
    """A task that an editor can debug: where it waits, its working directory, and the port for the editor."""

    task: str
    place: str
    directory: str
    port: int


class EditorLeft(NamedTuple):
    """Why no editor debugs the task any more, as in `agents.debugger_link.REASONS`, or why the task refuses one."""

    reason: str
    problem: str


class EditorClient(DebuggerConnection):
    """An editor's way to one task."""

    def __init__(
        self, directory: Path, tasks: Sequence[str], port: int | None, tell: Callable[[Ready], None],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Ask to debug the first of some tasks that waits at a breakpoint.

        Args:
            directory: the run's directory.
            tasks: their names; none for all tasks of the run.
            port: for the editor; None for the usual one, or any other if that is in use.
            tell: called when the editor can connect.
            say: called with messages about the wait.

        Raises:
            TflaunchError: the run has no supervisor, or the port is in use.
        """
        self._tell = tell
        self._say = say
        self._editor: socket.socket | None = None
        self._listener = _listen(port)
        try:
            super().__init__(directory, tasks, is_editor=True)
        except TflaunchError:
            self._listener.close()
            raise

    @property
    def has_editor(self) -> bool:
        """Whether an editor has connected, which continues the task when it leaves."""
        return self._editor is not None

    def run(self) -> EditorLeft:
        """Pass on what editor and task send each other until either of them leaves.

        Raises:
            TflaunchError: no task has this name, or the supervisor has exited.
        """
        try:
            left = self._converse()
            return EditorLeft(str(left.get("reason")), str(left.get("problem", "")))
        finally:
            self._listener.close()
            if self._editor is not None:
                self._editor.close()

    def _awaited_input(self) -> int | None:
        return (self._editor or self._listener).fileno()

    def _attached(self) -> None:
        pass  # `debugger_ready` reports it

    def _obey_other(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "debugger_waits":
                self._say("an editor can debug a task that waits at a breakpoint(), and none does yet; waiting for one")
            case "debugger_ready":
                port = int(self._listener.getsockname()[1])
                self._tell(Ready(self.task, self.place, fields.text(message, "directory"), port))

    def _show(self, text: str) -> None:
        if self._editor is not None:
            try:
                self._editor.sendall(text.encode("latin-1"))
            except OSError:
                pass  # it has hung up, which is noticed when reading

    def _pass_on(self) -> None:
        """Pass on what the editor sends; it may have to connect first."""
        if self._editor is None:
            data = self._accept()
            if data is None:
                return
        else:
            try:
                data = self._editor.recv(LONGEST_LINE)
            except OSError:
                data = b""
        self._answer(data.decode("latin-1") if data else None)

    def _accept(self) -> bytes | None:
        """Accept an editor, and return the first bytes that it sends; None if it is not an editor."""
        connection, _ = self._listener.accept()
        if owner_of_peer(connection) not in (os.getuid(), 0):
            port = self._listener.getsockname()[1]
            self._say(f"a process of another user has connected to port {port}; it is ignored")
        else:
            data = _first_data(connection)
            if data.startswith(_START[: len(data)]) and data:
                self._editor = connection
                self._listener.close()
                return data
            self._say("what has connected does not speak the debug adapter protocol; still waiting for an editor")
        connection.close()
        return None


def _first_data(connection: socket.socket) -> bytes:
    if not select.select([connection], [], [], _PATIENCE)[0]:
        return b""
    try:
        return connection.recv(LONGEST_LINE)
    except OSError:
        return b""


def _listen(port: int | None) -> socket.socket:
    """Return a listener at a port of this machine only.

    Raises:
        TflaunchError: the port was asked for, and cannot be used.
    """
    wanted = [USUAL_PORT, 0] if port is None else [port]
    for number in wanted:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen(8)
            return listener
        except OSError as error:
            listener.close()
            problem = error
    hint = "another --port, or none, makes tflaunch use a free one"
    raise TflaunchError(f"port {wanted[-1]} cannot be used: {problem.strerror}; {hint}", EXIT_USAGE)


def owner_of_peer(connection: socket.socket, table: str = "/proc/net/tcp") -> int | None:
    """Return the user whose process is at the other end of an IPv4 connection on this machine; None if unknown."""
    try:
        ends = [_as_in_table(*connection.getpeername()), _as_in_table(*connection.getsockname())]
    except OSError:
        return None
    for line in (linux.read(table) or "").splitlines()[1:]:
        words = line.split()
        if words[1:3] == ends and words[3] == _ESTABLISHED:  # a closed one belongs to root
            return int(words[7])
    return None


def _as_in_table(host: str, port: int) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"
