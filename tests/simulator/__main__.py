"""Play histories: ``python -m simulator --seeds 0:100000 --jobs 2``, ``python -m simulator --seed 7 --verbose``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from simulator.history import Result, play

_LAST = 40  # entries of a failed history that are shown


class Summary:
    """Statistics of many histories."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.failed: list[tuple[int, str, str]] = []

    def add(self, seed: int, ending: str, numbers: tuple[int, int, int], faults: Counter[str], story: str) -> None:
        """Count one history."""
        self.counts.update(histories=1, steps=numbers[0], events=numbers[1], judged=numbers[2])
        self.faults.update(faults)
        self.endings[ending] += 1
        if story:
            self.failed.append((seed, ending, story))

    def lines(self) -> Iterator[str]:
        """Return the report's lines."""
        counts = self.counts
        yield (
            f"{counts['histories']} histories, {counts['events']} things happened, "
            f"{counts['steps']} steps of the supervisor, {counts['judged']} culprits judged"
        )
        yield "faults:  " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        yield "endings: " + ", ".join(f"{ending} {count}" for ending, count in sorted(self.endings.items()))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:last+1")
    parser.add_argument("--seed", type=int, help="one history")
    parser.add_argument("--verbose", action="store_true", help="with all that happened")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most-failures", type=int, default=5, help="stop after this many")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.verbose)
    first, _, last = arguments.seeds.partition(":")
    return _many(range(int(first), int(last)), arguments.jobs, arguments.most_failures)


def _one(seed: int, is_verbose: bool) -> int:
    result = play(seed)
    entries = result.world.happened if is_verbose else result.world.happened[-_LAST:]
    print("\n".join(entry.line() for entry in entries))
    print(f"seed {seed}: {result.violation or result.ending}")
    return 1 if result.violation else 0


def story(result: Result) -> str:
    """Return how a history failed; empty when it did not."""
    if result.violation is None:
        return ""
    lines = [entry.line() for entry in result.world.happened[-_LAST:]]
    again = f"python -m simulator --seed {result.seed} --verbose"
    return "\n".join([*lines, f"seed {result.seed}: {result.violation}", f"replay: {again}"])


def _play(seed: int) -> tuple[int, str, tuple[int, int, int], Counter[str], str]:
    result = play(seed)
    ending = result.violation.invariant if result.violation is not None else result.ending
    return seed, ending, (result.steps, result.events, result.judged), result.faults, story(result)


def _many(seeds: range, jobs: int, most: int) -> int:
    summary, began = Summary(), time.monotonic()
    with multiprocessing.Pool(jobs) as pool:
        played = pool.imap_unordered(_play, seeds, chunksize=20) if jobs > 1 else map(_play, seeds)
        for number, outcome in enumerate(played, 1):
            summary.add(*outcome)
            if outcome[-1]:
                print(outcome[-1] + "\n", flush=True)
            if len(summary.failed) >= most:
                break
            if (sys.stderr.isatty() and number % 100 == 0) or number % 10000 == 0:
                rate = number / (time.monotonic() - began)
                print(f"{number} of {len(seeds)}, {rate:.0f} a second", file=sys.stderr, flush=True)
        pool.terminate()
    print("\n".join(summary.lines()))
    print(f"{time.monotonic() - began:.1f} s; failed: {[(seed, ending) for seed, ending, _ in summary.failed]}")
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
