"""`warm`: start, list and end processes with modules imported for later runs."""

import json
import os
from pathlib import Path

import click

from tflaunch.cli.arguments.cluster import ClusterOptions, cluster_of, cluster_options
from tflaunch.cli.arguments.spec import POSITIVE, Duration, json_option, print_json, read_file, say, set_option, warn
from tflaunch.clusterspec import load
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.explain.wording import counted
from tflaunch.features.preload import warm_servers
from tflaunch.features.preload.warm_servers import WarmServer
from tflaunch.plan.model import Plan
from tflaunch.store.run_dir import home

_SOURCE = "command line"
_IDLE = 600.0  # seconds
_PYTHON = "python"


@click.command()
@click.argument("spec", required=False, type=click.Path(readable=False, path_type=Path))
@click.option("--modules", metavar="M1,M2", help="What to import; default: `preload` of SPEC, or else tensorflow.")
@click.option(
    "--for",
    "idle",
    type=Duration("90s or 1h", POSITIVE),
    metavar="TIME",
    help="End when unused for TIME; default: `warm` of SPEC, or 10m.",
)
@click.option("--python", metavar="PYTHON", help=f"The interpreter, without SPEC; default: {_PYTHON}.")
@cluster_options
@set_option
@click.option("--list", "is_list", is_flag=True, help="List the servers on the hosts of SPEC, and start none.")
@click.option("--stop", is_flag=True, help="End all servers on the hosts of SPEC, by default on this machine.")
@json_option
def warm(
    spec: Path | None,
    modules: str | None,
    idle: float | None,
    python: str | None,
    roles: ClusterOptions,
    settings: tuple[str, ...],
    is_list: bool,
    stop: bool,
    as_json: bool,
) -> int:
    """Start warm servers for SPEC: processes on its hosts that have imported modules.

    A run with `warm` whose interpreter, environment and modules are the same forks its tasks from one, which saves the
    imports. A server ends by itself when it has not been used for some time, or when something that it has imported
    changes. Every run with `warm` leaves one, too.

    Instead of a SPEC, give the modules, the interpreter and the cluster that `run` or a program will use: the number of
    workers decides how many threads each gets, and so the environment.

    Without SPEC and options, the servers of this user on this machine are listed.

    \b
    Example:
      tflaunch warm cluster.json --for 1h
      tflaunch warm --modules tensorflow,tf_keras --workers 2 --python .venv/bin/python
      tflaunch warm --list cluster.json
      tflaunch warm --stop
    """
    is_start = bool(modules or idle or python) or roles != ClusterOptions()
    if stop and is_list:
        raise click.UsageError("give --list or --stop, not both.")
    if (stop or is_list) and is_start:
        raise click.UsageError("--list and --stop take no other options than SPEC and --set.")
    if spec is not None and (python is not None or roles != ClusterOptions()):
        raise click.UsageError("SPEC says which interpreter and cluster; change it by --set, or leave it out.")
    if spec is None and not is_start:
        return _show(warm_servers.on_this_machine(is_stop=stop), [], stop, as_json)
    given = [f"preload={json.dumps(modules.split(','))}"] if modules else []
    given += [f"warm={json.dumps(idle)}"] if idle else []
    plan = _plan(spec, python or _PYTHON, roles, (*settings, *given))
    if not (stop or is_list):
        warm_servers.start_servers(plan)
    found, problems = warm_servers.on_hosts(plan, is_stop=stop)
    if not (stop or is_list or found or problems):
        why = f"what it has imported has changed meanwhile, or it cannot write to {home()}"
        problems = [f"no warm server has stayed: its process has ended with the run that imported for it, as {why}"]
    return _show(found, problems, stop, as_json)


def _plan(spec: Path | None, python: str, roles: ClusterOptions, settings: tuple[str, ...]) -> Plan:
    """Return the plan of a spec, or of a cluster without one, always with `warm`."""
    if spec is not None:
        file = read_file(spec)
    else:
        data = {"name": "warm", "cluster": cluster_of(roles), "command": [python, "-c", "pass"]}
        file = SpecFile(_SOURCE, Path(), ".json", json.dumps(data))
    if not load.load_spec(file, settings, environ=os.environ).warm:
        settings = (*settings, f"warm={_IDLE}")
    plan, warnings = prepare.plan_spec(file, settings)
    warn(file.source, warnings)
    return plan


def _show(found: list[WarmServer], problems: list[str], is_stop: bool, as_json: bool) -> int:
    """Print servers and problems; return the exit code."""
    if as_json:
        print_json([server._asdict() for server in found])
    elif is_stop:
        say(f"ended {counted(len(found), 'warm server')}")
    elif found:
        click.echo(warm_servers.table(found), nl=False)
    elif not problems:
        say('no warm servers; `tflaunch warm SPEC` starts some, and a run leaves one if its spec says "warm": "10m"')
    for problem in problems:
        say(problem)
    return EXIT_INTERNAL if problems else 0
