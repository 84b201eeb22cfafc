"""The launcher's side of copying checkpoints from and to one host: requests, and the checked answers to them.

All requests are forgotten with the link, and asked again by the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tflaunch.printable import printable
from tflaunch_worker import fields
from tflaunch_worker.agent.left_files import PART, is_inside
from tflaunch_worker.agent.saved_checkpoints import MOST_FILES

KINDS = frozenset(
    {"checkpoint_found", "checkpoint_read", "checkpoint_wanted", "checkpoint_part_taken", "checkpoint_placed"}
)
"""The kinds of the agent's answers."""

_LONGEST_NAME = 255
_LONGEST_AGE = 1e10  # seconds
_MOST_BYTES = 2**50
_HEXADECIMAL = frozenset("0123456789abcdef")


class File(NamedTuple):
    """A file of a checkpoint: its path below the directory of checkpoints, and its content."""

    path: str
    size: int
    sha256: str


class FoundCheckpoint(NamedTuple):
    """A checkpoint on a host: ``age`` is in seconds, ``number`` that under which its agent knows it."""

    number: int
    name: str
    step: int
    age: float
    files: tuple[File, ...]


class Missing(NamedTuple):
    """A host's answer before it gets a checkpoint: the hashes of files that it lacks, or a problem.

    Each hash is mapped to the number of bytes that it has.
    """

    offsets: Mapping[str, int]
    problem: str


TellFound = Callable[[FoundCheckpoint | None, str], None]
"""Takes a checkpoint, or why there may be one that cannot be copied."""
TellMissing = Callable[[Missing], None]


class Send(Protocol):
    """Sends a message to an agent; returns whether it is connected."""

    def __call__(self, kind: str, body: bytes = b"", /, **about: Any) -> bool:
        """Send a message with these fields."""


