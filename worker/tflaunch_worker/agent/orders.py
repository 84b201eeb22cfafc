"""Check the fields of every order of a supervisor, at the point where it arrives.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from functools import partial

from tflaunch_worker import fields, wire
from tflaunch_worker.agent import fence, left_files, profiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping

    Check = Callable[[Mapping[str, Any], str], object]
    """Takes a message and the name of a field. Raises ValueError."""

_LONGEST_NAME = 200  # bytes; a task's name is also used as a file name
_LONGEST_PATIENCE = 86400.0  # seconds
_MOST_SECRETS = 64 * 1024  # characters


def check(message: Mapping[str, Any]) -> None:
    """Check the fields of an order of a known kind; other kinds are left to the caller.

    Raises:
        ValueError: a field is missing, has another type or is out of range.
    """
    known = _FIELDS.get(message["kind"])
    if known is None:
        return
    for name, check_field in known.items():
        check_field(message, name)
    for name, check_field in _OPTIONAL.items():
        if message.get(name) is not None:
            check_field(message, name)


def _task(message: Mapping[str, Any], name: str) -> None:
    check_task_name(fields.text(message, name))


def check_task_name(task: str) -> None:
    """Check that a task's name is valid as the name of a directory.

    Raises:
        ValueError: it is not.
    """
    is_short = 0 < len(task.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
    if not is_short or "/" in task or "\0" in task or task.startswith("."):
        raise ValueError(f"{task[:60]!r} is not the name of a task")


def _ports(message: Mapping[str, Any], name: str) -> None:
    ports = fields.mapping(message, name)
    for task in ports:
        check_task_name(task)
        fields.integer(ports, task, 0, 65535)


def _peers(message: Mapping[str, Any], name: str) -> None:
    for peer in fields.mapping(message, name).values():
        if type(peer) is not list or len(peer) != 2 or type(peer[0]) is not str:
            raise ValueError(f"{name!r} must map tasks to host and port")
        fields.integer(_named(peer, "host", "port"), "port", 1, 65535)


def _path(message: Mapping[str, Any], name: str) -> None:
    if not left_files.is_inside(fields.text(message, name, left_files.LONGEST_PATH)):
        raise ValueError(f"{name!r} must be a path inside a directory")


def _file_name(message: Mapping[str, Any], name: str) -> None:
    check_task_name(fields.text(message, name))


def _wanted_files(message: Mapping[str, Any], name: str) -> None:
    for file in fields.mapping(message, name):
        check_task_name(file)
        fields.integer(message[name], file)


def _word(message: Mapping[str, Any], name: str) -> None:
    _check_word(fields.text(message, name, fields.LONGEST_TEXT), name)


def _check_word(word: str, name: str) -> None:
    word.encode("utf-8", "surrogateescape")
    if "\0" in word:
        raise ValueError(f"{name!r} must not hold a NUL")


def _words(message: Mapping[str, Any], name: str) -> None:
    for word in fields.texts(message, name):
        _check_word(word, name)


def _argv(message: Mapping[str, Any], name: str) -> None:
    _words(message, name)
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
        _words(cluster, role)
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


def _tf_config(message: Mapping[str, Any], name: str) -> None:
    place = fields.mapping(message, name)
    if place.keys() != {"roles", "role", "index"}:
        raise ValueError(f"{name!r} must hold roles, role and index")
    _words(place, "roles")
    _word(place, "role")
    fields.integer(place, "index")


def _streams(message: Mapping[str, Any], name: str) -> None:
    for stream in fields.items(message, name):
        if type(stream) is not list or len(stream) != 4:
            raise ValueError(f"{name!r} must hold task, attempt, offset and whether it is complete")
        parts = _named(stream, "task", "attempt", "offset", "is_complete")
        fields.text(parts, "task")
        fields.integer(parts, "attempt")
        fields.integer(parts, "offset")
        fields.flag(parts, "is_complete")


def _files(message: Mapping[str, Any], name: str) -> None:
    for item in fields.items(message, name):
        if type(item) is not list or len(item) != 3:
            raise ValueError(f"{name!r} must hold path, mode and hash")
        parts = _named(item, "path", "mode", "sha256")
        _word(parts, "path")
        fields.integer(parts, "mode")
        fields.text(parts, "sha256")


def _links(message: Mapping[str, Any], name: str) -> None:
    for item in fields.items(message, name):
        if type(item) is not list or len(item) != 2:
            raise ValueError(f"{name!r} must hold path and target")
        parts = _named(item, "path", "target")
        _word(parts, "path")
        _word(parts, "target")


def _digest(message: Mapping[str, Any], name: str) -> None:
    _check_digest(fields.text(message, name), name)


def _digests(message: Mapping[str, Any], name: str) -> None:
    for digest in fields.texts(message, name):
        _check_digest(digest, name)


def _check_digest(digest: str, name: str) -> None:
    if len(digest) != 64 or not _HEXADECIMAL.issuperset(digest):
        raise ValueError(f"{name!r} must hold SHA-256 digests")


def _checkpoint_files(message: Mapping[str, Any], name: str) -> None:
    for item in fields.items(message, name):
        if type(item) is not list or len(item) != 3:
            raise ValueError(f"{name!r} must hold path, size and hash")
        parts = _named(item, "path", "size", "sha256")
        _path(parts, "path")
        fields.integer(parts, "size")
        _digest(parts, "sha256")


def _named(values: List[Any], *names: str) -> Dict[str, Any]:
    return {name: values[place] for place, name in enumerate(names)}


def _programs(message: Mapping[str, Any], name: str) -> None:
    for program in fields.items(message, name):
        if type(program) is not dict:
            raise ValueError(f"{name!r} must hold objects")
        for field, check_field in _COMMAND.items():
            check_field(program, field)
        fields.flag(program, "is_python")
        if program.get("preload") is not None:
            _words(program, "preload")


def _warm(message: Mapping[str, Any], name: str) -> None:
    order = fields.mapping(message, name)
    if order.keys() != {"recipe", "idle"}:
        raise ValueError(f"{name!r} must hold recipe and idle")
    fields.text(order, "recipe")
    fields.number(order, "idle", least=0.0)


_HEXADECIMAL = frozenset("0123456789abcdef")
_attempt = partial(fields.integer, most=2**31)
_patience = partial(fields.number, least=0.0, most=_LONGEST_PATIENCE)
_seconds = partial(fields.number, least=0.0)
_COMMAND: Dict[str, Check] = {
    "argv": _argv,
    "env": _env,
    "unset": _words,
    "workdir": _word,
    "inherit": fields.flag,
}
_FILE: Dict[str, Check] = {"task": _task, "attempt": _attempt, "name": _file_name}
_CALL: Dict[str, Check] = {"call": fields.integer}
_PART: Dict[str, Check] = {"sha256": _digest, "offset": fields.integer, "is_last": fields.flag, **_CALL}
_FIELDS: Dict[str, Dict[str, Check]] = {
    "hello": {
        "protocol": fields.integer,
        "seen": fields.integer,
        "lease": _seconds,
        "grace": _seconds,
        "clock": fields.text,
        "sent": fields.number,
    },
    "keep_alive": {"sent": fields.number},
    "acknowledge": {"seen": fields.integer, "streams": _streams},
    "set_cluster": {},  # these two are in their bodies
    "set_fence": {},
    "hold_ports": {"ports": _ports},
    "look_up_names": {"names": _words},
    "probe_peers": {"ports": _ports, "peers": _peers, "run": _word, "secret": _word, "patience": _patience},
    "start_task": {"task": _task, "attempt": _attempt, "port": partial(fields.integer, most=65535), **_COMMAND},
    "import_modules": {"task": _task, **_COMMAND},
    "stop_task": {"task": _task, "attempt": _attempt, "grace": _seconds},
    "signal_task": {"task": _task, "attempt": _attempt, "signal": partial(fields.integer, least=1, most=64)},
    "release_file": _FILE,
    "tell_call": _CALL,
    "end_call": _CALL,
    "attach_debugger": {"task": _task, "attempt": _attempt, **_CALL},
    "profile_task": {
        "task": _task,
        "attempt": _attempt,
        "seconds": partial(fields.number, least=profiles.LEAST_SECONDS, most=profiles.MOST_SECONDS),
        **_CALL,
    },
    "measure": _CALL,
    "watch_memory": _CALL,
    "gather_evidence": _CALL,
    "list_files": {"task": _task, "attempt": _attempt, "workdir": _word, "patterns": _words, **_CALL},
    "watch_left_files": _CALL,
    "read_file": {**_FILE, "name": _path, "offset": fields.integer, **_CALL},
    "leave": {"grace": _seconds},
    "offer_files": {"is_first": fields.flag, "is_last": fields.flag, "files": _files, "links": _links, **_CALL},
    "write_file": _PART,
    "find_checkpoint": {
        "workdir": _word,
        "directory": _word,
        "known": fields.integer,
        "wait": fields.flag,
        "kept": _digests,
        **_CALL,
    },
    "read_checkpoint": {"sha256": _digest, "offset": fields.integer, **_CALL},
    "store_checkpoint": {"kept": _digests, "digests": _digests, **_CALL},
    "write_checkpoint": _PART,
    "place_checkpoint": {
        "workdirs": _argv,
        "directory": _word,
        "files": _checkpoint_files,
        "age": _seconds,
        **_CALL,
    },
    "examine": {"programs": _programs, "probe": fields.text, **_CALL},
    "leave_marks": {"token": _word, "directories": _words, **_CALL},
    "look_for_marks": {"paths": _words, **_CALL},
    "remove_marks": {"paths": _words, **_CALL},
    "remove_code": _CALL,
    "look_for_warm": {"stop": fields.flag, **_CALL},
}
_OPTIONAL: Dict[str, Check] = {
    "order": fields.integer,
    "fencing": _attempt,
    "exclusive": fields.flag,
    "private": fields.flag,
    "with_stacks": fields.flag,
    "between": _seconds,
    "with_use": fields.flag,
    "stall": _seconds,
    "preload": _words,
    "search": _words,
    "warm": _warm,
    "tf_config": _tf_config,
    "left_files": _wanted_files,
    "secrets": _secrets,
}
