"""Quantities of Kubernetes, such as 500m, 2 and 16Gi."""

from __future__ import annotations

import re

_FACTORS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTPE]?|[KMGTPE]i)")


def amount(quantity: object) -> float:
    """Return a quantity as a number: cores, bytes or pieces.

    Raises:
        TypeError: it is something else.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise TypeError(f"{quantity!r:.100} is not a quantity")
    return float(match[1]) * _FACTORS[match[2]]


def in_words(number: float, resource: str) -> str:
    """Return an amount of a resource, as people write it."""
    if resource != "memory":
        return f"{number:g}"
    unit = next((unit for unit in ("Ti", "Gi", "Mi", "Ki") if number >= _FACTORS[unit]), "")
    return f"{number / _FACTORS[unit]:.3g}{unit}"
