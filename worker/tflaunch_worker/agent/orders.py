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
    _all(message, known)
    _all(message, {name: check_field for name, check_field in _OPTIONAL.items() if message.get(name) is not None})


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


def _path(message: Mapping[str, Any], name: str) -> None:
    if not left_files.is_inside(fields.text(message, name, left_files.LONGEST_PATH)):
        raise ValueError(f"{name!r} must be a path inside a directory")


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


def _digest(message: Mapping[str, Any], name: str) -> None:
    _check_digest(fields.text(message, name), name)


def _digests(message: Mapping[str, Any], name: str) -> None:
    for digest in fields.texts(message, name):
        _check_digest(digest, name)


def _check_digest(digest: str, name: str) -> None:
    if len(digest) != 64 or not _HEXADECIMAL.issuperset(digest):
        raise ValueError(f"{name!r} must hold SHA-256 digests")


def _all(message: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    for name, check_field in checks.items():
        check_field(message, name)


def _rows(**columns: Check) -> Check:
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
    _rows(host=fields.text, port=partial(fields.integer, least=1, most=65535))({name: [message[name]]}, name)


def _programs(message: Mapping[str, Any], name: str) -> None:
    for program in fields.items(message, name):
        if type(program) is not dict:
            raise ValueError(f"{name!r} must hold objects")
        _all(program, {**_COMMAND, "is_python": fields.flag})
        if program.get("preload") is not None:
            _words(program, "preload")


_HEXADECIMAL = frozenset("0123456789abcdef")
_attempt = partial(fields.integer, most=2**31)
_patience = partial(fields.number, least=0.0, most=_LONGEST_PATIENCE)
_seconds = partial(fields.number, least=0.0)
_port = partial(fields.integer, most=65535)
_ports = _each(_port)
_COMMAND: Dict[str, Check] = {
    "argv": _argv,
    "env": _env,
    "unset": _words,
    "workdir": _word,
    "inherit": fields.flag,
}
_FILE: Dict[str, Check] = {"task": _task, "attempt": _attempt, "name": _task}
_CALL: Dict[str, Check] = {"call": fields.integer}
_STREAMS = _rows(task=fields.text, attempt=fields.integer, offset=fields.integer, is_complete=fields.flag)
_FILES: Dict[str, Check] = {
    "files": _rows(path=_word, mode=fields.integer, sha256=fields.text),
    "links": _rows(path=_word, target=_word),
}
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
    "acknowledge": {"seen": fields.integer, "streams": _STREAMS},
    "set_cluster": {},  # these two are in their bodies
    "set_fence": {},
    "hold_ports": {"ports": _ports},
    "look_up_names": {"names": _words},
    "probe_peers": {"ports": _ports, "peers": _each(_peer), "run": _word, "secret": _word, "patience": _patience},
    "start_task": {"task": _task, "attempt": _attempt, "port": _port, **_COMMAND},
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
    "offer_files": {"is_first": fields.flag, "is_last": fields.flag, **_FILES, **_CALL},
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
        "files": _rows(path=_path, size=fields.integer, sha256=_digest),
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
    "warm": _object(recipe=fields.text, idle=_seconds),
    "tf_config": _object(roles=_words, role=_word, index=fields.integer),
    "left_files": _each(fields.integer),
    "secrets": _secrets,
}
