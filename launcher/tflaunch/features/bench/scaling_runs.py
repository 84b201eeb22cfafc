"""Run a spec with several numbers of workers in turn, and measure each run.

Steps come from what the program reports (`training.progress`), or else from Keras' progress line. An agent notes when
a report arrives, so its time is more precise than the interval at which we ask.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from tflaunch.api.runs import Run
from tflaunch.client.observer import status_of_supervisor
from tflaunch.clusterspec import load
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import local_machine, prepare
from tflaunch.errors import EXIT_TIMEOUT, EXIT_USAGE, Problem, SpecError, TflaunchError
from tflaunch.explain.wording import counted
from tflaunch.features.bench.scaling import ScaledRun, with_workers
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch
from tflaunch_worker.readable import duration_words

_INTERVAL = 0.6  # seconds; a supervisor reuses a measurement for half a second
_SHORTEST = 5.0  # seconds of a measurement, so that the time of a report is precise enough
_PATIENCE = 30.0  # seconds without a step, after which a message says where steps come from
_EXAMPLES = "examples"
"""The metric with the number of examples in a step of all workers."""
_SOURCES = (
    "steps are read from progress.report() and progress.callback() of tflaunch_worker.training, or from the progress "
    "line of Keras (verbose=1)"
)


class Wanted(NamedTuple):
    """The measurement of a run: ``steps`` after ``warm_up`` steps.

    It lasts at most ``limit`` seconds from the start of the run.

    A step has ``batch`` examples of all workers together, or ``worker_batch`` of each; None if the user gives neither.
    """

    steps: int
    warm_up: int
    limit: float
    batch: int | None = None
    worker_batch: int | None = None


class Report(NamedTuple):
    """A report of a step, and when it arrived, in seconds since the epoch."""

    step: float
    at: float


def plan_runs(
    file: SpecFile, settings: Sequence[str], command: Sequence[str], counts: Sequence[int], wanted: Wanted
) -> tuple[dict[int, Plan], list[Problem]]:
    """Return a plan for each number of workers, and the warnings about the spec.

    ``settings`` and ``command`` are as in `load.load_spec`; ``counts`` ascend.

    Raises:
        SpecError: the spec is invalid, or does not have that many workers.
        TflaunchError: a batch of all workers makes no sense for this spec.
    """
    spec = load.load_spec(file, settings, None, command, os.environ)
    if spec.discover:
        spec, _ = prepare.complete(file.source, file.directory, spec)
    if spec.effective_strategy() == "mirrored":
        message = "mirrored has one process, whose GPUs are its replicas"
        hint = "change CUDA_VISIBLE_DEVICES and compare, or use multi_worker_mirrored"
        raise SpecError(file.source, [Problem("error", "strategy", message, hint)])
    if spec.effective_strategy() == "parameter_server" and wanted.batch is not None:
        message = "--batch is the batch of all workers, and a step of parameter servers is one of a single worker"
        raise TflaunchError(f"{message}; give --worker-batch", EXIT_USAGE)
    local_names = local_machine.describe_machine([each.host for each in spec.cluster.get("worker", ())]).local_names
    plans: dict[int, Plan] = {}
    warnings: list[Problem] = []
    for count in counts:
        scaled = with_workers(file.source, spec, count, local_names)
        scaled, warnings = prepare.complete(file.source, file.directory, scaled)
        plans[count] = prepare.make_plan(file.directory, scaled)
    return plans, warnings


def measure_run(file: SpecFile, plan: Plan, workers: int, wanted: Wanted, say: Callable[[str], None]) -> ScaledRun:
    """Run a plan until enough steps are measured, and end the run.

    Raises:
        TflaunchError: the run failed, or its steps are unknown or too few.
    """
    who = counted(workers, "worker")
    with launch.new_directory(plan, None, file.suffix, file.text.encode()) as directory:
        say(f"{who}: run {directory.run}")
        launch.start_supervisor(plan, directory, is_owned=True)
    with Run(directory.path, is_owned=True) as run:  # which ends the run, after Ctrl-C, too
        watched = _watch(run, wanted, lambda message: say(f"{who}: {message}"))
    if watched.has_ended and (code := run.wait().exit_code):  # no limit: it has ended
        remedy = f"`tflaunch logs {run.name}` shows more"
        raise TflaunchError(f"{who}: the run failed: {run.status().reason}; {remedy}", code)
    part = measured_part(watched.reports, wanted.warm_up, watched.has_ended)
    begin, last = part or _not_measured(watched, wanted, who)
    speed = (last.step - begin.step) / (last.at - begin.at)
    say(f"{who}: {speed:.4g} steps/s, {last.step - begin.step:g} steps in {duration_words(last.at - begin.at)}")
    is_synchronous = plan.strategy != "parameter_server"
    examples = wanted.batch or watched.examples
    if wanted.worker_batch is not None:
        examples = wanted.worker_batch * (workers if is_synchronous else 1)
    return ScaledRun(
        workers=workers,
        run=run.name,
        steps=last.step - begin.step,
        seconds=last.at - begin.at,
        steps_per_second=speed,
        examples=examples,
        examples_per_second=None if examples is None else examples * speed,
        start_up=max(watched.reports[0].at - watched.started, 0.0),
        is_synchronous=is_synchronous,
    )


def measured_part(reports: Sequence[Report], warm_up: int, has_ended: bool) -> tuple[Report, Report] | None:
    """Return the first and last report of a measurement, None without two.

    A run that ``has_ended`` by itself before its warm-up was over is measured as a whole.
    """
    if not reports:
        return None
    last = reports[-1]
    begin = next((each for each in reports if each.step >= reports[0].step + warm_up), last)
    if begin is last and has_ended:
        begin = reports[0]
    return (begin, last) if last.at > begin.at else None


class _Watched(NamedTuple):
    """What was seen of a run: reports of new steps, and the examples in a step.

    ``started``: when the run began, in seconds since the epoch; ``has_ended``: it has ended by itself.
    """

    reports: list[Report]
    examples: float | None = None
    started: float = 0.0
    has_ended: bool = False


def _watch(run: Run, wanted: Wanted, say: Callable[[str], None]) -> _Watched:
    """Watch a run until there is enough, it ends, or its time is over.

    Raises:
        TflaunchError: the supervisor does not answer.
    """
    seen, counting = _Watched([]), ""
    until, hint_at = time.monotonic() + wanted.limit, time.monotonic() + _PATIENCE
    while time.monotonic() < until and not _is_enough(seen.reports, wanted):
        status = status_of_supervisor(run.directory)
        if status is None or status.exit_code is not None:
            return seen._replace(has_ended=True)
        seen, now = seen._replace(started=status.started), time.time()
        for task in status.tasks:
            if task.step is not None and task.task == (counting or task.task):
                counting = task.task  # the first one that has reported any step
                seen = seen._replace(examples=(task.metrics or {}).get(_EXAMPLES) or None)
                if not seen.reports or task.step > seen.reports[-1].step:
                    seen.reports.append(Report(task.step, now - (task.progress_age or 0.0)))
        if not seen.reports and time.monotonic() > hint_at:
            hint_at = math.inf
            forming = "" if status.forming is None else "the cluster has not formed; "
            say(f"no step yet: {forming}{_SOURCES}")
        time.sleep(_INTERVAL)
    return seen


def _is_enough(reports: Sequence[Report], wanted: Wanted) -> bool:
    part = measured_part(reports, wanted.warm_up, False)
    return part is not None and part[1].step - part[0].step >= wanted.steps and part[1].at - part[0].at >= _SHORTEST


def _not_measured(watched: _Watched, wanted: Wanted, who: str) -> NoReturn:
    reports = watched.reports
    how = "ended" if watched.has_ended else f"was stopped after --limit {wanted.limit:g}s"
    code = EXIT_USAGE if watched.has_ended else EXIT_TIMEOUT
    if not reports:
        raise TflaunchError(f"{who}: the run {how} without a step; {_SOURCES}", code)
    least = f"{wanted.warm_up} steps of --warm-up and at least one more report of steps"
    remedy = "train longer, or lower --warm-up" if watched.has_ended else "raise --limit, or lower --warm-up"
    seen = f"{reports[-1].step - reports[0].step:g} steps after its first"
    raise TflaunchError(f"{who}: the run {how} {seen}, before {least}; {remedy}", code)
