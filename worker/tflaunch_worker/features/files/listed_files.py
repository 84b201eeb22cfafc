"""The files that tasks have written into a working directory, for the launcher.

Patterns are relative paths: ``*`` and ``?`` match within a name, ``**`` matches any number of directories, and the name
of a directory matches everything below it. Symbolic links are neither followed nor fetched.
"""

from __future__ import annotations

import errno
import os
import stat
from fnmatch import fnmatchcase
from typing import Any, ClassVar, FrozenSet, Iterable, Iterator, Tuple

from tflaunch_worker import file_trees, host_vars
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.features import background
from tflaunch_worker.features.file_parts import FILE, hash_file, open_inside, read_part
from tflaunch_worker.readable import printable
from tflaunch_worker.schema import integer

State = FrozenSet[Tuple[str, ...]]
"""The components of patterns that the rest of a path has to match."""

MOST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of all paths of a list, so that it fits into one message."""

_ANY_DEPTH = "**"
_ENTRY = 100  # bytes of an entry in addition to its path
_SHOWN_PATH = 120  # characters


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether the path of a file matches one of the patterns."""
    state = _begin(patterns)
    for name in path.split("/"):
        state = _advance(state, name)
    return () in state


def _begin(patterns: Iterable[str]) -> State:
    parts = (tuple(part for part in pattern.split("/") if part not in ("", ".")) for pattern in patterns)
    return _with_shorter((*pattern, _ANY_DEPTH) for pattern in parts if pattern)


def _advance(state: State, name: str) -> State:
    """Return the patterns that are left after a component of a path."""
    fitting = (rest for rest in state if rest and (rest[0] == _ANY_DEPTH or fnmatchcase(name, rest[0])))
    return _with_shorter(rest if rest[0] == _ANY_DEPTH else rest[1:] for rest in fitting)


def _with_shorter(rests: Iterable[tuple[str, ...]]) -> State:
    """Return the rests, also without leading ``**``, which match no directory, too."""
    found = set()
    for rest in rests:
        found.add(rest)
        while rest and rest[0] == _ANY_DEPTH:
            rest = rest[1:]  # noqa: PLW2901 - the next shorter one
            found.add(rest)
    return frozenset(found)


def list_files(directory: str, patterns: list[str]) -> dict[str, Any]:
    """Return path, size and SHA-256 of matches, the number left out, and a problem.

    May take long.
    """
    files, left_out, room, problem = [], 0, MOST_BYTES, ""
    for entry, is_match in _look(directory, patterns):
        path = entry.path
        try:
            if entry.error is not None and is_match:
                raise entry.error
            about = _describe(entry) if is_match and path.isprintable() else None
        except OSError as error:
            problem = problem or f"{printable(path, _SHOWN_PATH)}: {error.strerror}"
            continue
        room -= len(os.fsencode(path)) + _ENTRY
        if about is None or room < 0:
            left_out += 1
        else:
            files.append([path, *about])
    return {"files": files, "left_out": left_out, "problem": problem}


def _look(directory: str, patterns: list[str]) -> Iterator[tuple[file_trees.Entry, bool]]:
    """Yield matching files and links below a directory, and unreadable directories.

    The latter match, too, if all that is in them does.
    """
    states = [_begin(patterns)]

    def enters(entry: file_trees.Entry) -> bool:
        del states[entry.depth + 1 :]
        rest = _advance(states[entry.depth], entry.name)
        states.append(rest)
        return bool(rest)

    try:
        for entry in file_trees.walk(directory, enters):
            is_match = () in _advance(states[entry.depth], entry.name)
            if entry.error is not None or (is_match and not entry.is_directory):
                yield entry, is_match
    except FileNotFoundError:
        return  # there is no such directory


def _describe(entry: file_trees.Entry) -> tuple[int, str] | None:
    """Return size and SHA-256, None if it is not a regular file.

    Raises:
        OSError: it cannot be read, or its path is too long for whoever wants it.
    """
    if len(os.fsencode(entry.path)) > orders.LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    if not stat.S_ISREG(entry.status().st_mode):
        return None
    with open(os.open(entry.name, FILE, dir_fd=entry.directory), "rb") as file:
        return hash_file(file)


class FileListing(Service):
    """Lists what tasks have written, and lets the launcher read it."""

    CALLS: ClassVar = {
        "list_files": {"workdir": orders.word, "patterns": orders.words},
        "read_listed_file": {"path": orders.path, "offset": integer()},
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._directory = ""
        self._paths: FrozenSet[str] = frozenset()

    def list_files(self, call: Call, message: dict[str, Any]) -> None:
        """List matching files of a working directory for the launcher to read."""
        workdir, patterns = message["workdir"], message["patterns"]
        self._paths = frozenset()
        nothing: dict[str, Any] = {"files": [], "left_out": 0}
        try:
            directory = self.agent.host.expand_path(workdir)
        except host_vars.UnknownValueError as unknown:
            call.answer(problem=str(unknown), directory=workdir, **nothing)
            return

        def answer(found: dict[str, Any] | None) -> None:
            found = found or {**nothing, "problem": f"{directory} cannot be searched"}
            self._directory, self._paths = directory, frozenset(path for path, _, _ in found["files"])
            call.answer(directory=directory, **found)

        def find() -> dict[str, Any]:
            background.yield_to_others()  # tasks may be running, and it hashes all files that match
            return list_files(directory, patterns)

        background.run_in_background(self.agent.loop, find, answer)

    def read_listed_file(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with a part of a file of the last list; empty if it is unreadable now."""
        path = message["path"]
        is_listed = path in self._paths
        call.answer(read_part(lambda: open_inside(self._directory, path), message["offset"]) if is_listed else b"")
