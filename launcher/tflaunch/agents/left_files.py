"""Fetch the files that the tasks of one host leave, part by part, and release each when it is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tflaunch_worker import fields, wire
from tflaunch_worker.agent.left_files import PART

_LONGEST_NAME = 200


class LeftFile(NamedTuple):
    """A file that an attempt of a task has left under a name."""

    task: str
    attempt: int
    name: str


class FileStore(Protocol):
    """Stores the files that tasks leave."""

    def received(self, file: LeftFile) -> int | None:
        """Return how many bytes of a file are stored, None if all are."""

    def append(self, file: LeftFile, data: bytes, *, is_last: bool) -> bool:
        """Store the next bytes of a file; return whether there was room for them."""


class LeftFiles:
    """Fetches one file at a time with one request at a time, so that a slow link never delays keep-alives for long."""

    def __init__(
        self, store: FileStore, send: Callable[[bytes], None], most_bytes: Callable[[LeftFile], int | None]
    ) -> None:
        """Fetch files over links to an agent.

        Args:
            store: stores the files.
            send: sends a frame to the agent.
            most_bytes: returns the maximum size of a file, None for one that the agent was not asked for.
        """
        self._store = store
        self._send = send
        self._most_bytes = most_bytes
        self._announced: set[LeftFile] = set()
        self._waiting: deque[tuple[LeftFile, int]] = deque()
        self._offset = 0

    def begin_link(self) -> None:
        """Expect the agent to announce its files again, over a new link."""
        self._announced.clear()
        self._waiting.clear()

    def read_announcement(self, message: dict[str, Any]) -> None:
        """Fetch an announced file, unless it is stored already.

        Raises:
            ValueError: the agent was not asked for the file, it is too large, or it is announced twice.
        """
        file = _file_of(message)
        most = self._most_bytes(file)
        if most is None or file in self._announced:
            raise ValueError(f"it announces a file {file.name!r} of {file.task[:60]!r} that it was not asked for")
        self._announced.add(file)
        self._waiting.append((file, fields.integer(message, "size", 0, most)))
        if len(self._waiting) == 1:
            self._begin()

    def read_part(self, message: dict[str, Any], body: bytes) -> None:
        """Store a part of the file, and request the next one.

        Raises:
            ValueError: the part was not requested.
        """
        file, size = self._waiting[0] if self._waiting else (None, 0)
        is_requested = _file_of(message) == file and fields.integer(message, "offset") == self._offset
        if file is None or not is_requested or len(body) not in (0, min(PART, size - self._offset)):
            raise ValueError("it sends a part of a file that was not requested")
        self._offset += len(body)
        has_room = self._store.append(file, body, is_last=self._offset == size)
        if self._offset < size and body and has_room:
            self._request("read_file", file, offset=self._offset)
        else:
            self._release(file)
            self._begin()

    def _begin(self) -> None:
        """Request the first missing part of the next file that is not stored yet."""
        while self._waiting:
            file, size = self._waiting[0]
            received = self._store.received(file)
            if received is not None and received <= size:
                self._offset = received
                self._request("read_file", file, offset=received)
                return
            self._release(file)

    def _release(self, file: LeftFile) -> None:
        """Have the agent remove a file that is stored, or that cannot be."""
        self._waiting.popleft()
        self._request("release_file", file)

    def _request(self, kind: str, file: LeftFile, **about: int) -> None:
        self._send(wire.encode({"kind": kind, **file._asdict(), **about}))


def _file_of(message: dict[str, Any]) -> LeftFile:
    name = fields.text(message, "name", _LONGEST_NAME)
    return LeftFile(fields.text(message, "task"), fields.integer(message, "attempt"), name)
