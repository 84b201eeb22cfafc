"""`rerun` and `diff`: run a plan again, and compare two runs."""

from pathlib import Path

import click

from tflaunch.cli.arguments.launch import Launching, LaunchOptions
from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import json_option, print_json, say
from tflaunch.cli.up import start
from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.records import run_diff, run_record
from tflaunch.plan.model import PRIVATE, Plan
from tflaunch.store import run_dir

_MOST_DIFFERENCES = 8


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write task logs to DIR.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background; return when its tasks are running.")
def rerun(run: str | None, log_dir: Path | None, detach: bool) -> int:
    """Run exactly the plan of RUN again: its spec and all options as they were.

    Without RUN, it is the live one, or else the newest. What differs from then in code, packages and machine is
    printed, and nothing is changed: the commit is in record.json of RUN's directory, and the patch in code.patch.

    \b
    Example:
      tflaunch rerun mnist-20260102-030405-6789
    """
    path = runs.find_run(run)
    if run is None:
        say(f"as {path.name}")
    plan = runs.plan_of(path)
    _refuse_what_cannot_be_repeated(path, plan)
    locate_run(path).require_verb("rerun")
    earlier = run_diff.read_record(path)
    found = run_diff.compare_records(earlier, run_record.describe(plan)[0]) if earlier else []
    for difference in found[:_MOST_DIFFERENCES]:
        say(f"differs from {path.name}: {difference.sentence()}")
    if len(found) > _MOST_DIFFERENCES:
        say(f"and {len(found) - _MOST_DIFFERENCES} more; `tflaunch diff` compares the runs when this one has begun")
    spec = next(iter(sorted(path.glob("spec.*"))), None)
    options = LaunchOptions(None, log_dir, plan.preflight, detach, verbose=False, quiet=False)
    written = (spec.suffix, spec.read_bytes()) if spec else (".json", b"{}")
    return start(Launching(options, None, plan, *written))


def _refuse_what_cannot_be_repeated(path: Path, plan: Plan) -> None:
    if plan.function is not None:
        raise TflaunchError(f"{path.name} is a call of a function: call it again in your program", EXIT_USAGE)
    if plan.network == PRIVATE and len(plan.hosts) > 1:
        message = f"{path.name} had a private network of several hosts, which this version does not make"
        raise TflaunchError(f"{message}; run its spec again with --set network=fenced", EXIT_USAGE)


@click.command()
@click.argument("first", required=False, metavar="[RUN]", shell_complete=complete_runs)
@click.argument("second", required=False, metavar="[RUN]", shell_complete=complete_runs)
@json_option
def diff(first: str | None, second: str | None, as_json: bool) -> int:
    """Print what differs between two runs: code, packages, spec, hosts and results.

    Without a second RUN, the one before the first of the same job is compared with it. Without any, the first one is
    the live one, or else the newest. The exit code is 0 if nothing differs, else 1.

    \b
    Example:
      tflaunch diff mnist-20260102-030405-6789 mnist
    """
    newer = runs.find_run(first)
    paths = (newer, runs.find_run(second)) if second is not None else (_run_before(newer), newer)
    found = run_diff.compare(*paths)
    if as_json:
        print_json(found)
    else:
        say(" -> ".join(path.name for path in paths) + ("" if found else ": nothing differs"))
        for difference in found:
            click.echo(difference.sentence())
        for path in paths:
            if not run_diff.read_record(path):
                say(f"{path.name} has no record of its code and packages, so these cannot be compared")
    return 1 if found else 0


def _run_before(path: Path) -> Path:
    """Return the directory of the run of the same job that began before this one.

    Raises:
        TflaunchError: there is none, or another user could have written to its directory.
        SupervisedElsewhereError: that run has its supervisor and its files in a cluster.
    """
    job = run_dir.job_name(path.name)
    of_job = run_dir.newest_of_job(job)
    before = of_job[of_job.index(path) + 1 :]
    if not before:
        raise TflaunchError(f"{path.name} is the first run of {job}: name another one", EXIT_USAGE)
    return runs.find_run(before[0].name)
