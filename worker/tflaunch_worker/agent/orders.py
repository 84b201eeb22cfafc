"""The schema of each order of a supervisor and each call to the agent itself."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from tflaunch_worker import schema, wire
from tflaunch_worker.agent.network import fence
from tflaunch_worker.schema import Check, flag, integer, list_of, mapping_of, number, optional, record, row

LONGEST_PATH = 4095
"""Maximum bytes of the path of a file below a directory."""

_LONGEST_NAME = 200  # bytes; a task's name is also used as a file name
_LONGEST_PATIENCE = 86400.0  # seconds
_MOST_SECRETS = 64 * 1024  # characters
_HEXADECIMAL = frozenset("0123456789abcdef")
_ANY_TEXT = schema.text()


def task(name: str, value: Any) -> str:
    """Check the name of a task, which is also the name of its directory."""
    _ANY_TEXT(name, value)
    is_short = 0 < len(value.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
    if not is_short or "/" in value or "\0" in value or value.startswith("."):
        raise ValueError(f"{value[:60]!r} is not the name of a task")
    return str(value)


def word(name: str, value: Any) -> str:
    """Check a text that may become an argument of a program, or a path."""
    _ANY_TEXT(name, value).encode("utf-8", "surrogateescape")
    if "\0" in value:
        raise ValueError(f"{name!r} must not hold a NUL")
    return str(value)


def path(name: str, value: Any) -> str:
    """Check a path that stays below a directory and has no empty component."""
    parts = word(name, value).split("/")
    if len(os.fsencode(value)) > LONGEST_PATH or not {"", ".", ".."}.isdisjoint(parts):
        raise schema.refuse(name, "a path inside a directory", value)
    return str(value)


def digest(name: str, value: Any) -> str:
    """Check a SHA-256 in hexadecimal."""
    if type(value) is not str or len(value) != 64 or not _HEXADECIMAL.issuperset(value):
        raise schema.refuse(name, "a SHA-256 digest", value)
    return value


def argv(name: str, value: Any) -> List[str]:
    """Check a command: one word or more."""
    if not words(name, value):
        raise ValueError(f"{name!r} must not be empty")
    return value  # type: ignore[no-any-return]


def _variable(name: str, value: Any) -> str:
    if not word(name, value) or "=" in value:
        raise schema.refuse(name, "names of variables and their values", value)
    return str(value)


def _secrets(name: str, value: Any) -> Dict[str, str | None]:
    """Check a task's secrets; null for a value that the supervisor does not have."""
    secrets: Dict[str, str | None] = mapping_of(_variable, optional(word))(name, value)
    if sum(len(secret or "") for secret in secrets.values()) > _MOST_SECRETS:
        raise ValueError(f"{name!r} must not have more than {_MOST_SECRETS} characters")
    return secrets


def read_cluster(body: bytes) -> Dict[str, List[str]]:
    """Return the body of ``set_cluster``, role to addresses; else raise `ValueError`."""
    cluster: Dict[str, List[str]] = mapping_of(word, words)("cluster", wire.parse(body))
    return cluster


def read_addresses(body: bytes) -> List[str]:
    """Return the body of ``set_fence``, the hosts' addresses; else raise `ValueError`."""
    return [fence.read_address(address) for address in list_of(_ANY_TEXT)("addresses", wire.parse(body))]


words = list_of(word)
digests = list_of(digest)
attempt = integer(0, 2**31)
seconds = number(0.0)
_signal = integer(1, 64)
_port = integer(0, 65535)
_ports = mapping_of(task, _port)
COMMAND: Dict[str, Check] = {
    "argv": argv,
    "env": mapping_of(_variable, word),
    "first": optional(mapping_of(_variable, words)),
    "unset": words,
    "workdir": word,
    "inherit": flag,
    "private": optional(flag),
    "preload": optional(words),
    "search": optional(words),
    "secrets": optional(_secrets),
    "stop_signal": optional(_signal),
    "unforked": optional(_ANY_TEXT),
    "setup": optional(_ANY_TEXT),
    "tf_config": optional(record(roles=words, role=word, index=integer())),
    "warm": optional(record(recipe=_ANY_TEXT, idle=seconds)),
}
CALL: Dict[str, Check] = {"call": integer()}
PART: Dict[str, Check] = {"sha256": digest, "offset": integer(), "is_last": flag, **CALL}
FIELDS: Dict[str, Dict[str, Check]] = {
    "hello": {
        "protocol": integer(),
        "seen": integer(),
        "lease": seconds,
        "grace": seconds,
        "clock": _ANY_TEXT,
        "sent": number(),
        "fencing": optional(attempt),
        "private": optional(flag),
    },
    "keep_alive": {"sent": number()},
    "acknowledge": {"seen": integer(), "streams": list_of(row(_ANY_TEXT, integer(), integer(), flag))},
    "set_cluster": {},  # these two are in their bodies
    "set_fence": {},
    "hold_ports": {"ports": _ports, "private": optional(flag)},
    "look_up_names": {"names": words},
    "probe_peers": {
        "ports": _ports,
        "peers": mapping_of(task, row(_ANY_TEXT, integer(1, 65535))),
        "run": word,
        "secret": word,
        "patience": number(0.0, _LONGEST_PATIENCE),
    },
    "start_task": {
        "task": task,
        "attempt": attempt,
        "port": _port,
        "chooses_port": optional(flag),
        "left_files": optional(mapping_of(task, integer())),
        **COMMAND,
    },
    "import_modules": {"task": task, **COMMAND},
    "stop_task": {"task": task, "attempt": attempt, "grace": seconds, "with_stacks": optional(flag)},
    "signal_task": {"task": task, "attempt": attempt, "signal": _signal},
    "tell_call": CALL,
    "end_call": CALL,
    "measure": CALL,
    "watch_faults": CALL,
    "leave": {"grace": seconds},
}


def check(message: Dict[str, Any], known: schema.Schema) -> None:
    """Check the number of a message, which orders have, and its fields."""
    schema.check_fields(message, {"order": optional(integer()), **known})
