"""Measure competitors in rotating rounds, and compute figures and tables from the results.

A busy moment of the machine affects all of them alike, and a ratio is computed within one round, so that a
disturbance of the machine affects both of its terms.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from process_tree import StuckError

Sample = dict[str, float]
"""The figures of one turn, by name. One that has `hung` or `failed` is excluded from all other figures."""
Rounds = dict[str, list[Sample]]
"""The samples of each competitor, one per round."""
MISHAPS = {"hung": "hung", "failed": "failed", "left": "left processes running"}


class Found(NamedTuple):
    """The results of one comparison, and remarks on its competitors."""

    rounds: Rounds
    notes: dict[str, list[str]]


def in_turn(what: str, names: Sequence[str], repeats: int, measure: Callable[[str], Sample]) -> Rounds:
    """Measure each competitor once per round, in an order that rotates."""
    rounds: Rounds = {name: [] for name in names}
    for turn in range(repeats):
        print(f"{what}: round {turn + 1} of {repeats}", file=sys.stderr, flush=True)
        first = turn % max(1, len(names))
        for name in [*names[first:], *names[:first]]:
            try:
                rounds[name].append(measure(name))
            except StuckError as stuck:
                print(f"{name}: {stuck}", file=sys.stderr, flush=True)
                rounds[name].append({"failed": 1.0})
    return rounds


def values(found: Found, name: str, figure: str) -> list[float]:
    """Return one figure of all valid rounds."""
    return [sample[figure] for sample in found.rounds.get(name, []) if _is_sound(sample) and figure in sample]


def median(found: Found, name: str, figure: str) -> float | None:
    """Return the median over the rounds, None if there are no measurements."""
    seen = values(found, name, figure)
    return statistics.median(seen) if seen else None


def ratio(found: Found, name: str, base: str, figure: str, of_base: str = "") -> float | None:
    """Return the median of the per-round ratios to the base's same figure, or to its figure ``of_base``."""
    unit_figure = of_base or figure
    pairs = zip(found.rounds.get(name, []), found.rounds.get(base, []), strict=False)
    ratios = [
        mine[figure] / unit[unit_figure]
        for mine, unit in pairs
        if _is_sound(mine) and _is_sound(unit) and figure in mine and unit.get(unit_figure)
    ]
    return statistics.median(ratios) if ratios else None


def figure(value: float | None) -> str:
    """Return a number with three significant digits; "" for None."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def figures(values: Iterable[float | None]) -> list[str]:
    """Return the cells of some numbers."""
    return [figure(value) for value in values]


def measured(found: Iterable[Found], name: str, base: str, figure: str) -> list[str]:
    """Return two cells for each comparison: the median, and the ratio to the base."""
    return [cell for one in found for cell in figures([median(one, name, figure), ratio(one, name, base, figure)])]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table: names in the first column, numbers in the others; tflaunch in bold."""
    named = ([f"**{first}**" if first.startswith("tflaunch up") else first, *rest] for first, *rest in rows)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *named)]
    return [lines[0], f"|---|{'---:|' * (len(head) - 1)}", *lines[1:]]


def remarks(found: Mapping[str, Found], label: str = "{}") -> list[str]:
    """Return a list item per competitor that has remarks; ``label`` formats the comparisons' keys."""
    lines = []
    for name in dict.fromkeys(name for one in found.values() for name in [*one.rounds, *one.notes]):
        where: dict[str, list[str]] = {}
        for key, one in found.items():
            for text in _notes(one, name):
                where.setdefault(text, []).append(key)
        said = [
            text if len(keys) == len(found) else f"{text} ({label.format(', '.join(keys))})"
            for text, keys in where.items()
        ]
        lines += [f"- {name}: {'; '.join(said)}."] if said else []
    return lines


def _notes(found: Found, name: str) -> list[str]:
    """Return the remarks on a competitor, and how often it failed in which way."""
    samples = found.rounds.get(name, [])
    counts = {words: sum(sample.get(mishap, 0) > 0 for sample in samples) for mishap, words in MISHAPS.items()}
    wrong = [f"{words} in {count} of {len(samples)} rounds" for words, count in counts.items() if count]
    return [*found.notes.get(name, []), *wrong]


def _is_sound(sample: Sample) -> bool:
    return not (sample.get("hung") or sample.get("failed"))
