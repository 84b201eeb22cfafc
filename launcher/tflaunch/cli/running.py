"""`up`: run a spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli.loading import make_plan, name_option, read_spec, set_option, spec_argument, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.hosts.code import Code
    from tflaunch.hosts.link import Link, Way
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
    from tflaunch.hosts.reach import ways_to_hosts
    from tflaunch.journal import RunDirectory

    loaded, warnings = read_spec(spec, settings, name, command)
    plan = make_plan(spec, loaded)
    warn(spec, warnings)
    code = _code_for_hosts(plan)
    directory = RunDirectory(plan.name, log_dir)
    ways = ways_to_hosts(plan, directory)
    links = _links_on_this_machine(plan, ways)
    from tflaunch import foreground

    return foreground.execute(plan, directory, ways, links, code)


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
