"""The cluster spec: what a user may write, with its types, defaults and limits.

What the fields mean together (which roles a strategy needs, …) is in `lint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.errors import Problem
from tflaunch.kinds import (
    At,
    Choice,
    Command,
    Count,
    Duration,
    Field,
    ListOf,
    MapOf,
    Matching,
    Name,
    Quantity,
    Record,
    Schema,
    Text,
    VariableName,
    VariableValue,
    shown,
)

ROLES = ("chief", "worker", "ps", "evaluator")
STRATEGIES = ("multi_worker_mirrored", "parameter_server", "mirrored", "tpu", "none")
LOCALHOST = "localhost"
MAX_TASKS = 10_000

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SOURCE = re.compile(r"dns:[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?|(file|command):.+")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_CORES = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_MEMORY = re.compile(r"[1-9][0-9]{0,6}(Mi|Gi)")
_MOUNT = re.compile(r"/[^:\s]+")
_VOLUME = re.compile(r"/[^:\s]*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SSH = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9._-]*@)?{_HOST.pattern}(:[0-9]{{1,5}})?")


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

    ``docker`` is the container that it is; ``address`` is what the other hosts call it.
    """

    ssh: str | None = None
    address: str | None = None
    identity_file: str | None = None
    python: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = {}
    gpus: int | None = None
    docker: str | None = None


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
    """A tflaunch cluster spec."""

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

    def effective_strategy(self) -> str:
        """Return the strategy, by default the one that the roles ask for."""
        if self.strategy is not None:
            return self.strategy
        return "parameter_server" if "ps" in self.cluster else "multi_worker_mirrored"


class _AddressKind:
    """``"host:port"``, or ``"host"`` for a port that is chosen there."""

    description = '"host:port", or "host" to have the port chosen'

    def read(self, value: object, at: At) -> Any:
        """Return the address."""
        if not isinstance(value, str):
            at.wrong(f"must be {self.description}, not {shown(value)}", "put it in quotes")
            return None
        host, colon, port = value.strip().partition(":")
        if "://" in value:
            at.wrong(f"{shown(value)} is a URL", 'write "host:port" without a scheme')
        elif ":" in port:
            message = f"{shown(value)} looks like an IPv6 address, which TensorFlow cannot parse"
            at.wrong(message, "use the host's name or its IPv4 address")
        elif not _HOST.fullmatch(host):
            at.wrong(f"{shown(value)} names no host", 'write "host:port", for example "10.0.0.1:2222"')
        elif not colon:
            return Address(host, None)
        elif port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535:
            return Address(host, int(port))
        else:
            at.wrong(f"{shown(value)} has no valid port", "use 1 to 65535, or no port to have one chosen")
        return None

    def schema(self) -> Schema:
        """Return the schema of an address."""
        return {"type": "string", "pattern": f"^{_HOST.pattern}(:[0-9]+)?$"}


class _Members:
    """The tasks of a role: a count stands for that many tasks on this machine."""

    description = 'a number of local tasks, or a list such as ["10.0.0.1:2222", "10.0.0.2:2222"]'
    _address = _AddressKind()

    def read(self, value: object, at: At) -> Any:
        """Return the addresses of the tasks, in the order of their index."""
        if isinstance(value, bool) or not isinstance(value, int | list):
            at.wrong(f"must be {self.description}, not {shown(value)}")
            return None
        count = value if isinstance(value, int) else len(value)
        if not 1 <= count <= MAX_TASKS:
            at.wrong(f"has {shown(count)} tasks", f"use 1 to {MAX_TASKS}, or leave the role out")
            return None
        if isinstance(value, int):
            return (Address(LOCALHOST, None),) * count
        return tuple(self._address.read(item, at.inside(index)) for index, item in enumerate(value))

    def schema(self) -> Schema:
        """Return the schema of a count or a list."""
        items = {"type": "array", "items": self._address.schema(), "minItems": 1, "maxItems": MAX_TASKS}
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_TASKS}, items]}


_WHERE = Matching(_SOURCE, 'where hosts are found: "dns:NAME", "file:PATH" or "command:WORDS"')
_ENV = Field(MapOf(VariableValue(), "an object of environment variables", VariableName()))
_WORKDIR = Field(Text("a path, relative to the spec's file"))
_COMMAND = Command()
_GPUS = Field(Count("a number of GPUs"))
_DURATION = Field(Duration())

