"""Train the example programs, and read their output."""

import json
import re
import subprocess
from pathlib import Path

from support.launch import LONG, Launch
from support.specs import REPOSITORY

ENOUGH = 0.95
ENOUGH_QUICKLY = 0.25
"""More than twice what guessing reaches."""
PER_EPOCH = 100 if LONG else 30
"""Steps per epoch of most examples with `QUICK`."""
_SHORTER = ("--steps-per-epoch", str(PER_EPOCH), "--batch-size", "32", "--min-accuracy", str(ENOUGH_QUICKLY))
QUICK = () if LONG else _SHORTER
"""Arguments for an example in a test of what becomes of it, if another one trains it to its accuracy. `make nightly`
has all of them train to their accuracy.
"""


def example(launch: Launch, name: str, *arguments: str) -> Path:
    """Write the spec of an example of cluster_specs/ into the test's directory, with extra arguments."""
    spec = json.loads((REPOSITORY / "cluster_specs" / f"{name}.json").read_text())
    spec["command"] += arguments
    return launch.spec(f"{name}.json", **spec)


def train(launch: Launch, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launch.up(example(launch, name, *arguments))


def digests(text: str) -> list[str]:
    """Return the digests of the weights that tasks printed."""
    return re.findall(r"weights sha256 (\w+)", text)


def accuracies(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"test accuracy ([\d.]+)", text)]


def has_trained(text: str, tasks: int, is_quick: bool = False) -> bool:
    """Return whether this many tasks have ended with the same weights, and good ones."""
    enough = ENOUGH_QUICKLY if QUICK and is_quick else ENOUGH
    return len(digests(text)) == tasks and len(set(digests(text))) == 1 and min(accuracies(text)) >= enough
