"""Run a spec with several numbers of workers, one after the other, and measure each run until it has taken steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from tflaunch.client import requests, runs
from tflaunch.client.control_client import NoSupervisorError
from tflaunch.client.observer import Observer
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import local_machine, prepare
from tflaunch.errors import EXIT_INTERNAL, EXIT_TIMEOUT, EXIT_USAGE, Problem, SpecError, TflaunchError
from tflaunch.explain import causes
from tflaunch.explain.wording import counted
from tflaunch.features.bench import scaled_spec
from tflaunch.features.bench.scaling import ScaledRun
from tflaunch.features.bench.step_watch import HOW_STEPS, StepWatcher, Wanted
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch, supervisor_process
from tflaunch.store import run_lock
from tflaunch.store.run_dir import RunDirectory
from tflaunch_worker.readable import duration_words


class Batch(NamedTuple):
    """The number of examples in a step, if the user tells: of all workers together, or of each of them."""

    total: float | None = None
    of_worker: float | None = None

    def examples(self, workers: int, *, is_synchronous: bool) -> float | None:
        """Return the examples in a step, None if unknown."""
        if self.of_worker is not None:
            return self.of_worker * (workers if is_synchronous else 1)
        return self.total


class ScaledPlan(NamedTuple):
    """The plan for a number of workers."""

    workers: int
    plan: Plan


def plan_runs(
    file: SpecFile, settings: Sequence[str], command: Sequence[str], counts: Sequence[int], batch: Batch
) -> tuple[list[ScaledPlan], list[Problem]]:
    """Return the plans of a spec for several numbers of workers, and the warnings about the spec.

    ``settings`` and ``command`` are as in `load.load_spec`.

    Raises:
        SpecError: the spec is invalid, or does not have that many workers.
        TflaunchError: the batch cannot be meant for this spec.
    """
    spec = prepare.load_spec(file, settings, None, command)
    if spec.discover:
        spec, _ = prepare.complete(file.source, file.directory, spec)
    if spec.effective_strategy() == "mirrored":
        message = "mirrored has one process, whose GPUs are its replicas"
        hint = "change CUDA_VISIBLE_DEVICES and compare, or use multi_worker_mirrored"
        raise SpecError(file.source, [Problem("error", "strategy", message, hint)])
    if spec.effective_strategy() == "parameter_server" and batch.total is not None:
        message = "--batch is the batch of all workers, and a step of parameter servers is one of a single worker"
        raise TflaunchError(f"{message}; give --worker-batch", EXIT_USAGE)
    local_names = local_machine.describe_machine([each.host for each in spec.cluster.get("worker", ())]).local_names
    plans = []
    warnings: list[Problem] = []
    for count in counts:
        scaled = scaled_spec.with_workers(file.source, spec, count, local_names)
        scaled, found = prepare.complete(file.source, file.directory, scaled)
        if count == max(counts):
            warnings = [*found, *prepare.warnings_about_files(scaled, file.directory)]
        plans.append(ScaledPlan(count, prepare.make_plan(file.directory, scaled)))
    return plans, warnings


def measure_run(
    file: SpecFile, scaled: ScaledPlan, wanted: Wanted, batch: Batch, say: Callable[[str], None]
) -> ScaledRun:
    """Run a plan until enough steps were measured, and end it; nothing of it is left then.

    Raises:
        TflaunchError: the run failed, or its steps are unknown or too few.
    """
    who = counted(scaled.workers, "worker")
    run, watcher = _watch_run(file, scaled.plan, wanted, who, say)
    measured = watcher.measured()
    if measured is None:
        raise _not_measured(watcher, wanted, who)
    begin, last = measured
    steps, seconds = last.step - begin.step, last.at - begin.at
    is_synchronous = scaled.plan.strategy != "parameter_server"
    examples = batch.examples(scaled.workers, is_synchronous=is_synchronous) or watcher.examples
    say(f"{who}: {steps / seconds:.4g} steps/s, {steps:g} steps in {duration_words(seconds)}")
    return ScaledRun(
        workers=scaled.workers,
        run=run,
        steps=steps,
        seconds=seconds,
        steps_per_second=steps / seconds,
        examples=examples,
        examples_per_second=None if examples is None else examples * steps / seconds,
        start_up=max(watcher.reports[0].at - watcher.started, 0.0),
        is_synchronous=is_synchronous,
    )


def _watch_run(
    file: SpecFile, plan: Plan, wanted: Wanted, who: str, say: Callable[[str], None]
) -> tuple[str, StepWatcher]:
    """Return the name of a run that has been ended, and what was seen of it.

    Raises:
        TflaunchError: it failed.
    """
    with launch.new_directory(plan, None, file.suffix, file.text.encode()) as directory:
        say(f"{who}: run {directory.run}")
        supervisor_process.start(plan, directory, is_owned=True)
    watcher = StepWatcher(directory.path, wanted)
    try:
        watcher.watch(lambda message: say(f"{who}: {message}"))
    finally:
        _stop(directory)
    if watcher.has_ended:
        _require_success(directory, who)
    return directory.run, watcher


def _not_measured(watcher: StepWatcher, wanted: Wanted, who: str) -> TflaunchError:
    """Return the error for a run whose steps are unknown or too few."""
    how = "ended" if watcher.has_ended else f"was stopped after --limit {wanted.limit:g}s"
    code = EXIT_USAGE if watcher.has_ended else EXIT_TIMEOUT
    if not watcher.reports:
        return TflaunchError(f"{who}: the run {how} without a step; {HOW_STEPS}", code)
    seen = watcher.reports[-1].step - watcher.reports[0].step
    least = f"{wanted.warm_up} steps of --warm-up and at least one more report of steps"
    remedy = "train longer, or lower --warm-up" if watcher.has_ended else "raise --limit, or lower --warm-up"
    return TflaunchError(f"{who}: the run {how} {seen:g} steps after its first, before {least}; {remedy}", code)


def _stop(directory: RunDirectory) -> None:
    """Stop a run, and wait until nothing of it is left; Ctrl-C in this time kills its tasks."""
    grace: float | None = None
    while True:
        try:
            if runs.is_live(directory.path):
                with suppress(TflaunchError, NoSupervisorError):  # it has just ended
                    requests.request_stop(directory.path, grace)
            run_lock.wait_for_end(directory.path)
            return
        except KeyboardInterrupt:
            grace = 0.0


def _require_success(directory: RunDirectory, who: str) -> None:
    """Require that a run that has ended by itself did not fail.

    Raises:
        TflaunchError: it failed.
    """
    observer = Observer(directory.path)
    observer.catch_up()
    code, culprit = observer.exit_code, observer.job.culprit
    if code == 0:
        return
    reason = causes.describe(culprit, observer.job.plan) if culprit is not None else "its supervisor was killed"
    remedy = f"`tflaunch explain {directory.run}` says more"
    raise TflaunchError(f"{who}: the run failed: {reason}; {remedy}", EXIT_INTERNAL if code is None else code)
