"""The receipt of the user's code, cached by content: only changed files are sent.

A file is cached under the SHA-256 of its content and copied into the run's own directory, where its tasks may change
it. Files that no run has used for a month are removed from the cache. Incomplete files are in the agent's directory and
are removed by its guard.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch_worker import CHECKPOINTS_NAME, CODE_NAME, FILES_NAME, TASKS_NAME, file_trees, offload, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features.file_parts import (
    ArrivingFiles,
    FilesError,
    hash_file,
    leads_through,
    reason_of,
    unlink_if_there,
)

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.services import AgentParts
    from tflaunch_worker.schema import Schema

_PARTS_NAME = ".files"  # never the name of a task's scratch directory
_MONTH = 30 * 86400.0

OFFERED: Schema = {
    "files": schema.list_of(schema.row(orders.path, schema.integer(), orders.digest)),
    "links": schema.list_of(schema.row(orders.path, orders.word)),
}
"""What is offered: path, mode and SHA-256 of each file, path and target of each symbolic link."""


class Files:
    """The files of one run."""

    def __init__(self, directory: str, files: list[list[Any]], links: list[list[str]]) -> None:
        """Take an offer (`OFFERED`) for an agent's directory, home/runs/RUN/agents/HOST.

        Raises:
            ValueError: a path leads through a link.
        """
        home = os.path.normpath(os.path.join(directory, *[os.pardir] * 4))
        self._cache = os.path.join(home, FILES_NAME)
        self._arriving = ArrivingFiles(os.path.join(directory, TASKS_NAME, _PARTS_NAME))
        self._place = os.path.join(directory, CODE_NAME)
        self._files = files
        self._links = links
        linked = {path for path, _ in links}
        for path in (*(path for path, _, _ in files), *linked):
            if leads_through(path, linked):
                raise ValueError(f"{path!r} leads through a link")
        self.missing: set[str] | None = None
        """The hashes of the files that have to be sent; None until `compare` has found them out."""
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

    def wanted(self) -> list[tuple[str, int]]:
        """Return the hashes of the files to be sent, each with the bytes already received."""
        return [(digest, self._arriving.size_of(digest)) for digest in sorted(self.missing or ())]

    def _cached(self, digest: str) -> str:
        return os.path.join(self._cache, digest)

    # ---- arriving files

    def take(self, digest: str, offset: int, data: bytes, is_last: bool) -> None:
        """Store a part of a file.

        Raises:
            FilesError: the disk is full, or the content does not match the hash.
            ValueError: an earlier part is missing.
        """
        if self.has_failed or self.missing is None or digest not in self.missing:
            return  # it was already in flight when its state was reported, or has arrived from elsewhere
        try:
            is_same = self._arriving.take(digest, offset, data, is_last, self._cached(digest))
        except FilesError:
            self.has_failed = True
            raise
        if not is_same:
            self.has_failed = True
            path = next(path for path, _, each in self._files if each == digest)
            raise FilesError(f"{path} changed while it was sent; start again when no program writes to it")
        if is_last:
            self.missing.discard(digest)

    # ---- files for the tasks

    def place(self) -> str:
        """Copy all to the tasks' code directory; return "" or the reason. May take long."""
        is_new = not os.path.lexists(self._place)
        try:
            os.makedirs(self._place, mode=0o700, exist_ok=True)
            for path, mode, digest in self._files:
                self._copy(digest, self._free(path), mode & 0o777)
            for path, link in self._links:
                os.symlink(link, self._free(path))
        except (OSError, FilesError) as error:
            if is_new:
                file_trees.remove_tree(self._place)  # no task has written anything into it
            return reason_of(error, self._place) if isinstance(error, OSError) else str(error)
        self._forget_old()
        return ""

    def _free(self, path: str) -> str:
        """Return a file's free path, with real directories above it.

        Tasks of an earlier attempt may have replaced a directory by a link, which would lead our writes elsewhere.
        """
        *parents, name = path.split("/")
        directory = self._place
        for parent in parents:
            directory = os.path.join(directory, parent)
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(directory).st_mode):
                    continue
                os.unlink(directory)
            os.mkdir(directory, 0o700)
        target = os.path.join(directory, name)
        unlink_if_there(target)
        return target

    def _copy(self, digest: str, target: str, mode: int) -> None:
        with open(self._cached(digest), "rb") as source, open(target, "xb") as copy:
            _, copied = hash_file(source, copy)
            os.fchmod(copy.fileno(), mode)
        if copied != digest:
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
            with suppress(OSError):  # another run was faster, or the file is not ours
                if os.lstat(path).st_mtime < limit:
                    os.unlink(path)


class Offer(Service):
    """Receives the user's code, and removes it."""

    CALLS: ClassVar = {
        "offer_files": {"is_first": schema.flag, "is_last": schema.flag, **OFFERED},
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
            ValueError: a path leads through a link.
        """
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
        if files.missing is not None:
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
            files.missing = set(missing)
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
        if files.missing == set() and not (files.is_being_placed or files.has_failed):
            files.is_being_placed = True
            offload.run_in_fork(self.agent.loop, files.place, lambda failure: self._placed(files, failure))

    def _placed(self, files: Files, failure: str | None) -> None:
        if failure == "":
            self.agent.link.say("host_prepared", what="code", name=os.path.join(self.agent.host.directory, CODE_NAME))
        else:
            self._refuse(files, failure or "the files could not be put in their places")

    def _refuse(self, files: Files, reason: str) -> None:
        files.has_failed = True
        self.agent.link.say("host_refused", what="code", reason=reason)
