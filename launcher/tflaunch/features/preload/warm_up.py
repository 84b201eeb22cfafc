"""Start warm servers for later runs of a plan."""

from __future__ import annotations

from tflaunch.client import follow
from tflaunch.client.observer import Observer
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.preload.preloading import Preloading
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.task_starter import REFUSED
from tflaunch.runtime import launch, supervisor_process
from tflaunch_worker import file_trees


def start_servers(plan: Plan) -> None:
    """Leave a warm server on each host of a plan: by a run of it whose tasks only import, and end.

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
            supervisor_process.start(importing, directory, is_owned=True)
        observer = Observer(directory.path)
        code = follow.until_end(observer, messages.append)
    except KeyboardInterrupt:
        raise TflaunchError("interrupted", 130) from None  # the run ends with this process
    if code:
        raise TflaunchError("\n".join(["the modules could not be imported", *messages]), code)
    file_trees.remove_tree(str(directory.path))
    reasons = {observer.job.plan.find(name).host: task.preload for name, task in observer.job.tasks.items()}
    refused = {host: text for host, text in reasons.items() if text.startswith(REFUSED)}
    if refused:
        text = "; ".join(f"{host}: {text.removeprefix(REFUSED)}" for host, text in refused.items())
        raise TflaunchError(f"no warm server stays on {text}", EXIT_INTERNAL)


def only_importing(plan: Plan) -> Plan:
    """Return a plan that leaves the warm servers for another one: on each host one task, which ends at once."""
    chosen: dict[str, TaskPlan] = {}
    for process in plan.processes():
        if Preloading().order(plan, process)["warm"]:
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
