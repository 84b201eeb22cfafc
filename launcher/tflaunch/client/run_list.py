"""List all runs of this user on this machine, one line each."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tflaunch.client import runs
from tflaunch.client.observer import current_status
from tflaunch.client.run_location import locate_run
from tflaunch.core.events import read_metrics
from tflaunch.core.job_state import Phase
from tflaunch.errors import TflaunchError
from tflaunch.explain import assessment
from tflaunch.explain.status import state_of_run
from tflaunch.feature import feature_verbs
from tflaunch.plan.placeholders import name_without_values
from tflaunch.store import journal, run_dir
from tflaunch.store.history import Figures, last_moment
from tflaunch_worker.readable import age_words, duration_words, printable

LIVE = "live"
"""The state of all runs that have not ended."""
_ENDED = ("succeeded", "failed", "stopped", "interrupted", "lost", "unreadable")
_PHASES = tuple(phase.value for phase in Phase if phase is not Phase.ENDED)
_STANDING = (Phase.PREPARING.value, Phase.STOPPING.value, Phase.BACKING_OFF.value, Phase.WAITING_FOR_HOSTS.value)
"""Phases in which no task trains."""
_LIVING = (*_PHASES, "queued", "elsewhere", "not begun")
STATES = (LIVE, *_LIVING, *_ENDED)
"""What a run's state can be."""

_COLUMNS = ("RUN", "STATE", "EXIT", "TASKS", "STARTED", "LASTED")
_MOST_ASKED_ABOUT = 100  # runs
_MOST_METRICS = 6
_LONGEST_TRAINING = 10 * 365 * 86400.0  # what a program says may be anything
_LONGEST_CELL = 30


class RunEntry(NamedTuple):
    """A run; times are in seconds since the epoch, null where unknown.

    `matrix` has the values of --matrix, `job` is the name without them. `engine` is what its hosts belong to, such as
    ``kubernetes``; `host` is the only one of its `hosts` with tasks. `step` and `metrics` are the last ones that the
    run has reported. A run in the queue of a batch system has a `position` there, from 1 on, and an `expected_start`,
    where that is known. A live run that tells how many `steps` it has in all is expected to take the last one at
    `expected_end`, at the present rate, while its tasks run. The state is the phase of a live run, ``queued``,
    ``elsewhere`` (supervised in a cluster), ``not begun``, ``succeeded``, ``failed``, ``stopped``, ``interrupted``,
    ``lost`` or ``unreadable``. The fields from `trains` on are those of `ps`; of a run that has not ended, they are
    unknown until `assessed_entry` has set them.
    """

    run: str
    name: str | None = None
    job: str | None = None
    state: str = "unreadable"
    exit_code: int | None = None
    tasks: int | None = None
    hosts: int | None = None
    host: str | None = None
    engine: str | None = None
    started: float | None = None
    ended: float | None = None
    matrix: Mapping[str, str] = {}
    step: int | None = None
    steps: int | None = None
    expected_end: float | None = None
    position: int | None = None
    expected_start: float | None = None
    metrics: Mapping[str, float] = {}
    trains: str = assessment.UNKNOWN
    phase: str | None = None
    since: float | None = None
    because: str = ""
    next_commands: tuple[tuple[str, ...], ...] = ()


Listing = list[RunEntry]


def overview(
    beginning: str = "",
    states: Collection[str] = (),
    since: float = 0.0,
    most: int | None = None,
    among: Collection[str] | None = None,
) -> Listing:
    """Return the newest runs whose names have this beginning, newest first.

    Only those in these ``states`` (`LIVE` is that of all that have not ended), that began since a time (in seconds
    since the epoch), and are ``among`` these names. Of a lost run, what a killed agent has left on this machine is
    killed.
    """
    named = (path for path in run_dir.newest_first() if path.name.startswith(beginning))
    entries = (entry_of(path) for path in named if among is None or path.name in among)
    wanted = (entry for entry in entries if _is_in(entry, states) and (entry.started or since) >= since)
    return list(islice(wanted, most))


def run_to_explain() -> Path:
    """Return the run that a user asks about after a failure; raises as `find_run`.

    It is the run that failed last, unless another one has begun after that: then the live one, or else the newest.
    """
    newest = overview(most=_MOST_ASKED_ABOUT)
    failed = [entry for entry in newest if entry.state == "failed"]
    last = max(failed, key=lambda entry: entry.ended or 0.0, default=None)
    if last is None or any((entry.started or 0.0) > (last.ended or 0.0) for entry in newest):
        return runs.find_run(None)
    return runs.find_run(last.run)


def _is_in(entry: RunEntry, states: Collection[str]) -> bool:
    return not states or entry.state in states or (LIVE in states and entry.state in _LIVING)


