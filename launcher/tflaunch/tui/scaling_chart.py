"""The chart of `tflaunch scale` as an SVG image: speed by number of workers, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from tflaunch.explain.figures import significant

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 50, 60  # margins in pixels
_LINES = 5
_NICE = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0)


def chart_of(title: str, unit: str, workers: Sequence[int], values: Sequence[float], ideals: Sequence[float]) -> str:
    """Return an SVG image.

    Args:
        title: what was measured.
        unit: of the values.
        workers: the numbers of workers, ascending.
        values: the measured speeds.
        ideals: the speeds without any loss.
    """
    top = _nice(max([*values, *ideals]))
    across = max(workers) - min(workers) or 1

    def at(count: int, value: float) -> tuple[float, float]:
        x = _LEFT + (count - min(workers)) / across * (_WIDTH - _LEFT - _RIGHT - 60) + 30
        return x, _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    def line(points: Sequence[tuple[float, float]], style: str) -> str:
        return f'<polyline fill="none" {style} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'

    measured = [at(*point) for point in zip(workers, values, strict=True)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_WIDTH / 2:g}" y="28" text-anchor="middle" font-size="16">{escape(title)}</text>',
    ]
    for number in range(_LINES + 1):
        value = top * number / _LINES
        _, y = at(workers[0], value)
        parts.append(f'<path stroke="#ddd" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(
        line([at(*point) for point in zip(workers, ideals, strict=True)], 'stroke="#999" stroke-dasharray="6 4"')
    )
    parts.append(line(measured, 'stroke="#3f51b5" stroke-width="2.5"'))
    for count, value, (x, y) in zip(workers, values, measured, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#3f51b5"><title>{significant(value)}</title></circle>'
        )
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{_WIDTH / 2:g}" y="{_HEIGHT - 16}" text-anchor="middle">workers (dashed: ideal)</text>')
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(f'<text transform="translate(18 {middle:g}) rotate(-90)" text-anchor="middle">{escape(unit)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _nice(value: float) -> float:
    """Return a round number that is at least as large."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * step for step in _NICE if power * step >= value)
