"""Actions: everything that the core can request, named in the imperative."""

from typing import NamedTuple


class JoinHost(NamedTuple):
    """Start an agent on a host."""

    host: str


class AbandonHost(NamedTuple):
    """Drop a host's agent: it is dead, and so are ``tasks``, its last tasks."""

    host: str
    tasks: tuple[str, ...] = ()


class SendFiles(NamedTuple):
    """Copy the user's code to a host."""

    host: str


class LookUpNames(NamedTuple):
    """Resolve names on a host."""

    host: str
    names: tuple[str, ...]


class HoldPorts(NamedTuple):
    """Choose and hold ports on a host: task to the wanted port, 0 for any."""

    host: str
    ports: dict[str, int]


class ProbePeers(NamedTuple):
    """Check whether a host can reach the other hosts' tasks.

    ``ports``: its own tasks to their ports, on which it listens for the others; ``peers``: task to host and port.
    """

    host: str
    ports: dict[str, int]
    peers: dict[str, tuple[str, int]]


class UpdateFence(NamedTuple):
    """Send a host the changed list of addresses that may connect to its tasks."""

    host: str


class StartTask(NamedTuple):
    """Start an attempt of a task according to the job's plan.

    ``unforked``: why the task must not be forked, whatever the plan says; "" if it may.
    """

    host: str
    task: str
    attempt: int
    unforked: str = ""


class ImportModules(NamedTuple):
    """Import modules of a task of the compiled plan on a spare host that may get it."""

    host: str
    task: str


class StopTask(NamedTuple):
    """Stop a task: TERM, then KILL after ``grace`` seconds (at once for 0).

    ``with_stacks``: the task hangs; dump its stacks instead of sending TERM.
    """

    host: str
    task: str
    attempt: int
    grace: float
    with_stacks: bool = False


Action = (
    JoinHost
    | AbandonHost
    | SendFiles
    | LookUpNames
    | HoldPorts
    | ProbePeers
    | UpdateFence
    | StartTask
    | ImportModules
    | StopTask
)
