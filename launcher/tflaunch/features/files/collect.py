"""Transfer matching files from a run's hosts, all at once, into a store by path."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from tflaunch import private_files
from tflaunch.core.events import Count
from tflaunch.core.job_state import Job
from tflaunch.core.states import TaskPhase
from tflaunch.errors import describe_os_error
from tflaunch.explain.wording import counted, listed, memory
from tflaunch.features.fetched_files import FetchedFile
from tflaunch.features.rpc import visiting
from tflaunch.features.uploads import HashedFile
from tflaunch.plan import placeholders, tensorboard
from tflaunch.records import Line, read_record
from tflaunch.store.run_dir import COLLECTED_NAME
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch.transport.connect import connectors_for
from tflaunch_worker.features.file_parts import PART, hash_file
from tflaunch_worker.features.files.listed_files import matches
from tflaunch_worker.readable import printable

_AT_ONCE = 16  # hosts
_PATIENCE = 60.0  # seconds for a part of a file, from a slow disk
_LISTING = 3600.0  # seconds to find the files and to compute their hashes
_SHOWN = 8  # directories in a message
_LONGEST_NAME = 160  # characters of a path in a message
_OF_ONE_FILE = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
"""Errors after which other files may still be stored."""
_PARTS = ".parts"


class FileAgent(Protocol):
    """Lists and reads files on a host."""

    def call(self, kind: str, wait: float, **about: Any) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a call; raise `LinkError` after ``wait`` seconds."""


Reach = Callable[[str], AbstractContextManager[FileAgent]]
"""Returns the agent of a host; entering it raises `LinkError` or `AgentGoneError` if there is none."""


class Workdir(NamedTuple):
    """A working directory on a host, as in the plan, and the tasks that ran in it."""

    host: str
    path: str
    tasks: tuple[str, ...]


class Collected(NamedTuple):
    """The result of a fetch: ``files`` match, ``fetched`` were transferred.

    ``source`` is the working directory on its host; ``left_out`` counts symbolic links and unreadable files there.
    ``problem``: why not all of it is here, or "".
    """

    workdir: Workdir
    directory: Path
    source: str = ""
    files: int = 0
    size: int = 0
    fetched: int = 0
    left_out: int = 0
    problem: str = ""

    def sentence(self) -> str:
        """Describe the fetched files, and their place."""
        tasks = f"{listed(self.workdir.tasks)} on {self.workdir.host}"
        if self.problem and not self.files:
            return f"nothing of {tasks} was fetched: {self.problem}"
        rest = f" (left out: {counted(self.left_out, 'symbolic link or unreadable file')})" if self.left_out else ""
        if not self.files:
            return f"nothing matches in {printable(self.source, 200)} of {tasks}{rest}"
        about = f"{counted(self.files, 'file')} ({memory(self.size)}) of {tasks}"
        return f"{about}: {self.directory}{rest}" + (f"; {self.problem}" if self.problem else "")


def workdirs_of(job: Job) -> list[Workdir]:
    """Return the working directories of all started tasks, each with its tasks."""
    found: dict[tuple[str, str], list[str]] = {}
    for process in job.plan.processes():
        state = job.tasks[process.task]
        if state.phase is not TaskPhase.IDLE and process.task != tensorboard.NAME:
            path = placeholders.fill(process, job.plan, job.run, str(state.attempt)).workdir
            found.setdefault((process.host, path), []).append(process.task)
    return [Workdir(host, path, tuple(tasks)) for (host, path), tasks in found.items()]


