"""Transfer bytes from and to a host, a few parts at a time.

That keeps heartbeats punctual on a slow link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from tflaunch.agents.calls import Begin, Waiter
from tflaunch.records import Range, read_record
from tflaunch_worker import fields, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.left_files import PART
from tflaunch_worker.printable import printable

_LONGEST_PROBLEM = 500


def _check_path(name: str, value: object) -> str:
    if orders.path(name, value).isprintable():
        return str(value)
    raise schema.refuse(name, "a path that can be printed", value)


Digest = Annotated[str, orders.digest]
Size = Annotated[int, Range(0, schema.MAX_COUNT)]


class HashedFile(NamedTuple):
    """A file: its path below a directory, its size in bytes, and its SHA-256."""

    path: Annotated[str, _check_path]
    size: Size
    sha256: Digest

    def write_json(self) -> list[str | int]:
        """Return its fields."""
        return list(self)


class _Rest(NamedTuple):
    """What a host lacks of a file: all from an offset on."""

    sha256: Digest
    offset: Size


def read_wanted(message: Mapping[str, Any], name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the files that a host lacks: hash to the byte to continue at.

    Raises:
        ValueError: it is malformed, or about a file that was not offered, or about one twice.
    """
    rests = [read_record(_Rest, item) for item in fields.items(message, name)]
    wanted = dict(rests)
    if len(wanted) < len(rests) or any(offset > sizes.get(sha256, -1) for sha256, offset in rests):
        raise ValueError("it asks for a file that was not offered, or for one twice")
    return wanted


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


class Piece(NamedTuple):
    """What one call brings to a host."""

    about: dict[str, Any]
    body: bytes = b""


class Upload:
    """Brings pieces to a host, in order; once the link is lost, nothing is called."""

    def __init__(
        self,
        begin: Begin,
        kind: str,
        pieces: Iterator[Piece],
        done: Callable[[dict[str, Any], str], None],
        ahead: int = 1,
    ) -> None:
        """Prepare it.

        Args:
            begin: begins a call.
            kind: the kind of the calls.
            pieces: what is sent; raises OSError if that can no longer be read.
            done: takes the last answer, and "" if all has arrived, or why it has not.
            ahead: how many calls may wait for their answers.
        """
        self._begin = begin
        self._kind = kind
        self._pieces = pieces
        self._done = done
        self._room = ahead
        self._unanswered = 0
        self._is_over = False

    def send(self) -> None:
        """Send the next pieces."""
        self._send_more({})

    def stop(self) -> None:
        """Send nothing any more."""
        self._is_over = True

    def _send_more(self, answer: dict[str, Any]) -> None:
        try:
            while self._room and not self._is_over and (piece := next(self._pieces, None)) is not None:
                self._room -= 1
                self._unanswered += 1
                self._begin(self._kind, Waiter(self._answered, refused=self._refused), piece.body, **piece.about)
        except OSError as error:
            self._finish(answer, f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return
        if not (self._unanswered or self._is_over):
            self._finish(answer, "")

    def _answered(self, message: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text({"problem": "", **message}, "problem"), _LONGEST_PROBLEM)
        self._unanswered -= 1
        self._room += 1
        if self._is_over:
            return
        if problem:
            self._finish(message, problem)
        else:
            self._send_more(message)

    def _refused(self, why: str) -> None:
        if not self._is_over:
            self._finish({}, why)

    def _finish(self, answer: dict[str, Any], problem: str) -> None:
        self._is_over = True
        self._done(answer, problem)
