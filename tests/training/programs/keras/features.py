"""What the programs beside this one share: a feature is tried, and how it went is a line for test_compatibility.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager


class Silently(Exception):
    """Nothing failed, but it did something else than what it is for."""


@contextmanager
def feature(name: str) -> Iterator[None]:
    """Try a feature; its name is the first cell of its row in docs/compatibility.md."""
    try:
        yield
    except Silently as instead:
        outcome = f"no: {instead}"
    except Exception as error:  # noqa: BLE001 - what it is stands in the table
        outcome = f"fails: {error}"
    else:
        outcome = "works"
    print("feature", json.dumps([name, outcome]), flush=True)
