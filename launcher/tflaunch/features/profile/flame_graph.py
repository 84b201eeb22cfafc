"""A flame graph of sampled stacks: an SVG for browsers, without a script. Pure.

The width of a frame is the share of the samples in which it was on the stack; what it has called is above it.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from tflaunch_worker.readable import printable

_WIDTH, _ROW, _MARGIN, _HEAD = 1200.0, 17, 10, 44  # pixels
_LEAST_WIDTH = 0.4  # pixels of a frame that is drawn
_LETTER = 6.6  # pixels
_MOST_ROWS = 200
_COUNT = "[1-9][0-9]{0,11}"
_LONGEST = 500  # characters of a frame; agents shorten them to 300, and some take several when they are escaped

Stacks = Mapping[tuple[str, ...], int]
"""How often a stack was seen; the outermost frame is first, after the name of the thread."""


def read_stacks(text: str) -> dict[tuple[str, ...], int]:
    """Read folded stacks: per line, frames separated by ``;``, a space and a count.

    Raises:
        ValueError: a line has no count, or an impossible one.
    """
    stacks: dict[tuple[str, ...], int] = {}
    for line in text.removesuffix("\n").split("\n"):
        frames, _, count = line.rpartition(" ")
        if re.fullmatch(_COUNT, count) is None:
            raise ValueError(f"a stack has the count {count[:40]!r}")
        stacks[tuple(printable(frame, _LONGEST) for frame in frames.split(";"))] = int(count)
    return stacks


def samples_of(stacks: Stacks) -> int:
    """Return the number of samples: those of the thread with the most of them."""
    threads: dict[str, int] = {}
    for (thread, *_), count in stacks.items():
        threads[thread] = threads.get(thread, 0) + count
    return max(threads.values(), default=0)


def hottest(stacks: Stacks) -> str:
    """Return the most frequent function of the first thread, and its share.

    The first thread is the main one, if it was sampled.
    """
    first = min((stack[0] for stack in stacks), default="")
    counts: dict[str, int] = {}
    for (thread, *frames), count in stacks.items():
        if thread == first and frames:
            counts[frames[-1]] = counts.get(frames[-1], 0) + count
    if not counts:
        return "none with a frame"
    frame, most = max(counts.items(), key=lambda item: item[1])
    return f"{most / sum(counts.values()):.0%} of the {first} in {frame}"


def draw(title: str, stacks: Stacks) -> str:
    """Return the drawing as SVG."""
    total = sum(stacks.values())
    seen = [(stack[:_MOST_ROWS], count) for stack, count in stacks.items()]
    frames = list(_placed(seen, "all threads", 0.0, 0, _WIDTH / max(total, 1)))
    height = _HEAD + _ROW * (max((depth for _, _, depth, _, _ in frames), default=0) + 1) + _MARGIN
    drawn = "\n".join(_frame(*frame, height, total) for frame in frames)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 2 * _MARGIN:.0f}" height="{height}" '
        'font-family="monospace" font-size="11">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="{_MARGIN}" y="24" font-size="16">{escape(title)}: {samples_of(stacks)} samples</text>\n'
        f"{drawn}\n</svg>\n"
    )


def _placed(
    above: Sequence[tuple[tuple[str, ...], int]], label: str, left: float, depth: int, scale: float
) -> Iterator[tuple[str, float, int, float, int]]:
    """Yield label, left, depth, width and count of each visible frame of stacks."""
    count = sum(count for _, count in above)
    if count * scale < _LEAST_WIDTH:
        return
    yield label, left, depth, count * scale, count
    callees: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for stack, count in above:
        if stack:
            callees.setdefault(stack[0], []).append((stack[1:], count))
    for name, inner in sorted(callees.items()):
        yield from _placed(inner, name, left, depth + 1, scale)
        left += sum(count for _, count in inner) * scale


def _frame(label: str, left: float, depth: int, width: float, count: int, height: int, total: int) -> str:
    top = height - _MARGIN - _ROW * (depth + 1)
    shade = zlib.crc32(label.encode("utf-8", "replace"))
    color = f"rgb({205 + shade % 50},{100 + shade // 50 % 110},{shade // 5500 % 60})"
    room = int((width - 6) / _LETTER)
    shown = "" if room < 3 else label if len(label) <= room else f"{label[: room - 2]}.."
    about = escape(f"{label}: {count / total:.1%}, {count} samples")
    return (
        f'<g><title>{about}</title><rect x="{_MARGIN + left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 1}" '
        f'fill="{color}" rx="1"/><text x="{_MARGIN + left + 3:.1f}" y="{top + 12}">{escape(shown)}</text></g>'
    )
