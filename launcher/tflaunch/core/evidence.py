"""Where the processes of tasks are and what they wait for, as their agents found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.core import measures
from tflaunch.core.measures import Progress
from tflaunch.printable import printable
from tflaunch_worker import fields

_LONGEST = 300  # characters of a path, a name or a reason
_MOST_ATTEMPTS = 2**31


class Frame(NamedTuple):
    """A place in a Python program."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """A thread that runs Python, or the main thread of a program that does not.

    ``wchan`` is the kernel function in which it waits, ``target`` what it reads or writes there; both are "" if
    unknown. ``has_moved``: it ran between the two samples. ``frames`` begin with the innermost.
    """

    id: int
    state: str
    wchan: str
    target: str
    has_moved: bool
    frames: tuple[Frame, ...]


class Socket(NamedTuple):
    """A TCP socket that listens, connects, or has sent what is not acknowledged (``is_stuck``)."""

    state: str
    local: str
    peer: str
    unsent: int
    is_stuck: bool


class Use(NamedTuple):
    """What a process has used since it began, in seconds; ``cpu_wait`` is that of its threads, None if unknown."""

    cpu_seconds: float
    cpu_wait: float | None


class Process(NamedTuple):
    """A process of a task.

    ``state`` is the letter of proc(5); ``cpu`` the number of CPUs that it used between the samples; ``unread`` why
    there are no Python stacks, or "".
    """

    pid: int
    name: str
    state: str
    cpu: float
    unread: str
    threads: tuple[Thread, ...]
    sockets: tuple[Socket, ...]
    use: Use | None = None
    """Known if it was asked for."""


class Sampling(NamedTuple):
    """How evidence is gathered.

    ``between``: seconds between the two samples of the stacks, None as the agent thinks right; ``with_use``: also what
    each process has used since its start.
    """

    between: float | None = None
    with_use: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a request."""
        return {"with_use": self.with_use} if self.between is None else self._asdict()


USUAL = Sampling()


class Evidence(NamedTuple):
    """What an agent found about an attempt of a task.

    ``silence`` is the number of seconds since it last wrote output, None if it never did.
    """

    task: str
    attempt: int
    silence: float | None
    progress: Progress | None
    processes: tuple[Process, ...]
    cores: float | None = None
    """How many cores the tasks of its host may use; known, as the next one, if the use was asked for."""
    busy_seconds: float | None = None
    """For how long the cores of its host have worked, for any program, in sum."""

    def as_json(self) -> dict[str, Any]:
        """Return the evidence as JSON that `read_evidence` reads."""
        return {
            **self._asdict(),
            "progress": None if self.progress is None else self.progress._asdict(),
            "processes": [_process_as_json(process) for process in self.processes],
        }


def _process_as_json(process: Process) -> dict[str, Any]:
    return {
        **process._asdict(),
        "threads": [
            {**thread._asdict(), "frames": [list(frame) for frame in thread.frames]} for thread in process.threads
        ],
        "sockets": [socket._asdict() for socket in process.sockets],
        "use": None if process.use is None else process.use._asdict(),
    }


def read_evidence(message: Mapping[str, Any]) -> Evidence:
    """Return the evidence in a message of an agent or a supervisor.

    Raises:
        ValueError: it is malformed.
    """
    silence, progress = message.get("silence"), message.get("progress")
    return Evidence(
        task=_text(message, "task"),
        attempt=fields.integer(message, "attempt", 0, _MOST_ATTEMPTS),
        silence=None if silence is None else fields.number(message, "silence", 0),
        progress=None if progress is None else measures.read_progress(progress),
        processes=tuple(_process(_object(item)) for item in fields.items(message, "processes")),
        cores=_number_or_none(message, "cores"),
        busy_seconds=_number_or_none(message, "busy_seconds"),
    )


def _number_or_none(message: Mapping[str, Any], name: str) -> float | None:
    return None if message.get(name) is None else fields.number(message, name, 0)


def _process(known: Mapping[str, Any]) -> Process:
    return Process(
        pid=fields.integer(known, "pid"),
        name=_text(known, "name"),
        state=_text(known, "state"),
        cpu=fields.number(known, "cpu"),
        unread=_text(known, "unread"),
        threads=tuple(_thread(_object(item)) for item in fields.items(known, "threads")),
        sockets=tuple(_socket(_object(item)) for item in fields.items(known, "sockets")),
        use=None if known.get("use") is None else _use(fields.mapping(known, "use")),
    )


def _use(known: Mapping[str, Any]) -> Use:
    return Use(
        cpu_seconds=fields.number(known, "cpu_seconds", 0),
        cpu_wait=_number_or_none(known, "cpu_wait"),
    )


def _thread(known: Mapping[str, Any]) -> Thread:
    return Thread(
        id=fields.integer(known, "id"),
        state=_text(known, "state"),
        wchan=_text(known, "wchan"),
        target=_text(known, "target"),
        has_moved=fields.flag(known, "has_moved"),
        frames=tuple(map(_frame, fields.items(known, "frames"))),
    )


def _frame(item: object) -> Frame:
    match item:
        case [str(file), line, str(function)] if type(line) is int:
            return Frame(printable(file, _LONGEST), line, printable(function, _LONGEST))
        case _:
            raise ValueError("'frames' must hold file, line and function")


def _socket(known: Mapping[str, Any]) -> Socket:
    return Socket(
        state=_text(known, "state"),
        local=_text(known, "local"),
        peer=_text(known, "peer"),
        unsent=fields.integer(known, "unsent"),
        is_stuck=fields.flag(known, "is_stuck"),
    )


def _object(item: object) -> Mapping[str, Any]:
    return fields.mapping({"item": item}, "item")


def _text(known: Mapping[str, Any], name: str) -> str:
    return printable(fields.text(known, name, 2 * _LONGEST), _LONGEST)
