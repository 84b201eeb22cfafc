"""What a part of the benchmarks is, and what it needs."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rounds import Found, Sample


class Bench(NamedTuple):
    """How a part measures."""

    repeats: int
    peers: Path
    """The virtual environment of the launchers that are compared."""


class Part(NamedTuple):
    """One comparison: a section of the document."""

    title: str
    text: str
    """What the figures mean."""
    measure: Callable[[Bench], dict[str, Found]]
    """Return what was found, by what was asked for (such as the number of tasks)."""
    section: Callable[[dict[str, Found]], list[str]]
    """Return the lines of the document that say it."""
    has_peers: bool = False
    """Whether it needs the virtual environment of other launchers."""


def own_directory(scratch: Path) -> Path:
    """Return a new directory, so that nobody finds the files of another."""
    return Path(tempfile.mkdtemp(dir=scratch))


def last_line(output: Path) -> str:
    """Return the last line of an output that says something, fit for a table."""
    lines = output.read_text(errors="replace").split("\n")
    return next((line.strip().replace("|", "/") for line in reversed(lines) if line.strip()), "no output")


def nothing() -> Path:
    """Return where output goes that nobody reads."""
    return Path(os.devnull)


def outcome(exit_code: int | None, **figures: float) -> Sample:
    """Return a sample of a command that ought to exit with 0; None means that it hung."""
    return {**figures, "hung": float(exit_code is None), "failed": float(exit_code not in (None, 0))}


def journal(directory: Path) -> list[dict[str, Any]]:
    """Return the journal of the only run that tflaunch has made in a directory; `now` and `at` are monotonic times."""
    (path,) = directory.glob("home/runs/*/events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
