"""Everything that the supervisor can ask for, in the imperative."""

from __future__ import annotations

from typing import NamedTuple


class JoinHost(NamedTuple):
    """Start an agent on a host."""

    host: str


class AbandonHost(NamedTuple):
    """Expect nothing more of a host's agent: it and its tasks, the last of which were ``tasks``, are dead."""

    host: str
    tasks: tuple[str, ...] = ()


class SendFiles(NamedTuple):
    """Bring the user's code to a host."""

    host: str


class LookUpNames(NamedTuple):
    """Find out what names mean on a host."""

    host: str
    names: tuple[str, ...]


class HoldPorts(NamedTuple):
    """Choose and hold ports on a host: task to the wanted port, 0 for any.

    ``exclusive``: the tasks bind their ports exclusively, on the loopback address alone, and each is content with
    another port than the wanted one.
    """

    host: str
    ports: dict[str, int]
    exclusive: bool = False


class TryPeers(NamedTuple):
    """Find out whether a host reaches the tasks of the others.

    ``ports``: its own tasks and theirs, on which it listens for the others; ``peers``: task to host and port.
    """

    host: str
    ports: dict[str, int]
    peers: dict[str, tuple[str, int]]


class StartTask(NamedTuple):
    """Start an attempt of a task as the job's plan says."""

    host: str
    task: str
    attempt: int


class StopTask(NamedTuple):
    """End a task: TERM, then KILL after ``grace`` seconds (at once for 0).

    ``with_stacks``: it hangs, and shall write where it does, instead of TERM.
    """

    host: str
    task: str
    attempt: int
    grace: float
    with_stacks: bool = False


Action = JoinHost | AbandonHost | SendFiles | LookUpNames | HoldPorts | TryPeers | StartTask | StopTask
