"""Shared by the programs here: tries a feature and prints the result for test_compatibility.py."""

import json
from collections.abc import Iterator
from contextlib import contextmanager


class Silently(Exception):
    """Nothing failed, but the feature did something other than its purpose."""


@contextmanager
def feature(name: str) -> Iterator[None]:
    """Try a feature; its name is the first cell of its row in docs/compatibility.md."""
    try:
        yield
    except Silently as instead:
        outcome = f"no: {instead}"
    except Exception as error:  # noqa: BLE001 - the table says which
        outcome = f"fails: {error}"
    else:
        outcome = "works"
    print("feature", json.dumps([name, outcome]), flush=True)
