"""The receipt of the user's code, cached by content: only changed files are sent.

A file is cached under the SHA-256 of its content and copied into the run's own directory, where its tasks may change
it. Files that no run has used for a month are removed from the cache. Incomplete files are in the agent's directory and
are removed by its guard.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch_worker import CHECKPOINTS_NAME, CODE_NAME, FILES_NAME, TASKS_NAME, file_trees, offload, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features.arriving_files import ArrivingFile, FilesError, unlink_if_there
from tflaunch_worker.printable import printable

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.services import AgentParts


_PARTS_NAME = ".files"  # never the name of a task's scratch directory
_MONTH = 30 * 86400.0
_READ = 1 << 20
_LONGEST_TARGET = 4095  # bytes
_HEXADECIMAL = frozenset("0123456789abcdef")


class Files:
    """The files of one run."""

    def __init__(self, directory: str, files: list[list[Any]], links: list[list[str]]) -> None:
        """Validate an offer of files.

        Args:
            directory: the agent's, at home/runs/RUN/agents/HOST.
            files: [path, mode, SHA-256] of each; paths are relative.
            links: [path, target] of each symbolic link.

        Raises:
            TypeError, ValueError: a path leads out of the directory or through a link, or a value is malformed.
        """
        home = os.path.normpath(os.path.join(directory, *[os.pardir] * 4))
        self._cache = os.path.join(home, FILES_NAME)
        self._arriving = os.path.join(directory, TASKS_NAME, _PARTS_NAME)
        self._place = os.path.join(directory, CODE_NAME)
        self._files = [(_inside(path), int(mode) & 0o777, _hash(digest)) for path, mode, digest in files]
        self._links = [(_inside(path), _link_target(target)) for path, target in links]
        _refuse_paths_through_links([path for path, _, _ in self._files], [path for path, _ in self._links])
        self._missing: set[str] | None = None
        self._parts: dict[str, ArrivingFile] = {}
        self.has_failed = False
        """Whether it was reported that they cannot be stored; then they have to be offered again."""
        self.is_being_compared = False
        self.is_being_placed = False

    # ---- cached files

    def compare(self) -> list[str]:
        """Return the hashes of missing files, and mark cached ones as used. May take long."""
        return [digest for digest in sorted({digest for _, _, digest in self._files}) if not self._use(digest)]

    def _use(self, digest: str) -> bool:
        try:
            os.utime(self._cached(digest))  # from now on no other run removes it
        except OSError:
            return False
        return True

    def compared(self, missing: list[str]) -> None:
        """Set the missing files, as returned by `compare`."""
        self._missing = set(missing)

    @property
    def is_compared(self) -> bool:
        """Whether it is known which files are missing."""
        return self._missing is not None

    @property
    def is_complete(self) -> bool:
        """Whether no file is missing any more."""
        return self._missing is not None and not self._missing

    def wanted(self) -> list[tuple[str, int]]:
        """Return the hashes of the files to be sent, each with the bytes already received."""
        arrived = {digest: part.size for digest, part in self._parts.items()}
        return [(digest, arrived.get(digest, 0)) for digest in sorted(self._missing or ())]

    def _cached(self, digest: str) -> str:
        return os.path.join(self._cache, digest)

    # ---- arriving files

    def take(self, digest: str, offset: int, data: bytes, is_last: bool) -> None:
        """Store a part of a file.

        Raises:
            FilesError: the disk is full, or the content does not match the hash.
            ValueError: an earlier part is missing.
        """
        if self.has_failed or digest not in (self._missing or ()):
            return  # it was already in flight when its state was reported, or has arrived from elsewhere
        part = self._parts.get(digest)
        if part is None:
            part = self._parts[digest] = ArrivingFile(os.path.join(self._arriving, digest))
        if offset != part.size:
            raise ValueError(f"byte {offset} of {digest} follows byte {part.size}")
        try:
            if offset == 0:
                self._begin(part)
            part.append(data)
            if is_last:
                self._finish(digest, part)
        except OSError as error:
            self._fail(part)
            raise FilesError(f"{error.filename or self._arriving}: {error.strerror}") from None

    def _begin(self, part: ArrivingFile) -> None:
        os.makedirs(self._cache, mode=0o700, exist_ok=True)
        os.makedirs(self._arriving, mode=0o700, exist_ok=True)
        unlink_if_there(part.path)  # left by an earlier agent of this run that was killed together with its guard

    def _finish(self, digest: str, part: ArrivingFile) -> None:
        if part.sha256.hexdigest() != digest:
            self._fail(part)
            path = next(path for path, _, known in self._files if known == digest)
            raise FilesError(f"{path} changed while it was sent; start again when no program writes to it")
        os.replace(part.path, self._cached(digest))
        del self._parts[digest]
        assert self._missing is not None
        self._missing.discard(digest)

    def _fail(self, part: ArrivingFile) -> None:
        self.has_failed = True
        unlink_if_there(part.path)

    # ---- files for the tasks

    def place(self) -> str:
        """Copy all to the tasks' code directory; return "" or the reason. May take long."""
        is_new = not os.path.lexists(self._place)
        try:
            os.makedirs(self._place, mode=0o700, exist_ok=True)
            for path, mode, digest in self._files:
                self._copy(digest, self._free(path), mode)
            for path, link in self._links:
                os.symlink(link, self._free(path))
        except (OSError, FilesError) as error:
            if is_new:
                file_trees.remove_tree(self._place)  # no task has written anything into it
            reason = f"{error.filename or self._place}: {error.strerror}" if isinstance(error, OSError) else str(error)
            return printable(reason)  # names may hold any character
        self._forget_old()
        return ""

    def _free(self, path: str) -> str:
        """Return a file's free path, with real directories above it.

        Tasks of an earlier attempt may have replaced a directory by a link, which would lead our writes elsewhere.
        """
        *parents, name = path.split(os.sep)
        directory = self._place
        for parent in parents:
            directory = os.path.join(directory, parent)
            try:
                if stat.S_ISDIR(os.lstat(directory).st_mode):
                    continue
                os.unlink(directory)
            except FileNotFoundError:
                pass
            os.mkdir(directory, 0o700)
        target = os.path.join(directory, name)
        unlink_if_there(target)
        return target

    def _copy(self, digest: str, target: str, mode: int) -> None:
        sha256 = hashlib.sha256()
        with open(self._cached(digest), "rb") as source, open(target, "xb") as copy:
            while True:
                data = source.read(_READ)
                if not data:
                    break
                sha256.update(data)
                copy.write(data)
            os.fchmod(copy.fileno(), mode)
        if sha256.hexdigest() != digest:
            unlink_if_there(self._cached(digest))
            raise FilesError(f"{self._cached(digest)} was damaged and is removed; start again")

    def _forget_old(self) -> None:
        limit = time.time() - _MONTH
        try:
            names = os.listdir(self._cache)
        except OSError:
            return
        for name in names:
            path = os.path.join(self._cache, name)
            try:
                if os.lstat(path).st_mtime < limit:
                    os.unlink(path)
            except OSError:
                pass  # another run was faster, or the file is not ours


