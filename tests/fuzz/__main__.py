"""Run cases: ``python -m fuzz --border frames --cases 1000000 --seed 7 --jobs 2``, with PYTHONPATH=tests."""

import argparse
import multiprocessing
import sys

from fuzz import borders

_BLOCK = 500


def main() -> int:
    """Run what the command line requests; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--border", choices=[*borders.MODULES, *borders.SMALL], action="append", help="default: all")
    parser.add_argument("--cases", type=int, default=2000, help="per border")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--most-failures", type=int, default=5, help="stop a border after this many")
    parser.add_argument("--keep", action="store_true", help="keep cases that fail as regressions")
    arguments = parser.parse_args()
    return max([_play(name, arguments) for name in arguments.border or (*borders.MODULES, *borders.SMALL)])


def _play(name: str, arguments: argparse.Namespace) -> int:
    played = failures = 0
    end = arguments.first + arguments.cases
    blocks = [(name, arguments.seed, first, min(_BLOCK, end - first)) for first in range(arguments.first, end, _BLOCK)]
    with multiprocessing.Pool(arguments.jobs) as pool:
        played_by = pool.imap_unordered if arguments.jobs > 1 else map
        for count, failed in played_by(_play_block, blocks):
            played += count
            for failure in failed:
                failures += 1
                print(f"{failure.name}\n{failure.error}", flush=True)
                if arguments.keep:
                    print(f"kept as {borders.keep(name, failure.case)}")
            if failures >= arguments.most_failures:
                break
        pool.terminate()
    print(f"{name}: {played} cases, {failures} failed", flush=True)
    return 1 if failures else 0


def _play_block(block: tuple[str, int, int, int]) -> tuple[int, list[borders.Failure]]:
    outcomes = list(borders.play(*block))
    return len(outcomes), [outcome for outcome in outcomes if outcome is not None]


if __name__ == "__main__":
    sys.exit(main())
