"""Types of a spec's fields: each parses its input and has a JSON Schema.

Invalid values raise `InvalidValueError`, which pydantic collects; `problems` turns them into sentences.
"""

import re
import shlex
import signal
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, PlainSerializer, PlainValidator
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from tflaunch.clusterspec.values import (
    BRACKETED_HOST_PATTERN,
    DURATION_PATTERN,
    HOST_PATTERN,
    IN_THAT_FORM,
    LOCALHOST,
    MAX_COUNT,
    MAX_TASKS,
    Address,
    InvalidValueError,
    bracketed,
    must_be,
    parse_address,
    parse_duration,
    parse_host,
    show_value,
)
from tflaunch_worker.signals import CATCHABLE, number_of

_LARGEST = 10**300
_TEXT = {"type": "string"}

T = TypeVar("T")


class _NotNull:
    """Reject null: a field without a value has to be left out."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (given,) = (inner for inner in get_args(source) if inner is not type(None))
        return handler(given)


Omittable = Annotated[T | None, _NotNull()]
"""A value that a user may leave out, but not write as null."""


def omitted(description: str) -> Any:
    """Return the declaration of a field that is None if it is left out."""
    return Field(default=None, description=description)


def _refuse(value: object) -> None:
    raise PydanticKnownError("extra_forbidden")


Internal = SkipJsonSchema[Annotated[T, PlainValidator(_refuse)]]
"""A value that only tflaunch sets, by `model_copy`; in a user's spec it is an unknown field."""


class ReadBy:
    """Metadata for `Annotated`: a value's parser, and the JSON Schema of its input.

    With ``then_validate``, pydantic validates the function's result; otherwise the result is the value.
    """

    def __init__(self, read: Callable[[Any], object], schema: JsonSchemaValue, *, then_validate: bool = False) -> None:
        self._read = read
        self._schema = schema
        self._then_validate = then_validate

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if self._then_validate:
            return core_schema.no_info_before_validator_function(self._read, handler(source))
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: object) -> JsonSchemaValue:
        return dict(self._schema)  # pydantic adds the description of each field to it


# --- text ------------------------------------------------------------------------------------------


def _check_encodable(text: str) -> None:
    """Reject lone surrogates, which cannot be passed to a process."""
    try:
        text.encode("utf-8", "surrogateescape")  # a value from ${VAR} may contain undecodable bytes
    except UnicodeEncodeError:
        raise InvalidValueError(f"{show_value(text)} holds half a character", "remove the lone surrogate") from None


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        hint = "write its JSON as text" if isinstance(value, dict) else "put it in quotes"
        hint = "put it in quotes, or leave it out" if value is None else hint
        raise must_be("text", value, hint)
    if "\0" in value:
        raise InvalidValueError("contains a NUL character", "remove it")
    _check_encodable(value)
    return value


def _check_variable_name(value: object) -> str:
    if not isinstance(value, str) or not value or "=" in value or "\0" in value:
        raise InvalidValueError(f"{show_value(value)} cannot be the name of an environment variable", "rename it")
    _check_encodable(value)
    return value


def _check_variable_value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return str(value)
    return _check_text(value)


def matching(pattern: str, form: str, takes_numbers: bool = False) -> ReadBy:
    """Return a parser for text that must match a pattern as a whole.

    ``form`` completes the sentence "must be ..."; with ``takes_numbers``, a number is taken as its text.
    """
    compiled = re.compile(pattern)

    def check_match(value: object) -> str:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = show_value(value) if is_number and takes_numbers else value
        if not isinstance(text, str) or not compiled.fullmatch(text):
            raise must_be(form, value)
        return text

    text: JsonSchemaValue = {"type": "string", "pattern": f"^(?:{pattern})$"}
    return ReadBy(check_match, {"anyOf": [{"type": "number", "minimum": 0}, text]} if takes_numbers else text)


def _check_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", value):
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        hint = "use up to 63 letters, digits, '.', '_' and '-', the first a letter or digit"
        hint = "put it in quotes" if is_number else hint
        raise InvalidValueError(f"{show_value(value)} cannot be a name", hint)
    return value


def _read_host_key(value: object) -> str:
    return parse_host(value) if isinstance(value, str) and ":" in value else _check_text(value)


