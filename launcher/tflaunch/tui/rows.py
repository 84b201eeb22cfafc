"""Turn the tasks of a status into table cells: a row per task, or per role. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tflaunch.explain import wording
from tflaunch.explain.run_status import TaskStatus
from tflaunch.tui import formatting
from tflaunch.tui.formatting import Cell
from tflaunch_worker.readable import duration_words, signal_name

LAST_LINE = "LAST LINE"
METRIC = "="
"""Prefix of a column that holds a metric, so that a metric may have any name."""

_STYLES = {
    "failed": "bold red",
    "lost": "bold red",
    "disconnected": "yellow",
    "at breakpoint": "bold yellow",
    "not listening": "bold yellow",
    "restarting": "yellow",
    "starting": "cyan",
    "stopping": "yellow",
    "waiting": "",
    "running": "green",
    "succeeded": "green",
    "stopped": "",
}
"""The style of each state, the worst state first."""
_BAD_FIRST = (*_STYLES,)
_ALIVE = ("starting", "running", "at breakpoint", "not listening", "disconnected", "stopping")
_LONG_START = 60.0  # seconds after which a task that is still starting gets its own row
_MOST_METRICS = 6
_LONGEST_TRAINING = 1e9  # seconds


Row = dict[str, Cell]
"""Maps columns to cells; empty columns are missing."""


def by_task(tasks: Sequence[TaskStatus], now: float, among: Sequence[TaskStatus] | None = None) -> list[Row]:
    """Return one row per task, without a host or attempt that all (``among``) share."""
    every = tasks if among is None else among
    same = {"HOST"} if len({task.host for task in every}) == 1 else set()
    same |= {"ATTEMPT"} if len({task.attempt for task in every}) == 1 else set()
    found = [_row(task, now) for task in tasks]
    return [{title: cell for title, cell in row.items() if cell.text and title not in same} for row in found]


def by_role(tasks: Sequence[TaskStatus], now: float) -> list[Row]:
    """Return one row per role, followed by one per task with a problem."""
    roles: dict[str, list[TaskStatus]] = {}
    for task in tasks:
        roles.setdefault(formatting.plain(task.role), []).append(task)
    not_fine = sorted((task for task in tasks if not _is_fine(task, now)), key=lambda task: _place(state(task)))
    return [_group(role, members) for role, members in roles.items()] + by_task(not_fine, now, tasks)


def state(task: TaskStatus) -> str:
    """Return a task's state; "at breakpoint" or "not listening" if others wait for it."""
    if task.breakpoint is not None:
        return "at breakpoint"
    return "not listening" if task.state == "waiting" and task.listening is False else formatting.plain(task.state)


def _place(word: str) -> int:
    return _BAD_FIRST.index(word) if word in _BAD_FIRST else len(_BAD_FIRST)


def _is_fine(task: TaskStatus, now: float) -> bool:
    word = state(task)
    if task.memory_full_at is not None:
        return False
    if word == "starting":
        return task.since is None or now - task.since <= _LONG_START
    return word not in ("failed", "lost", "restarting", "disconnected", "at breakpoint", "not listening")


def _row(task: TaskStatus, now: float) -> Row:
    word, done, step = state(task), _done(task), _cell(task.step, wording.count)
    return {
        "TASK": Cell(formatting.plain(task.task)),
        "STATE": Cell(word, _STYLES.get(word, "")),
        "EXIT": Cell(_end(task, word)),
        "HOST": Cell(_host(task), "yellow" if task.moved_from else ""),
        "ATTEMPT": Cell(wording.count(task.attempt) if task.attempt > 0 else ""),
        "UP": _cell(task.since if word in _ALIVE else None, lambda since: duration_words(now - since)),
        **_usage([task]),
        "STEP": Cell(f"~{step.text}") if task.is_progress_from_output and step.text else step,
        "RATE": _cell(task.steps_per_second, wording.rate) if _is_alive(task) else Cell(""),
        "EPOCH": Cell(_of(task.epoch, task.epochs)),
        "ETA": _cell(_left(task), duration_words) if _is_alive(task) else Cell(""),
        "FULL IN": _cell(task.memory_full_at, lambda at: duration_words(max(at - now, 0.0)), "bold yellow"),
        **_metrics(task.metrics or {}),
        **_metrics(task.columns or {}, _number),
        LAST_LINE: Cell(formatting.plain(task.last_line).strip(), "dim"),
        "DONE": _cell(done, formatting.bar),
    }


