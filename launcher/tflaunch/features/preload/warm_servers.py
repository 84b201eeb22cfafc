"""The warm servers of this user on the hosts of a plan: start, list and end them."""

import itertools
import os
import time
from typing import Any, NamedTuple

from tflaunch.client import follow
from tflaunch.client.observer import Observer
from tflaunch.client.run_list import aligned
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.core.events import Count, Reason, Seconds
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, TflaunchError
from tflaunch.explain import wording
from tflaunch.features.preload.preloading import Preloading, is_warm_host
from tflaunch.features.rpc import AgentRpc, ask_hosts
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.task_starter import REFUSED
from tflaunch.records import read_record
from tflaunch.runtime import launch
from tflaunch.store.run_dir import home
from tflaunch_worker import fields, file_trees
from tflaunch_worker.features.preload import warm_client
from tflaunch_worker.readable import duration_words

_COLUMNS = ("HOST", "PYTHON", "MODULES", "MEMORY", "RUNS", "ENDS IN")
_PATIENCE = 60.0  # seconds for a host's servers to end


class WarmServer(NamedTuple):
    """A process that has imported modules and waits for runs.

    ``memory_bytes`` has its part of each shared page; ``uses``: how many runs it has started; ``idle_left``: seconds
    until it ends unless it is used. If it does not answer, it is stopped, and of no use.
    """

    host: str
    pid: Count
    python: Reason
    modules: tuple[Reason, ...]
    memory_bytes: Count
    uses: Count
    idle_left: Seconds
    answers: bool = True


WarmServers = list[WarmServer]


def on_this_machine(host: str = LOCALHOST, *, is_stop: bool = False) -> WarmServers:
    """Return the warm servers below TFLAUNCH_HOME; ``is_stop``: after their end.

    Raises:
        TflaunchError: another user could have put files there.
    """
    look = warm_client.stop_servers if is_stop else warm_client.describe_servers
    return [read_server(host, status) for status in look(warm_client.servers_directory(str(home()), os.environ))]


def on_hosts(plan: Plan, *, is_stop: bool) -> tuple[WarmServers, list[str]]:
    """Return the warm servers on a plan's hosts, and problems; ``is_stop``: end them."""
    hosts = [host for host in plan.hosts if is_warm_host(host)]
    others = plan._replace(hosts=tuple(host for host in hosts if not host.is_local), warm=None)
    directory = home() / "runs" / f"warm-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"

    def look(agent: AgentRpc, host: str) -> WarmServers:
        answer, _ = agent.call("look_for_warm", _PATIENCE, stop=is_stop)
        return [read_server(host, status) for status in fields.items(answer, "servers")]

    here = next((on_this_machine(host.host, is_stop=is_stop) for host in hosts if host.is_local), [])
    there, problems = ask_hosts(others, directory, [host.host for host in others.hosts], look)
    return [*here, *itertools.chain(*there)], problems


def start_servers(plan: Plan) -> None:
    """Leave a warm server on each host of a plan, by a run of it that only imports.

    Raises:
        TflaunchError: no server can stay on a host; says why.
    """
    importing = only_importing(plan)
    if left := sorted({process.host for process in plan.tasks} - {task.host for task in importing.tasks}):
        message = "its commands are not Python's, its network is private, or the host is a container or a job"
        raise TflaunchError(f"no warm server can stay on {', '.join(left)}: {message}", EXIT_INTERNAL)
    messages: list[str] = []
    try:
        with launch.new_directory(importing, None, ".json", b"{}") as directory:
            launch.start_supervisor(importing, directory, is_owned=True)
        observer = Observer(directory.path)
        code = follow.until_end(observer, messages.append)
    except KeyboardInterrupt:
        raise TflaunchError("interrupted", EXIT_INTERRUPTED) from None  # the run ends with this process
    if code:
        raise TflaunchError("\n".join(["the modules could not be imported", *messages]), code)
    file_trees.remove_tree(str(directory.path))
    reasons = {observer.job.plan.find(name).host: task.preload for name, task in observer.job.tasks.items()}
    refused = {host: text for host, text in reasons.items() if text.startswith(REFUSED)}
    if refused:
        text = "; ".join(f"{host}: {text.removeprefix(REFUSED)}" for host, text in refused.items())
        raise TflaunchError(f"no warm server stays on {text}", EXIT_INTERNAL)


def only_importing(plan: Plan) -> Plan:
    """Return a plan that leaves a plan's warm servers: one short task on each host."""
    chosen: dict[str, TaskPlan] = {}
    for process in plan.processes():
        if Preloading().order(plan, process, is_first=True)["warm"]:
            argv = (process.argv[0], *(["-u"] if process.argv[1:2] == ("-u",) else []), "-c", "pass")
            chosen.setdefault(process.host, process._replace(task=f"worker:{len(chosen)}", argv=argv))
    return plan._replace(
        strategy="none",
        success="all",
        tasks=tuple(chosen.values()),
        sidecars=(),
        hosts=tuple(host for host in plan.hosts if host.host in chosen),
        restart=plan.restart._replace(max=0),
        elastic=None,
        spares=(),
        variants=(),
        preflight=False,
        collect=(),
        notify=None,
        checkpoints=None,
    )


def read_server(host: str, status: Any) -> WarmServer:
    """Return a server as its own host describes it; raises as `read_record`."""
    return read_record(WarmServer, {**fields.mapping({"server": status}, "server"), "host": host})


def table(servers: list[WarmServer]) -> str:
    """Format the servers as aligned text."""
    rows = [_COLUMNS]
    for each in servers:
        size, left = wording.memory(each.memory_bytes), duration_words(each.idle_left) if each.answers else "stopped"
        rows.append((each.host, each.python, ",".join(each.modules), size, str(each.uses), left))
    return aligned(rows)
