"""Remove the copies of the user's code (`sync`) and of checkpoints that a run has left on other hosts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tflaunch.agents.rpc import visiting
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.plan.model import Plan
from tflaunch.store.run_dir import RunDirectory
from tflaunch.transport.base import AgentConnector, AgentGoneError, LinkError
from tflaunch.transport.connect import connectors_for

_AT_ONCE = 16
_PATIENCE = 60.0  # seconds to delete a tree, which may be on a slow disk


def hosts_with_code(path: Path) -> list[str]:
    """Return the hosts on which a run has left a copy of the user's code; none if its plan cannot be read."""
    try:
        return _hosts(runs.plan_of(path))
    except TflaunchError:
        return []


def _hosts(plan: Plan) -> list[str]:
    if plan.sync is None and plan.checkpoints is None:
        return []
    return [host.host for host in plan.hosts if not host.is_like_here]


def remove_code(path: Path) -> None:
    """Remove the copies of a run's code on all its hosts.

    Args:
        path: the run's directory; the run must have ended.

    Raises:
        TflaunchError: a host cannot be reached, or cannot remove its copy; names all such hosts.
    """
    plan = runs.plan_of(path)
    hosts = _hosts(plan)
    if not hosts:
        return
    connectors = connectors_for(plan, RunDirectory.existing(path, path / "logs"))
    with ThreadPoolExecutor(_AT_ONCE, "prune") as pool:  # no limit: its threads have theirs
        problems = list(pool.map(lambda host: _remove_on(host, connectors[host], path.name), hosts))
    if failed := [problem for problem in problems if problem]:
        raise TflaunchError(f"its code stays on {'; '.join(failed)}", EXIT_INTERNAL)


def _remove_on(host: str, connector: AgentConnector, run: str) -> str:
    """Have an agent in the run's directory on a host remove the copy; return what failed, or ""."""
    try:
        with visiting(connector, run) as agent:
            agent.call("remove_code", _PATIENCE)
    except (LinkError, AgentGoneError) as error:
        return f"{host}: {error}"
    return ""
