# ruff: noqa: INP001 (imported by the hook beside it)
"""Pages of the reference that are made from the code: fields of a spec, the Python API, events."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import tflaunch
from tflaunch.cli.json_output import schema_of_output, with_output
from tflaunch.clusterspec.schema import json_schema
from tflaunch.core import event_records
from tflaunch.core import events as core_events
from tflaunch.core.annotations import Annotation

_SECTIONS = {"Args:": "Arguments", "Attributes:": "Attributes", "Raises:": "Raises", "Returns:": "Returns"}
_WIDTH = 100
_EXCEPTIONS = (tflaunch.JobFailed, tflaunch.SpecError, tflaunch.TflaunchError)


def fields() -> str:
    """Return the page with a section for each part of a spec, made from its JSON Schema."""
    schema = json_schema()
    parts = {"Spec": schema, **schema["$defs"]}
    head = (
        "# All fields\n\nMade from the models of a spec, as `tflaunch schema` is. [Fields of a spec](spec.md) explains "
        "what they do. A *duration* is a number of seconds or text such as `1h30m`.\n"
    )
    return "\n".join([head, *(_part(name, part) for name, part in parts.items() if "properties" in part)])


def _part(name: str, part: Mapping[str, Any]) -> str:
    rows = [
        f"| `{field}` | {_cell(_type(about))} | {_default(about)} | {_cell(about.get('description', ''))} |"
        for field, about in part["properties"].items()
    ]
    return f"## {name}\n\n{part['description']}\n\n" + _table(("field", "type", "default", "meaning"), rows)


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _default(about: Mapping[str, Any]) -> str:
    return f"`{json.dumps(about['default'])}`" if "default" in about else ""


def _type(about: Mapping[str, Any]) -> str:
    """Return the type in a schema in words."""
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in about or "enum" in about:
        return ", ".join(f"`{json.dumps(value)}`" for value in about.get("enum", [about.get("const")]))
    choices = about.get("anyOf") or about.get("oneOf") or about.get("allOf")
    if choices:
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if about.get("type") == "array":
        return f"list of {_type(about.get('items', {}))}"
    if about.get("type") == "object":
        values = [value for name, value in about.get("patternProperties", {}).items() if name != "^x-"]
        values += [about["additionalProperties"]] if isinstance(about.get("additionalProperties"), dict) else []
        return f"object of {_type(values[0])}" if values else "object"
    kind = about.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def api() -> str:
    """Return the page of the Python API, made from its docstrings."""
    head = "# Python API\n\nMade from the docstrings of `import tflaunch`; [From Python](python.md) shows its use.\n"
    return "\n".join([head, *(_described(name) for name in tflaunch.__all__ if name != "__version__")])


def _described(name: str) -> str:
    found = getattr(tflaunch, name)
    if not inspect.isclass(found):
        return f"## {name}\n\n{_signature(name, found)}\n\n{_docstring(found)}\n"
    members = [_member(name, key, value) for key, value in vars(found).items() if not key.startswith("_")]
    bases = f" It is a subclass of `{found.__base__.__name__}`." if found in _EXCEPTIONS and found.__base__ else ""
    return "\n".join([f"## {name}\n\n{_docstring(found)}{bases}\n", *filter(None, members)])


def _member(of: str, name: str, value: Any) -> str:
    """Return the section of a public method or property that is documented."""
    if isinstance(value, property):
        return f"### {of}.{name}\n\n{_docstring(value)}\n"
    if not inspect.isfunction(value):
        return ""
    return f"### {of}.{name}\n\n{_signature(name, value)}\n\n{_docstring(value)}\n"


def _signature(name: str, function: Any) -> str:
    """Return how a function is called, with an argument a line if it does not fit in one."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    start = f"{'async ' * inspect.iscoroutinefunction(function)}def {name}"
    line = start + str(signature.replace(parameters=parameters))
    if len(line) > _WIDTH:
        marker = "*" if any(each.kind is each.KEYWORD_ONLY for each in parameters) else ""
        at = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), 0)
        words = [str(each) for each in parameters]
        lines = [f"    {each}," for each in [*words[:at], *filter(None, [marker]), *words[at:]]]
        line = "\n".join([f"{start}(", *lines, f") -> {signature.return_annotation}"])
    return "```python\n" + line.replace("'", "") + "\n```"


