"""Fetch the files that tasks leave, part by part; release each when it is stored."""

from __future__ import annotations

from collections import deque
from typing import Any

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.agents.transfer import Download, Source
from tflaunch.store.left_files import LeftFile, LeftFileStore
from tflaunch_worker import fields

_LONGEST_NAME = 200


class LeftFiles:
    """Fetches the files of one host, one at a time."""

    def __init__(self, session: Session, store: LeftFileStore) -> None:
        """Fetch files over the links of a session, from now on."""
        self._session = session
        self._store = store
        self._announced: set[LeftFile] = set()
        self._waiting: deque[tuple[LeftFile, int]] = deque()
        session.calls.keep("watch_left_files", Waiter(told=self._read_announcement, lost=self._forget))

    def _forget(self, _: str) -> None:
        """Expect the agent to announce its files again, over a new link."""
        self._announced.clear()
        self._waiting.clear()

    def _read_announcement(self, message: dict[str, Any], body: bytes) -> None:
        name = fields.text(message, "name", _LONGEST_NAME)
        file = LeftFile(fields.text(message, "task"), fields.integer(message, "attempt"), name)
        most = self._session.most_bytes(*file)
        if most is None or file in self._announced:
            raise ValueError(f"it announces a file {file.name!r} of {file.task[:60]!r} that it was not asked for")
        self._announced.add(file)
        self._waiting.append((file, fields.integer(message, "size", 0, most)))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        while self._waiting:
            file, size = self._waiting[0]
            received = self._store.received(file)
            if received is not None and received <= size:
                source = Source(file.name, size, "read_file", file._asdict())
                Download(self._session.calls.begin, source, self._append, self._finish).read_from(received)
                return
            self._release()

    def _append(self, data: bytes, is_last: bool) -> str:
        has_room = self._store.append(self._waiting[0][0], data, is_last=is_last)
        return "" if has_room else "there is no room"

    def _finish(self, problem: str) -> None:
        self._release()
        self._begin()

    def _release(self) -> None:
        """Have the agent remove a file that is stored, or that cannot be."""
        self._session.request("release_file", **self._waiting.popleft()[0]._asdict())
