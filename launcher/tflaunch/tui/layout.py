"""Lay out a status for people: a headline, and a table that fits the terminal.

rich is slow to import, so commands import this module only when there is a view to draw.
"""

import io
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tflaunch.explain.run_status import Status
from tflaunch.tui import rows
from tflaunch.tui.formatting import Cell
from tflaunch.tui.headline import headline, news
from tflaunch.tui.rows import LAST_LINE, METRIC, Row

_MOST_ROWS = 16  # more tasks than this are grouped by role
_MOST_LINES = 3  # per message below the headline
_GAP = 2
_LAST_LINE_MIN = 16
_SHORTEST_NAME, _LONGEST_NAME = 8, 28
_RULE = "─"


class _Column(NamedTuple):
    """``rank``: the column with the highest rank is dropped first when space is short."""

    title: str
    rank: int
    is_right: bool = True


_BEFORE_METRICS = (
    _Column("TASK", 0, is_right=False),
    _Column("STATE", 0, is_right=False),
    _Column("EXIT", 0),
    _Column("HOST", 8, is_right=False),
    _Column("ATTEMPT", 9),
    _Column("UP", 7),
    _Column("CPU", 10),
    _Column("MEM", 11),
    _Column("SHARED", 14),
    _Column("GPU", 6),
    _Column("GPU MEM", 12),
    _Column("STEP", 1),
    _Column("RATE", 2),
    _Column("EPOCH", 3),
    _Column("ETA", 5),
    _Column("FULL IN", 2),
)
_LOSS_RANK, _BAR_RANK, _METRIC_RANK = 4, 5, 15
_LAST_LINE_RANK = 13
_LAST_LINE_RANK_ALONE = 3  # without step numbers, the last line is the best sign of progress


def render(status: Status, width: int, height: int, now: float) -> list[str]:
    """Return a status as at most ``height`` terminal lines, without line ends.

    ``width`` is the number of columns, and ``now`` the time in seconds since the epoch.
    """
    tasks = status.tasks
    head = [_rule(headline(status, now), width)]
    for part in news(status, now):
        head += _wrapped(part, width, _MOST_LINES)
    head = head[: max(height - 3, 1)]
    room = height - len(head) - 1
    is_folded = len(tasks) > min(_MOST_ROWS, room)
    table = rows.by_role(tasks, now) if is_folded else rows.by_task(tasks, now)
    lines = head + (_cut(_laid_out(table, width), room + 1) if table and room > 0 else [])
    return _with_escapes(lines[:height], width)


def table(status: Status, width: int | None = None, now: float | None = None) -> str:
    """Return a status as aligned plain text, one line per task, without last lines.

    Without a ``width`` in columns, nothing is left out; ``now`` is in seconds since the epoch.
    """
    now = time.time() if now is None else now
    lines = [Text(" · ".join(part.text for part in headline(status, now)), no_wrap=True, overflow="ellipsis")]
    lines += [Text(part.text, no_wrap=True, overflow="ellipsis") for part in news(status, now)]
    cells = [{k: v for k, v in row.items() if k != LAST_LINE} for row in rows.by_task(status.tasks, now)]
    lines += _laid_out(cells, width) if cells else []
    if width is not None:
        for line in lines:
            line.truncate(width, overflow="ellipsis")
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def _rule(parts: Sequence[Cell], width: int) -> Text:
    """Return the headline as a rule that separates the view from the output above it."""
    texts = [Text(part.text, part.style) for part in parts]
    missing = sum(text.cell_len + 3 for text in texts) + 3 - width
    if missing > 0:  # shorten the run's name: it is the longest part, and the best known
        texts[0].truncate(max(texts[0].cell_len - missing, _SHORTEST_NAME), overflow="ellipsis")
    line = Text().append(f"{_RULE * 2} ", "dim").append_text(Text(" · ", "dim").join(texts))
    line.truncate(max(width - 3, 1), overflow="ellipsis")
    line.append(" ").append(_RULE * max(width - line.cell_len, 0), "dim")
    return line


