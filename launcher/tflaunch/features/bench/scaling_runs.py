"""Run a spec with several numbers of workers, one after the other, and measure each run until it has taken steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tflaunch.features.bench.scaling import Measured
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

    Args:
        file: the spec.
        settings: as in `load.load_spec`.
        command: as in `load.load_spec`.
        counts: numbers of workers.
        batch: what the user tells about the batch.

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
) -> Measured:
    """Run a plan until enough steps were measured, and end it; nothing of it is left then.

    Args:
        file: the spec, which is kept in the run's directory.
        scaled: the plan.
        wanted: how much is measured.
        batch: what the user tells about the batch.
        say: shows a sentence.

    Raises:
        TflaunchError: the run failed, or its steps are unknown or too few.
    """
    plan, who = scaled.plan, counted(scaled.workers, "worker")
    with launch.new_directory(plan, None, file.suffix, file.text.encode()) as directory:
        say(f"{who}: run {directory.run}")
        supervisor_process.start(plan, directory, is_owned=True)
    try:
        watcher = StepWatcher(directory.path, plan, wanted, lambda message: say(f"{who}: {message}"))
        is_synchronous = plan.strategy != "parameter_server"
        watched = watcher.watch(batch.examples(scaled.workers, is_synchronous=is_synchronous))
    finally:
        _stop(directory)
    if watched.has_ended:
        _require_success(directory, who)
    if watched.measured is not None:
        return watched.measured
    how = "ended" if watched.has_ended else f"was stopped after --limit {wanted.limit:g}s"
    code = EXIT_USAGE if watched.has_ended else EXIT_TIMEOUT
    if watched.seen is None:
        raise TflaunchError(f"{who}: the run {how} without a step; {HOW_STEPS}", code)
    least = f"{wanted.warm_up} steps of --warm-up and at least one more report of steps"
    remedy = "train longer, or lower --warm-up" if watched.has_ended else "raise --limit, or lower --warm-up"
    if watched.has_ended and watched.start_up > watched.trained:
        how = f"ended within {duration_words(watched.trained)} after its first report of steps"
        why = f"limited by start-up, which took {duration_words(watched.start_up)}"
        raise TflaunchError(f"{who}: the run {how}, too soon to measure its speed: {why}; train longer", code)
    raise TflaunchError(f"{who}: the run {how} {watched.seen:g} steps after its first, before {least}; {remedy}", code)


def _stop(directory: RunDirectory) -> None:
    """Stop a run, and wait until nothing of it is left; Ctrl-C in this time kills its tasks."""
    grace: float | None = None
    while True:
        try:
            if runs.is_live(directory.path):
                _request_stop(directory, grace)
            run_lock.wait_for_end(directory.path)
            return
        except KeyboardInterrupt:
            grace = 0.0


def _request_stop(directory: RunDirectory, grace: float | None) -> None:
    try:
        requests.request_stop(directory.path, grace)
    except (NoSupervisorError, TflaunchError):
        pass  # it has just ended


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
