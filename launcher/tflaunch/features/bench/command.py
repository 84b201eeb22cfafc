"""`bench`: compare the speed of a spec with several numbers of workers."""

from pathlib import Path

import click

from tflaunch.cli.arguments.spec import (
    POSITIVE,
    CommandAfterDashes,
    Duration,
    WholeNumber,
    command_argument,
    json_option,
    print_json,
    read_file,
    say,
    set_option,
    spec_argument,
    warn,
)
from tflaunch.errors import EXIT_INTERRUPTED, TflaunchError
from tflaunch.features.bench import scaling, scaling_runs

_MOST_WORKERS = 10_000


def _counts(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word[:9]) <= _MOST_WORKERS for word in words):
        raise click.UsageError(
            f"--workers {value!r} is not a list of numbers from 1 to {_MOST_WORKERS}; write for example 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))


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
@click.option(
    "--limit", type=Duration("10m", POSITIVE), default="10m", metavar="DURATION", help="Longest run; default: 10m."
)
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
    """Run SPEC with each number of workers, and compare their steps per second.

    The runs follow one another. Each is a real training, with the first workers of SPEC, or with more of them if they
    are on this machine; it is stopped after --warm-up and --steps. Steps are those that the program reports
    (tflaunch_worker.training.progress), or those of Keras' progress line.

    SPEED-UP is relative to the run with the fewest workers, and PER WORKER its share of the ideal. For these, tflaunch
    must know how many examples a step has: from --batch, --worker-batch, or the reported metric `examples`.

    Ctrl-C ends the run, and prints what was measured.

    \b
    Example:
      tflaunch bench cluster.json --workers 1,2,4 --steps 50 --worker-batch 64
    """
    if batch is not None and worker_batch is not None:
        raise click.UsageError("--batch and --worker-batch exclude each other; give the one that stays the same")
    file, wanted = read_file(spec), scaling_runs.Wanted(steps, warm_up, limit, batch, worker_batch)
    plans, warnings = scaling_runs.plan_runs(file, settings, command, workers, wanted)
    warn(file.source, warnings)
    runs: list[scaling.ScaledRun] = []
    code, problem = 0, None
    try:
        for count, plan in plans.items():
            run = scaling_runs.measure_run(file, plan, count, wanted, say)
            runs.append(scaling.compare(run, runs[0]) if runs else run)
    except TflaunchError as error:
        code, problem = error.exit_code, str(error)
    except KeyboardInterrupt:
        code, problem = EXIT_INTERRUPTED, "interrupted"
    if as_json:
        name = plans[workers[0]].name.rpartition("-")[0]
        print_json({"name": name, "runs": [run._asdict() for run in runs], "problem": problem})
    elif runs:
        click.echo(scaling.text_of(runs), nl=False)
    if problem:
        say(problem)
    return code
