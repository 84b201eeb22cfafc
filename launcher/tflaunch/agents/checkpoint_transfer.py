"""Fetch the files of a checkpoint from a host, or send them to one, one part at a time.

So heartbeats are never late, not even on a slow link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tflaunch.agents.checkpoints import CheckpointLink, File, Missing

Done = Callable[[str], None]
"""Takes "" when all files have arrived, or why they have not; never called when the link is lost."""


class Copies(Protocol):
    """The copies on this machine."""

    def missing(self, files: Sequence[File]) -> list[File]:
        """Return the files whose content is not here; raise OSError if there is no room for them."""

    def begin(self, file: File) -> int:
        """Return the number of bytes of a file that have arrived earlier; raise OSError if they cannot be read."""

    def append(self, file: File, data: bytes) -> None:
        """Store the next bytes of the file that was begun; raise OSError if they cannot be written."""

    def is_intact(self, file: File) -> bool:
        """Return whether the file that was begun is complete and has its hash."""

    def read(self, file: File, offset: int) -> bytes:
        """Return a part of a file; raise OSError if it is not here any more."""


class Fetch:
    """Brings files from a host to this machine."""

    def __init__(self, link: CheckpointLink, copies: Copies, files: Sequence[File], done: Done) -> None:
        self._link = link
        self._copies = copies
        self._files = files
        self._waiting: deque[File] = deque()
        self._done = done

    def start(self) -> None:
        """Begin."""
        try:
            self._waiting.extend(self._copies.missing(self._files))
            self._begin()
        except OSError as error:
            self._done(_reason(error))

    def _begin(self) -> None:
        if self._waiting:
            self._request(self._copies.begin(self._waiting[0]))
        else:
            self._done("")

    def _request(self, offset: int) -> None:
        file = self._waiting[0]
        if offset < file.size:
            self._link.read(file, offset, lambda data: self._take(offset, data))
        elif self._copies.is_intact(file):
            self._waiting.popleft()
            self._begin()
        else:
            self._done(f"{file.path} changed while it was copied")

    def _take(self, offset: int, data: bytes) -> None:
        if not data:
            self._done(f"{self._waiting[0].path} cannot be read any more")
            return
        try:
            self._copies.append(self._waiting[0], data)
            self._request(offset + len(data))
        except OSError as error:
            self._done(_reason(error))


class Sending:
    """Brings files from this machine to a host, which has been asked what it lacks."""

    def __init__(self, link: CheckpointLink, copies: Copies, files: Sequence[File], done: Done) -> None:
        self._link = link
        self._copies = copies
        self._files = {file.sha256: file for file in files}
        self._done = done
        self._waiting: deque[tuple[File, int]] = deque()

    def start(self, kept: Sequence[str]) -> None:
        """Begin; the host removes all other files but those with the hashes in ``kept``."""
        self._link.store(list(self._files), kept, self._take_missing)

    def _take_missing(self, missing: Missing) -> None:
        if missing.problem:
            self._done(missing.problem)
        else:
            self.send(missing.offsets)

    def send(self, offsets: Mapping[str, int]) -> None:
        """Send the files with these hashes, each from an offset on."""
        self._waiting.extend((self._files[digest], offset) for digest, offset in offsets.items())
        self._send_part()

    def _send_part(self) -> None:
        if not self._waiting:
            self._done("")
            return
        file, offset = self._waiting.popleft()
        try:
            data = self._copies.read(file, offset)
        except OSError as error:
            self._done(_reason(error))
            return
        end = offset + len(data)
        if end < file.size:
            self._waiting.appendleft((file, end))
        if not data and end < file.size:
            self._done(f"{file.path} is shorter than it was")
            return
        self._link.send_part(file.sha256, offset, data, self._part_taken, is_last=end >= file.size)

    def _part_taken(self, problem: str) -> None:
        if problem:
            self._done(problem)
        else:
            self._send_part()


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
