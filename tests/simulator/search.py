"""Steer the drawing of faults to where few have been injected yet."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from simulator.case import Case, Fault, Moment, draw_case
from simulator.faults import KINDS, KINDS_OF_FAR, RARER_KINDS, RARER_KINDS_OF_FAR, Cell
from tflaunch.core.job_state import Phase

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_BASES_KEPT = 40  # that have reached a moment
_MOST_FAULTS = 6  # of a case that is played again with others
_AIMED = 3  # faults that are added to a case
_DRAWN = 3  # bases of which the shortest is played again
_STEERED = 0.75  # the share of a round
_ANYWHERE = (*KINDS, *RARER_KINDS, "hung")
_ALL_KINDS = (*KINDS_OF_FAR, *RARER_KINDS_OF_FAR, *_ANYWHERE)


class Base(NamedTuple):
    """A case that is played again with more faults; ``moments``: its steps; ``length``: how much happens in it."""

    case: Case
    moments: AbstractSet[Moment]
    length: int
    is_far: bool


class Coverage:
    """Counts in which cells faults were injected, and remembers which cases reach a moment.

    A cell is a fault's kind with the step of the supervisor before it. A case is played again with faults that wait
    for a moment: up to there, nothing in its history changes.
    """

    def __init__(self) -> None:
        self.cells: Counter[Cell] = Counter()
        self.tried: Counter[Cell] = Counter()
        """How often a fault was to be injected; it may have had no effect there, or come too late."""
        self._bases: defaultdict[Moment, list[Base]] = defaultdict(list)
        self.moments: set[Moment] = set()
        """The steps that were taken, with or without a fault."""
        self._offered: Counter[Moment] = Counter()
        self._random = random.Random("which cases are kept")

    def add(self, case: Case, moments: AbstractSet[Moment], cells: Counter[Cell], length: int) -> None:
        self.cells.update(cells)
        self.moments |= moments
        if len(case.faults) + _AIMED > _MOST_FAULTS:
            return
        base = Base(case, moments, length, any(not host.is_local for host in case.plan().hosts))
        for moment in sorted(moments):
            self._offered[moment] += 1
            kept = self._bases[moment]
            number = self._random.randrange(self._offered[moment])  # each base is kept with the same probability
            if len(kept) < _BASES_KEPT:
                kept.append(base)
            elif number < _BASES_KEPT:
                kept[number] = base

    def round(self, seeds: range) -> Iterator[Case]:
        """Yield a case for each seed: most with a fault in one of the rarest cells, the others drawn at random."""
        steered = int(len(seeds) * _STEERED) if self._bases else 0
        for seed in seeds[steered:]:
            yield draw_case(seed)
        at_steps: Counter[Moment] = Counter()
        for cell, count in self.cells.items():
            at_steps[_moment(cell)] += count
        wanted = sorted(
            self._reachable(),
            key=lambda cell: (max(self.cells[cell], self.tried[cell] // 4), at_steps[_moment(cell)], cell),
        )
        for seed in seeds[:steered]:
            yield self._aimed(wanted, random.Random(f"aim {seed}"), seed)

    def _reachable(self) -> Iterator[Cell]:
        for moment, bases in self._bases.items():
            has_far = any(base.is_far for base in bases)
            for kind in _ALL_KINDS if has_far else _ANYWHERE:
                yield Cell(*moment, kind)

    def _aimed(self, wanted: list[Cell], chance: random.Random, seed: int) -> Case:
        """Return a case with faults in the first wanted cells that it can reach; these come last from then on.

        After the first of them, the history is another one: it need not come to the others.
        """
        bases = [base for base in self._bases[_moment(wanted[0])] if _can_have(base, wanted[0])]
        base = min(chance.choices(bases, k=_DRAWN), key=lambda base: base.length)
        aims = list(itertools.islice((cell for cell in wanted if _can_have(base, cell)), _AIMED))
        for cell in aims:
            self.tried[cell] += 1
            wanted.remove(cell)
            wanted.append(cell)
        added = [Fault(cell.kind, _AIMED * seed + number, after=_moment(cell)) for number, cell in enumerate(aims)]
        return base.case._replace(faults=(*base.case.faults, *added))


def by_step(cells: Counter[Cell], moments: AbstractSet[Moment]) -> Iterator[str]:
    """Yield a table in Markdown: how often faults were injected after each step of the supervisor, by phase and event.

    In brackets is the number of the kind of fault that was injected least often there. A step that no history has
    taken (it is not in ``moments``) has no number.
    """
    phases = _phases(cells)
    yield from _head("event", phases)
    for event in sorted({moment.event for moment in moments}):
        yield _row(f"`{event}`", (_counted(cells, moments, Moment(phase, event)) for phase in phases))


def _counted(cells: Counter[Cell], moments: AbstractSet[Moment], moment: Moment) -> str:
    counts = [cells[Cell(*moment, kind)] for kind in _ALL_KINDS]
    return f"{sum(counts):,} ({min(counts):,})" if moment in moments else ""


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


def _moment(cell: Cell) -> Moment:
    return Moment(cell.phase, cell.event)


def _can_have(base: Base, cell: Cell) -> bool:
    return _moment(cell) in base.moments and (base.is_far or cell.kind in _ANYWHERE)
