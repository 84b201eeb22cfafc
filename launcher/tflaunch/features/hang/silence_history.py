"""The longest healthy silences of a job's runs, in a file of each run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tflaunch import private_files
from tflaunch.errors import TflaunchError
from tflaunch.features.hang.silence import Stage
from tflaunch.plan.model import Plan
from tflaunch.store.run_names import newest_of_job

_NAME = "silences.json"
_MOST_RUNS = 20  # of the job, the newest ones, in which the commands are looked for


def read_silences(run: Path, plan: Plan) -> dict[Stage, float]:
    """Return the longest silences of a run, or of the newest one with its name and commands."""
    with suppress(TflaunchError):  # the runs cannot be listed
        for path in (run, *islice(newest_of_job(plan.name), _MOST_RUNS)):
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or not there
                known = json.loads((path / _NAME).read_text())
                if known["commands"] == _commands(plan):
                    return {Stage(name): float(seconds) for name, seconds in known["seconds"].items()}
    return {}


def write_silences(run: Path, plan: Plan, longest: Mapping[Stage, float]) -> None:
    """Write a run's longest silences; a full disk costs later runs what this one has learned."""
    seconds = {stage.value: round(length, 3) for stage, length in longest.items()}
    with suppress(OSError):
        private_files.write_text(run / _NAME, json.dumps({"commands": _commands(plan), "seconds": seconds}))


def _commands(plan: Plan) -> list[list[str]]:
    return sorted({json.dumps(task.argv): list(task.argv) for task in plan.tasks}.values())
