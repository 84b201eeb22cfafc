"""Get a run's status in another process: from its supervisor, else from the journal and the agents."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tflaunch.agents.snapshot import AgentSnapshot, look_at
from tflaunch.client.control_client import ControlClient, NoSupervisor
from tflaunch.client.observer import Observer, Outcome
from tflaunch.explain.status import Sight, status
from tflaunch.store.log_writer import tail
from tflaunch.store.run_dir import RunDirectory
from tflaunch.transport.connect import connectors_for


def standing(directory: Path) -> dict[str, Any]:
    """Return the status of the run in ``directory``, as `status.status` describes it.

    Raises:
        TflaunchError: there is no journal, the journal is damaged, or the supervisor does not answer.
    """
    current = _told(directory)
    if current is None:
        current = _remembered(directory)
    logs = Path(current["logs"])
    for task in current["tasks"]:
        task["last_line"] = next(iter(tail(logs, task["task"], 1)), None)
    return current


def _told(directory: Path) -> dict[str, Any] | None:
    """Return the status from the supervisor, None without a supervisor."""
    try:
        client = ControlClient(directory)
    except NoSupervisor:
        return None
    try:
        told: dict[str, Any] = client.ask("status")["status"]
    except NoSupervisor:
        return None
    finally:
        client.close()
    return told


def unheard_hosts(observer: Observer) -> list[str]:
    """Query the hosts of a lost run, which kills what killed agents left there.

    Returns a sentence for each host that cannot be queried.
    """
    run = RunDirectory.existing(observer.directory, observer.logs)
    seen = look_at(connectors_for(observer.job.original, run))
    return [f"{sighting.host}: {sighting.reason}" for sighting in seen.values() if sighting.tasks is None]


def _remembered(directory: Path) -> dict[str, Any]:
    """Return the status from the journal, corrected by the agents if the run's supervisor was killed."""
    observer = Observer(directory)
    observer.catch_up()
    now = time.time() - observer.epoch
    is_alive = observer.outcome is Outcome.LIVE
    current = status(observer.job, Sight(observer.epoch, str(observer.logs), is_alive, now), observer.exit_code)
    if observer.outcome is Outcome.LOST and observer.job.exit_code is None:
        run = RunDirectory.existing(directory, observer.logs)
        _correct(current, look_at(connectors_for(observer.job.original, run)))
    return current


def _correct(current: dict[str, Any], seen: dict[str, AgentSnapshot]) -> None:
    """Replace the journal's last known state by what the agents report."""
    for host in current["hosts"]:
        sighting = seen[host["host"]]
        if sighting.tasks is None:
            host.update(state="disconnected", reason=sighting.reason)
        else:
            host.update(state="connected" if sighting.tasks else "down", reason=None, lease_left=sighting.lease_left)
    for task in current["tasks"]:
        living = seen[task["host"]].tasks
        if living is None:
            task["state"] = "disconnected" if task["pid"] else task["state"]
        elif task["task"] in living:
            attempt, pid = living[task["task"]]
            task.update(state="running", attempt=attempt, pid=pid)
        elif task["pid"]:
            task.update(state="stopped", pid=None)
