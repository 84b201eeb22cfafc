"""`up`: run a spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli.loading import make_plan, name_option, read_spec, set_option, warn
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.drill import Strike
    from tflaunch.hosts.code import Code
    from tflaunch.hosts.link import Link, Way
    from tflaunch.plan import Plan


@click.command(short_help="Run a spec and wait for its end.")
@click.argument("spec", required=False, type=click.Path(readable=False, path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@set_option
@name_option
@click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Keep the tasks' logs there.")
@click.option("--drill", metavar="TEXT", help="Do this to the running job, and say whether it recovered.")
@click.option("--resume", metavar="RUN", help="Take over RUN, whose supervisor was killed, instead of starting SPEC.")
def up(
    spec: Path | None,
    command: tuple[str, ...],
    settings: tuple[str, ...],
    name: str | None,
    log_dir: Path | None,
    drill: str | None,
    resume: str | None,
) -> int:
    """Validate SPEC, start its tasks, supervise them until the job ends, and leave nothing behind.

    The exit code is the job's: 0, or that of the task that failed first. Ctrl-C ends the tasks with
    time to save; a second one kills them. COMMAND, after --, replaces the spec's.

    A supervisor that was killed can be replaced while the lease of its agents runs (timeouts.lease): with
    --resume the job goes on, and its tasks never notice.

    --drill tests how a job recovers: kill, term or stop a task, or cut the link to a host, after so much time
    of training. A drill that could not be done ends with 125.

    \b
    Example:
      tflaunch up cluster.json --set restart.max=0 -- python train.py --epochs 2
      tflaunch up cluster.json --drill "kill worker:1 after 20s; stop ps:0 for 10s; cut host=b for 5s"
      tflaunch up --resume cluster-20260102-030405-6789
    """
    if resume is not None:
        if spec is not None or settings or name or log_dir or drill:
            raise click.UsageError("--resume takes everything else from the run itself; leave the rest out")
        return _take_over(resume)
    if spec is None:
        raise click.UsageError("Missing argument 'SPEC': the path of a cluster spec.")
    from tflaunch.hosts.reach import ways_to_hosts
    from tflaunch.journal import RunDirectory

    loaded, warnings = read_spec(spec, settings, name, command)
    plan = make_plan(spec, loaded)
    warn(spec, warnings)
    strikes = _strikes(drill, plan)
    code = _code_for_hosts(plan)
    directory = RunDirectory(plan.name, log_dir)
    directory.keep_spec(spec)
    ways = ways_to_hosts(plan, directory)
    links = _links_on_this_machine(plan, ways)
    from tflaunch import foreground

    return foreground.execute(plan, directory, ways, links, code, strikes)


def _strikes(text: str | None, plan: Plan) -> tuple[Strike, ...]:
    if text is None:
        return ()
    from tflaunch import drill

    return drill.parse(text, plan)


def _take_over(name: str) -> int:
    """Go on with a run whose supervisor was killed.

    Raises:
        TflaunchError: there is no such run, it has a supervisor, or nothing of it can live any more.
    """
    from tflaunch import foreground, journal, replay, runs
    from tflaunch.hosts.reach import ways_to_hosts
    from tflaunch.states import Phase

    path = runs.find(name)
    records = journal.read(path)
    if not records:
        raise TflaunchError(f"run {path.name} had not begun; start its spec again", EXIT_INTERNAL)
    job = replay.fold(records)
    if runs.is_live(path):
        raise TflaunchError(f"run {path.name} has a supervisor already", EXIT_USAGE)
    if job.phase is Phase.ENDED:
        raise TflaunchError(f"run {path.name} has ended with exit code {job.exit_code}", EXIT_USAGE)
    if job.plan.lease == 0:
        message = (
            f"the tasks of {path.name} ended with its supervisor, because timeouts.lease is 0; start its spec again"
        )
        raise TflaunchError(message, EXIT_INTERNAL)
    directory = journal.RunDirectory.existing(path, Path(records[0]["logs"]))
    return foreground.resume(records, directory, ways_to_hosts(job.original, directory), _code_for_hosts(job.original))


def _links_on_this_machine(plan: Plan, ways: Mapping[str, Way]) -> dict[str, Link]:
    """Start the agents of this machine, so that they start while the rest is imported."""
    from tflaunch.hosts.link import LinkError

    links = {}
    for host in plan.hosts:
        if host.is_local:
            try:
                links[host.host] = ways[host.host].open()
            except LinkError:
                pass  # it is tried again with the others, and told with them
    return links


def _code_for_hosts(plan: Plan) -> Code | None:
    """Return the user's code when there are hosts that it has to be brought to."""
    if plan.sync is None or all(host.is_local for host in plan.hosts):
        return None
    from tflaunch.hosts.code import gather

    return gather(plan.sync)