def _refuse_paths_through_links(files: list[str], links: list[str]) -> None:
    known = set(links)
    for path in files + links:
        parts = path.split(os.sep)
        if any(os.sep.join(parts[:count]) in known for count in range(1, len(parts))):
            raise ValueError(f"{path!r} leads through a link")


def _link_target(target: str) -> str:
    if not target or "\0" in target or len(os.fsencode(target)) > _LONGEST_TARGET:
        raise ValueError(f"a link cannot lead to {target[:80]!r}")
    return target


def _inside(path: str) -> str:
    os.fsencode(path)  # raises ValueError for an invalid file name
    normal = os.path.normpath(path)
    if os.path.isabs(normal) or normal.split(os.sep)[0] in (os.curdir, os.pardir) or "\0" in normal:
        raise ValueError(f"{path!r} leads out of the run's directory")
    return normal


def _hash(text: str) -> str:
    if len(text) != 64 or not _HEXADECIMAL.issuperset(text):
        raise ValueError(f"{text!r} is not a SHA-256 digest")
    return text


class Offer(Service):
    """Receives the user's code, and removes it."""

    CALLS: ClassVar = {
        "offer_files": {
            "is_first": schema.flag,
            "is_last": schema.flag,
            "files": schema.list_of(schema.row(orders.word, schema.integer(), schema.text())),
            "links": schema.list_of(schema.row(orders.word, orders.word)),
        },
        "write_file": orders.PART,
        "remove_code": {},
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._offered: tuple[list[list[Any]], list[list[str]]] = [], []
        self._accepted = self._offered
        self._files: Files | None = None
        self._asking: Call | None = None

    def offer_files(self, call: Call, message: dict[str, Any]) -> None:
        """Add a part of the list of files; the last one is answered with what is missing.

        Over another link the whole list is sent again. A supervisor that has taken over reads the files again, so its
        list may differ. After a refusal, the next attempt offers them again.

        Raises:
            TypeError, ValueError: the list is invalid.
        """
        self.holds_agent = True
        if message["is_first"]:
            self._offered = [], []
        self._offered[0].extend(message["files"])
        self._offered[1].extend(message["links"])
        if not message["is_last"]:
            call.answer()
            return
        self._asking = call
        files = self._files
        is_other = self._offered != self._accepted
        if files is None or files.has_failed or (is_other and not files.is_being_placed):
            files = self._files = Files(self.agent.host.directory, *self._offered)
            self._accepted = self._offered
        if files.is_compared:
            self._want(files)
        elif not files.is_being_compared:
            files.is_being_compared = True
            compared = files
            offload.run_in_fork(self.agent.loop, files.compare, lambda missing: self._compared(compared, missing))

    def _compared(self, files: Files, missing: list[str] | None) -> None:
        if files is not self._files:
            return  # another list has come since
        if missing is None:
            self._refuse(files, "the files that are there could not be looked at")
        else:
            files.compared(missing)
            self._want(files)

    def _want(self, files: Files) -> None:
        assert self._asking is not None
        self._asking.answer(wanted=files.wanted())
        self._place_if_complete(files)

    def write_file(self, call: Call, message: dict[str, Any]) -> None:
        """Store a part of a file.

        Raises:
            ValueError: no files were offered, or an earlier part is missing.
        """
        files = self._files
        if files is None:
            raise ValueError("no files were offered")
        try:
            files.take(message["sha256"], message["offset"], message["body"], message["is_last"])
        except FilesError as error:
            self._refuse(files, str(error))
        call.answer()
        self._place_if_complete(files)

    def remove_code(self, call: Call, message: dict[str, Any]) -> None:
        """Remove the copies of the user's code and of checkpoints."""

        def remove() -> None:
            for name in (CODE_NAME, CHECKPOINTS_NAME):
                file_trees.remove_tree(os.path.join(self.agent.host.directory, name))

        offload.run_in_fork(self.agent.loop, remove, lambda _: call.answer())

    def _place_if_complete(self, files: Files) -> None:
        if files.is_complete and not (files.is_being_placed or files.has_failed):
            files.is_being_placed = True
            offload.run_in_fork(self.agent.loop, files.place, lambda failure: self._placed(files, failure))

    def _placed(self, files: Files, failure: str | None) -> None:
        if failure == "":
            self.agent.link.say("files_synced", directory=os.path.join(self.agent.host.directory, CODE_NAME))
        else:
            self._refuse(files, failure or "the files could not be put in their places")

    def _refuse(self, files: Files, reason: str) -> None:
        files.has_failed = True
        self.agent.link.say("files_refused", reason=reason)
