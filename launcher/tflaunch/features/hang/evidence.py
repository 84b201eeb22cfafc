"""The evidence of agents: where processes of tasks are and what they wait for."""

from typing import Annotated, NamedTuple

from tflaunch.core.events import Attempt, Count, Moment, Seconds
from tflaunch.core.states import Progress
from tflaunch.records import Line

Text = Annotated[str, Line(300)]
"""A path, a name or a reason."""


class Place(NamedTuple):
    """A place in a Python program."""

    file: Text
    line: Count
    function: Text


class Frame(Place):
    """A frame of a stack, written without names of fields: there are thousands."""

    __slots__ = ()

    def write_json(self) -> list[str | int]:
        """Return its fields."""
        return list(self)


class Thread(NamedTuple):
    """A thread; `frames` are file, line and function, the innermost first.

    It runs Python, or is the main thread of a program that does not. ``wchan`` is the kernel function in which it
    waits, ``target`` what it reads or writes there; both are "" if unknown. ``has_moved``: it ran between the two
    samples.
    """

    id: Count
    state: Text
    wchan: Text
    target: Text
    has_moved: bool
    frames: tuple[Frame, ...]


class Socket(NamedTuple):
    """A TCP socket that listens, connects or has unacknowledged data (``is_stuck``)."""

    state: Text
    local: Text
    peer: Text
    unsent: Count
    is_stuck: bool


class Process(NamedTuple):
    """A process of a task.

    ``state`` is the letter of proc(5); ``cpu`` the number of CPUs that it used between the samples, ``cpu_wait`` the
    number for which its threads waited; ``unread`` why there are no Python stacks, or "". So far it has used
    ``cpu_seconds``, its living threads have waited for a CPU for ``wait_seconds``, and ``traffic`` is how many bytes it
    has read, written, sent and received.
    """

    pid: Count
    name: Text
    state: Text
    cpu: Moment
    unread: Text
    threads: tuple[Thread, ...]
    sockets: tuple[Socket, ...]
    cpu_wait: Moment = 0.0
    cpu_seconds: Moment = 0.0
    wait_seconds: Moment = 0.0
    traffic: Count = 0


class Evidence(NamedTuple):
    """An attempt as its agent sees it: signs of life and, on request, where it is.

    ``silence`` is the number of seconds since it last wrote output or reported progress, None if it never did.
    """

    task: Text
    attempt: Attempt
    silence: Seconds | None
    progress: Progress | None
    processes: tuple[Process, ...] = ()
