"""What a border is, and how its cases are played. Modules of borders are found by the names in `MODULES`."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

MODULES = ("boot", "control", "frames", "known_hosts", "orders", "sight", "spec_files", "ssh_config", "sync")
"""Modules of this package with a `BORDER`. A border's name is its module's."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where cases may make files: in memory, if there is such a place."""

_REGRESSIONS = Path(__file__).parent / "regressions"
_DEFAULT_CASES = 2000


class Border(NamedTuple):
    """A place where something comes in from outside.

    ``generate`` makes a case from a source of chance alone; ``check`` gives it to the border, and raises whatever
    must not happen.
    """

    generate: Callable[[random.Random], bytes]
    check: Callable[[bytes], None]


class Failure(NamedTuple):
    """A case that failed: how to find it again, the case itself, and what was raised."""

    name: str
    case: bytes
    error: str


def find(name: str) -> Border:
    """Return the border of a name.

    Raises:
        KeyError: there is none.
    """
    if name not in MODULES:
        raise KeyError(name)
    border = importlib.import_module(f"fuzz.{name}").BORDER
    assert isinstance(border, Border)
    return border


def number_of_cases() -> int:
    """Return how many cases tests play: TFLAUNCH_FUZZ_CASES, or 2,000."""
    return int(os.environ.get("TFLAUNCH_FUZZ_CASES", _DEFAULT_CASES))


def regressions(name: str) -> list[Path]:
    """Return the files with cases that failed once."""
    return sorted((_REGRESSIONS / name).glob("*"))


def keep(name: str, case: bytes) -> Path:
    """Keep a case as a regression; return its file."""
    path = _REGRESSIONS / name / hashlib.sha256(case).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(case)
    return path


def play(name: str, seed: int, first: int, cases: int) -> Iterator[Failure | None]:
    """Play what failed once and then the cases of a seed from number ``first`` on; yield what became of each.

    Args:
        name: the border's.
        seed: what the cases follow from.
        first: the number of the first case.
        cases: how many.
    """
    border = find(name)
    for path in regressions(name):
        yield _failure(border, f"{name}: {path}", path.read_bytes())
    for number in range(first, first + cases):
        case = border.generate(random.Random(f"{name} {seed} {number}"))
        again = f"PYTHONPATH=tests python -m fuzz --border {name} --seed {seed} --first {number} --cases 1"
        yield _failure(border, again, case)


def _failure(border: Border, name: str, case: bytes) -> Failure | None:
    try:
        border.check(case)
    except Exception:  # noqa: BLE001 - whatever is raised is the finding
        return Failure(name, case, traceback.format_exc())
    return None


def check_all(name: str) -> None:
    """Play as many cases as tests do, and fail at the first that fails."""
    for failure in play(name, 1, 0, number_of_cases()):
        if failure is not None:
            path = Path(tempfile.gettempdir()) / f"tflaunch-fuzz-{name}"
            path.write_bytes(failure.case)
            raise AssertionError(f"{failure.name}\n{failure.error}\nthe case is in {path}: {failure.case[:2000]!r}")