def entry_of(directory: Path) -> RunEntry:
    """Return the entry of `overview` for the run in ``directory``."""
    unknown = RunEntry(directory.name)
    try:
        found = journal.first_and_last_record(run_dir.open_run(directory))
        location = locate_run(directory)
        if found is None:
            return unknown._replace(**location.describe_run())
        first, last = found
        if location.describe_wait():  # what is recorded is of an earlier execution
            return unknown._replace(**{**_described(first["plan"]), **location.describe_run()})
        state, exit_code = _state(directory, last)
        results = last if last["kind"] == "ended" else _results_so_far(directory, state)
        is_living = state in _LIVING
        entry = unknown._replace(
            **_described(first["plan"]),
            state=state,
            exit_code=exit_code,
            started=first["time"],
            ended=None if exit_code is None else last["time"],
            step=results.get("step"),
            steps=results.get("steps") if is_living else None,
            expected_end=results.get("expected_end") if is_living else None,
            metrics=read_metrics("metrics", results.get("metrics")),
        )
        if exit_code is None:
            return entry
        because = str(results.get("because") or "")
        end = assessment.assess_end(entry.run, state, exit_code, because, feature_verbs())
        return entry._replace(**end._replace(since=entry.ended)._asdict())
    except (TflaunchError, KeyError, TypeError, ValueError):
        return unknown


def assessed_entry(entry: RunEntry) -> RunEntry:
    """Return an entry with whether its run trains; one that has not ended is asked."""
    if entry.phase is not None:
        return entry
    try:
        status = current_status(run_dir.runs_directory() / entry.run)
    except TflaunchError as error:
        return entry._replace(because=str(error))
    return entry._replace(**{name: getattr(status, name) for name in assessment.Assessment._fields})


def _described(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that its recorded plan tells."""
    matrix = {str(name): str(value) for name, value in plan.get("matrix", {}).items()}
    hosts = sorted({str(task["host"]) for task in plan["tasks"]})
    return {
        "name": str(plan["name"]),
        "job": name_without_values(str(plan["name"]), matrix),
        "tasks": len(plan["tasks"]),
        "hosts": len(hosts),
        "host": hosts[0] if len(hosts) == 1 else None,
        "engine": next((str(host["engine"]) for host in plan["hosts"] if host.get("engine")), None),
        "matrix": matrix,
    }


def _results_so_far(directory: Path, state: str) -> dict[str, Any]:
    """Return the last step and metrics of a live run, and its expected end."""
    moment = last_moment(directory)
    if moment is None:
        return {}
    figures = list(moment.tasks.values())
    first = next((each for each in figures if each.step), Figures())
    left = [
        (each.total - each.step) / each.steps_per_second
        for each in figures
        if each.step and each.total and each.steps_per_second
    ]
    is_known = first.total and left and 0 <= max(left) < _LONGEST_TRAINING
    return {
        "step": int(first.step) if first.step else None,
        "steps": int(first.total) if is_known and first.total else None,
        "expected_end": round(moment.time + max(left), 1) if is_known and state not in _STANDING else None,
        "metrics": next((each.metrics for each in figures if each.metrics), {}),
    }


def _state(directory: Path, last: dict[str, Any]) -> tuple[str, int | None]:
    if (end := runs.read_end(last)) is not None:
        return end.state, end.exit_code
    is_live = runs.is_live(directory)  # before reading the journal, as the run may end in between
    _, job = journal.read_job(directory)
    if job.phase is Phase.ENDED:
        return state_of_run(job, None), job.exit_code
    if not is_live:
        runs.kill_orphans(directory)
    return (job.phase.value if is_live else "lost"), None


def table(entries: Sequence[RunEntry], now: float, width: int | None = None) -> str:
    """Return the runs as aligned text; ``now`` is in seconds since the epoch.

    If some were made by `--matrix`, their values and the last metrics of all are columns: as many as fit into the
    ``width`` of a terminal.
    """
    names = _names_in(entries, "matrix")
    metrics = _names_in(entries, "metrics")[:_MOST_METRICS] if names else []
    has_steps = bool(names) and any(entry.step is not None for entry in entries)
    heading = (*_COLUMNS, *map(_cell, names), *(["STEP"] if has_steps else []), *map(_cell, metrics))
    rows = [heading]
    for entry in entries:
        results = [_cell(entry.matrix.get(name)) for name in names]
        results += [_cell(entry.step)] if has_steps else []
        rows.append((*_row(entry, now), *results, *(_cell(entry.metrics.get(name)) for name in metrics)))
    return _fitting(rows, len(names), width)


def _fitting(rows: Sequence[Sequence[str]], names: int, width: int | None) -> str:
    """Return rows as aligned text, less the least important columns beyond ``width``."""
    end = len(_COLUMNS) + names
    results, values = range(end, len(rows[0])), range(len(_COLUMNS), end)
    lasted, tasks, started = (_COLUMNS.index(title) for title in ("LASTED", "TASKS", "STARTED"))
    left_out = [lasted, tasks, *reversed(results), started, *reversed(values)]
    for count in range(len(left_out) + 1):
        kept = [[cell for at, cell in enumerate(row) if at not in left_out[:count]] for row in rows]
        text = aligned(kept)
        if width is None or max(map(len, text.splitlines())) <= width:
            break
    return text


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of the same number of cells as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _names_in(entries: Sequence[RunEntry], field: Literal["matrix", "metrics"]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in getattr(entry, field)))


def _cell(value: float | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else printable(str(value), _LONGEST_CELL)


def _row(entry: RunEntry, now: float) -> tuple[str, ...]:
    began, ended = entry.started, entry.ended
    expected = entry.expected_start
    soon = "-" if expected is None else f"in {duration_words(max(expected - now, 0.0))}"
    started = soon if began is None else age_words(now - began)
    took = "-" if began is None or ended is None else duration_words(ended - began)
    cells = ("-" if number is None else str(number) for number in (entry.exit_code, entry.tasks))
    return (entry.run, entry.state, *cells, started, took)
