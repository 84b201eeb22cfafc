"""Generate docs/benchmarks.md from the results of the parts."""

import json
import os
import platform
import textwrap
from pathlib import Path
from typing import NamedTuple

from parts import Part
from rounds import Found

TEXT = """
Made by `make benchmark`; [benchmarks](../benchmarks/README.md) says how each figure comes about, and the raw ones
are in `benchmarks/results`. All who are compared take turns within a round, warm, in an order that rotates; a figure
is the median of the rounds, a ratio the median of the ratios within one round. Seconds differ between machines,
ratios carry over.
"""
WIDTH = 116


class Machine(NamedTuple):
    """The facts about a machine that timings depend on."""

    cores: int
    python: str
    system: str

    def __str__(self) -> str:
        """Return a description."""
        return f"{self.cores} cores, Python {self.python}, {self.system}"


class Result(NamedTuple):
    """The result of a part, and when it was measured."""

    date: str
    machine: Machine
    versions: dict[str, str]
    load: tuple[float, float]
    """Load average of the last minute, at the start and at the end."""
    repeats: int
    seconds: float
    found: dict[str, Found]


def this_machine() -> Machine:
    """Return the facts about this machine."""
    system = f"{platform.system()} {platform.release()}"
    return Machine(len(os.sched_getaffinity(0)), platform.python_version(), system)


def save(result: Result, path: Path) -> None:
    """Write a result to a file."""
    found = {key: one._asdict() for key, one in result.found.items()}
    raw = {**result._asdict(), "machine": result.machine._asdict(), "found": found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw, indent=1) + "\n")


def load(path: Path) -> Result:
    """Read a result from a file."""
    raw = json.loads(path.read_text())
    found = {key: Found(**one) for key, one in raw["found"].items()}
    first, last = raw["load"]
    return Result(**{**raw, "machine": Machine(**raw["machine"]), "load": (first, last), "found": found})


def write(parts: dict[str, Part], results: dict[str, Result]) -> str:
    """Return the document, without parts that have no result."""
    newest = max(results.values(), key=lambda result: result.date)
    versions = "".join(f"; {name} {version}" for name, version in newest.versions.items())
    blocks = ["# Benchmarks", _wrapped(TEXT), _wrapped(f"{newest.machine}{versions}.")]
    for name, part in parts.items():
        if result := results.get(name):
            section = "\n".join(part.section(result.found)).strip("\n")
            blocks += [f"## {part.title}", _wrapped(part.text), section, _when(name, result, newest)]
    return "\n\n".join(blocks) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def _when(name: str, result: Result, newest: Result) -> str:
    start, end = (f"{average:.1f}" for average in result.load)
    rounds = f"{result.repeats} round{'s' if result.repeats > 1 else ''} in {result.seconds:.0f} s"
    elsewhere = "" if result.machine == newest.machine else f", {result.machine}"
    return f"(`{name}`: {result.date}, {rounds}, load {start} before and {end} after, itself included{elsewhere}.)"
