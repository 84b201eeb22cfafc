"""Format numbers, places and lists of names for sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch_worker.readable import duration_words

_MANY = 8


def counted(number: int, noun: str) -> str:
    """Return ``1 task``, ``2 tasks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Return the names separated by commas; after 8, only the number of the others."""
    shown = ", ".join(names[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"


def process_of(task: str, host: str, pid: int | None) -> str:
    """Return ``worker:1 (pid 12 on h2)``; without the number if that is not known."""
    return f"{task} (pid {pid} on {host})" if pid else f"{task} (on {host})"


def growth_words(task: str, rate: float, left: float) -> str:
    """Return a sentence: memory grows by ``rate`` bytes/s and is full in ``left`` s."""
    per_minute, unit = rate * 60 / 2**20, 10 if left < 90 else 60 if left < 5400 else 3600  # seconds
    roughly = duration_words(max(round(left / unit), 1) * unit)
    return f"the memory of {task} grows by {per_minute:.3g} MiB per minute: out of memory in about {roughly}"
