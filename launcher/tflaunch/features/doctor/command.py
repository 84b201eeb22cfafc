"""`doctor`: check the hosts of a spec before running it."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from tflaunch.cli.arguments import spec as arguments
from tflaunch.cli.arguments.launch import engine_settings
from tflaunch.client import secret_values
from tflaunch.clusterspec import load
from tflaunch.clusterspec.model import Spec
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_PREFLIGHT
from tflaunch.explain.wording import counted, listed
from tflaunch.feature import engines, find_host_maker
from tflaunch.features.doctor import collect
from tflaunch.features.doctor.findings import CHECKS, NOBODY, Diagnosis, Finding, findings, reachable_by, unchecked
from tflaunch.plan import placeholders
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch, run_config

_POD_PATIENCE = 60.0  # seconds for a pod to run


@click.command(cls=arguments.CommandAfterDashes)
@arguments.spec_argument
@arguments.command_argument
@arguments.set_option
@engine_settings
@arguments.json_option
def doctor(spec: Path, command: tuple[str, ...], settings: tuple[str, ...], engine: str | None, as_json: bool) -> int:
    """Find what would keep SPEC from running well, on its real hosts.

    Each host is reached and asked: are the programs there, and the same everywhere, with the same TensorFlow and Keras;
    do names resolve to the right hosts; are the ports free, and reachable from all other hosts; clock, disk, memory,
    GPUs, limits; are checkpoints on shared storage. No task is started. The exit code is 0 if nothing is wrong, else 3.

    For Kubernetes, your permissions are checked first, and the pods of the job are created for the check.
    With --on slurm, Slurm is asked what it would refuse, or never start; no node is reached.

    \b
    Example:
      tflaunch doctor cluster.json
    """
    file = arguments.read_file(spec)
    engine = engine or _maker_of(load.load_spec(file, settings, None, command, os.environ))
    problems = [] if engine is None else run_config.problems_on(engine, file, settings, command)
    asked = [Finding(str(engine), each.severity, each.where, each.message, each.hint) for each in problems]
    if engine is not None and (engines()[engine].submit or not _is_ok(asked)):
        unknown = dict.fromkeys(CHECKS, "needs the hosts of a run")
        return _show(Diagnosis(_is_ok(asked), asked, unknown, []), engine, as_json)
    plan, warnings = prepare.plan_spec(file, settings, command=command)
    arguments.warn(spec, warnings if engine is None else [])  # or they are among what was asked
    plan = placeholders.shown(plan)
    check = f"doctor-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"  # in place of the name of a run
    with _pods_made(plan, check) as made:
        hosts = collect.examine(made, launch.code_for_hosts(made), check)
    plan = made
    _, missing = secret_values.find_secrets(plan.secrets)
    found = [*asked, *findings(plan, hosts, missing)]
    examined = [host._replace(reachable_by=reachable_by(plan, host)) for host in hosts.values()]
    return _show(Diagnosis(_is_ok(found), found, unchecked(plan, hosts), examined), engine, as_json)


def _maker_of(spec: Spec) -> str | None:
    """Return the engine that makes the hosts of a spec; None if they exist."""
    makers = (name for name, each in engines().items() if each.host_maker and getattr(spec, each.field) is not None)
    return next(makers, None)


def _is_ok(found: Sequence[Finding]) -> bool:
    return all(finding.severity != "error" for finding in found)


def _show(shown: Diagnosis, engine: str | None, as_json: bool) -> int:
    if as_json:
        arguments.print_json(shown)
    else:
        click.echo(_table(shown, engine) + _ports(shown) + _verdict(shown))
    return 0 if shown.ok else EXIT_PREFLIGHT


def _verdict(shown: Diagnosis) -> str:
    counts = [(kind, sum(each.severity == kind for each in shown.findings)) for kind in ("error", "warning")]
    found = ", ".join(counted(count, kind) for kind, count in counts if count) or "no problem"
    return f"{found}: ready to run" if shown.ok else f"{found}: not ready to run"


@contextmanager
def _pods_made(plan: Plan, check: str) -> Iterator[Plan]:
    """Make the pods of a plan for Kubernetes, as `up` would, and delete them on exit."""
    maker = find_host_maker(plan)
    if maker is None or plan.made_hosts is None:
        yield plan
        return
    limit = min(plan.made_hosts.limit, _POD_PATIENCE)
    made = maker.create_hosts(plan._replace(made_hosts=plan.made_hosts._replace(limit=limit)), check)
    with maker.deleted_after(made, check, arguments.say):
        yield made


def _ports(shown: Diagnosis) -> str:
    """Return a line per group of tasks that the same machines could reach."""
    groups: dict[str, list[str]] = {}
    for host in shown.hosts:
        for task, who in host.reachable_by.items() if host.reason is None else ():
            groups.setdefault(who, []).append(task)
    return "".join(f"{listed(tasks)}: can be reached by {who}\n" for who, tasks in groups.items() if who != NOBODY)


def _table(shown: Diagnosis, engine: str | None) -> str:
    reached = sum(host.reason is None for host in shown.hosts)
    lines = [f"{reached} of {counted(len(shown.hosts), 'host')} reached"] if shown.hosts else []
    own = [] if engine is None else [engine]
    for check in (*own, *CHECKS) if shown.hosts else own:
        mine = [finding for finding in shown.findings if finding.check == check]
        worst = "error" if any(finding.severity == "error" for finding in mine) else "warning"
        otherwise = f"not checked ({shown.not_checked[check]})" if check in shown.not_checked else "ok"
        lines.append(f"{check:<12} {worst if mine else otherwise}")
        lines += [f"  {finding.where}: {finding.message}; {finding.hint}" for finding in mine]
    lines += [] if shown.hosts else ["all else needs the hosts of a run"]
    return "".join(f"{line}\n" for line in lines)
