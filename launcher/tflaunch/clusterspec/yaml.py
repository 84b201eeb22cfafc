"""Parse YAML into JSON's data model: no tags, duplicate keys or dates.

A module of its own because PyYAML is slow to import.
"""

import re
from typing import Any

import yaml

from tflaunch.clusterspec.spec_file import SpecFileError
from tflaunch.clusterspec.values import WrittenFloat

_MERGE = "tag:yaml.org,2002:merge"
_MOST_MERGED = 100_000


def _unusable(message: str, mark: yaml.Mark | None, hint: str = "correct it there") -> SpecFileError:
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return SpecFileError(f"is not usable YAML: {message}", hint, where)


class _Loader(yaml.SafeLoader):
    """SafeLoader with JSON's scalars, without tags, and strict about keys.

    YAML 1.1 would read 12:30 as 750 and 0755 as 493.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as in the base class
    merged = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; reject tags, which JSON does not have."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise _unusable(f"the tag {tag!r:.80} cannot be used in a spec", event.start_mark)
        return super().compose_node(parent, index)


for _tag, _pattern, _first in (
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "0|-?[1-9][0-9]*", "-0123456789"),  # -0 is a float, whose text is kept
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> Any:
    result: dict[Any, Any] = {}
    yield result
    merges = [value for key, value in node.value if key.tag == _MERGE]
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _unusable(f"the key {key!r:.40} is not text", key_node.start_mark)
        if key in result:
            raise _unusable(f"the key {key!r} occurs twice", key_node.start_mark)
        result[key] = loader.construct_object(value_node, deep=True)  # a merge needs the content of an anchor
    for source in merges:
        _merge(loader, result, source)


def _merge(loader: _Loader, into: dict[Any, Any], source: yaml.Node) -> None:
    """Add the fields that `<<` names, without overriding existing ones."""
    for node in source.value if isinstance(source, yaml.SequenceNode) else [source]:
        defaults = loader.construct_object(node, deep=True)
        if not isinstance(defaults, dict):
            raise _unusable("<< can only bring the fields of an object", node.start_mark)
        loader.merged += len(defaults) + 1
        if loader.merged > _MOST_MERGED:
            raise _unusable("<< brings too many fields", node.start_mark)
        for key, value in defaults.items():
            into.setdefault(key, value)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _loader, node: WrittenFloat(node.value))


def parse_yaml(text: str) -> Any:
    """Return the single document in a YAML text.

    Raises:
        SpecFileError: the text is not YAML, or uses a feature that a spec does not allow.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or ""
        if mark and "'\\t'" in problem:
            message = f"line {mark.line + 1} is indented with a tab; YAML allows only spaces"
            raise _unusable(message, mark) from None
        if "mapping values" in problem:
            raise _unusable(problem, mark, "put text with a colon in quotes") from None
        parts = ["it refers to itself"] if "recursive" in problem else filter(None, (error.context, problem))
        raise _unusable(", ".join(parts) or "syntax error", mark) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _unusable(str(error).splitlines()[0], None) from None
