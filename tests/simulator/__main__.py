"""Play histories: ``python -m simulator --seeds 0:100000 --jobs 2``, ``python -m simulator --seed 7 --verbose``.

Rounds of histories follow each other; the faults of a round are steered to where the earlier ones injected few. A
history that violates an invariant is shrunk, and printed as a test.
"""

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.case import Case, Moment, draw_case
from simulator.faults import Cell
from simulator.history import Result, play
from simulator.search import Coverage, by_kind, by_step
from simulator.shrink import shrink
from support.page_tables import write_table

Imap = Callable[[Callable[[Case], "Outcome"], Iterable[Case], int], Iterable["Outcome"]]
"""`multiprocessing.pool.Pool.imap`."""

_LAST = 40  # entries of a failed history that are shown
_ROUND = 500  # histories
_TRIES = 3000  # histories that are played to shrink one
_MOST_FAILURES = 5  # until it stops


class Outcome(NamedTuple):
    """A history, as a process tells another. ``lasted``: its seconds; ``story``: how it failed, or ""."""

    case: Case
    ending: str
    numbers: tuple[int, int, int, int]
    lasted: float
    faults: Counter[str]
    moments: frozenset[Moment]
    cells: Counter[Cell]
    story: str


class Summary:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lasted = 0.0
        self.faults: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.failed: list[tuple[int, str]] = []

    def add(self, outcome: Outcome) -> None:
        steps, events, judged, moves = outcome.numbers
        self.counts.update(histories=1, steps=steps, events=events, judged=judged, moves=moves)
        self.lasted += outcome.lasted
        self.faults.update(outcome.faults)
        self.endings[outcome.ending] += 1
        if outcome.story:
            self.failed.append((outcome.case.seed, outcome.ending))

    def lines(self, seconds: float, jobs: int) -> Iterator[str]:
        """Return the report's lines, after ``seconds`` of work in ``jobs`` processes."""
        counts = self.counts
        yield (
            f"{counts['histories']} histories, {counts['events']} things happened, "
            f"{counts['steps']} steps of the supervisor, {counts['judged']} culprits judged, "
            f"{counts['moves']} hosts replaced by spare ones"
        )
        yield "faults:  " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        yield "endings: " + ", ".join(f"{ending} {count}" for ending, count in sorted(self.endings.items()))
        yield f"{seconds:.1f} s, {self.lasted / seconds / jobs:.0f} simulated seconds in a second of a process"

    def table(self) -> Iterator[str]:
        """Yield a table in Markdown of what was played."""
        counts = self.counts
        rows = {
            "histories": f"{counts['histories']:,}",
            "of which violated an invariant": f"{len(self.failed):,}",
            "steps of the supervisor": f"{counts['steps']:,}",
            "things that happened in the world": f"{counts['events']:,}",
            "faults, with those of programs": f"{sum(self.faults.values()):,}",
            "culprits judged": f"{counts['judged']:,}",
            "hosts replaced by spare ones": f"{counts['moves']:,}",
            "simulated days": f"{self.lasted / 86400:,.1f}",
        }
        yield from ("| what | number |", "|---|--:|", *(f"| {name} | {number} |" for name, number in rows.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:last+1")
    parser.add_argument("--seed", type=int, help="one history, drawn at random")
    parser.add_argument("--verbose", action="store_true", help="with all that happened")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the tables of where faults were injected to this page")
    parser.add_argument("--digests", action="store_true", help="print only what identifies each history")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.verbose)
    first, _, last = arguments.seeds.partition(":")
    coverage, seeds = Coverage(), range(int(first), int(last))
    if arguments.digests:
        print("\n".join(f"{seed} {play(draw_case(seed)).digest()}" for seed in seeds))
        return 0
    summary = Summary()
    code = _many(seeds, arguments.jobs, coverage, summary)
    if arguments.page is not None:
        write_table(arguments.page, "histories", summary.table())
        write_table(arguments.page, "faults by step", by_step(coverage.cells, coverage.moments))
        write_table(arguments.page, "faults by kind", by_kind(coverage.cells))
    return code


def _one(seed: int, is_verbose: bool) -> int:
    result = play(draw_case(seed))
    entries = result.world.happened if is_verbose else result.world.happened[-_LAST:]
    print("\n".join(entry.line() for entry in entries))
    print(f"seed {seed}: {result.violation or result.ending}")
    return 1 if result.violation else 0


def story(result: Result) -> str:
    """Return how a history failed, and a test of the shrunk one; empty when it did not fail."""
    if result.violation is None:
        return ""
    smallest = shrink(result, _TRIES)
    lines = [entry.line() for entry in smallest.world.happened[-_LAST:]]
    found = f"seed {result.case.seed}: {result.violation}"
    about = f"shrunk to {smallest.steps} steps: {smallest.violation}"
    return "\n".join([*lines, found, about, "", smallest.case.as_test(smallest.violation)])


def _play(case: Case) -> Outcome:
    result = play(case)
    ending = result.violation.invariant if result.violation is not None else result.ending
    numbers = (result.steps, result.events, result.judged, result.moves)
    lasted = result.world.now
    return Outcome(case, ending, numbers, lasted, result.faults, result.moments, result.cells, story(result))


def _many(seeds: range, jobs: int, coverage: Coverage, summary: Summary) -> int:
    began = time.monotonic()  # clock: the report says how long it took
    gc.collect()
    gc.freeze()  # what was imported is not looked at again, here and in the processes forked from this one
    with multiprocessing.Pool(jobs) as pool:
        for outcome in _outcomes(seeds, pool.imap if jobs > 1 else None, coverage):
            summary.add(outcome)
            if outcome.story:
                print(outcome.story + "\n", flush=True)
            if len(summary.failed) >= _MOST_FAILURES:
                break
            number = summary.counts["histories"]
            if (sys.stderr.isatty() and number % 100 == 0) or number % 10000 == 0:
                print(f"{number} of {len(seeds)}", file=sys.stderr, flush=True)
        pool.terminate()
    seconds = time.monotonic() - began  # clock: likewise
    print("\n".join(summary.lines(seconds, jobs)))
    print(f"failed: {summary.failed}")
    return 1 if summary.failed else 0


def _outcomes(seeds: range, imap: Imap | None, coverage: Coverage) -> Iterator[Outcome]:
    """Play round after round, in the same order with any number of processes."""
    for start in range(0, len(seeds), _ROUND):
        cases = list(coverage.round(seeds[start : start + _ROUND]))
        for outcome in map(_play, cases) if imap is None else imap(_play, cases, 20):
            if not outcome.story:  # it would only fail again
                coverage.add(outcome.case, outcome.moments, outcome.cells, outcome.numbers[1])
            yield outcome


if __name__ == "__main__":
    sys.exit(main())
