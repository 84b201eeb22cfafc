"""Check the fields of every order of a supervisor, at the point where it arrives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping

from tflaunch_worker import fields, wire
from tflaunch_worker.agent import left_files
from tflaunch_worker.agent.network import fence

if TYPE_CHECKING:
    Check = Callable[[Mapping[str, Any], str], object]
    """Takes a message and the name of a field. Raises ValueError."""

_LONGEST_NAME = 200  # bytes; a task's name is also used as a file name
_LONGEST_PATIENCE = 86400.0  # seconds
_MOST_SECRETS = 64 * 1024  # characters


def check(message: Mapping[str, Any], known: Mapping[str, Check]) -> None:
    """Check the fields of an order: those of its kind, and those that any kind may have.

    Raises:
        ValueError: a field is missing, has another type or is out of range.
    """
    _all(message, known)
    _all(message, {name: check_field for name, check_field in _OPTIONAL.items() if message.get(name) is not None})


def task(message: Mapping[str, Any], name: str) -> None:
    """Check the name of a task."""
    check_task_name(fields.text(message, name))


def check_task_name(task: str) -> None:
    """Check that a task's name is valid as the name of a directory.

    Raises:
        ValueError: it is not.
    """
    is_short = 0 < len(task.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
    if not is_short or "/" in task or "\0" in task or task.startswith("."):
        raise ValueError(f"{task[:60]!r} is not the name of a task")


def path(message: Mapping[str, Any], name: str) -> None:
    """Check a path inside a directory."""
    if not left_files.is_inside(fields.text(message, name, left_files.LONGEST_PATH)):
        raise ValueError(f"{name!r} must be a path inside a directory")


def word(message: Mapping[str, Any], name: str) -> None:
    """Check a text that may become an argument of a program, or a path."""
    _check_word(fields.text(message, name, fields.LONGEST_TEXT), name)


def _check_word(word: str, name: str) -> None:
    word.encode("utf-8", "surrogateescape")
    if "\0" in word:
        raise ValueError(f"{name!r} must not hold a NUL")


def words(message: Mapping[str, Any], name: str) -> None:
    """Check a list of such texts."""
    for word in fields.texts(message, name):
        _check_word(word, name)


def argv(message: Mapping[str, Any], name: str) -> None:
    """Check a list of such texts that is not empty."""
    words(message, name)
    if not message[name]:
        raise ValueError(f"{name!r} must not be empty")


def _env(message: Mapping[str, Any], name: str) -> None:
    env = fields.mapping(message, name)
    for variable, value in env.items():
        _check_word(variable, name)
        if not variable or "=" in variable or type(value) is not str:
            raise ValueError(f"{name!r} must map names of variables to texts")
        _check_word(value, name)


def _secrets(message: Mapping[str, Any], name: str) -> None:
    """Check the secrets of a task; null for one whose value the supervisor does not know."""
    secrets = fields.mapping(message, name)
    known = {variable: "" if value is None else value for variable, value in secrets.items()}
    _env({name: known}, name)
    if sum(map(len, known.values())) > _MOST_SECRETS:
        raise ValueError(f"{name!r} must not have more than {_MOST_SECRETS} characters")


def read_cluster(body: bytes) -> Dict[str, List[str]]:
    """Return the body of ``set_cluster``: role to the addresses of its tasks.

    Raises:
        ValueError: it is anything else.
    """
    cluster = wire.parse(body)
    if type(cluster) is not dict:
        raise ValueError("the cluster must be an object")
    for role in cluster:
        words(cluster, role)
    return cluster


def read_addresses(body: bytes) -> List[str]:
    """Return the body of ``set_fence``: the addresses of the cluster's hosts.

    Raises:
        ValueError: it is anything else.
    """
    addresses = wire.parse(body)
    if type(addresses) is not list or any(type(address) is not str for address in addresses):
        raise ValueError("the addresses must be a list of texts")
    return [fence.read_address(address) for address in addresses]


def digest(message: Mapping[str, Any], name: str) -> None:
    """Check a SHA-256 digest."""
    _check_digest(fields.text(message, name), name)


def digests(message: Mapping[str, Any], name: str) -> None:
    """Check a list of SHA-256 digests."""
    for digest in fields.texts(message, name):
        _check_digest(digest, name)


def _check_digest(digest: str, name: str) -> None:
    if len(digest) != 64 or not _HEXADECIMAL.issuperset(digest):
        raise ValueError(f"{name!r} must hold SHA-256 digests")


def _all(message: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for name, check_field in checks.items():
        check_field(message, name)


def rows(**columns: Check) -> Check:
    """Return the check of a list of rows with these columns."""

    def check_rows(message: Mapping[str, Any], name: str) -> None:
        for row in fields.items(message, name):
            if type(row) is not list or len(row) != len(columns):
                raise ValueError(f"{name!r} must hold {', '.join(columns)}")
            _all({column: row[place] for place, column in enumerate(columns)}, columns)

    return check_rows


def _object(**known: Check) -> Check:
    """Return the check of an object with exactly these fields."""

    def check_object(message: Mapping[str, Any], name: str) -> None:
        if fields.mapping(message, name).keys() != known.keys():
            raise ValueError(f"{name!r} must hold {', '.join(known)}")
        _all(message[name], known)

    return check_object


def _each(check_value: Check) -> Check:
    """Return the check of an object of values by name, each like a name of a task."""

    def check_each(message: Mapping[str, Any], name: str) -> None:
        for key in fields.mapping(message, name):
            check_task_name(key)
            check_value(message[name], key)

    return check_each


def _peer(message: Mapping[str, Any], name: str) -> None:
    rows(host=fields.text, port=partial(fields.integer, least=1, most=65535))({name: [message[name]]}, name)


_HEXADECIMAL = frozenset("0123456789abcdef")
attempt = partial(fields.integer, most=2**31)
_patience = partial(fields.number, least=0.0, most=_LONGEST_PATIENCE)
seconds = partial(fields.number, least=0.0)
_signal = partial(fields.integer, least=1, most=64)
_port = partial(fields.integer, most=65535)
_ports = _each(_port)
COMMAND: Dict[str, Check] = {
    "argv": argv,
    "env": _env,
    "unset": words,
    "workdir": word,
    "inherit": fields.flag,
}
_FILE: Dict[str, Check] = {"task": task, "attempt": attempt, "name": task}
CALL: Dict[str, Check] = {"call": fields.integer}
_STREAMS = rows(task=fields.text, attempt=fields.integer, offset=fields.integer, is_complete=fields.flag)
PART: Dict[str, Check] = {"sha256": digest, "offset": fields.integer, "is_last": fields.flag, **CALL}
FIELDS: Dict[str, Dict[str, Check]] = {
    "hello": {
        "protocol": fields.integer,
        "seen": fields.integer,
        "lease": seconds,
        "grace": seconds,
        "clock": fields.text,
        "sent": fields.number,
    },
    "keep_alive": {"sent": fields.number},
    "acknowledge": {"seen": fields.integer, "streams": _STREAMS},
    "set_cluster": {},  # these two are in their bodies
    "set_fence": {},
    "hold_ports": {"ports": _ports},
    "look_up_names": {"names": words},
    "probe_peers": {"ports": _ports, "peers": _each(_peer), "run": word, "secret": word, "patience": _patience},
    "start_task": {"task": task, "attempt": attempt, "port": _port, **COMMAND},
    "import_modules": {"task": task, **COMMAND},
    "stop_task": {"task": task, "attempt": attempt, "grace": seconds},
    "signal_task": {"task": task, "attempt": attempt, "signal": _signal},
    "release_file": _FILE,
    "tell_call": CALL,
    "end_call": CALL,
    "measure": CALL,
    "watch_left_files": CALL,
    "watch_faults": CALL,
    "read_file": {**_FILE, "name": path, "offset": fields.integer, **CALL},
    "leave": {"grace": seconds},
}
_OPTIONAL: Dict[str, Check] = {
    "order": fields.integer,
    "fencing": attempt,
    "exclusive": fields.flag,
    "private": fields.flag,
    "with_stacks": fields.flag,
    "stall": seconds,
    "stop_signal": _signal,
    "preload": words,
    "search": words,
    "warm": _object(recipe=fields.text, idle=seconds),
    "tf_config": _object(roles=words, role=word, index=fields.integer),
    "left_files": _each(fields.integer),
    "secrets": _secrets,
}
