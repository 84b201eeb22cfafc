"""Format numbers, durations, places and lists of names for sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tflaunch.explain import figures

if TYPE_CHECKING:
    from tflaunch.core.job_state import Job
    from tflaunch.core.task_state import Breakpoint
    from tflaunch.explain.run_status import HostStatus

_MANY = 8


def counted(number: int, noun: str) -> str:
    """Return ``1 task``, ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def lasted(seconds: float) -> str:
    """Return a duration for a sentence: ``0.4 s``, ``12 s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    return f"{int(seconds)} s" if seconds < 60 else figures.duration(seconds)


def listed(names: Sequence[str]) -> str:
    """Return the names separated by commas; after 8, only the number of the others."""
    shown = ", ".join(names[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"


def place_of(found: Breakpoint) -> str:
    """Return ``train.py, line 40, in step``; without a function at the top of a file."""
    function = "" if found.function == "<module>" else f", in {found.function}"
    return f"{found.file.rpartition('/')[2]}, line {found.line}{function}"


def absence_words(host: HostStatus, now: float) -> str:
    """Return for how long a host is silent or lost, and what that means until when; "" if it is there.

    ``now`` is in seconds since the epoch.
    """
    if host.since is None or host.state not in ("disconnected", "down", "joining"):
        return ""
    gone, left = lasted(now - host.since), None if host.until is None else max(host.until - now, 0.0)
    if host.state == "disconnected":
        end = "" if left is None else f"; its tasks are certainly dead in {lasted(left)}"
        return f"{host.host} silent for {gone}{end}"
    if left is None:
        return ""
    reason = f" ({host.reason})" if host.reason else ""
    return f"waiting for {host.host}{reason} for {gone}, and {lasted(left)} more"


def process_of(task: str, host: str, pid: int | None) -> str:
    """Return ``worker:1 (pid 12 on h2)``; without the number if that is not known."""
    return f"{task} (pid {pid} on {host})" if pid else f"{task} (on {host})"


def away_words(job: Job) -> str:
    """Return the lost hosts that have not joined again, with the reasons: ``h1 (no route to host); h2 (timed out)``."""
    return "; ".join(f"{host.host} ({host.reason})" for host in job.away())


def growth_words(task: str, rate: float, left: float) -> str:
    """Return a sentence about memory that grows by ``rate`` bytes per second, and is full in ``left`` seconds."""
    per_minute = rate * 60 / 2**20
    return f"the memory of {task} grows by {per_minute:.3g} MiB per minute: out of memory in about {_roughly(left)}"


def _roughly(seconds: float) -> str:
    if seconds < 90:
        return f"{max(round(seconds, -1), 10):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
