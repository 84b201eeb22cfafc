"""Serve the run's control socket to other terminals of the same user.

Never blocks on a client: an answer that a stopped terminal does not read is buffered, and a terminal whose
buffer grows too large is disconnected.
"""

import os
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tflaunch import feature_faults
from tflaunch.core.job_state import Job
from tflaunch.mailbox import Mailbox
from tflaunch.store.run_dir import SOCKET_NAME
from tflaunch_worker import linux, wire
from tflaunch_worker.frames import Frames
from tflaunch_worker.readable import printable

_MOST_CALLERS = 256
_MOST_UNREAD = 16 * 1024 * 1024
_MOST_REQUEST = 64 * 1024
_BETWEEN_CHANGES = 0.1  # seconds; followers are woken at most this often
_FAREWELL = 1.0  # seconds to deliver the last messages


_Heard = Callable[["Caller", dict[str, Any]], None]


class RefusedError(Exception):
    """A request cannot be fulfilled; the message is one sentence."""


def require_tasks(tasks: Collection[str], job: Job) -> None:
    """Raise `RefusedError` unless a job has these tasks."""
    if unknown := [task for task in tasks if task not in job.tasks]:
        names = printable(", ".join(unknown), 200)
        raise RefusedError(f"there is no task {names}; the tasks are {', '.join(job.tasks)}")


class Caller:
    """A connected terminal; ``follows``: it asked to be notified of changes.

    ``closed`` is called when it is gone.
    """

    def __init__(self, connection: socket.socket, mailbox: Mailbox, heard: _Heard) -> None:
        self.follows = False
        self.closed: Callable[[], None] = lambda: None
        self.is_open = True

        def hear(message: dict[str, Any], body: bytes) -> None:
            heard(self, {**message, "body": body})

        self._frames = Frames(connection, mailbox, hear, lambda _: self.close(), _MOST_REQUEST, _MOST_UNREAD)

    def say(self, kind: str, body: bytes = b"", /, **fields: Any) -> None:
        """Send a message, or buffer it until the terminal reads."""
        if self.is_open:
            self._frames.send(wire.encode({"kind": kind, **fields}, body))

    @property
    def has_unread(self) -> bool:
        """Whether the terminal has not yet read what came before."""
        return self._frames.unsent > 0

    def close(self, patience: float = 0.0) -> None:
        """Disconnect; ``patience``: seconds to keep delivering unread answers."""
        if self.is_open:
            self.is_open = False
            self._frames.close(patience)
            with feature_faults.isolated():
                self.closed()


class ControlServer:
    """Listens while the run has a supervisor."""

    def __init__(self, directory: Path, mailbox: Mailbox, heard: _Heard) -> None:
        """Listen in a run's directory, or raise OSError; ``heard`` takes each request."""
        self._path = directory / SOCKET_NAME
        self._mailbox = mailbox
        self._heard = heard
        self._callers: list[Caller] = []
        self._changes_at: float | None = None
        self._last_change = 0.0
        # It gets its name once it listens: a client that finds no listener takes the run for lost.
        unnamed = self._path.with_name(f"{SOCKET_NAME}.new")
        unnamed.unlink(missing_ok=True)
        self._listener = linux.bind_to(str(directory), unnamed.name)
        os.chmod(unnamed, 0o600)
        self._inode = unnamed.stat().st_ino
        self._listener.listen(64)
        self._listener.setblocking(False)
        unnamed.replace(self._path)
        mailbox.watch(self._listener.fileno(), self._accept)

    def tell_change(self) -> None:
        """Wake followers, now or soon: something that they can read has grown."""
        if self._changes_at is not None or not any(caller.follows for caller in self._callers):
            return
        due = self._last_change + _BETWEEN_CHANGES
        if due <= self._mailbox.now():
            self._wake()
        else:
            self._changes_at = due
            self._mailbox.call_at(due, self._wake)

    def close(self, exit_code: int | None) -> None:
        """Disconnect all; if the run has ended, send its exit code to followers first."""
        self._mailbox.forget(self._listener.fileno())
        self._listener.close()
        if self._path.exists() and self._path.stat().st_ino == self._inode:  # else it belongs to a later supervisor
            self._path.unlink()
        until = self._mailbox.now() + _FAREWELL
        for caller in self._callers:
            if caller.follows and exit_code is not None:
                caller.say("ended", exit_code=exit_code)
            caller.close(until - self._mailbox.now())

    def _wake(self) -> None:
        self._changes_at = None
        self._last_change = self._mailbox.now()
        self._callers = [caller for caller in self._callers if caller.is_open]
        for caller in self._callers:
            if caller.follows and not caller.has_unread:
                caller.say("changed")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._callers = [caller for caller in self._callers if caller.is_open]
        if linux.is_same_user(connection) and len(self._callers) < _MOST_CALLERS:
            self._callers.append(Caller(connection, self._mailbox, self._heard))
        else:
            connection.close()
