"""`schema`, and what commands print with --json: the JSON Schema of each."""

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import click

from tflaunch.cli.arguments.spec import print_json
from tflaunch.cli.main import verbs
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.event_records import kind_of
from tflaunch.core.events import Event
from tflaunch.feature import Output, load

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


_RECORD = {
    "type": "object",
    "description": "A record of the journal; the other fields depend on its kind.",
    "properties": {
        "seq": {"type": "integer"},
        "time": {"type": "number", "description": "seconds since the epoch"},
        "kind": {"type": "string"},
    },
    "required": ["seq", "time", "kind"],
}


def with_output() -> list[str]:
    """Return the commands whose --json is one document; `events` prints records."""
    return [name for name, verb in verbs().items() if verb.output]


def schema_of_output(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's --json; for `events`, of each line."""
    if verb == "events":
        body = _schema_of_records()
    else:
        output = load(verbs()[verb].output)
        body = _Schemas(output.printed_with).of(output.shape) if isinstance(output, Output) else _Schemas({}).of(output)
    return {"$schema": _DIALECT, "title": f"tflaunch {verb} --json", **body}


def _schema_of_records() -> dict[str, Any]:
    schemas = _Schemas({})
    fields = {kind_of(kind): schemas.of(kind) for kind in typing.get_args(Event | Annotation | Action)}
    rules = [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": {**schema, "additionalProperties": True}}
        for kind, schema in fields.items()
    ]
    return {**_RECORD, "allOf": rules}


class _Schemas:
    """The schemas of types, as `records.as_json` writes their values."""

    def __init__(self, printed_with: Mapping[Any, Mapping[str, Any]]) -> None:
        self._printed_with = printed_with

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        if hasattr(kind, "write_json"):
            kind = typing.get_type_hints(kind.write_json)["return"]
        if kind is Any:
            return {}
        if kind in _SIMPLE:
            return {"type": _SIMPLE[kind]}
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            schemas = [self.of(each) for each in arguments]
            is_simple = all(set(each) == {"type"} for each in schemas)
            return {"type": [each["type"] for each in schemas]} if is_simple else {"anyOf": schemas}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is not None:
            return {"type": "array", "items": self.of(arguments[0])}
        return {"type": "string"} if issubclass(kind, Enum) else self._of_object(kind)

    def _of_object(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a class; its fields are required unless it says otherwise."""
        hints = {**typing.get_type_hints(kind), **self._printed_with.get(kind, {})}
        return {
            "type": "object",
            "description": (kind.__doc__ or "").partition("\n")[0],
            "properties": {name: self.of(declared) for name, declared in hints.items()},
            "required": sorted(getattr(kind, "__required_keys__", hints)),
            "additionalProperties": False,
        }


@click.command()
@click.argument("command", required=False)
def schema(command: str | None) -> None:
    """Print the JSON Schema of a spec, for editors, or of what COMMAND --json prints.

    \b
    Example:
      tflaunch schema > cluster.schema.json
      tflaunch schema ps
    """
    if command is None:
        from tflaunch.clusterspec.schema import json_schema

        print_json(json_schema())
        return
    known = [*with_output(), "events"]
    if command not in known:
        raise click.UsageError(f"{command!r} has no --json; the commands that have one are {', '.join(known)}.")
    print_json(schema_of_output(command))
