"""Get a run's status: from its supervisor, else from journal and agents."""

from __future__ import annotations

import time
from pathlib import Path

from tflaunch.agents.snapshot import AgentSnapshot
from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import locate_run
from tflaunch.client.runs import NoSupervisorError, Outcome
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain.run_status import HostStatus, Status, TaskStatus
from tflaunch.explain.status import StatusInputs, status
from tflaunch.feature import ask, features
from tflaunch.store.log_writer import tail


def current_status(directory: Path) -> Status:
    """Return the status of the run in ``directory``, with the last line of each task.

    Raises:
        TflaunchError: the journal is missing or damaged, or the supervisor does not answer.
    """
    current = status_of_supervisor(directory) or _status_of_journal(directory)
    logs = Path(current.logs)
    columns = [
        ask(name, feature.columns, directory, current) or {} for name, feature in features().items() if feature.columns
    ]

    def complete(task: TaskStatus) -> TaskStatus:
        told = {title: value for values in columns for title, value in values.get(task.task, {}).items()}
        return task._replace(last_line=next(iter(tail(logs, task.task, 1)), None), columns=told or None)

    return current._replace(tasks=tuple(map(complete, current.tasks)))


def status_of_supervisor(directory: Path) -> Status | None:
    """Return the status from the supervisor, None without a supervisor."""
    try:
        client = ControlClient(directory)
    except NoSupervisorError:
        return None
    try:
        return client.ask_status()
    except NoSupervisorError:
        return None
    finally:
        client.close()


def _status_of_journal(directory: Path) -> Status:
    """Return the status from the journal, corrected by the agents of a lost run."""
    if waits := locate_run(directory).describe_wait():  # a journal, if any, is of an earlier execution
        raise TflaunchError(waits, EXIT_INTERNAL)
    observer = Observer(directory)
    observer.catch_up()
    now = time.time() - observer.epoch
    is_alive = observer.outcome is Outcome.LIVE
    inputs = StatusInputs(observer.epoch, str(observer.logs), is_alive, now, known=observer.known)
    current = status(observer.job, inputs, observer.exit_code)
    if observer.outcome is Outcome.LOST and observer.job.exit_code is None:
        seen = runs.look_at_hosts(directory)
        hosts = tuple(_corrected_host(host, seen[host.host]) for host in current.hosts)
        return current._replace(
            hosts=hosts, tasks=tuple(_corrected_task(task, seen[task.host]) for task in current.tasks)
        )
    return current


def _corrected_host(host: HostStatus, seen: AgentSnapshot) -> HostStatus:
    if seen.tasks is None:
        return host._replace(state="disconnected", reason=seen.reason)
    return host._replace(state="connected" if seen.tasks else "down", reason=None, lease_left=seen.lease_left)


def _corrected_task(task: TaskStatus, seen: AgentSnapshot) -> TaskStatus:
    if seen.tasks is None:
        return task._replace(state="disconnected") if task.pid else task
    if task.task in seen.tasks:
        attempt, pid = seen.tasks[task.task]
        return task._replace(state="running", attempt=attempt, pid=pid)
    return task._replace(state="stopped", pid=None) if task.pid else task
