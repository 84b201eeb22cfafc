"""Find the checkpoints of a training, and which it wrote and read. Pure."""

import itertools
import math
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tflaunch.features.drill.records import MOVED, READ, REMOVED, WRITTEN, FileEvent

_ENDINGS = re.compile(
    r"\.(index|data-\d+-of-\d+|ckpt|h5|hdf5|keras|npz|npy|pkl|pickle|pt|pth|msgpack|joblib|safetensors|ocdbt)$"
    r"|(^|/)checkpoint$|(state|ckpt|checkpoint|meta|step|epoch|progress)[^/]*\.json$|/_METADATA$",
    re.IGNORECASE,
)
_TEMPORARY = re.compile(r"(^|/)(\.|workertemp_)|_temp(/|_|$)|\.tmp\w*$|\.tempstate\d+$")
_NOTE = re.compile(r"(^|/)checkpoint$|\.json$")  # says which checkpoint is the newest, or at which step it was made
_DATA = re.compile(r"\.(np[zy]|h5|hdf5|pkl|pickle|joblib)$")  # also of examples: then a name says that it is saved
_SAVED = re.compile(r"ckpt|checkpoint|step|epoch|state|model|weights|backup|saved?|latest|last|best", re.IGNORECASE)
OPTIMIZER = re.compile(rb"optimi[sz]er|opt_state|momentum|velocit|adam|iterations", re.IGNORECASE)
# What follows a key of an index: a BundleEntryProto of dtype int64 (1), empty shape (2), shard (3), offset (4), size 8.
_ITERATIONS = re.compile(
    rb"iterations/\.ATTRIBUTES/VARIABLE_VALUE\x08\x09\x12\x00"
    rb"(?:\x18([\x00-\x7f]))?(?:\x20([\x80-\xff]*[\x00-\x7f]))?\x28\x08"
)
_LOGS = re.compile(r"\.tfevents\.|\.(log|csv|txt)$")


class SavedFiles:
    """What a training that was struck wrote and read."""

    def __init__(self, events: Sequence[FileEvent], at: float, first_step: float) -> None:
        """Take a training's events, the time of its fault, and that of its next step."""
        self._events = events
        self._at = at
        self._first_step = first_step
        self._written = [event for event in events if event.kind in (WRITTEN, MOVED)]

    def states_before(self) -> list[str]:
        """Return the checkpoints that were written before the fault, the newest last."""
        return sorted(self.states_written(0, self._at), key=is_note, reverse=True)  # those with weights come last

    def states_written(self, since: float, until: float = math.inf) -> list[str]:
        """Return the checkpoints that were written between two times, the newest last."""
        return _paths(event for event in self._written if since <= event.time < until and is_state(event.path))

    def read_after(self) -> list[str]:
        """Return the checkpoints, or possible ones, read after the fault, the newest last."""
        return sorted({_shown(path) for path in self.states_read() or self._read_back()}, key=_number_of)

    def states_read(self) -> list[str]:
        """Return the checkpoint files read after the fault, if older than the next step."""
        return [path for path in self._read_back() if is_state(path) and not is_note(path)]

    def _read_back(self) -> list[str]:
        written = {event.path for event in self._written if event.time < self._first_step and _may_be_state(event.path)}
        return [path for path in _paths(self._reads()) if path in written]

    def first_read(self) -> float:
        """Return when a checkpoint was first read after the fault."""
        read = self.states_read()
        return min(event.time for event in self._reads() if event.path in read)

    def write_time(self, path: str) -> float:
        """Return when a file was last written before the fault; 0 if that was not seen."""
        return max((event.time for event in self._written if event.path == path and event.time < self._at), default=0.0)

    def step_in_name(self) -> int | None:
        """Return the number of the checkpoint that was read, unless numbers count saves."""
        names = {_shown(path) for path in self.states_before()}
        numbers = sorted({number for name in names if (number := _number_of(name)[0]) >= 0})
        read = [number for name in self.read_after() if (number := _number_of(name)[0]) in numbers]
        steps = [after - before for before, after in itertools.pairwise(numbers)]
        return read[-1] if read and steps and min(steps) > 1 else None

    def _reads(self) -> list[FileEvent]:
        return [event for event in self._events if event.kind == READ and event.time >= self._at]

    def shared(self, is_rewritten: Callable[[str], bool]) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield checkpoints that several tasks wrote, with the tasks, as far as known.

        A name with a number that is moved into its place twice is that of one save, by two tasks, unless later steps
        write it again: then the number is that of a task, for instance.
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
            has_number = re.search(r"\d", posixpath.basename(path).partition(".")[0])
            if len(tasks) > 1 or (has_number and moves[path] > 1 and not is_rewritten(path)):
                yield path, frozenset(tasks)

    def is_written_in_place(self, path: str) -> bool:
        """Whether a file is written in place; TensorFlow's are complete with their index."""
        kinds = {event.kind for event in self._written if event.path == path}
        return kinds == {WRITTEN} and not path.endswith((".index", ".json")) and ".data-" not in path


def _paths(events: Iterable[FileEvent]) -> list[str]:
    """Return the paths of events without repetition, in the order of their last event."""
    return list(dict.fromkeys(event.path for event in reversed(list(events))))[::-1]


def is_state(path: str) -> bool:
    """Return whether a file is part of a checkpoint, by its name."""
    return bool(_ENDINGS.search(path)) and _may_be_state(path)


def is_output(path: str) -> bool:
    """Return whether a file seems to be a checkpoint of a training, rather than data."""
    return is_state(path) and bool(not _DATA.search(path) or _SAVED.search(path))


def is_note(path: str) -> bool:
    """Return whether a checkpoint's file has only notes, such as which is the newest."""
    return bool(_NOTE.search(path))


def names_variables(path: str) -> bool:
    """Return whether a checkpoint's file has the names of what was saved."""
    return is_state(path) and not is_note(path) and ".data-" not in path


def place_of_iterations(index: bytes) -> tuple[int, int] | None:
    """Return the place of the step count of a checkpoint's only optimizer, or None.

    It is the number of the data file, and the byte; None if the index does not say so.
    """
    found = _ITERATIONS.findall(index)
    if len(found) != 1:
        return None
    shard, offset = found[0]
    parts = ((byte & 0x7F) << 7 * place for place, byte in enumerate(offset))
    return shard[0] if shard else 0, sum(parts)


def _may_be_state(path: str) -> bool:
    return not _TEMPORARY.search(path) and not _LOGS.search(path)


def _shown(path: str) -> str:
    """Return the name of a checkpoint rather than of one of its files."""
    return re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)


def _number_of(path: str) -> tuple[int, str]:
    numbers = re.findall(r"\d+", posixpath.basename(_ENDINGS.sub("", path)))
    return (int(numbers[-1]) if numbers else -1, path)