def _docstring(described: Any) -> str:
    """Return a docstring in Google's style as Markdown."""
    text = inspect.cleandoc(described.__doc__ or "").replace("``", "`")
    blocks = re.split(r"\n\n(?=(?:Args|Attributes|Raises|Returns):\n)", text)
    return "\n\n".join([blocks[0], *map(_section, blocks[1:])])


def _section(block: str) -> str:
    title, _, body = block.partition("\n")
    entries = re.split(r"\n(?=\S)", inspect.cleandoc(body))
    return f"**{_SECTIONS[title]}**\n\n" + "\n".join(map(_entry, entries))


def _entry(entry: str) -> str:
    name, colon, meaning = entry.partition(": ")
    words = " ".join(meaning.split())
    return f"- `{name}`: {words}" if colon else f"- {' '.join(entry.split())}"


def events() -> str:
    """Return the page of all events, made from their classes."""
    head = (
        "# Events\n\nThe records that `tflaunch events --json` prints, one per line, and that `run.events()` yields. "
        "Each has `seq` (its number), `time` (seconds since the epoch) and `kind`; the other fields depend on the "
        "kind. Between the events are the actions of the supervisor, in the imperative (`start_task`), and records "
        "such as `plan` and `ended`.\n"
    )
    return "\n".join([head, *map(_event, get_args(core_events.Event | Annotation))])


def _event(kind: Any) -> str:
    rows = list(_event_fields(kind))
    table = _table(("field", "type"), rows) if rows else ""
    return f"## {event_records.kind_of(kind)}\n\n{_docstring(kind)}\n\n{table}"


def _event_fields(kind: Any) -> Iterator[str]:
    for name, declared in get_type_hints(kind, include_extras=True).items():
        yield f"| `{name}` | {_cell(_event_type(declared))} |"


def _event_type(declared: Any) -> str:
    """Return a declared type in words, without the limits that are checked."""
    arguments = [each for each in get_args(declared) if isinstance(each, type) or get_args(each)]
    if hasattr(declared, "__metadata__"):
        return _event_type(get_args(declared)[0])
    if getattr(declared, "__origin__", None) in (dict, Mapping):
        return f"object of {_event_type(arguments[1])}"
    if arguments:
        return " or ".join(map(_event_type, arguments))
    return {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "NoneType": "null"}[
        declared.__name__
    ]


def json_output() -> str:
    """Return the page with the fields of what each command prints with --json."""
    head = (
        "# JSON output\n\nWith `--json` commands print a document with these fields; `tflaunch schema COMMAND` prints"
        " its JSON Schema. `a.b` is a field of the object `a`, `a[]` an element of a list, `a.*` a value of an object "
        "with any names. Later versions may add fields.\n"
    )
    return "\n".join([head, *map(_output, with_output()), _OUTPUT_OF_EVENTS])


_OUTPUT_OF_EVENTS = "## events\n\nOne record per line: [Events](events.md).\n"


def _output(verb: str) -> str:
    schema = schema_of_output(verb)
    rows = [f"| `{name}` | {_cell(_type(about))} | {_cell(_meaning(about))} |" for name, about in _nested(schema, "")]
    return f"## {verb}\n\n{_meaning(schema)}\n\n" + _table(("field", "type", "meaning"), rows)


def _nested(about: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each field within a value, with its path."""
    for choice in about.get("anyOf", [about]):
        if "items" in choice:
            yield from _nested(choice["items"], f"{path}[]")
        if isinstance(choice.get("additionalProperties"), dict):
            yield from _nested(choice["additionalProperties"], f"{path}.*")
        for name, inner in choice.get("properties", {}).items():
            at = f"{path}.{name}".removeprefix(".")
            yield at, inner
            yield from _nested(inner, at)


def _meaning(about: Mapping[str, Any]) -> str:
    """Return what is said about a value, or about what it has or its elements are."""
    inner = [*about.get("anyOf", []), about.get("items", {})]
    found = [about.get("description", ""), *(each.get("description", "") for each in inner)]
    return next(filter(None, found), "").replace("``", "`")


def notebook(path: Path) -> str:
    """Return the example notebook as a page."""
    parts = [f"<!-- made from {path.name} -->"]
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
