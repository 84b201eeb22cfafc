"""The launcher's side of copying checkpoints from and to one host.

What waits for a host is forgotten with the link, and begun again by the waiter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tflaunch.agents.calls import Begin, Call, Waiter
from tflaunch.agents.transfer import Download, Piece, Source, Upload
from tflaunch.printable import printable
from tflaunch_worker import fields
from tflaunch_worker.agent.left_files import is_inside
from tflaunch_worker.features.checkpoints.saved_checkpoints import MOST_FILES

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


TellFound = Callable[[FoundCheckpoint | None, str], None]
"""Takes a checkpoint, or why there may be one that cannot be copied."""
TellMissing = Callable[[Missing], None]
Done = Callable[[str], None]
"""Takes "" when all files have arrived, or why they have not."""


class CheckpointLink:
    """Asks one agent about checkpoints."""

    def __init__(self, begin: Begin, lost: Callable[[], None]) -> None:
        """Begin calls by ``begin``; ``lost`` is called if the link is lost while one waits for its answer."""
        self._begin = begin
        self._lost = lost
        self._round = 0
        self._finding: Call | None = None

    def begin(self, kind: str, waiter: Waiter, body: bytes = b"", /, **about: Any) -> Call:
        """Begin a call that `withdraw` withdraws."""
        begun = self._round

        def answered(message: dict[str, Any], found: bytes) -> None:
            if begun == self._round:
                waiter.answered(message, found)

        return self._begin(kind, Waiter(answered, self._lost), body, **about)

    def withdraw(self) -> None:
        """Ignore the answers to all calls begun so far."""
        self._round += 1

    def find(self, workdir: str, directory: str, known: int, tell: TellFound, *, wait: bool) -> None:
        """Ask for the newest checkpoint; ``tell`` gets it, or a problem. An earlier request is withdrawn.

        Args:
            workdir: the working directory of the task that writes, as in the plan.
            directory: the directory of checkpoints.
            known: the number of the last one that was found, 0 for none.
            tell: called once.
            wait: answer when there is another one than ``known``, instead of at once.
        """

        def answered(message: dict[str, Any], body: bytes) -> None:
            found = message.get("found")
            checkpoint = None if found is None else _read_checkpoint(fields.mapping(message, "found"))
            tell(checkpoint, _problem(message))

        if self._finding is not None:
            self._finding.end()
        about = {"workdir": workdir, "directory": directory, "known": known, "wait": wait, "kept": []}
        self._finding = self.begin("find_checkpoint", Waiter(answered), **about)

    def place(
        self, workdirs: Sequence[str], directory: str, files: Sequence[File], age: float, tell: TellMissing
    ) -> None:
        """Have a checkpoint put where tasks read it; ``tell`` gets what it lacks for that, or a problem."""
        about = {"workdirs": workdirs, "directory": directory, "files": files, "age": age}
        self._ask_missing("place_checkpoint", [file.sha256 for file in files], tell, about)

    def fetch(self, copies: Copies, files: Sequence[File], done: Done) -> None:
        """Bring files from the host to this machine."""
        try:
            missing = copies.missing(files)
            offset = copies.begin(missing[0]) if missing else 0
        except OSError as error:
            done(_reason(error))
            return
        if not missing:
            done("")
            return
        file, *rest = missing

        def store(data: bytes, is_last: bool) -> str:
            try:
                copies.append(file, data)
                is_whole = not is_last or copies.is_intact(file)
            except OSError as error:
                return _reason(error)
            return "" if is_whole else f"{file.path} changed while it was copied"

        def stored(problem: str) -> None:
            if problem:
                done(problem)
            else:
                self.fetch(copies, rest, done)

        source = Source(file.path, file.size, "read_checkpoint", {"sha256": file.sha256})
        Download(self.begin, source, store, stored).read_from(offset)

    def store(self, copies: Copies, files: Sequence[File], kept: Sequence[str], done: Done) -> None:
        """Bring files from this machine to the host, which removes all others but those with the hashes in ``kept``."""

        def answered(missing: Missing) -> None:
            if missing.problem:
                done(missing.problem)
            else:
                self.send(copies, files, missing.offsets, done)

        digests = [file.sha256 for file in files]
        self._ask_missing("store_checkpoint", digests, answered, {"digests": digests, "kept": kept})

    def send(self, copies: Copies, files: Sequence[File], offsets: Mapping[str, int], done: Done) -> None:
        """Bring the files with these hashes to the host, each from an offset on."""
        wanted = {file.sha256: file for file in files}
        pieces = (piece for digest, offset in offsets.items() for piece in _pieces(copies, wanted[digest], offset))
        Upload(self.begin, "write_checkpoint", pieces, lambda _, problem: done(problem)).send()

    def _ask_missing(self, kind: str, digests: Sequence[str], tell: TellMissing, about: dict[str, Any]) -> None:
        def answered(message: dict[str, Any], body: bytes) -> None:
            offsets: dict[str, int] = {}
            for item in fields.items(message, "missing"):
                match item:
                    case [str(digest), offset] if type(offset) is int and 0 <= offset < _MOST_BYTES:
                        offsets[digest] = offset
                    case _:
                        raise ValueError("it lacks what cannot be a file")
            if not offsets.keys() <= set(digests):
                raise ValueError("it lacks a file of a checkpoint that it was not offered")
            tell(Missing(offsets, _problem(message)))

        self.begin(kind, Waiter(answered), **about)


def _pieces(copies: Copies, file: File, offset: int) -> Iterator[Piece]:
    """Yield the parts of a file from an offset on; raise OSError if it can no longer be read."""
    is_last = False
    while not is_last:
        data = copies.read(file, offset)
        is_last = offset + len(data) >= file.size
        if not data and not is_last:
            raise OSError(f"{file.path} is shorter than it was")
        yield Piece({"sha256": file.sha256, "offset": offset, "is_last": is_last}, data)
        offset += len(data)


def _problem(message: dict[str, Any]) -> str:
    return printable(fields.text(message, "problem"), 500)


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


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
