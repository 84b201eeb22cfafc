"""List all runs of this user on this machine, one line each."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tflaunch.client import runs
from tflaunch.core.job_state import Phase
from tflaunch.errors import TflaunchError
from tflaunch.explain.status import state_of_run
from tflaunch.explain.wording import lasted
from tflaunch.slurm import batch
from tflaunch.store import journal, run_dir
from tflaunch.store.journal_reader import first_and_last_record

_STATES = {0: "succeeded", 128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "stopped"}
"""The state that an exit code implies for a run whose journal does not name its state."""

_COLUMNS = ("RUN", "STATE", "EXIT", "TASKS", "STARTED", "LASTED")


def overview() -> list[dict[str, Any]]:
    """Return all runs, newest first; for a lost run, kill what a killed agent left on this machine.

    Each has ``run``, ``name``, ``state``, ``exit_code``, ``tasks`` (a count), ``started`` and ``ended`` (seconds since
    1970; None for a run that has not ended). The state is the phase of a live run, ``queued`` (by Slurm),
    ``succeeded``, ``failed``, ``stopped``, ``interrupted``, ``lost`` or ``unreadable``.
    """
    return [entry_of(directory) for directory in runs.newest_first()]


def entry_of(directory: Path) -> dict[str, Any]:
    """Return what `overview` has about the run in ``directory``."""
    unreadable = {"run": directory.name, "name": None, "exit_code": None, "tasks": None, "started": None, "ended": None}
    try:
        found = first_and_last_record(run_dir.open_run(directory))
        if found is None:
            return {**unreadable, "state": _state_without_journal(directory)}
        first, last = found
        about = {"run": directory.name, "name": str(first["plan"]["name"]), "tasks": len(first["plan"]["tasks"])}
        state, exit_code = _state(directory, last)
        ended = None if exit_code is None else last["time"]
        return {**about, "state": state, "exit_code": exit_code, "started": first["time"], "ended": ended}
    except (TflaunchError, KeyError, TypeError, ValueError):
        return {**unreadable, "state": "unreadable"}


def _state_without_journal(directory: Path) -> str:
    if batch.job_of(directory) is None:
        return "unreadable"
    return "queued" if batch.is_active(directory) else "stopped"


def _state(directory: Path, last: dict[str, Any]) -> tuple[str, int | None]:
    if last["kind"] == "ended":
        code = int(last["exit_code"])
        return str(last.get("state") or _STATES.get(code, "failed")), code
    is_live = runs.is_live(directory)  # before reading the journal, as the run may end in between
    _, job = journal.read_job(directory)
    if job.phase is Phase.ENDED:
        return state_of_run(job, None), job.exit_code
    if not is_live:
        runs.kill_orphans(directory)
    return (job.phase.value if is_live else "lost"), None


def table(entries: list[dict[str, Any]], now: float) -> str:
    """Format the runs as aligned text; ``now`` is in seconds since the epoch."""
    rows = [_COLUMNS, *(_row(entry, now) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _row(entry: dict[str, Any], now: float) -> tuple[str, ...]:
    started = "-" if entry["started"] is None else f"{_ago(now - entry['started'])} ago"
    took = "-" if entry["ended"] is None else lasted(entry["ended"] - entry["started"])
    cells = ("-" if entry[name] is None else str(entry[name]) for name in ("exit_code", "tasks"))
    return (entry["run"], entry["state"], *cells, started, took)


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"
