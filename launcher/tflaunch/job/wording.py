"""How numbers and lists of names are written in sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_MANY = 8


def counted(number: int, noun: str) -> str:
    """Return ``1 task``, ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    shown = ", ".join(names[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"