def _host(task: TaskStatus) -> str:
    home = formatting.plain(task.moved_from)
    return formatting.plain(task.host) + (f" (for {home})" if home else "")


def _group(role: str, tasks: Sequence[TaskStatus]) -> Row:
    words = Counter(state(task) or "unknown" for task in tasks)
    worst_first = sorted(words, key=_place)
    steps = _known(task.step for task in tasks)
    rates = _known(task.steps_per_second for task in tasks if _is_alive(task))
    row = {
        "TASK": Cell(f"{role} ×{len(tasks)}"),  # noqa: RUF001 (times, not the letter)
        "STATE": Cell(", ".join(f"{words[word]} {word}" for word in worst_first), _STYLES.get(worst_first[0], "")),
        **_usage(tasks),
        "STEP": Cell(wording.span(steps) if steps else ""),
        "RATE": Cell(wording.rate(sum(rates) / len(rates)) if rates else ""),
    }
    return {title: cell for title, cell in row.items() if cell.text}


def _is_alive(task: TaskStatus) -> bool:
    """Whether the measurements of a task are still meaningful."""
    return state(task) in _ALIVE


def _usage(every: Sequence[TaskStatus]) -> Row:
    """Return the usage of running tasks: totals, and the mean of GPU utilization.

    Shared memory cannot be added either: it is part of each task's own figure.
    """
    tasks = [task for task in every if _is_alive(task)]
    share, held = _known(task.gpu_percent for task in tasks), _known(task.gpu_bytes for task in tasks)
    cpu, rss = _known(task.cpu_percent for task in tasks), _known(task.rss_bytes for task in tasks)
    shared = _known(task.shared_bytes for task in tasks)
    return {
        "CPU": Cell(f"{sum(cpu):.0f}%" if cpu else ""),
        "MEM": Cell(wording.memory(sum(rss)) if rss else ""),
        "SHARED": Cell(wording.memory(max(shared)) if shared else ""),
        "GPU": Cell(f"{sum(share) / len(share):.0f}%" if share else ""),
        "GPU MEM": Cell(wording.memory(sum(held)) if held else ""),
    }


def _end(task: TaskStatus, word: str) -> str:
    """Return how a task ended: its exit code, or the name of its signal."""
    if word in _ALIVE:
        return ""
    if task.signal is None:
        return "" if task.exit_code is None else str(task.exit_code)
    return signal_name(task.signal)


def _done(task: TaskStatus) -> float | None:
    """Return the fraction of training done: by steps if known, else by whole epochs."""
    if not task.epochs or task.epochs < 0:
        return None
    if task.step is not None and task.steps_per_epoch and task.steps_per_epoch > 0:
        return task.step / task.steps_per_epoch / task.epochs
    return None if task.epoch is None else (task.epoch - 1) / task.epochs


def _left(task: TaskStatus) -> float | None:
    """Return the seconds to the last step at the present speed; None if unknown."""
    if not (task.step and task.steps_per_second and task.total_steps):
        return None
    left = (task.total_steps - task.step) / task.steps_per_second
    return left if 0 <= left < _LONGEST_TRAINING else None  # what a program says may be anything


def _of(value: float | None, total: float | None) -> str:
    if value is None:
        return ""
    return wording.count(value) if total is None else f"{wording.count(value)}/{wording.count(total)}"


def _number(value: float) -> str:
    return wording.count(value) if float(value).is_integer() else wording.significant(value)


def _metrics(values: Mapping[str, float], text: Callable[[float], str] = wording.significant) -> Row:
    """Return one column per metric, loss first."""
    names = sorted((name for name in values if formatting.plain(name)), key=lambda name: name != "loss")
    shown = names[:_MOST_METRICS]
    return {METRIC + formatting.plain(name, 20).upper(): _cell(values[name], text) for name in shown}


def _cell(value: float | None, text: Callable[[float], str], style: str = "") -> Cell:
    return Cell("" if value is None else text(value), style)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
