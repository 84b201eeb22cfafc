"""Transfer bytes from a host, a part at a time: that keeps heartbeats punctual."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tflaunch.agents.calls import Begin, Waiter
from tflaunch_worker.agent.left_files import PART


class CodeUpload(Protocol):
    """An upload of the user's code to one agent."""

    def offer(self) -> None:
        """Offer all of it to the agent; repeated over each new link."""

    def stop(self) -> None:
        """Send nothing any more."""


class UserCode(Protocol):
    """The user's code, which is copied to hosts."""

    def keep(self, run: Path) -> UserCode:
        """Copy the code to the directory of a run; return the code that is read there."""

    def export(self, run: Path) -> list[tuple[Path, str]]:
        """Describe a full copy of the code in the directory of a run.

        Returns the files of the copy, and their paths in it.
        """

    def upload(self, begin: Begin, failed: Callable[[str], None]) -> CodeUpload:
        """Return an upload that begins its calls with ``begin``.

        ``failed`` takes why a file can no longer be read.
        """


class Source(NamedTuple):
    """Bytes on a host: name, number, the kind of call that reads them, its fields."""

    name: str
    size: int
    kind: str
    about: dict[str, Any]


class Download:
    """Brings bytes from a host; nothing is called any more once the link is lost."""

    def __init__(
        self, begin: Begin, source: Source, store: Callable[[bytes, bool], str], done: Callable[[str], None]
    ) -> None:
        """Prepare it.

        Args:
            begin: begins a call.
            source: what is read.
            store: takes the next part, and whether it is the last one; returns why it cannot be stored, or "".
            done: takes "" when all is stored, or why it is not.
        """
        self._begin = begin
        self._source = source
        self._store = store
        self._done = done

    def read_from(self, offset: int) -> None:
        """Read all from an offset on."""
        if offset == self._source.size:
            self._done(self._store(b"", True))
            return

        def answered(message: dict[str, Any], body: bytes) -> None:
            if len(body) not in (0, min(PART, self._source.size - offset)):
                raise ValueError("it sends a part of another length than requested")
            self._take(offset + len(body), body)

        self._begin(self._source.kind, Waiter(answered, refused=self._done), **self._source.about, offset=offset)

    def _take(self, end: int, data: bytes) -> None:
        is_last = end == self._source.size
        problem = self._store(data, is_last) if data else f"{self._source.name} cannot be read any more"
        if problem or is_last:
            self._done(problem)
        else:
            self.read_from(end)
