"""The cluster spec: what a user may say, as frozen values with their defaults. How it is written is in `spec_form`.

What the fields mean together (which roles a strategy needs, …) is in `lint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ROLES = ("chief", "worker", "ps", "evaluator")
STRATEGIES = ("multi_worker_mirrored", "parameter_server", "mirrored", "tpu", "none")
LOCALHOST = "localhost"
EVERY_HOST = "*"
"""The name in ``hosts`` under which defaults for all hosts are written."""

MAX_TASKS = 10_000


class Address(NamedTuple):
    """Where a task listens; ``port`` None means: chosen and held on that host at the start."""

    host: str
    port: int | None

    def __str__(self) -> str:
        return f"{self.host}:{'auto' if self.port is None else self.port}"


class Role(NamedTuple):
    """What differs for the tasks of one role."""

    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = {}
    workdir: str | None = None
    gpus: int | None = None
    server: bool = False
    required: bool = False


class Sidecar(NamedTuple):
    """A process outside TF_CONFIG."""

    command: tuple[str, ...]
    host: str = LOCALHOST
    env: Mapping[str, str] = {}
    required: bool = False


class Host(NamedTuple):
    """How to reach a host and what differs there.

    ``docker`` is the container that it is; ``address`` is what the other hosts call it. Users do not write ``engine``,
    which has found it and reaches it (see `engines`), nor ``inherits``, whether tasks there have the environment and
    the files of this machine.
    """

    ssh: str | None = None
    address: str | None = None
    identity_file: str | None = None
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = {}
    gpus: int | None = None
    docker: str | None = None
    engine: str | None = None
    inherits: bool = False


class Sync(NamedTuple):
    """Which of the user's files are brought to hosts that are not this machine, and which are not."""

    paths: tuple[str, ...] = (".",)
    exclude: tuple[str, ...] = (".git", ".venv", "__pycache__", "*.pyc")


class Restart(NamedTuple):
    """How often failures are answered with a new attempt; times in seconds."""

    max: int = 3
    window: float = 600.0
    backoff: tuple[float, float] = (1.0, 60.0)


class Elastic(NamedTuple):
    """How small a job may become when hosts are lost, and how often, in seconds, those are tried again."""

    min_workers: int
    retry: float = 300.0


class Timeouts(NamedTuple):
    """Limits of time in seconds; None is no limit, and for the lease the default.

    ``heartbeat``: a link over which nothing was heard for so long is given up and made anew.
    """

    connect: float = 10.0
    heartbeat: float = 5.0
    grace: float = 10.0
    lease: float | None = None
    start: float | None = None
    finish: float | None = None
    stall: float | None = None
    deadline: float | None = None


class Resources(NamedTuple):
    """What an engine is to give each task: cores, memory with its unit (Mi or Gi), GPUs if it trains."""

    cpu: str | None = None
    memory: str | None = None
    gpu: int | None = None


class Container(NamedTuple):
    """What `render` needs to know to have another engine start the tasks.

    ``volumes``: a path in the container to a path on the host, or to the name of a claim or volume.
    """

    image: str | None = None
    resources: Resources = Resources()
    volumes: Mapping[str, str] = {}


class Spec(NamedTuple):
    """A tflaunch cluster spec.

    ``pool``: where the hosts are found over which tasks without a host of their own are spread; users write it as
    ``hosts.discover``. ``slurm``: long options of sbatch to their values, "" where there is none.
    ``origins``: the places of values that come from a file of defaults (see `defaults`), to the name of that file.
    """

    cluster: Mapping[str, tuple[Address, ...]] = {}
    name: str = "job"
    strategy: str | None = None
    command: tuple[str, ...] | None = None
    roles: Mapping[str, Role] = {}
    sidecars: Mapping[str, Sidecar] = {}
    hosts: Mapping[str, Host] = {}
    env: Mapping[str, str] = {}
    workdir: str | None = None
    restart: Restart = Restart()
    timeouts: Timeouts = Timeouts()
    success: str | None = None
    legacy_keras: str | bool = "auto"
    preload: tuple[str, ...] = ()
    sync: Sync | None = None
    elastic: Elastic | None = None
    discover: Mapping[str, str] = {}
    tensorboard: str | None = None
    container: Container = Container()
    pool: str | None = None
    slurm: Mapping[str, str] = {}
    origins: Mapping[str, str] = {}

    def host(self, name: str) -> Host:
        """Return the settings of a host: its own, and below them those of all hosts (`EVERY_HOST`)."""
        own, common = self.hosts.get(name), self.hosts.get(EVERY_HOST)
        if own is None or common is None:
            return own or common or Host()
        given = {field: value for field, value in own._asdict().items() if value != Host._field_defaults[field]}
        return common._replace(**{**given, "env": {**common.env, **own.env}})

    def effective_strategy(self) -> str:
        """Return the strategy, by default the one that the roles ask for."""
        if self.strategy is not None:
            return self.strategy
        if not self.cluster and not self.discover and self.sidecars:
            return "none"
        return "parameter_server" if "ps" in self.cluster else "multi_worker_mirrored"
