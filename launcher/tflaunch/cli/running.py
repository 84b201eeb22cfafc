"""`up`: run a spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli.loading import make_plan, name_option, read_spec, set_option, spec_argument, warn
from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError

if TYPE_CHECKING:
    from tflaunch.plan import Plan


@click.command(short_help="Run a spec and wait for its end.")
@spec_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@set_option
@name_option
@click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Keep the tasks' logs there.")
def up(spec: Path, command: tuple[str, ...], settings: tuple[str, ...], name: str | None, log_dir: Path | None) -> int:
    """Validate SPEC, start its tasks, supervise them until the job ends, and leave nothing behind.

    The exit code is the job's: 0, or that of the task that failed first. Ctrl-C ends the tasks with
    time to save; a second one kills them. COMMAND, after --, replaces the spec's.

    \b
    Example:
      tflaunch up cluster.json --set restart.max=0 -- python train.py --epochs 2
    """
    from tflaunch.hosts.reach import reach
    from tflaunch.journal import RunDirectory

    loaded, warnings = read_spec(spec, settings, name, command)
    plan = make_plan(spec, loaded)
    warn(spec, warnings)
    _refuse_other_hosts(plan)
    directory = RunDirectory(plan.name, log_dir)
    links = reach(plan, directory)
    from tflaunch.run import Run  # the agents start while this is imported

    return Run(plan, directory, links).execute()


def _refuse_other_hosts(plan: Plan) -> None:
    from tflaunch.look_around import is_this_machine

    others = [host for host in plan.hosts() if not is_this_machine(host)]
    if others:
        message = f"{', '.join(others)}: this version of tflaunch starts tasks only on this machine"
        raise TflaunchError(message, EXIT_PREFLIGHT)
