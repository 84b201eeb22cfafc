"""A drill's directory below TFLAUNCH_HOME: a lock, copies, and names of runs."""

from pathlib import Path

from tflaunch.features.file_tree import is_directory
from tflaunch.store import run_dir
from tflaunch_worker import linux

PLACE, LOCK = "drills", "lock"
KEPT = "kept-"
"""Prefix of what a user keeps."""
_RUNS = "runs"


def note_run(drill: Path, run: str) -> None:
    """Note that a run is one of a drill, and goes with it."""
    with (drill / _RUNS).open("a") as file:
        file.write(f"{run}\n")


def runs_of(drill: Path) -> list[Path]:
    """Return the runs of a drill that still exist."""
    try:
        names = (drill / _RUNS).read_text().split()
    except OSError:
        return []  # it was killed before the first one
    paths = (run_dir.runs_directory() / name for name in names if run_dir.is_run_name(name))
    return [path for path in paths if is_directory(path)]


def left_runs() -> list[Path]:
    """Return the runs of drills that were killed."""
    drills = sorted((run_dir.home() / PLACE).glob("*"))
    return [run for drill in drills if is_directory(drill) and is_left(drill) for run in runs_of(drill)]


def is_left(drill: Path) -> bool:
    """Return whether the drill of a directory was killed."""
    return not drill.name.startswith(KEPT) and linux.is_lock_free(str(drill / LOCK)) is True
