"""Limit a job's silence in each stage by the longest healthy one in all its runs.

A job is silent while none of its tasks that train writes output or reports progress, and no checkpoint of theirs is
copied. Times are in seconds.
"""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tflaunch import private_files
from tflaunch.core import policy
from tflaunch.core.job_state import Job
from tflaunch.core.states import Progress
from tflaunch.errors import TflaunchError
from tflaunch.plan.model import Plan
from tflaunch.store.run_dir import newest_of_job

_MINUTE = 60.0
WINDOW = 5 * _MINUTE
"""Seconds before the end over which a job is looked at."""

_HOUR = 60 * _MINUTE
_GROWS = 1.2  # times the silence of before that are worth a record
_NAME = "silences.json"
_MOST_RUNS = 20  # of the job, the newest ones, in which the commands are looked for


class Stage(Enum):
    """Stage of a training, by what its tasks have reported."""

    FORMING = "until the cluster forms"
    FIRST_STEP = "until the first step"
    STEPS = "between steps"
    EPOCHS = "between epochs"
    END = "after the last step"


_EARLY = (Stage.FORMING, Stage.FIRST_STEP)


class Limits(NamedTuple):
    """When a silence is noticed, ends the job, and ends it although tasks compute."""

    notice: float
    end: float
    spin: float


def limits(stage: Stage, longest: Mapping[Stage, float], scale: float) -> Limits:
    """Return the limits of a stage; ``scale`` divides all minimum times.

    A stage without a known silence, such as the first compilation, has an hour. Tasks that wait in a collective
    operation of NCCL compute all the time: only between steps, whose silences are alike, can that be told from work.
    """
    known = longest.get(stage)
    least = (10 if stage is Stage.FIRST_STEP or known is None else 2) * _MINUTE / scale
    if known is None:
        return Limits(least, _HOUR / scale, math.inf)
    spin = max(30 * known, _HOUR / scale) if stage is Stage.STEPS else math.inf
    return Limits(max(3 * known, least), max(10 * known, 15 * _MINUTE / scale), spin)


def stage_of(job: Job, reports: Iterable[Progress]) -> Stage:
    """Return the stage of a job, given the latest reports of its tasks that train."""
    if not job.formation.is_complete:
        return Stage.FORMING
    if policy.finished(job):
        return Stage.END
    furthest = max(reports, key=lambda each: (each.epoch or 0, each.step or 0), default=None)
    if furthest is None or not (furthest.epoch or furthest.step):
        return Stage.FIRST_STEP
    step, in_epoch = furthest.step, furthest.steps_per_epoch
    is_between = not step or bool(in_epoch and step % in_epoch == 0)
    if is_between and furthest.epochs and (furthest.epoch or 0) >= furthest.epochs:
        return Stage.END
    return Stage.EPOCHS if is_between else Stage.STEPS


class SilenceRecord:
    """The longest healthy silence of each stage, and the present one.

    What comes before the first step happens once and has several parts, such as a download and a compilation. So its
    silences count from its end on; or, in a program that never reports a step, once it has gone on for an hour.
    """

    def __init__(self, longest: Mapping[Stage, float], scale: float) -> None:
        self.longest = dict(longest)
        self._hour = _HOUR / scale
        self._early: dict[Stage, float] = {}
        self._early_since = 0.0
        self._counts_from = 0.0
        self._last: tuple[Stage, float, float] | None = None

    def restart(self, now: float) -> None:
        """Begin again: another attempt has begun, or the tasks were held up from outside."""
        self._counts_from = self._early_since = now
        self._last = None
        self._early = {}

    def note(self, stage: Stage, silence: float, now: float) -> tuple[Stage, float, bool]:
        """Note for how long all tasks have been silent.

        Returns:
            The stage in which the present silence began, its length, and whether there is news to keep.
        """
        before = dict(self.longest)
        silence = min(silence, now - self._counts_from)
        if self._last is not None:
            last_stage, last_silence, last_now = self._last
            passed = now - last_now
            if silence >= passed:  # it has been silent since
                stage = last_stage
            else:
                self._learn(last_stage, last_silence + passed, stage, now)
        self._last = stage, silence, now
        has_news = any(length > _GROWS * before.get(each, 0.0) for each, length in self.longest.items())
        return stage, silence, has_news

    def _learn(self, stage: Stage, healthy: float, following: Stage, now: float) -> None:
        """Note that a silence has ended well, after which another stage may follow."""
        known = self._early if stage in _EARLY else self.longest
        known[stage] = max(healthy, known.get(stage, 0.0))
        if following is not stage or now - self._early_since >= self._hour:
            for each, length in self._early.items():
                self.longest[each] = max(length, self.longest.get(each, 0.0))
            self._early = {}
        if following is not stage:
            self._early_since = now


# ---- what the runs of a job have learned, in a file of each


def read_silences(run: Path, plan: Plan) -> dict[Stage, float]:
    """Return the longest silences of a run, or of the newest of its name and commands."""
    with suppress(TflaunchError):  # the runs cannot be listed
        for path in (run, *islice(newest_of_job(plan.name), _MOST_RUNS)):
            with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # damaged, or not there
                known = json.loads((path / _NAME).read_text())
                if known["commands"] == _commands(plan):
                    return {Stage(name): float(seconds) for name, seconds in known["seconds"].items()}
    return {}


def write_silences(run: Path, plan: Plan, longest: Mapping[Stage, float]) -> None:
    """Write a run's longest silences; if the disk is full, later runs lack them."""
    seconds = {stage.value: round(length, 3) for stage, length in longest.items()}
    with suppress(OSError):
        private_files.write_text(run / _NAME, json.dumps({"commands": _commands(plan), "seconds": seconds}))


def _commands(plan: Plan) -> list[list[str]]:
    return sorted({json.dumps(task.argv): list(task.argv) for task in plan.tasks}.values())
