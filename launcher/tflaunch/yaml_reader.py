"""YAML as the data model of JSON: no tags, no duplicate keys, no dates; apart, because PyYAML is slow to import."""

from __future__ import annotations

from typing import Any

import yaml


class YamlError(Exception):
    """The text is no YAML that a spec can use; ``where`` is its line and column."""

    def __init__(self, message: str, mark: yaml.Mark | None) -> None:
        super().__init__(message)
        self.where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


class _Loader(yaml.SafeLoader):
    """SafeLoader without implicit dates and times, and strict about keys."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> Any:
    result: dict[Any, Any] = {}
    yield result
    loader.flatten_mapping(node)
    seen = set()
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise YamlError(f"the key {key!r:.40} is not text", key_node.start_mark)
        if key in seen:
            raise YamlError(f"the key {key!r} is there twice", key_node.start_mark)
        seen.add(key)
        result[key] = loader.construct_object(value_node)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def parse(text: str) -> Any:
    """Return the single document in a YAML text.

    Raises:
        YamlError: the text is no YAML, or uses what a spec has no place for.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        raise YamlError(error.problem or "syntax error", error.problem_mark) from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(str(error).splitlines()[0], None) from None