_PORT_PATTERN = "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
Text = Annotated[str, ReadBy(_check_text, _TEXT)]
Name = Annotated[str, ReadBy(_check_name, _TEXT)]
VariableName = Annotated[str, ReadBy(_check_variable_name, _TEXT)]
SecretName = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", 'the name of a variable such as "API_KEY"')]
VariableValue = Annotated[str, ReadBy(_check_variable_value, {"type": ["string", "number"]})]
HostName = Annotated[str, ReadBy(parse_host, {"type": "string", "pattern": f"^(?:{HOST_PATTERN})$"})]
HostKey = Annotated[str, ReadBy(_read_host_key, _TEXT)]
"""A host in ``hosts``, where names may be those of an engine."""
SshDestination = Annotated[
    str,
    matching(
        rf"([A-Za-z0-9_][A-Za-z0-9._-]*@)?{BRACKETED_HOST_PATTERN}(:{_PORT_PATTERN})?",
        'text such as "ann@10.0.0.1:2222", with a port from 1 to 65535 and an IPv6 address in brackets',
    ),
]
ContainerName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]*", 'the name or id of a container such as "train-1"')
]
Source = Annotated[
    str,
    matching(r"[a-z][a-z0-9_-]*(:.+)?", 'a source of hosts such as "dns:NAME", "file:PATH", "exec:COMMAND" or "slurm"'),
]
# --- numbers ---------------------------------------------------------------------------------------


def _check_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds is None:
        raise must_be("a duration", value, 'write seconds, or text such as "90s" or "1h30m"')
    return seconds


def _read_stall_limit(value: object) -> float | None:
    return None if value == "auto" else _check_duration(value)


def _read_modules(value: object) -> object:
    if value != "auto" and not isinstance(value, list | tuple):
        raise must_be('"auto" or a list of modules such as ["tensorflow"]', value)
    return ("auto",) if value == "auto" else value


def _check_stop_signal(value: object) -> str:
    number = number_of(value) if isinstance(value, str) else None
    if number not in CATCHABLE:
        raise must_be("the name of a signal that a program can handle", value, 'write "INT" or "USR1"')
    assert number is not None
    return signal.Signals(number).name.removeprefix("SIG")


def _check_not_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticKnownError("literal_error", {"expected": "no number"})
    return value


not_a_number = BeforeValidator(_check_not_number)
"""For a choice with true and false, because they equal 1 and 0 in Python."""


Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
Flag = Annotated[bool, Field(strict=True)]
StopSignal = Annotated[str, ReadBy(_check_stop_signal, {"type": "string", "pattern": "^(SIG)?[A-Z][A-Z0-9]+$"})]
_DURATIONS = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^(?:{DURATION_PATTERN})$"}]
Duration = Annotated[float, ReadBy(_check_duration, {"anyOf": _DURATIONS})]
"""Seconds, written as a number or as text such as ``1h30m``."""
StallLimit = Annotated[float | None, ReadBy(_read_stall_limit, {"anyOf": [{"const": "auto"}, *_DURATIONS]})]
"""Seconds; None for ``auto``."""
_MODULES = [{"const": "auto"}, {"type": "array", "items": {"type": "string"}}]
Modules = Annotated[tuple[Text, ...], ReadBy(_read_modules, {"anyOf": _MODULES}, then_validate=True)]
"""Names of modules; only ``auto`` for those that a program imports."""


# --- lists and objects -----------------------------------------------------------------------------


def list_of(form: str, size: int | None = None) -> BeforeValidator:
    """Return a check for a list, of ``size`` items if given; messages show ``form``."""

    def check_list(value: object) -> object:
        if not isinstance(value, list | tuple) or (size is not None and len(value) != size):
            raise must_be(form, value)
        return value

    return BeforeValidator(check_list)


def object_of(form: str, apart: str | None = None) -> BeforeValidator:
    """Return a check for an object, described by ``form``; it drops the key ``apart``."""

    def check_object(value: object) -> object:
        if not isinstance(value, Mapping):
            raise must_be(form, value)
        return {key: item for key, item in value.items() if key != apart} if apart in value else value

    return BeforeValidator(check_object)


