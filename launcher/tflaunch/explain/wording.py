"""Format numbers, sizes, rates, places and lists of names. Pure."""

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


_UNITS = "BKMGTPE"


def memory(size: float) -> str:
    """Return bytes in binary units: 512M, 1.2G."""
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{size:.1f}{_UNITS[power]}" if 0 < size < 10 and power else f"{size:.0f}{_UNITS[power]}"


def count(value: float) -> str:
    """Return a count: 1200, 12.3M."""
    return f"{value:.0f}" if abs(value) < 10_000_000 else f"{value / 1e6:.5g}M"


def significant(value: float) -> str:
    """Return a value with four significant digits, zeros included."""
    if value and not 0.001 <= abs(value) < 10_000_000:
        return f"{value:.2e}"
    return f"{value:#.4g}".rstrip(".") if abs(value) < 1000 else f"{value:.0f}"


def rate(per_second: float) -> str:
    """Return a rate of steps per second."""
    return f"{per_second:.0f}/s" if per_second >= 100 else f"{per_second:#.3g}/s"


def span(values: list[float]) -> str:
    """Return the range of some counts."""
    low, high = count(min(values)), count(max(values))
    return low if low == high else f"{low}–{high}"  # noqa: RUF001 (the correct dash for a range)
