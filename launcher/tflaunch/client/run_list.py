"""List all runs of this user on this machine, one line each."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.core.job_state import Phase
from tflaunch.errors import TflaunchError
from tflaunch.explain.status import state_of_run
from tflaunch.printable import printable
from tflaunch.store import journal, run_dir, run_names
from tflaunch.store.history import last_moment
from tflaunch.store.journal_reader import first_and_last_record
from tflaunch_worker.readable import age_words, duration_words

LIVE = "live"
"""The state of all runs that have not ended."""
_ENDED = ("succeeded", "failed", "stopped", "interrupted", "lost", "unreadable")
_LIVING = (*(phase.value for phase in Phase if phase is not Phase.ENDED), "queued", "elsewhere", "not begun")
STATES = (LIVE, *_LIVING, *_ENDED)
"""What a run's state can be."""

_STATES = {0: "succeeded", 128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "stopped"}
"""The state that an exit code implies for a run whose journal does not name its state."""

_COLUMNS = ("RUN", "STATE", "EXIT", "TASKS", "STARTED", "LASTED")
_MOST_METRICS = 6
_LONGEST_CELL = 30


class RunEntry(TypedDict):
    """A run; times are in seconds since the epoch, null for what has not happened or cannot be read.

    `matrix` has the values of --matrix; `step` and `metrics` are the last ones that the run has reported. The
    state is the phase of a live run, ``queued``, ``elsewhere`` (supervised in a cluster), ``not begun``, ``succeeded``,
    ``failed``, ``stopped``, ``interrupted``, ``lost`` or ``unreadable``.
    """

    run: str
    name: str | None
    state: str
    exit_code: int | None
    tasks: int | None
    started: float | None
    ended: float | None
    matrix: Mapping[str, str]
    step: int | None
    metrics: Mapping[str, float]


Listing = list[RunEntry]


def overview(beginning: str = "", states: Collection[str] = (), since: float = 0.0, most: int | None = None) -> Listing:
    """Return the newest runs whose names have this beginning, newest first.

    Of a lost run, what a killed agent has left on this machine is killed.

    Args:
        beginning: of their names.
        states: one of which they have, by default any; `LIVE` is that of all that have not ended.
        since: when they began at the earliest, in seconds since the epoch.
        most: how many runs, by default all.
    """
    entries = (entry_of(path) for path in run_names.newest_first() if path.name.startswith(beginning))
    wanted = (entry for entry in entries if _is_in(entry, states) and (entry["started"] or since) >= since)
    return list(islice(wanted, most))


def _is_in(entry: RunEntry, states: Collection[str]) -> bool:
    return not states or entry["state"] in states or (LIVE in states and entry["state"] in _LIVING)


def entry_of(directory: Path) -> RunEntry:
    """Return what `overview` has about the run in ``directory``."""
    unknown: RunEntry = {
        "run": directory.name,
        "name": None,
        "exit_code": None,
        "tasks": None,
        "started": None,
        "ended": None,
        "matrix": {},
        "step": None,
        "metrics": {},
        "state": "unreadable",
    }
    try:
        found = first_and_last_record(run_dir.open_run(directory))
        if found is None:
            return cast("RunEntry", {**unknown, **locate_run(directory).describe_run()})
        first, last = found
        state, exit_code = _state(directory, last)
        results = last if last["kind"] == "ended" else _results_so_far(directory)
        return {
            "run": directory.name,
            "name": str(first["plan"]["name"]),
            "tasks": len(first["plan"]["tasks"]),
            "state": state,
            "exit_code": exit_code,
            "started": first["time"],
            "ended": None if exit_code is None else last["time"],
            "matrix": {str(name): str(value) for name, value in first["plan"].get("matrix", {}).items()},
            "step": results.get("step"),
            "metrics": results.get("metrics", {}),
        }
    except (TflaunchError, KeyError, TypeError, ValueError):
        return unknown


def _results_so_far(directory: Path) -> dict[str, Any]:
    """Return the last step and metrics of a run that has not ended."""
    moment = last_moment(directory)
    if moment is None:
        return {}
    figures = list(moment.tasks.values())
    steps = [int(each.step) for each in figures if each.step]
    metrics = next((each.metrics for each in figures if each.metrics), {})
    return {"step": max(steps, default=None), "metrics": metrics}


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


def table(entries: Sequence[RunEntry], now: float) -> str:
    """Return the runs as aligned text; ``now`` is in seconds since the epoch.

    If some were made by `--matrix`, their values and the last metrics of all are columns.
    """
    names = _names_in(entries, "matrix")
    metrics = _names_in(entries, "metrics")[:_MOST_METRICS] if names else []
    has_steps = bool(names) and any(entry["step"] is not None for entry in entries)
    heading = (*_COLUMNS, *names, *(["STEP"] if has_steps else []), *metrics)
    rows = [heading]
    for entry in entries:
        results = [_cell(entry["matrix"].get(name)) for name in names]
        results += [_cell(entry["step"])] if has_steps else []
        rows.append((*_row(entry, now), *results, *(_cell(entry["metrics"].get(name)) for name in metrics)))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of the same number of cells as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _names_in(entries: Sequence[RunEntry], field: Literal["matrix", "metrics"]) -> list[str]:
    """Return the names in a field of all entries, in the order in which they are first met."""
    return list(dict.fromkeys(name for entry in entries for name in entry[field]))


def _cell(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else printable(str(value), _LONGEST_CELL)


def _row(entry: RunEntry, now: float) -> tuple[str, ...]:
    began, ended = entry["started"], entry["ended"]
    started = "-" if began is None else age_words(now - began)
    took = "-" if began is None or ended is None else duration_words(ended - began)
    cells = ("-" if entry[name] is None else str(entry[name]) for name in ("exit_code", "tasks"))
    return (entry["run"], entry["state"], *cells, started, took)
