"""Steer the drawing of faults to where few have been injected yet."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from simulator.case import Case, Fault, Moment, draw_case
from simulator.faults import KINDS, KINDS_OF_FAR, Cell

_CASES_KEPT = 30  # that have reached a moment
_MOST_FAULTS = 6  # of a case that is played again with another one
_STEERED = 0.75  # the share of a round


class Coverage:
    """Counts in which cells faults were injected, and remembers which cases reach a moment.

    A cell is a fault's kind with the step of the supervisor before it. A case is played again with a fault that waits
    for the moment: up to there, nothing in its history changes.
    """

    def __init__(self) -> None:
        self.cells: Counter[Cell] = Counter()
        self.tried: Counter[Cell] = Counter()
        """How often a fault was to be injected; it may have had no effect there, or come too late."""
        self._cases: defaultdict[Moment, list[Case]] = defaultdict(list)

    def add(self, case: Case, moments: Iterable[Moment], cells: Counter[Cell]) -> None:
        """Count a history."""
        self.cells.update(cells)
        if len(case.faults) < _MOST_FAULTS:
            for moment in sorted(moments):
                kept = self._cases[moment]
                if len(kept) < _CASES_KEPT:
                    kept.append(case)

    def round(self, seeds: range) -> Iterator[Case]:
        """Yield a case for each seed: most with a fault in one of the rarest cells, the others drawn at random."""
        steered = int(len(seeds) * _STEERED) if self._cases else 0
        for seed in seeds[steered:]:
            yield draw_case(seed)
        cells = sorted(self._reachable(), key=lambda cell: (max(self.cells[cell], self.tried[cell] // 4), cell))
        for seed, cell in zip(seeds[:steered], _cycle(cells), strict=False):
            self.tried[cell] += 1
            yield self._aimed_at(cell, random.Random(f"aim {seed}"), seed)

    def _reachable(self) -> Iterator[Cell]:
        for moment, cases in self._cases.items():
            has_far = any(_is_far(case) for case in cases)
            for kind in {**KINDS_OF_FAR, **KINDS} if has_far else KINDS:
                yield Cell(*moment, kind)

    def _aimed_at(self, cell: Cell, chance: random.Random, seed: int) -> Case:
        cases = self._cases[Moment(cell.phase, cell.event)]
        fitting = cases if cell.kind in KINDS else [case for case in cases if _is_far(case)]
        case = chance.choice(fitting)
        return case._replace(faults=(*case.faults, Fault(cell.kind, seed, after=Moment(cell.phase, cell.event))))


def tables(cells: Counter[Cell]) -> Iterator[str]:
    """Yield two tables in Markdown: how often faults were injected, by phase of the job and by step of the supervisor.

    The second one shows of each step how many kinds of faults followed it, and how often the rarest of them.
    """
    phases = sorted({cell.phase for cell in cells if cell.phase})
    yield "| fault | " + " | ".join(phase.replace("_", " ") for phase in phases) + " |"
    yield "|---|" + "--:|" * len(phases)
    for kind in sorted({**KINDS_OF_FAR, **KINDS}):
        sums = (sum(count for cell, count in cells.items() if (cell.phase, cell.kind) == (at, kind)) for at in phases)
        yield f"| {kind.replace('_', ' ')} | " + " | ".join(f"{count:,}" for count in sums) + " |"
    yield ""
    yield "| phase | event | faults | kinds | rarest |"
    yield "|---|---|--:|--:|--:|"
    for moment in sorted({(cell.phase, cell.event) for cell in cells if cell.phase}):
        counts = [count for cell, count in cells.items() if (cell.phase, cell.event) == moment]
        phase, event = moment
        yield f"| {phase.replace('_', ' ')} | `{event}` | {sum(counts):,} | {len(counts)} | {min(counts):,} |"


def _is_far(case: Case) -> bool:
    return any(not host.is_local for host in case.plan().hosts)


def _cycle(cells: list[Cell]) -> Iterator[Cell]:
    while cells:
        yield from cells
