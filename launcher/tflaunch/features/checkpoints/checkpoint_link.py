"""The launcher's side of copying checkpoints from and to one host.

What waits for a host is forgotten with the link, and begun again by the waiter.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from tflaunch.agents.calls import Begin, Call, Waiter
from tflaunch.errors import describe_os_error
from tflaunch.features.checkpoints.checkpoint_copies import CheckpointCopies, KeptCheckpoint
from tflaunch.features.fetched_files import FetchedFile
from tflaunch.features.uploads import HashedFile, Piece, Upload, pieces_of, read_wanted
from tflaunch.records import Range, read_record
from tflaunch_worker import fields
from tflaunch_worker.features.checkpoints.saved_checkpoints import MOST_FILES
from tflaunch_worker.features.file_parts import PART, leads_through
from tflaunch_worker.readable import printable


def _check_name(name: str, value: object) -> str:
    if isinstance(value, str) and value and value.isprintable() and "/" not in value and len(value) <= _LONGEST_NAME:
        return value
    raise ValueError(f"field {name!r} must be the name of a checkpoint")


_LONGEST_NAME = 255


class _Found(NamedTuple):
    """A checkpoint that an agent lists, and its age in seconds."""

    name: Annotated[str, _check_name]
    step: Annotated[int, Range(0, 10**15)]
    age: Annotated[float, Range(0, 1e10)]
    files: tuple[HashedFile, ...]


TellFound = Callable[[KeptCheckpoint | None, str, str], None]
"""Takes a checkpoint without a place, the mark by which it differs from others, and why there may be one not copied."""
TellMissing = Callable[[Mapping[str, int], str], None]
"""Takes the hashes of the files that a host lacks, each with the number of bytes that it has; or a problem."""
Done = Callable[[str], None]
"""Takes "" when all files have arrived, or why they have not."""


class CheckpointLink:
    """Asks one agent about checkpoints."""

    def __init__(self, host: str, begin: Begin, lost: Callable[[], None]) -> None:
        """Begin calls by ``begin``; call ``lost`` if the link is lost during a call."""
        self._host = host
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

        def refused(why: str) -> None:
            if begun == self._round and waiter.refused is not None:
                waiter.refused(why)

        return self._begin(kind, Waiter(answered, lambda _: self._lost(), refused=refused), body, **about)

    def withdraw(self) -> None:
        """Ignore the answers to all calls begun so far."""
        self._round += 1

    def find(self, workdir: str, directory: str, known: str, tell: TellFound, *, wait: bool) -> None:
        """Ask for the newest checkpoint, instead of any earlier request.

        The answer comes at once, or with ``wait`` when there is one with another mark than ``known``. ``workdir`` is
        that of the task that writes, as in the plan.
        """

        def answered(message: dict[str, Any], body: bytes) -> None:
            found = message.get("found")
            checkpoint = None if found is None else _read_checkpoint(self._host, found)
            tell(checkpoint, fields.text(message, "mark"), _problem(message))

        if self._finding is not None:
            self._finding.end()
        about = {"workdir": workdir, "directory": directory, "known": known, "wait": wait}
        # An agent that refuses would do so again: it is not asked for the next one in this attempt.
        refused = None if wait else lambda why: tell(None, "", why)
        self._finding = self.begin("find_checkpoint", Waiter(answered, refused=refused), **about)

    def place(
        self, workdirs: Sequence[str], directory: str, files: Sequence[HashedFile], age: float, tell: TellMissing
    ) -> None:
        """Put a checkpoint into working directories; tell what is missing, or a problem."""
        about = {"workdirs": workdirs, "directory": directory, "files": files, "age": age}
        self._ask_missing("place_checkpoint", files, tell, about)

    def fetch(self, copies: CheckpointCopies, files: Sequence[HashedFile], done: Done) -> None:
        """Bring files from the host to this machine."""
        try:
            missing = copies.missing(files)
            if not missing:
                done("")
                return
            file, *rest = missing
            part = copies.begin(file)
        except OSError as error:
            done(describe_os_error(error))
            return

        def stored(problem: str) -> None:
            if problem:
                done(problem)
            else:
                self.fetch(copies, rest, done)

        self._fetch_rest(file, part, stored)

    def _fetch_rest(self, file: HashedFile, arrived: FetchedFile, done: Done) -> None:
        """Fetch the rest of a file, a part at a time: that keeps heartbeats punctual."""
        left = file.size - arrived.size

        def take(message: dict[str, Any], body: bytes) -> None:
            if len(body) not in (0, min(PART, left)):
                raise ValueError("it sends a part of another length than requested")
            try:
                arrived.append(body)
            except OSError as error:
                done(describe_os_error(error))
                return
            if body:
                self._fetch_rest(file, arrived, done)
            else:
                done(f"{file.path} cannot be read any more")

        if left:
            about = {"sha256": file.sha256, "offset": arrived.size}
            self.begin("read_checkpoint", Waiter(take, refused=done), **about)
            return
        try:
            problem = "" if arrived.is_intact() else f"{file.path} changed while it was copied"
        except OSError as error:
            problem = describe_os_error(error)
        done(problem)

    def store(self, copies: CheckpointCopies, files: Sequence[HashedFile], kept: Sequence[str], done: Done) -> None:
        """Send files to the host's store, which removes others than these and ``kept``."""

        def answered(missing: Mapping[str, int], problem: str) -> None:
            if problem:
                done(problem)
            else:
                self.send(copies, files, missing, done)

        about = {"digests": [file.sha256 for file in files], "kept": kept}
        self._ask_missing("store_checkpoint", files, answered, about)

    def send(
        self, copies: CheckpointCopies, files: Sequence[HashedFile], offsets: Mapping[str, int], done: Done
    ) -> None:
        """Bring the files with these hashes to the host, each from an offset on."""
        wanted = {file.sha256: file for file in files}

        def pieces() -> Iterator[Piece]:
            for digest, offset in offsets.items():
                yield from pieces_of(copies.path_of(wanted[digest]), digest, wanted[digest].size, offset)

        Upload(self.begin, "write_checkpoint", pieces(), lambda _, problem: done(problem)).send()

    def _ask_missing(self, kind: str, files: Sequence[HashedFile], tell: TellMissing, about: dict[str, Any]) -> None:
        sizes = {file.sha256: file.size for file in files}

        def answered(message: dict[str, Any], body: bytes) -> None:
            tell(read_wanted(message, "missing", sizes), _problem(message))

        self.begin(kind, Waiter(answered, refused=partial(tell, {})), **about)


def _problem(message: dict[str, Any]) -> str:
    return printable(fields.text(message, "problem"), 500)


def _read_checkpoint(host: str, answer: Any) -> KeptCheckpoint:
    """Check a checkpoint that an agent lists.

    Raises:
        ValueError: it is malformed; a path leads elsewhere.
    """
    found = read_record(_Found, answer)
    paths = {file.path for file in found.files}
    is_possible = 0 < len(paths) == len(found.files) <= MOST_FILES
    if not is_possible or any(leads_through(path, paths) for path in paths):
        raise ValueError("its agent lists what cannot be a checkpoint")
    return KeptCheckpoint("", host, found.name, found.step, time.time() - found.age, found.files, (host,))
