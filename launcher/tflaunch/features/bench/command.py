"""`bench`: run a spec with several numbers of workers, and show how its speed grows and what limits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli.arguments.spec import (
    CommandAfterDashes,
    WholeNumber,
    command_argument,
    json_option,
    read_file,
    say,
    seconds_in,
    set_option,
    spec_argument,
    warn,
)
from tflaunch_worker.readable import duration_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tflaunch.features.bench.scaling import Efficiency, Finding, Measured

_MOST_WORKERS = 10_000
_INTERRUPTED = 130


def _counts(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Return the numbers of workers, ascending."""
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word[:9]) <= _MOST_WORKERS for word in words):
        raise click.UsageError(
            f"--workers {value!r} is not a list of numbers from 1 to {_MOST_WORKERS}; write for example 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))


def _duration(context: click.Context, parameter: click.Parameter, value: str) -> float:
    seconds = seconds_in(value)
    if not seconds:
        raise click.UsageError(f"--limit {value!r} is not a valid duration; write for example 10m")
    return seconds


@click.command(cls=CommandAfterDashes)
@spec_argument
@command_argument
@set_option
@click.option(
    "--workers", callback=_counts, default="1,2", metavar="N,N", help="Numbers of workers to compare; default: 1,2."
)
@click.option(
    "--steps",
    type=WholeNumber(1, 1_000_000),
    default=50,
    metavar="N",
    help="Steps to measure, in at least 5 s; default: 50.",
)
@click.option(
    "--warm-up", type=WholeNumber(0, 1_000_000), default=10, metavar="N", help="Steps before that; default: 10."
)
@click.option(
    "--batch", type=WholeNumber(1, 10**9), metavar="N", help="Examples in a step of all workers, if it stays the same."
)
@click.option(
    "--worker-batch",
    type=WholeNumber(1, 10**9),
    metavar="N",
    help="Examples in a step of each worker, if it stays the same.",
)
@click.option("--limit", callback=_duration, default="10m", metavar="DURATION", help="Longest run; default: 10m.")
@json_option
def bench(
    spec: Path,
    command: tuple[str, ...],
    settings: tuple[str, ...],
    workers: tuple[int, ...],
    steps: int,
    warm_up: int,
    batch: int | None,
    worker_batch: int | None,
    limit: float,
    as_json: bool,
) -> int:
    """Run SPEC with each number of workers, measure its steps per second, and say what limits it.

    The runs follow one another. Each is a real training, with the first workers of SPEC, or with more of them if they
    are on this machine; it is stopped after --warm-up and --steps. Steps are those that the program reports
    (tflaunch_worker.training.progress), or those of Keras' progress line.

    Efficiency is examples per second and worker, relative to the run with the fewest workers. For that, tflaunch must
    know how many examples a step has: from --batch, --worker-batch, or the reported metric `examples`.

    Ctrl-C ends the run, and prints what was measured.

    \b
    Example:
      tflaunch bench cluster.json --workers 1,2,4 --steps 50 --worker-batch 64
    """
    from tflaunch.errors import TflaunchError
    from tflaunch.features.bench import scaling_runs
    from tflaunch.features.bench.scaling_runs import Batch
    from tflaunch.features.bench.step_watch import Wanted

    if batch is not None and worker_batch is not None:
        raise click.UsageError("--batch and --worker-batch exclude each other; give the one that stays the same")
    file = read_file(spec)
    told = Batch(batch, worker_batch)
    plans, warnings = scaling_runs.plan_runs(file, settings, command, workers, told)
    warn(file.source, warnings)
    runs: list[Measured] = []
    code, problem = 0, ""
    try:
        for scaled in plans:
            run = scaling_runs.measure_run(file, scaled, Wanted(steps, warm_up, limit), told, say)
            runs.append(run)
            took = duration_words(run.seconds)
            say(f"{_workers(run)}: {run.steps_per_second:.4g} steps/s, {run.steps:g} steps in {took}")
    except TflaunchError as error:
        code, problem = error.exit_code, str(error)
    except KeyboardInterrupt:
        code, problem = _INTERRUPTED, "interrupted"
    _show(plans[0].plan.name.rpartition("-")[0], runs, steps, problem, as_json=as_json)
    if problem:
        say(problem)
    return code


def _workers(run: Measured) -> str:
    from tflaunch.explain.wording import counted

    return counted(run.workers, "worker")


def _show(name: str, runs: Sequence[Measured], steps: float, problem: str, *, as_json: bool) -> None:
    """Print what was measured."""
    from tflaunch.features.bench import scaling

    efficiencies = [scaling.efficiency(run, runs[0]) for run in runs]
    findings = [scaling.find_limit(run, runs[0], steps) for run in runs]
    notes = scaling.notes(runs, steps) if runs else []
    if as_json:
        known = zip(runs, efficiencies, findings, strict=True)
        about = {
            "name": name,
            "scaling": (scaling.scaling_of(runs) or None) if runs else None,
            "runs": [_as_json(*each) for each in known],
            "notes": notes,
            "problem": problem or None,
        }
        click.echo(json.dumps(about, indent=2))
    elif runs:
        _print(runs, efficiencies, findings, notes)


def _as_json(run: Measured, efficiency: Efficiency, finding: Finding) -> dict[str, Any]:
    return {
        **run._asdict(),
        "tasks": [task._asdict() for task in run.tasks],
        "hosts": [host._asdict() for host in run.hosts],
        "steps_per_second": run.steps_per_second,
        "examples_per_second": run.examples_per_second,
        "efficiency": efficiency.value,
        "efficiency_if_weak": efficiency.weak,
        "efficiency_if_strong": efficiency.strong,
        "limit": finding.limit.value,
        "reason": finding.reason,
        "advice": finding.advice,
    }


def _print(
    runs: Sequence[Measured], efficiencies: Sequence[Efficiency], findings: Sequence[Finding], notes: Sequence[str]
) -> None:
    from tflaunch.features.bench import scaling_table

    click.echo("\n".join(scaling_table.table_of(runs, efficiencies, findings)))
    if len(runs) > 1:
        unit, values, ideals = _curve(runs, efficiencies)
        click.echo("\n" + "\n".join(scaling_table.plot_of(runs, ideals, values, unit)))
    click.echo("")
    for note in notes:
        click.echo(note)
    for run, finding in zip(runs, findings, strict=True):
        click.echo(f"{_workers(run)}: limited by {finding.limit.value}: {finding.reason}")
    click.echo(f"advice: {findings[-1].advice}")


def _curve(runs: Sequence[Measured], efficiencies: Sequence[Efficiency]) -> tuple[str, list[float], list[float]]:
    """Return the unit of the plot, the measured speeds, and those without any loss."""
    speeds = [run.examples_per_second for run in runs]
    values = [speed for speed in speeds if speed is not None]
    unit = "examples/s"
    if len(values) < len(runs):
        unit, values = "steps/s", [run.steps_per_second for run in runs]
    ideals = [value / each.shown for value, each in zip(values, efficiencies, strict=True)]
    return unit, values, ideals
