"""Turn the tasks of a status into table cells: one row per task, or one per role.

Pure: a status in, cells out. `layout` lays them out on a terminal.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tflaunch.tui import formatting

Status = Mapping[str, Any]
"""What `tflaunch ps --json` prints. Every key may be missing or null."""

LAST_LINE = "LAST LINE"
METRIC = "="
"""Prefix of a column that holds a metric, so that a metric may have any name."""

_STYLES = {
    "running": "green",
    "succeeded": "green",
    "failed": "bold red",
    "restarting": "yellow",
    "not listening": "bold yellow",
    "disconnected": "yellow",
    "lost": "bold red",
    "stopping": "yellow",
    "starting": "cyan",
}
_BAD_FIRST = (
    "failed",
    "lost",
    "disconnected",
    "not listening",
    "restarting",
    "starting",
    "stopping",
    "waiting",
    "running",
    "succeeded",
    "stopped",
)
_ALIVE = ("starting", "running", "not listening", "disconnected", "stopping")
_LONG_START = 60.0  # seconds after which a task that is still starting gets its own row
_MOST_METRICS = 6


class Cell(NamedTuple):
    """A text and its rich style."""

    text: str
    style: str = ""


Row = dict[str, Cell]
"""Maps columns to cells; empty columns are missing."""


def tasks_of(status: Status) -> list[Status]:
    """Return the tasks of a status, ignoring malformed entries."""
    return [task for task in _list(status.get("tasks")) if isinstance(task, Mapping)]


def by_task(tasks: Sequence[Status], now: float, among: Sequence[Status] | None = None) -> list[Row]:
    """Return one row per task, without a host or an attempt that all of them share.

    Args:
        tasks: as in a status.
        now: seconds since the epoch.
        among: all tasks, if ``tasks`` is a subset.
    """
    every = tasks if among is None else among
    same = {"HOST"} if len({formatting.plain(task.get("host")) for task in every}) == 1 else set()
    same |= {"ATTEMPT"} if len({formatting.number(task.get("attempt")) for task in every}) == 1 else set()
    found = [_row(task, now) for task in tasks]
    return [{title: cell for title, cell in row.items() if cell.text and title not in same} for row in found]


def by_role(tasks: Sequence[Status], now: float) -> list[Row]:
    """Return one row per role, followed by one per task with a problem."""
    roles: dict[str, list[Status]] = {}
    for task in tasks:
        roles.setdefault(_role(task), []).append(task)
    not_fine = sorted((task for task in tasks if not _is_fine(task, now)), key=_badness)
    return [_group(role, members) for role, members in roles.items()] + by_task(not_fine, now, tasks)


def state(task: Status) -> str:
    """Return a task's state, "" if unknown; "not listening" for a task that the cluster waits for."""
    word = formatting.plain(task.get("state"))
    return "not listening" if word == "waiting" and task.get("listening") is False else word


def style_of(word: str) -> str:
    """Return the style of a state."""
    return _STYLES.get(word, "")


def counts(words: Iterable[str]) -> str:
    """Return the number of tasks per state, worst first: "1 failed, 62 running"."""
    found = Counter(word or "unknown" for word in words)
    return ", ".join(f"{found[word]} {word}" for word in sorted(found, key=_place))


def _place(word: str) -> int:
    return _BAD_FIRST.index(word) if word in _BAD_FIRST else len(_BAD_FIRST)


def _badness(task: Status) -> int:
    return _place(state(task))


def _is_fine(task: Status, now: float) -> bool:
    word, since = state(task), formatting.number(task.get("since"))
    if word == "starting":
        return since is None or now - since <= _LONG_START
    return word not in ("failed", "lost", "restarting", "disconnected", "not listening")


def _role(task: Status) -> str:
    return formatting.plain(task.get("role")) or formatting.plain(task.get("task")).partition(":")[0]