def _check_secret(value: object) -> object:
    if not isinstance(value, Mapping):  # it may be the secret itself, which is not for a screen
        form = '{"env": "NAME"} or {"file": "path"}'
        raise InvalidValueError(f"must say where the value is found: {form}", "do not write secrets into a spec")
    return value


secret_source = BeforeValidator(_check_secret)
"""For the place of a secret: the user may have written the secret itself there."""


def _split_command(value: object) -> object:
    """Split text into words like a shell; check a list."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise InvalidValueError(f"cannot be split into words: {error}", "write it as a list of words") from None
    if not isinstance(value, list | tuple):
        form = 'a list of words such as ["python", "train.py"], or text'
        raise must_be(form, value, "write the program and its arguments")
    if not value or value[0] == "":
        raise InvalidValueError("is empty", 'write the program and its arguments, for example ["python", "train.py"]')
    return value


def _read_setup(value: object) -> object:
    """Read one command for a shell, or several."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise must_be('a command such as "uv sync --frozen", or a list of commands', value)
    if "" in value:
        raise InvalidValueError("is empty", 'write a command, for example "uv sync --frozen", or leave it out')
    return value


def _expand_members(value: object) -> object:
    """Replace a count by that many tasks on this machine."""
    if isinstance(value, bool) or not isinstance(value, int | list | tuple):
        form = 'a number of local tasks, or a list such as ["10.0.0.1:2222", "10.0.0.2:2222"]'
        is_quoted = isinstance(value, str) and value.isdecimal()
        raise must_be(form, value, "remove the quotes" if is_quoted else IN_THAT_FORM)
    count = value if isinstance(value, int) else len(value)
    if not 1 <= count <= MAX_TASKS:
        raise InvalidValueError(f"has {show_value(count)} tasks", f"use 1 to {MAX_TASKS}, or leave the role out")
    return (Address(LOCALHOST, None),) * count if isinstance(value, int) else value


def _write_address(address: Address) -> str:
    return bracketed(address.host) if address.port is None else str(address)


_WORDS = {"type": "array", "items": _TEXT, "minItems": 1}
_UP_TO_MOST = {"type": "integer", "maximum": MAX_TASKS}
_ADDRESSES = {
    "type": "array",
    "items": {**_TEXT, "pattern": f"^{BRACKETED_HOST_PATTERN}(:[0-9]+)?$"},
    "minItems": 1,
    "maxItems": MAX_TASKS,
}

Command = Annotated[
    tuple[Text, ...], ReadBy(_split_command, {"anyOf": [_WORDS, {**_TEXT, "minLength": 1}]}, then_validate=True)
]
SetupCommands = Annotated[
    tuple[Text, ...],
    ReadBy(_read_setup, {"anyOf": [{**_TEXT, "minLength": 1}, {"type": "array", "items": _TEXT}]}, then_validate=True),
]
"""Commands for a shell, one after another."""
SetupFiles = Annotated[tuple[Text, ...], list_of('a list such as ["uv.lock"]')]

Members = Annotated[
    tuple[Annotated[Address, PlainValidator(parse_address), PlainSerializer(_write_address)], ...],
    ReadBy(_expand_members, {"anyOf": [{**_UP_TO_MOST, "minimum": 1}, _ADDRESSES]}, then_validate=True),
]
"""The tasks of a role, ordered by index."""


def _read_spares(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TASKS:
        return value
    if not isinstance(value, list | tuple):
        form = 'a number of hosts such as 1, or a list such as ["h4"]'
        raise must_be(form, value, "name the hosts, or give their number")
    return tuple(parse_host(name, 'write for example ["h4"]') for name in value)


_HOSTS = {"type": "array", "items": {**_TEXT, "pattern": f"^{HOST_PATTERN}$"}, "maxItems": MAX_TASKS}
SpareHosts = Annotated[int | tuple[str, ...], ReadBy(_read_spares, {"anyOf": [{**_UP_TO_MOST, "minimum": 0}, _HOSTS]})]
"""Spare hosts by their names, or how many of the last hosts they are."""

Environment = Annotated[Mapping[VariableName, VariableValue], object_of('an object such as {"A": "b"}')]
