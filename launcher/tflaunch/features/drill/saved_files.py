"""Which files of a training are its checkpoints, and what it wrote and read of them. Pure."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tflaunch.features.drill.file_watch import MOVED, READ, REMOVED, WRITTEN, FileEvent

_ENDINGS = re.compile(
    r"\.(index|data-\d+-of-\d+|ckpt|h5|hdf5|keras|npz|npy|pkl|pickle|pt|pth|msgpack|joblib|safetensors|ocdbt)$"
    r"|(^|/)checkpoint$|(state|ckpt|checkpoint|meta|step|epoch|progress)[^/]*\.json$|/_METADATA$",
    re.IGNORECASE,
)
_TEMPORARY = re.compile(r"(^|/)(\.|workertemp_)|_temp(/|_|$)|\.tmp\w*$|\.tempstate\d+$")
_NOTE = re.compile(r"(^|/)checkpoint$|\.json$")  # says which checkpoint is the newest, or at which step it was made
_LOGS = re.compile(r"\.tfevents\.|\.(log|csv|txt)$")


class SavedFiles:
    """What a training that was struck wrote and read."""

    def __init__(self, events: Sequence[FileEvent], at: float, first_step: float) -> None:
        """Take the events of a training that was struck ``at`` a time, and did its ``first_step`` after that."""
        self._events = events
        self._at = at
        self._first_step = first_step
        self._written = [event for event in events if event.kind in (WRITTEN, MOVED)]

    def states_before(self) -> list[str]:
        """Return the checkpoints that were written before the fault, the newest last."""
        paths = _paths(event for event in self._written if event.time < self._at and is_state(event.path))
        return sorted(paths, key=lambda path: not _NOTE.search(path))  # those that have weights come last

    def states_after(self) -> list[str]:
        """Return those that were written after it, the oldest first."""
        return _paths(event for event in self._written if event.time >= self._at and is_state(event.path))

    def read_after(self) -> list[str]:
        """Return what was read after the fault and may be of a checkpoint, the newest last."""
        written = {event.path for event in self._written if event.time < self._first_step and _may_be_state(event.path)}
        return sorted({_shown(path) for path in _paths(self._reads()) if path in written}, key=_number_of)

    def states_read(self) -> list[str]:
        """Return the files of checkpoints that were read after the fault, if written before the next step."""
        written = {event.path for event in self._written if event.time < self._first_step and is_state(event.path)}
        return [path for path in _paths(self._reads()) if path in written and not _NOTE.search(path)]

    def read_times(self, paths: Sequence[str]) -> list[float]:
        """Return when these were first read after the fault."""
        return [next(event.time for event in self._reads() if event.path == path) for path in paths]

    def write_times(self) -> list[float]:
        """Return when checkpoints were written."""
        return [event.time for event in self._written if is_state(event.path)]

    def _reads(self) -> list[FileEvent]:
        return [event for event in self._events if event.kind == READ and event.time >= self._at]

    def shared(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield checkpoints that several tasks wrote, and who; nobody if only that is known.

        A name with a number is that of one save: it is not moved into its place twice.
        """
        writers: dict[str, set[str]] = {}
        moves: Counter[str] = Counter()
        for event in self._events:
            if event.time < self._at and is_state(event.path):
                writers.setdefault(event.path, set()).update(event.tasks)
                moves[event.path] += event.kind == MOVED
                if event.kind == REMOVED:
                    del moves[event.path]
        for path, tasks in writers.items():
            is_of_one_save = bool(re.search(r"\d", posixpath.basename(path).partition(".")[0]))
            if len(tasks) > 1 or (is_of_one_save and moves[path] > 1):
                yield path, frozenset(tasks)

    def is_written_in_place(self, path: str) -> bool:
        """Whether a file got its content under its own name; TensorFlow's are complete with their index only."""
        kinds = {event.kind for event in self._written if event.path == path}
        return kinds == {WRITTEN} and not path.endswith((".index", ".json")) and ".data-" not in path


def _paths(events: Iterable[FileEvent]) -> list[str]:
    """Return the paths of events without repetition, in the order of their last event."""
    return list(dict.fromkeys(event.path for event in reversed(list(events))))[::-1]


def is_state(path: str) -> bool:
    """Return whether a file is part of a checkpoint, by its name."""
    return bool(_ENDINGS.search(path)) and _may_be_state(path)


def _may_be_state(path: str) -> bool:
    return not _TEMPORARY.search(path) and not _LOGS.search(path)


def _shown(path: str) -> str:
    """Return the name of a checkpoint rather than of one of its files."""
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)


def _number_of(path: str) -> tuple[int, str]:
    numbers = re.findall(r"\d+", posixpath.basename(path))
    return (int(numbers[-1]) if numbers else -1, path)
