"""What the tasks of a run reported and used over time, in a file."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tflaunch.core.events import Figure, Metrics, Name
from tflaunch.core.events import Moment as Time
from tflaunch.records import read_record
from tflaunch.store.run_dir import HISTORY_NAME
from tflaunch_worker import wire

MOST_BYTES = 950_000
"""Of the file; with a line above it, still at most about 1 MB."""


class Figures(NamedTuple):
    """What a task had reported and used; None for what is not known."""

    step: Figure | None = None
    steps_per_second: Figure | None = None
    cpu_percent: Figure | None = None
    """In percent of one CPU."""
    rss_bytes: Figure | None = None
    gpu_percent: Figure | None = None
    gpu_bytes: Figure | None = None
    metrics: Metrics = {}  # noqa: RUF012 (never changed)
    total: Figure | None = None
    """The number of steps of the whole training; missing in runs of earlier versions."""


class Moment(NamedTuple):
    """The figures of tasks at a time, in seconds since the epoch."""

    time: Time
    tasks: Mapping[Name, Figures]


def read_history(directory: Path) -> list[Moment]:
    """Return the moments of the run in ``directory``, oldest first."""
    return list(moments_in(lines_in(directory)))


def last_moment(directory: Path) -> Moment | None:
    """Return the last moment of the run in ``directory``, None if none was recorded."""
    return next(moments_in(reversed(lines_in(directory))), None)


def lines_in(directory: Path) -> list[bytes]:
    """Return the whole lines of the file; [] if there is none."""
    try:
        with (directory / HISTORY_NAME).open("rb") as file:
            lines = file.read(2 * MOST_BYTES).splitlines(keepends=True)
    except OSError:
        return []
    return [line for line in lines if line.endswith(b"\n")]


def moments_in(lines: Iterable[bytes]) -> Iterator[Moment]:
    """Yield the moments in lines, without damaged ones."""
    for line in lines:
        try:
            yield read_record(Moment, wire.parse(line))
        except ValueError:
            continue
