"""Runs the benchmarks and writes docs/benchmarks.md: `python benchmarks/run.py`, or some parts of it by name.

The raw figures of each part are kept in benchmarks/results, and the document is made from them, so a part that is not
run keeps its last table.
"""

import argparse
import datetime as dt
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import breakdown
import checkpoints
import document
import failure
import fan_out
import first_step
import growth
import hot_paths
import idle
import network
import output
import peers
import queue_dispatch
import readers
import recovery
import scale
import spares
import startup
import warm
from parts import Bench, Part
from process_tree import forked

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
PEERS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tflaunch-benchmarks" / "peers"
PARTS: dict[str, Part] = {
    "first_step": first_step.PART,
    "warm": warm.PART,
    "recovery": recovery.PART,
    "spares": spares.PART,
    "startup": startup.PART,
    "breakdown": breakdown.PART,
    "hot_paths": hot_paths.PART,
    "output": output.PART,
    "failure": failure.PART,
    "idle": idle.PART,
    "network": network.PART,
    "checkpoints": checkpoints.PART,
    "fan_out": fan_out.PART,
    "readers": readers.PART,
    "queue": queue_dispatch.PART,
    "growth": growth.PART,
    "scale": scale.PART,
}


def main() -> int:
    """Run the requested parts."""
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Exit through an exception, so that running processes are ended, too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    broken = []
    if not arguments.table_only:
        broken += _measure(arguments.parts, arguments.repeats, arguments.peers, arguments.json)
    results = {name: document.load(path) for name in PARTS if (path := arguments.json / f"{name}.json").exists()}
    if not results:
        broken.append(f"no results in {arguments.json}: there is nothing to make a document of")
    elif arguments.json == RESULTS:
        PAGE.write_text(document.write(PARTS, results))
    else:
        print(document.write(PARTS, results), end="")
    for sentence in broken:
        print(sentence, file=sys.stderr)
    return 1 if broken else 0


def _measure(parts: list[str], repeats: int, venv: Path, directory: Path) -> list[str]:
    """Measure some parts and save their results; return a message for each that failed."""
    broken = []
    if any(PARTS[name].has_peers for name in parts):
        peers.install(venv)
    for name in parts:
        try:
            document.save(_result(name, repeats, venv), directory / f"{name}.json")
        except SystemExit as error:
            if isinstance(error.code, int):
                raise  # a signal
            broken.append(f"{name}: {error.code}")
    return broken


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all, which are {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=_count, default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument(
        "--peers", type=Path, default=PEERS, metavar="DIR", help=f"their environment (default: {PEERS})"
    )
    parser.add_argument("--table-only", action="store_true", help="measure nothing: make the document from the results")
    parser.add_argument(
        "--json", type=Path, default=RESULTS, metavar="DIR", help="keep raw figures there, and print the document"
    )
    arguments = parser.parse_args()
    arguments.peers, arguments.json = arguments.peers.resolve(), arguments.json.resolve()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]}: there are {', '.join(PARTS)}")
    arguments.parts = [name for name in PARTS if name in arguments.parts or not arguments.parts]
    return arguments


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _result(name: str, repeats: int, venv: Path) -> document.Result:
    date = f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d %H:%M} UTC"
    begun, load = time.monotonic(), os.getloadavg()[0]
    # In a separate process, so that leftovers of one part do not affect the next one.
    found = forked(partial(PARTS[name].measure, Bench(repeats, venv)))
    return document.Result(
        date=date,
        machine=document.this_machine(),
        versions=peers.versions(venv),
        load=(load, os.getloadavg()[0]),
        repeats=repeats,
        seconds=time.monotonic() - begun,
        found=found,
    )


if __name__ == "__main__":
    sys.exit(main())