def _row(task: Status, now: float) -> Row:
    word = state(task)
    since = formatting.number(task.get("since"))
    attempt = formatting.number(task.get("attempt"))
    epoch, epochs = formatting.number(task.get("epoch")), formatting.number(task.get("epochs"))
    row = {
        "TASK": Cell(formatting.plain(task.get("task"))),
        "STATE": Cell(word, style_of(word)),
        "EXIT": Cell(_end(task, word)),
        "HOST": Cell(formatting.plain(task.get("host"))),
        "ATTEMPT": Cell(formatting.count(attempt) if attempt is not None and attempt > 0 else ""),
        "UP": Cell(formatting.duration(now - since) if since is not None and word in _ALIVE else ""),
        **_usage([task]),
        "STEP": _cell(task, "step", formatting.count),
        "RATE": _cell(task, "steps_per_second", formatting.rate) if _is_alive(task) else Cell(""),
        "EPOCH": Cell(_of(epoch, epochs)),
        **_metrics(task.get("metrics")),
        LAST_LINE: Cell(formatting.plain(task.get("last_line")).strip(), "dim"),
    }
    done = _done(task, epoch, epochs)
    if done is not None:
        row["DONE"] = Cell(formatting.bar(done))
    return row


def _group(role: str, tasks: Sequence[Status]) -> Row:
    words, alive = [state(task) for task in tasks], filter(_is_alive, tasks)
    steps, rates = _numbers(tasks, "step"), _numbers(alive, "steps_per_second")
    row = {
        "TASK": Cell(f"{role} ×{len(tasks)}"),  # noqa: RUF001 (times, not the letter)
        "STATE": Cell(counts(words), style_of(min(words, key=_place))),
        **_usage(tasks),
        "STEP": Cell(formatting.span(steps) if steps else ""),
        "RATE": Cell(formatting.rate(sum(rates) / len(rates)) if rates else ""),
    }
    return {title: cell for title, cell in row.items() if cell.text}


def _is_alive(task: Status) -> bool:
    """Whether the measurements of a task are still meaningful."""
    return state(task) in ("", *_ALIVE)


def _usage(every: Sequence[Status]) -> Row:
    """Return the total usage of running tasks; for GPU utilization the mean, because it cannot be added.

    Shared memory cannot be added either: it is part of each task's own figure.
    """
    tasks = [task for task in every if _is_alive(task)]
    share, held = _numbers(tasks, "gpu_percent"), _numbers(tasks, "gpu_bytes")
    cpu, rss = _numbers(tasks, "cpu_percent"), _numbers(tasks, "rss_bytes")
    shared = _numbers(tasks, "shared_bytes")
    return {
        "CPU": Cell(f"{sum(cpu):.0f}%" if cpu else ""),
        "MEM": Cell(formatting.memory(sum(rss)) if rss else ""),
        "SHARED": Cell(formatting.memory(max(shared)) if shared else ""),
        "GPU": Cell(f"{sum(share) / len(share):.0f}%" if share else ""),
        "GPU MEM": Cell(formatting.memory(sum(held)) if held else ""),
    }


def _end(task: Status, word: str) -> str:
    """Return how a task ended: its exit code, or the name of the signal that killed it."""
    number, code = formatting.number(task.get("signal")), formatting.number(task.get("exit_code"))
    if word in _ALIVE or (number is None and code is None):
        return ""
    if number is None:
        return f"{code:.0f}"
    try:
        return signal.Signals(int(number)).name.removeprefix("SIG")
    except ValueError:
        return f"signal {number:.0f}"


def _done(task: Status, epoch: float | None, epochs: float | None) -> float | None:
    """Return the fraction of training done: by steps if their number is known, otherwise by whole epochs."""
    if not epochs or epochs < 0:
        return None
    step, steps = formatting.number(task.get("step")), formatting.number(task.get("steps_per_epoch"))
    if step is not None and steps and steps > 0:
        return step / (epochs * steps)
    return None if epoch is None else (epoch - 1) / epochs


def _of(value: float | None, total: float | None) -> str:
    if value is None:
        return ""
    return formatting.count(value) if total is None else f"{formatting.count(value)}/{formatting.count(total)}"


def _metrics(values: Any) -> Row:
    """Return one column per metric, loss first."""
    if not isinstance(values, Mapping):
        return {}
    names = sorted((name for name in values if formatting.plain(name)), key=lambda name: name != "loss")
    shown = names[:_MOST_METRICS]
    return {METRIC + formatting.plain(name, 20).upper(): _cell(values, name, formatting.significant) for name in shown}


def _cell(values: Mapping[str, Any], key: str, words: Callable[[float], str]) -> Cell:
    value = formatting.number(values.get(key))
    return Cell("" if value is None else words(value))


def _numbers(tasks: Iterable[Status], key: str) -> list[float]:
    return [value for task in tasks if (value := formatting.number(task.get(key))) is not None]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
