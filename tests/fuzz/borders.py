"""The definition of a border, and how its cases are run. `MODULES` lists the modules of borders."""

import hashlib
import importlib
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

MODULES = (
    *("boot", "control", "frames", "known_hosts", "orders", "run_directory", "spec_files", "ssh_config", "sync"),
)
"""Modules of this package with a `BORDER`. A border has the name of its module."""

SMALL = (*("breakpoint", "browser", "collected", "kubectl", "profiles", "queue", "run_status", "snapshot", "warm"),)
"""Borders that are defined together, in `fuzz.answers`."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where cases may create files: in memory, if possible."""

_REGRESSIONS = Path(__file__).parent / "regressions"
_DEFAULT_CASES = 500


class Border(NamedTuple):
    """An interface through which input arrives from outside.

    ``generate`` makes a case from a random source alone; ``check`` passes it to the interface, and raises on
    behaviour that must not happen.
    """

    generate: Callable[[random.Random], bytes]
    check: Callable[[bytes], None]


class Failure(NamedTuple):
    """A failed case: how to find it again, the case itself, and the exception."""

    name: str
    case: bytes
    error: str


def find(name: str) -> Border:
    """Return the border with this name.

    Raises:
        KeyError: none has it.
    """
    if name in SMALL:
        known: dict[str, Border] = importlib.import_module("fuzz.answers").BORDERS
        return known[name]
    if name not in MODULES:
        raise KeyError(name)
    border = importlib.import_module(f"fuzz.{name}").BORDER
    assert isinstance(border, Border)
    return border


def number_of_cases() -> int:
    """Return how many cases the tests run: TFLAUNCH_FUZZ_CASES, or 500."""
    return int(os.environ.get("TFLAUNCH_FUZZ_CASES", _DEFAULT_CASES))


def regressions(name: str) -> list[Path]:
    return sorted((_REGRESSIONS / name).glob("*"))


def keep(name: str, case: bytes) -> Path:
    path = _REGRESSIONS / name / hashlib.sha256(case).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(case)
    return path


def play(name: str, seed: int, first: int, cases: int) -> Iterator[Failure | None]:
    """Run the regressions and then the cases of a seed from number ``first`` on; yield each result.

    Args:
        name: name of the border.
        seed: determines the cases.
        first: the number of the first case.
        cases: number of cases.
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
    """Run the regressions and the default number of cases, and stop at the first failure."""
    for failure in play(name, 1, 0, number_of_cases()):
        if failure is not None:
            path = Path(tempfile.mkdtemp(prefix="tflaunch-fuzz-"), name)
            path.write_bytes(failure.case)
            raise AssertionError(f"{failure.name}\n{failure.error}\nthe case is in {path}: {failure.case[:2000]!r}")