class Collection:
    """Fetches files in threads of its own, which end with the process."""

    def __init__(
        self,
        path: Path,
        job: Job,
        patterns: Sequence[str],
        finished: Callable[[], None] = lambda: None,
        reach: Reach | None = None,
    ) -> None:
        """Begin to fetch what matches patterns into a run's directory.

        ``finished`` is called in other threads, the last time when all is done. By default, new agents are started, and
        none of the run may be alive.
        """
        self.results: dict[Workdir, Collected] = {}
        self._directory = path / COLLECTED_NAME
        self._patterns = tuple(patterns)
        self._run = path.name
        self._finished = finished
        self._is_cancelled = False
        connectors = connectors_for(job.original, path) if reach is None else {}
        self._reach = reach or (lambda host: visiting(connectors[host], path.name))
        self._workdirs = workdirs_of(job)
        hosts = list(dict.fromkeys(workdir.host for workdir in self._workdirs))
        shares = [hosts[first::_AT_ONCE] for first in range(min(_AT_ONCE, len(hosts)))]
        self._working = {share[0] for share in shares}
        self._threads = [threading.Thread(target=self._work, args=share, daemon=True) for share in shares]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be fetched."""
        return not self._working

    def wait(self) -> None:
        """Wait until all is done."""
        for thread in self._threads:
            thread.join()  # no limit: only the command `fetch` waits here

    def cancel(self) -> None:
        """Stop soon; a later collection continues."""
        self._is_cancelled = True

    def summary(self) -> tuple[list[str], list[str]]:
        """Return sentences about what was fetched, and about what was not."""
        done = [self.results.get(workdir) or self._nothing(workdir, "interrupted") for workdir in self._workdirs]
        failed = [each.sentence() for each in done if each.problem]
        if failed:
            failed.append(f"to fetch the rest: tflaunch fetch {self._run}")
        return _shortened([each.sentence() for each in done if not each.problem]), _shortened(failed)

    def _work(self, *hosts: str) -> None:
        for host in hosts:
            if not self._is_cancelled:
                self._collect_from(host)
        self._working.discard(hosts[0])
        self._finished()

    def _collect_from(self, host: str) -> None:
        workdirs = [workdir for workdir in self._workdirs if workdir.host == host]
        try:
            with self._reach(host) as agent:
                for workdir in workdirs:
                    self.results[workdir] = self._collect(agent, workdir)
        except (LinkError, AgentGoneError) as error:
            self.results.update((workdir, self._nothing(workdir, printable(str(error)))) for workdir in workdirs)

    def _nothing(self, workdir: Workdir, problem: str) -> Collected:
        return Collected(workdir, self._directory, problem=problem)

    def _collect(self, agent: FileAgent, workdir: Workdir) -> Collected:
        store = CollectedFiles(self._directory, workdir.tasks[0].replace(":", "-"))
        done = Collected(workdir, store.directory)
        try:
            answer, _ = agent.call("list_files", _LISTING, workdir=workdir.path, patterns=self._patterns)
            found = Listing.read(answer, self._patterns)
            done = done._replace(source=found.directory, problem=found.problem, left_out=found.left_out)
            for path, size, sha256 in found.files:
                try:
                    done = self._fetch(agent, store, done, path, size, sha256)
                except OSError as error:
                    if error.errno not in _OF_ONE_FILE:
                        raise
                    done = done._replace(problem=f"{printable(path, _LONGEST_NAME)}: {error.strerror}")
        except (LinkError, ValueError) as error:
            return done._replace(problem=printable(str(error)))
        except OSError as error:
            return done._replace(problem=describe_os_error(error, store.directory))
        store.forget_parts()
        return done

    def _fetch(
        self, agent: FileAgent, store: CollectedFiles, done: Collected, path: str, size: int, sha256: str
    ) -> Collected:
        def read(offset: int) -> bytes:
            if self._is_cancelled:
                raise LinkError("interrupted")
            _, part = agent.call("read_listed_file", _PATIENCE, path=path, offset=offset)
            if len(part) > PART:
                raise LinkError("its agent broke the protocol: it sends more of a file than was requested")
            return part

        is_new = not store.has(path, size, sha256)
        if is_new and not store.fetch(path, size, sha256, read):
            return done._replace(problem=f"{printable(path, _LONGEST_NAME)} has changed in the meantime")
        return done._replace(files=done.files + 1, size=done.size + size, fetched=done.fetched + is_new)


class Listing(NamedTuple):
    """An agent's list of matching files; ``left_out`` counts matches not in it."""

    directory: str
    files: tuple[HashedFile, ...]
    left_out: Count
    problem: Annotated[str, Line(200)]

    @classmethod
    def read(cls, message: dict[str, Any], patterns: Sequence[str]) -> Listing:
        """Check a message.

        Raises:
            ValueError: it is malformed, or lists a file that was not asked for, or one twice.
        """
        found = read_record(cls, message)
        if other := next((path for path, _, _ in found.files if not matches(path, patterns)), None):
            raise ValueError(f"its agent lists a file that was not asked for, {other[:60]!r}")
        if len({file.path for file in found.files}) < len(found.files):
            raise ValueError("its agent lists a file twice")
        return found


def _shortened(sentences: list[str]) -> list[str]:
    more = len(sentences) - _SHOWN
    return sentences if more <= 0 else [*sentences[: _SHOWN - 1], f"and {more + 1} more", sentences[-1]]


class CollectedFiles:
    """The stored files of a working directory; only complete ones have their names."""

    def __init__(self, directory: Path, name: str) -> None:
        """Store files in ``directory``/``name``, created for the first; parts beside it."""
        self.directory = directory / name
        self._parts = directory / _PARTS / name

    def has(self, path: str, size: int, sha256: str) -> bool:
        """Return whether a file with this content is stored under a relative path."""
        stored = self.directory / path
        try:
            if stored.is_symlink() or not stored.is_file() or stored.stat().st_size != size:
                return False
            with stored.open("rb") as file:
                return hash_file(file)[1] == sha256
        except OSError:
            return False

    def fetch(self, path: str, size: int, sha256: str, read: Callable[[int], bytes]) -> bool:
        """Store a file, beginning where an earlier attempt to fetch this content stopped.

        Return whether it is stored: it is not if it has changed since it was listed. ``read`` returns the bytes from an
        offset on, at least one of them unless the file has changed.

        Raises:
            OSError: it cannot be stored.
        """
        part = FetchedFile(self._parts / sha256, sha256)
        while part.size < size and (data := read(part.size)[: size - part.size]):
            part.append(data)
        if not part.is_intact():
            return False
        target = self.directory / path
        private_files.make_directories(target.parent)
        os.replace(part.path, target)
        return True

    def forget_parts(self) -> None:
        """Remove the directories of incomplete files that are empty."""
        with suppress(OSError):  # there are incomplete files, for the next attempt
            self._parts.rmdir()
            self._parts.parent.rmdir()
