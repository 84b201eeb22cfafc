"""Define a part of the benchmarks, and the helpers that parts share."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from process_tree import StuckError
from rounds import Found, Sample


class Bench(NamedTuple):
    """The parameters of a measurement."""

    repeats: int
    peers: Path
    """The virtual environment of the launchers in the comparison."""


class Part(NamedTuple):
    """One comparison: a section of the document."""

    title: str
    text: str
    """The meaning of the figures."""
    measure: Callable[[Bench], dict[str, Found]]
    """Returns the findings, by what was varied (such as the number of tasks)."""
    section: Callable[[dict[str, Found]], list[str]]
    """Returns the section's lines in the document."""
    has_peers: bool = False
    """Whether it needs the virtual environment of other launchers."""


def own_directory(scratch: Path) -> Path:
    """Return a new directory, so that no two commands share files."""
    return Path(tempfile.mkdtemp(dir=scratch))


def last_line(output: Path) -> str:
    """Return the last non-blank line of an output, escaped for a table."""
    lines = output.read_text(errors="replace").split("\n")
    return next((line.strip().replace("|", "/") for line in reversed(lines) if line.strip()), "no output")


def finish(started: subprocess.Popen[bytes], limit: float, output: Path) -> None:
    """Wait for the success of a command that writes to ``output``.

    Raises:
        StuckError: it failed, or did not end within ``limit`` seconds.
    """
    try:
        code = started.wait(limit)
    except subprocess.TimeoutExpired:
        started.terminate()
        raise StuckError(f"it did not end within {limit:g} s") from None
    if code:
        raise StuckError(f"exit code {code}: {last_line(output)}")


def nothing() -> Path:
    """Return the path that discards output."""
    return Path(os.devnull)


def outcome(exit_code: int | None, **figures: float) -> Sample:
    """Return a sample of a command that should exit with 0; None means that it hung."""
    return {**figures, "hung": float(exit_code is None), "failed": float(exit_code not in (None, 0))}


def journal(directory: Path) -> list[dict[str, Any]]:
    """Return the journal of the only tflaunch run in a directory; `now` and `at` are monotonic times."""
    (path,) = directory.glob("home/runs/*/events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
