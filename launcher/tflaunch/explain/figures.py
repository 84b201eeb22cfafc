"""Format sizes, counts and rates, as short as can be. Pure."""

from __future__ import annotations

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
