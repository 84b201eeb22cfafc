"""Steer the drawing of faults to where few have been injected yet."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from simulator.case import Case, Fault, Moment, draw_case
from simulator.faults import KINDS, KINDS_OF_FAR, Cell
from tflaunch.core.job_state import Phase

_CASES_KEPT = 30  # that have reached a moment
_MOST_FAULTS = 6  # of a case that is played again with another one
_STEERED = 0.75  # the share of a round
_ALL_KINDS = (*KINDS, *KINDS_OF_FAR)


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


def by_step(cells: Counter[Cell]) -> Iterator[str]:
    """Yield a table in Markdown: how often faults were injected after each step of the supervisor, by phase and event.

    In brackets is the number of the kind of fault that was injected least often there.
    """
    phases = _phases(cells)
    yield from _head("event", phases)
    for event in sorted({cell.event for cell in cells if cell.event}):
        at_steps = ([cells[Cell(phase, event, kind)] for kind in _ALL_KINDS] for phase in phases)
        yield _row(f"`{event}`", (f"{sum(counts):,} ({min(counts):,})" if any(counts) else "" for counts in at_steps))


def by_kind(cells: Counter[Cell]) -> Iterator[str]:
    """Yield a table in Markdown: how often each kind of fault was injected in each phase of a job."""
    phases = _phases(cells)
    yield from _head("fault", phases)
    for kind in sorted(_ALL_KINDS):
        sums = (sum(count for cell, count in cells.items() if (cell.phase, cell.kind) == (at, kind)) for at in phases)
        yield _row(kind.replace("_", " "), (f"{count:,}" for count in sums))


def _phases(cells: Counter[Cell]) -> list[str]:
    """Return the phases in which faults were injected, in their order."""
    return [phase.value for phase in Phase if any(cell.phase == phase.value for cell in cells)]


def _head(first: str, phases: list[str]) -> Iterator[str]:
    yield _row(first, (phase.replace("_", " ") for phase in phases))
    yield "|---|" + "--:|" * len(phases)


def _row(first: str, others: Iterable[str]) -> str:
    return f"| {' | '.join([first, *others])} |"


def _is_far(case: Case) -> bool:
    return any(not host.is_local for host in case.plan().hosts)


def _cycle(cells: list[Cell]) -> Iterator[Cell]:
    while cells:
        yield from cells
