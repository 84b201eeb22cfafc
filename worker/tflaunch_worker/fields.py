"""Read fields of other processes' messages; raise `ValueError` as `schema` does."""

from typing import Any, Dict, List, Mapping, cast

from tflaunch_worker import schema

_ANY_TEXT = schema.text()
_TEXTS = schema.list_of(_ANY_TEXT)


def integer(message: Mapping[str, Any], name: str, least: int = 0, most: int = schema.MAX_COUNT) -> int:
    """Return an integer field from ``least`` to ``most``."""
    return cast("int", schema.integer(least, most)(name, message.get(name)))


def number(
    message: Mapping[str, Any], name: str, least: float = -schema.MAX_TIME, most: float = schema.MAX_TIME
) -> float:
    """Return a numeric field from ``least`` to ``most`` as a float."""
    return cast("float", schema.number(least, most)(name, message.get(name)))


def text(message: Mapping[str, Any], name: str, longest: int = schema.LONGEST_TEXT) -> str:
    """Return a text field of at most ``longest`` characters."""
    return cast("str", schema.text(longest)(name, message.get(name)))


def texts(message: Mapping[str, Any], name: str) -> List[str]:
    """Return a field that is a list of texts."""
    return cast("List[str]", _TEXTS(name, message.get(name)))


def items(message: Mapping[str, Any], name: str) -> List[Any]:
    """Return a list field."""
    return cast("List[Any]", schema.list_of(lambda _, item: item)(name, message.get(name)))


def mapping(message: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Return a field that is an object."""
    return cast("Dict[str, Any]", schema.mapping_of(_ANY_TEXT, lambda _, item: item)(name, message.get(name)))