_ROLE = Record(
    Role,
    {
        "command": Field(_COMMAND),
        "env": _ENV,
        "workdir": _WORKDIR,
        "gpus": _GPUS,
        "server": Field(Choice(True, False)),
        "required": Field(Choice(True, False)),
    },
)
_SIDECAR = Record(
    Sidecar,
    {
        "command": Field(_COMMAND, is_required=True),
        "host": Field(Matching(_HOST, 'the name of a host such as "10.0.0.1"')),
        "env": _ENV,
        "required": Field(Choice(True, False)),
    },
)
_HOST_SETTINGS = Record(
    Host,
    {
        "ssh": Field(Matching(_SSH, 'text such as "user@address:port"')),
        "docker": Field(Matching(_CONTAINER, "the name or id of a container")),
        "address": Field(Matching(_HOST, "the name or address by which the other hosts reach it")),
        "identity_file": Field(Text("the path of a private key")),
        "python": Field(Text("the path of the interpreter that `python` stands for")),
        "workdir": Field(Text("a path")),
        "env": _ENV,
        "gpus": _GPUS,
    },
)
_SYNC = Record(
    Sync,
    {
        "paths": Field(ListOf(Text("a path relative to the spec's file"), 'a list of paths such as ["."]')),
        "exclude": Field(ListOf(Text("a name or a path, with * and ?"), 'a list such as ["*.pyc", "data"]')),
    },
)
_RESTART = Record(
    Restart,
    {
        "max": Field(Count("a number of restarts, 0 for never")),
        "window": _DURATION,
        "backoff": Field(ListOf(Duration(), 'two durations such as ["1s", "1m"]', size=2)),
    },
)
_ELASTIC = Record(
    Elastic,
    {"min_workers": Field(Count("a number of workers"), is_required=True), "retry": _DURATION},
)
_RESOURCES = Record(
    Resources,
    {
        "cpu": Field(Quantity(_CORES, 'a number of cores such as "2" or "0.5"')),
        "memory": Field(Matching(_MEMORY, 'memory such as "512Mi" or "4Gi"')),
        "gpu": _GPUS,
    },
)
_VOLUME_OF = Matching(_VOLUME, "a path of the host, or the name of a claim or volume")
_MOUNTED_AT = Matching(_MOUNT, 'a path in the container such as "/data"')
_CONTAINER_SETTINGS = Record(
    Container,
    {
        "image": Field(Matching(_IMAGE, 'the name of an image such as "ghcr.io/ann/train:1"')),
        "resources": Field(_RESOURCES),
        "volumes": Field(MapOf(_VOLUME_OF, 'an object such as {"/data": "claim"}', _MOUNTED_AT)),
    },
)
_TIMEOUTS = Record(Timeouts, dict.fromkeys(Timeouts._fields, _DURATION))
_SPEC = Record(
    Spec,
    {
        "name": Field(Name("a short name; default: the file's stem")),
        "strategy": Field(Choice(*STRATEGIES)),
        "cluster": Field(MapOf(_Members(), 'an object such as {"worker": 2}')),
        "discover": Field(MapOf(_WHERE, 'an object such as {"worker": "dns:worker"}', Choice(*ROLES))),
        "command": Field(_COMMAND),
        "roles": Field(MapOf(_ROLE, "an object of roles and their settings")),
        "sidecars": Field(MapOf(_SIDECAR, "an object of names and their processes", Name())),
        "tensorboard": Field(Text("a directory of event files, relative to the chief's workdir")),
        "hosts": Field(MapOf(_HOST_SETTINGS, "an object of hosts and their settings")),
        "env": _ENV,
        "workdir": _WORKDIR,
        "restart": Field(_RESTART),
        "timeouts": Field(_TIMEOUTS),
        "success": Field(Choice("chief", "all")),
        "legacy_keras": Field(Choice("auto", True, False)),
        "sync": Field(_SYNC),
        "elastic": Field(_ELASTIC),
        "preload": Field(ListOf(Text("the name of a module"), 'a list of modules such as ["tensorflow"]')),
        "container": Field(_CONTAINER_SETTINGS),
    },
    hints={
        "task": "remove it: tflaunch makes the task part of TF_CONFIG for every task",
        "ps_hosts": 'write "cluster": {"ps": [...]}',
        "worker_hosts": 'write "cluster": {"worker": [...]}',
        "image": 'write "container": {"image": …}',
        "args": 'put the arguments into "command"',
        "logdir": 'write "tensorboard": "logs/" to have them shown',
    },
)


def read(data: object) -> Spec | list[Problem]:
    """Return the spec in ``data`` (what a JSON, YAML or TOML parser gave), or all that is wrong with it."""
    problems: list[Problem] = []
    spec = _SPEC.read(data, At(problems))
    if isinstance(data, dict) and not data.keys() & {"cluster", "discover"}:
        problems.append(Problem("error", "cluster", "is missing", 'write for example {"worker": 2}'))
    return problems or spec


def read_address(text: str) -> Address | Problem:
    """Return the address that a text such as ``h1:2222`` is, or what is wrong with it."""
    problems: list[Problem] = []
    address = _AddressKind().read(text, At(problems))
    return problems[0] if problems else address


def json_schema() -> Schema:
    """Return the JSON Schema of a spec."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tflaunch cluster spec",
        **_SPEC.schema(),
        "anyOf": [{"required": ["cluster"]}, {"required": ["discover"]}],
    }