def _wrapped(part: Cell, width: int, most: int) -> list[Text]:
    """Wrap a message to as few lines as possible, at most ``most``."""
    console = Console(width=width, file=io.StringIO())
    lines = list(Text(part.text, style=part.style).wrap(console, width))
    if len(lines) > most:
        rest = " ".join(line.plain.strip() for line in lines[most - 1 :])
        lines[most - 1 :] = [Text(rest, style=part.style)]
        lines[-1].truncate(width, overflow="ellipsis")
    return lines


def _laid_out(table: Sequence[Row], width: int | None) -> list[Text]:
    """Return the header and rows, with as many columns as fit."""
    columns = _columns(table)
    widths = {column.title: _width_of(column, table) for column in columns}
    if width is not None:
        columns = _fitting(columns, widths, width)
    titles = {column.title: Cell(column.title.removeprefix(METRIC), "dim") for column in columns}
    return [_line(row, columns, widths) for row in [titles, *table]]


def _columns(table: Sequence[Row]) -> list[_Column]:
    filled = {title for row in table for title in row}
    metrics = dict.fromkeys(title for row in table for title in row if title.startswith(METRIC))
    ranked = [_Column(title, _LOSS_RANK if title == "=LOSS" else _METRIC_RANK) for title in metrics]
    last_rank = _LAST_LINE_RANK if "STEP" in filled else _LAST_LINE_RANK_ALONE
    every = [*_BEFORE_METRICS, _Column("DONE", _BAR_RANK), *ranked, _Column(LAST_LINE, last_rank, is_right=False)]
    return [column for column in every if column.title in filled]


def _width_of(column: _Column, table: Sequence[Row]) -> int:
    cells = [cell_len(row[column.title].text) for row in table if column.title in row]
    if column.title == LAST_LINE:
        return _LAST_LINE_MIN
    widest = max(cells, default=0)
    if column.title in ("TASK", "HOST"):
        widest = min(widest, _LONGEST_NAME)
    return max(widest, cell_len(column.title.removeprefix(METRIC)))


def _fitting(columns: Sequence[_Column], widths: dict[str, int], width: int) -> list[_Column]:
    """Drop the least important columns until the rest fits; the last gets the rest."""
    kept = list(columns)
    while (missing := _total(kept, widths) - width) > 0:
        last = max(reversed(kept), key=lambda column: column.rank)
        if last.rank == 0:
            widths[last.title] = max(widths[last.title] - missing, 4)
            widths["TASK"] = max(min(widths.get("TASK", 0), width - widths[last.title] - _GAP), 1)
            break
        kept.remove(last)
    if kept and kept[-1].title == LAST_LINE:
        widths[LAST_LINE] += width - _total(kept, widths)
    return kept


def _total(columns: Sequence[_Column], widths: dict[str, int]) -> int:
    return sum(widths[column.title] for column in columns) + _GAP * (len(columns) - 1)


def _line(row: Row, columns: Sequence[_Column], widths: dict[str, int]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, column in enumerate(columns):
        cell = Text(*row.get(column.title, Cell("")), overflow="ellipsis")
        cell.align("right" if column.is_right else "left", widths[column.title])
        line.append(" " * _GAP if place else "").append_text(cell)
    line.rstrip()
    return line


def _cut(lines: list[Text], most: int) -> list[Text]:
    if len(lines) <= most:
        return lines
    left = len(lines) - most + 1
    return [*lines[: most - 1], Text(f"… {left} more", style="dim")]


def _with_escapes(lines: Sequence[Text], width: int) -> list[str]:
    """Render lines for the simplest terminals: eight colours, bold and dim."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=bool(os.environ.get("NO_COLOR")),
        width=width,
        legacy_windows=False,
        highlight=False,
    )
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    with console.capture() as captured:
        console.print(Text("\n").join(lines), no_wrap=True, overflow="ignore", crop=False)
    return captured.get().removesuffix("\n").split("\n")  # no limit: it does not wait
