"""Transfer bytes to a host, a few parts at a time, and name files by their hashes.

That keeps heartbeats punctual on a slow link.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tflaunch.agents.calls import Begin, Waiter
from tflaunch.errors import describe_os_error
from tflaunch.records import Range, read_record
from tflaunch_worker import fields, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.readable import printable

PART = 64 * 1024
"""Bytes of a file in one piece."""

_AHEAD = 8  # pieces: few enough that a slow link still delivers heartbeats in time
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


class Piece(NamedTuple):
    """What one call brings to a host."""

    about: dict[str, Any]
    body: bytes = b""


def pieces_of(path: Path, sha256: str, size: int, offset: int) -> Iterator[Piece]:
    """Yield a file's parts from an offset up to its recorded size.

    Raises:
        OSError: it can no longer be read.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        while True:
            data = stream.read(min(PART, size - offset))
            is_last = offset + len(data) >= size or not data
            yield Piece({"sha256": sha256, "offset": offset, "is_last": is_last}, data)
            if is_last:
                return
            offset += len(data)


class Upload:
    """Brings pieces to a host, in order; once the link is lost, nothing is called."""

    def __init__(
        self, begin: Begin, kind: str, pieces: Iterator[Piece], done: Callable[[dict[str, Any], str], None]
    ) -> None:
        """Prepare calls of a kind for pieces; a few may wait for their answers.

        ``pieces`` raises OSError if what is sent can no longer be read. ``done`` takes the last answer, and "" if all
        has arrived, or why it has not.
        """
        self._begin = begin
        self._kind = kind
        self._pieces = pieces
        self._done = done
        self._room = _AHEAD
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
                self._begin(self._kind, Waiter(self._answered, refused=self._refused), piece.body, **piece.about)
        except OSError as error:
            self._finish(answer, describe_os_error(error))
            return
        if self._room == _AHEAD and not self._is_over:
            self._finish(answer, "")

    def _answered(self, message: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text({"problem": "", **message}, "problem"), _LONGEST_PROBLEM)
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
