"""List the runs on this machine by name: JOB-YYYYMMDD-HHMMSS-DIGITS."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.plan.model import RetentionPlan
from tflaunch.store.run_dir import runs_directory

_PARTS = 4  # of a run's name: job, date, time, random digits


def newest_first() -> list[Path]:
    """Return the directories of all runs, newest first.

    Raises:
        TflaunchError: the runs cannot be listed, or another user could have put runs there.
    """
    runs = runs_directory()
    try:
        with os.scandir(runs) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if _is_run(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    # A run's name contains its start time in seconds, which is more reliable than its directory's mtime.
    return [runs / run for _, run in sorted(found, key=lambda pair: (_start(pair[1]), pair), reverse=True)]


def newest_of_job(job: str) -> list[Path]:
    """Return the directories of a job's runs, the newest first."""
    return [path for path in newest_first() if job_name(path.name) == job]


def may_be_too_old(job: str, retention: RetentionPlan, now: float) -> list[Path]:
    """Return a job's runs that ``retention`` may drop by number and time of start.

    Their names tell; to find out when they ended takes milliseconds for each.
    """
    latest = time.strftime("%Y%m%d%H%M%S", time.localtime(max(now - retention.older_than, 0)))
    return [path for path in newest_of_job(job)[max(retention.keep, 1) :] if _start(path.name) <= latest]


def job_name(name: str) -> str:
    """Return the name of a run's job."""
    return _parts(name)[0]


def is_run_name(name: str) -> bool:
    """Return whether this is how `RunDirectory` names runs."""
    return len(_parts(name)) == _PARTS


def _is_run(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _start(name: str) -> str:
    """Return the date and time in a run's name, "" if there is none."""
    return "".join(_parts(name)[1:3])


def _parts(name: str) -> list[str]:
    """Return job, date, time and digits in a run's name, or the name as one part."""
    parts = name.rsplit("-", 3)
    return parts if len(parts) == _PARTS and "".join(parts[1:3]).isdigit() else [name]