class CheckpointLink:
    """Asks one agent; every method returns whether the agent is connected, and so may answer."""

    def __init__(self, send: Send) -> None:
        """Ask by ``send``."""
        self._send = send
        self._request = 0
        self._tell_lost: Callable[[], None] = lambda: None
        self.forget()

    def tell_lost(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever the link is lost."""
        self._tell_lost = tell

    def forget(self) -> None:
        """Forget all requests: their answers are lost with the link."""
        self._tell_lost()
        self._finding: tuple[int, TellFound] | None = None
        self._reading: deque[tuple[File, int, Callable[[bytes], None]]] = deque()
        self._offering: dict[int, tuple[str, frozenset[str], TellMissing]] = {}
        self._sending: deque[tuple[str, int, Callable[[str], None]]] = deque()

    def withdraw(self) -> None:
        """Ignore the answers to all requests made so far."""
        self._finding = None
        self._reading = deque((file, offset, _ignore) for file, offset, _ in self._reading)
        self._offering = {request: (kind, digests, _ignore) for request, (kind, digests, _) in self._offering.items()}
        self._sending = deque((sha256, size, _ignore) for sha256, size, _ in self._sending)

    # ---- requests

    def find(
        self,
        workdir: str,
        directory: str,
        known: int,
        tell: TellFound,
        *,
        wait: bool,
    ) -> bool:
        """Ask for the newest checkpoint; ``tell`` gets it, or a problem. An earlier request is withdrawn.

        Args:
            workdir: the working directory of the task that writes, as in the plan.
            directory: the directory of checkpoints.
            known: the number of the last one that was found, 0 for none.
            tell: called once.
            wait: answer when there is another one than ``known``, instead of at once.
        """
        self._request += 1
        self._finding = self._request, tell
        about = {"workdir": workdir, "directory": directory, "known": known, "wait": wait, "kept": []}
        return self._send("find_checkpoint", request=self._request, **about)

    def read(self, file: File, offset: int, tell: Callable[[bytes], None]) -> bool:
        """Ask for the next part of a file; ``tell`` gets it, empty if the host does not have it any more."""
        self._reading.append((file, offset, tell))
        return self._send("read_checkpoint", sha256=file.sha256, offset=offset)

    def store(self, digests: Sequence[str], kept: Sequence[str], tell: TellMissing) -> bool:
        """Prepare a host to keep files; ``tell`` gets what it lacks. It removes all others but those in ``kept``."""
        self._request += 1
        self._offering[self._request] = "checkpoint_wanted", frozenset(digests), tell
        return self._send("store_checkpoint", request=self._request, digests=digests, kept=kept)

    def place(
        self,
        workdirs: Sequence[str],
        directory: str,
        files: Sequence[File],
        age: float,
        tell: TellMissing,
    ) -> bool:
        """Have a checkpoint put where tasks read it; ``tell`` gets what it lacks for that, or a problem."""
        self._request += 1
        self._offering[self._request] = "checkpoint_placed", frozenset(file.sha256 for file in files), tell
        about = {"workdirs": workdirs, "directory": directory, "files": files, "age": age}
        return self._send("place_checkpoint", request=self._request, **about)

    def send_part(self, sha256: str, offset: int, data: bytes, tell: Callable[[str], None], *, is_last: bool) -> bool:
        """Send a part of a file; ``tell`` gets "" when it is stored, or why it is not."""
        self._sending.append((sha256, offset + len(data), tell))
        return self._send("checkpoint_part", data, sha256=sha256, offset=offset, is_last=is_last)

    # ---- answers

    def take(self, message: dict[str, Any], body: bytes) -> None:
        """Take an answer.

        Raises:
            ValueError: it is malformed, or answers nothing that was asked.
        """
        match message["kind"]:
            case "checkpoint_found":
                self._take_found(message)
            case "checkpoint_read":
                self._take_part(message, body)
            case "checkpoint_part_taken":
                self._take_receipt(message)
            case _:
                self._take_missing(message)

    def _take_found(self, message: dict[str, Any]) -> None:
        request, found = fields.integer(message, "request", 0, self._request), message.get("found")
        checkpoint = None if found is None else _read_checkpoint(fields.mapping(message, "found"))
        problem = printable(fields.text(message, "problem"), 500)
        if self._finding is None or self._finding[0] != request:
            return  # it was withdrawn
        _, tell = self._finding
        self._finding = None
        tell(checkpoint, problem)

    def _take_part(self, message: dict[str, Any], body: bytes) -> None:
        file, offset, tell = self._reading[0] if self._reading else (None, 0, _ignore)
        if file is None or (message.get("sha256"), message.get("offset")) != (file.sha256, offset):
            raise ValueError("it sends a part of a checkpoint that was not requested")
        if len(body) not in (0, min(PART, file.size - offset)):
            raise ValueError("it sends a part of a checkpoint of another length")
        self._reading.popleft()
        tell(body)

    def _take_receipt(self, message: dict[str, Any]) -> None:
        sha256, size, tell = self._sending[0] if self._sending else ("", -1, _ignore)
        if (message.get("sha256"), message.get("size")) != (sha256, size):
            raise ValueError("it took a part of a checkpoint that was not sent")
        problem = printable(fields.text(message, "problem"), 500)
        self._sending.popleft()
        tell(problem)

    def _take_missing(self, message: dict[str, Any]) -> None:
        request = fields.integer(message, "request", 0, self._request)
        kind, digests, tell = self._offering.get(request, ("", frozenset[str](), _ignore))
        if kind != message["kind"]:
            raise ValueError("it lacks parts of a checkpoint that it was not offered")
        offsets: dict[str, int] = {}
        for item in fields.items(message, "missing"):
            match item:
                case [str(digest), offset] if type(offset) is int and 0 <= offset < _MOST_BYTES and digest in digests:
                    offsets[digest] = offset
                case _:
                    raise ValueError("it lacks parts of a checkpoint that it was not offered")
        problem = printable(fields.text(message, "problem"), 500)
        del self._offering[request]
        tell(Missing(offsets, problem))


def _ignore(_: object) -> None:
    """Ignore an answer that is not needed."""


def _read_checkpoint(found: dict[str, Any]) -> FoundCheckpoint:
    """Check a checkpoint that an agent lists.

    Raises:
        ValueError: it is malformed; a path leads elsewhere.
    """
    files: dict[str, File] = {}
    for item in fields.items(found, "files"):
        match item:
            case [str(path), size, str(sha256)] if is_file(path, size, sha256) and path not in files:
                files[path] = File(path, size, sha256)
            case _:
                raise ValueError("its agent lists what cannot be a file of a checkpoint")
    if not 0 < len(files) <= MOST_FILES or any(_is_below(path, files) for path in files):
        raise ValueError("its agent lists what cannot be a checkpoint")
    name = fields.text(found, "name", _LONGEST_NAME)
    if not name or not name.isprintable() or "/" in name:
        raise ValueError("its agent lists a checkpoint without a name")
    number, step = fields.integer(found, "number", 1), fields.integer(found, "step", 0, 10**15)
    return FoundCheckpoint(number, name, step, fields.number(found, "age", 0, _LONGEST_AGE), tuple(files.values()))


def is_file(path: object, size: object, sha256: object) -> bool:
    """Whether these can be path, size and hash of a file of a checkpoint."""
    is_hash = isinstance(sha256, str) and len(sha256) == 64 and _HEXADECIMAL.issuperset(sha256)
    is_size = type(size) is int and 0 <= size < _MOST_BYTES
    return is_hash and is_size and isinstance(path, str) and is_inside(path) and path.isprintable()


def _is_below(path: str, others: Mapping[str, File]) -> bool:
    """Whether a path leads through another file."""
    parts = path.split("/")
    return any("/".join(parts[:count]) in others for count in range(1, len(parts)))
