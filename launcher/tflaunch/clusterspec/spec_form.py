"""How a cluster spec is written: its fields, their kinds and limits, and its JSON Schema."""

from __future__ import annotations

import re
from typing import Any

from tflaunch.clusterspec import (
    LOCALHOST,
    MAX_TASKS,
    ROLES,
    STRATEGIES,
    Address,
    Container,
    Elastic,
    Host,
    Resources,
    Restart,
    Role,
    Sidecar,
    Spec,
    Sync,
    Timeouts,
)
from tflaunch.clusterspec.kinds import (
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
from tflaunch.errors import Problem

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SOURCE = re.compile(r"[a-z][a-z0-9_-]*(:.+)?")
_OPTION = re.compile(r"[a-z][a-z0-9-]+")
_RESERVED = ("array", "help", "parsable", "test-only", "uid", "usage", "version", "wait", "wrap")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_CORES = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_MEMORY = re.compile(r"[1-9][0-9]{0,6}(Mi|Gi)")
_MOUNT = re.compile(r"/[^:\s]+")
_VOLUME = re.compile(r"/[^:\s]*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SSH = re.compile(rf"([A-Za-z0-9_][A-Za-z0-9._-]*@)?{_HOST.pattern}(:[0-9]{{1,5}})?")


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


class _Hosts(MapOf):
    """Hosts and their settings; ``discover`` says where those are found that are not named."""

    def read(self, value: object, at: At) -> Any:
        """Return the entries; that of ``discover`` is text."""
        if not isinstance(value, dict) or _DISCOVER not in value:
            return super().read(value, at)
        entries = super().read({name: item for name, item in value.items() if name != _DISCOVER}, at)
        return {**entries, _DISCOVER: _WHERE.read(value[_DISCOVER], at.inside(_DISCOVER))}

    def schema(self) -> Schema:
        """Return the schema of the object."""
        return {**super().schema(), "properties": {_DISCOVER: _WHERE.schema()}}


class _OptionValue:
    """The value of an option on a command line; ``true`` for one that has none."""

    description = "text, a number, or true"

    def read(self, value: object, at: At) -> Any:
        """Return the value as text, "" for none."""
        if value is True:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "" or not str(value).isprintable():
            at.wrong(f"must be {self.description}, not {shown(value)}")
        return str(value)

    def schema(self) -> Schema:
        """Return the schema of a value."""
        return {"anyOf": [{"type": ["string", "integer"], "minLength": 1}, {"const": True}]}


class _OptionName(Matching):
    """A long option of sbatch, but none that makes something else of the job."""

    def read(self, value: object, at: At) -> Any:
        """Return the option."""
        if value in _RESERVED:
            at.wrong(f"--{value} would make something else of the job", "remove it: one job runs all tasks")
        return super().read(value, at)


_DISCOVER = "discover"
_WHERE = Matching(_SOURCE, 'where hosts are found, such as "dns:NAME", "file:PATH", "exec:WORDS" or "slurm"')
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
_OPTION_NAME = _OptionName(_OPTION, 'a long option of sbatch such as "partition"')
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
        "hosts": Field(_Hosts(_HOST_SETTINGS, "an object of hosts and their settings")),
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
        "slurm": Field(MapOf(_OptionValue(), 'an object such as {"partition": "gpu"}', _OPTION_NAME)),
    },
    hints={
        "task": "remove it: tflaunch makes the task part of TF_CONFIG for every task",
        "ps_hosts": 'write "cluster": {"ps": [...]}',
        "worker_hosts": 'write "cluster": {"worker": [...]}',
        "image": 'write "container": {"image": …}',
        "args": 'put the arguments into "command"',
        "logdir": 'write "tensorboard": "logs/" to have them shown',
    },
    ignored=("$schema",),
)


def read(data: object, *, is_whole: bool = True) -> Spec | list[Problem]:
    """Return the spec in ``data`` (what a JSON, YAML or TOML parser gave), or all that is wrong with it.

    ``is_whole``: it must have tasks, which defaults have not.
    """
    problems: list[Problem] = []
    spec = _SPEC.read(data, At(problems))
    if is_whole and isinstance(data, dict) and not data.keys() & {"cluster", "discover", "sidecars"}:
        problems.append(Problem("error", "cluster", "is missing", 'write for example {"worker": 2}'))
    return problems or _with_pool(spec)


def _with_pool(spec: Spec) -> Spec:
    """Take what ``hosts.discover`` says out of the hosts."""
    if _DISCOVER not in spec.hosts:
        return spec
    hosts: dict[str, Any] = dict(spec.hosts)
    return spec._replace(pool=hosts.pop(_DISCOVER), hosts=hosts)


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
        "anyOf": [{"required": [name]} for name in ("cluster", "discover", "sidecars")],
    }
