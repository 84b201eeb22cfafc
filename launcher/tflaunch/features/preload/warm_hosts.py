"""The warm servers of this user on the hosts of a plan: list them, and end them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from tflaunch.agents.rpc import visiting
from tflaunch.features.preload import warm_servers
from tflaunch.features.preload.warm_servers import WarmServer
from tflaunch.plan.model import Plan
from tflaunch.store.run_dir import RunDirectory, home
from tflaunch.transport.base import AgentConnector, AgentGoneError, LinkError
from tflaunch.transport.connect import connectors_for
from tflaunch_worker import fields

_AT_ONCE = 16
_PATIENCE = 60.0  # seconds for a host's servers to end


def on_hosts(plan: Plan, *, is_stop: bool) -> tuple[list[WarmServer], list[str]]:
    """Return the warm servers on the hosts of a plan, and a sentence about each host that cannot be reached.

    Args:
        plan: the plan.
        is_stop: whether to end them.
    """
    hosts = [host for host in plan.hosts if plan.is_warm_host(host.host)]
    others = plan._replace(hosts=tuple(host for host in hosts if not host.is_local), warm=None)
    directory = home() / "runs" / f"warm-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    connectors = connectors_for(others, RunDirectory.existing(directory, directory / "logs"))
    found, problems = [], []
    if here := next((host.host for host in hosts if host.is_local), ""):
        found += warm_servers.stop(here) if is_stop else warm_servers.living(here)
    with ThreadPoolExecutor(_AT_ONCE, "warm") as pool:  # no limit: its threads have theirs
        visits = {
            host: pool.submit(_visit, host, connector, directory.name, is_stop)
            for host, connector in connectors.items()
        }
    for host, visit in visits.items():
        try:
            found += visit.result()  # no limit: its threads have theirs
        except (LinkError, AgentGoneError, ValueError) as error:
            problems.append(f"{host}: {error}")
    return found, problems


def _visit(host: str, connector: AgentConnector, run: str, is_stop: bool) -> list[WarmServer]:
    """Ask an agent on a host for its warm servers.

    Raises:
        LinkError: it does not answer.
        AgentGoneError: it cannot be started.
        ValueError: the answer is not one.
    """
    with visiting(connector, run) as agent:
        answer, _ = agent.call("look_for_warm", _PATIENCE, stop=is_stop)
    return [warm_servers.read_server(host, status) for status in fields.items(answer, "servers")]
