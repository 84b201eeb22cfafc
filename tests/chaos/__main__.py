"""Play drills until the time is over: ``python -m chaos --minutes 5``, ``python -m chaos --seed 7 --drills 1``.

Root only. Prints a line per drill, and what is wrong; the exit code is 1 if anything is.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from chaos import judge, program
from chaos.drill import STARTED, STEPS, WORKERS, Drill, draw
from chaos.world import World
from support.memory_group import why_no_groups
from support.page_tables import read_table, write_table
from support.processes import ProcessWatch
from support.sshd import Keyring

_HARMLESS = ("kill task", "exceed memory", "step clock", "stop task", "slow", "flap", "follow and stop", "kill sshd")
_SHORT = 6.0  # seconds; links that are lost for so long lose no output


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="start no drill after this time")
    parser.add_argument("--drills", type=int, default=10**9, help="the maximum number of drills")
    parser.add_argument("--seed", type=int, default=0, help="of the first drill; the next ones follow")
    parser.add_argument("--only", choices=("local", "ssh"), default="", help="where to play")
    parser.add_argument("--page", type=Path, help="add what was played to the table on this page")
    parser.add_argument("--keep", type=Path, help="copy the directory of a failed drill there")
    arguments = parser.parse_args()
    impossible = {"exceed memory": why_no_groups()}
    for kind, reason in impossible.items():
        if reason:
            print(f"no drill has {kind!r}: {reason}")
    # clock: drills are played for some minutes
    until, series = time.monotonic() + 60 * arguments.minutes, Series()
    with tempfile.TemporaryDirectory(prefix="tflaunch-chaos-") as root:
        keys = Keyring(Path(root))
        for seed in range(arguments.seed, arguments.seed + arguments.drills):
            if time.monotonic() > until:  # clock: as above
                break
            drill = draw(seed, only=arguments.only, without=[kind for kind, reason in impossible.items() if reason])
            directory = Path(root) / f"drill-{seed}"
            wrong, suffered, took = play(drill, directory, keys)
            series.add(wrong, suffered, took)
            what, end = "; ".join(what for _, what in suffered), "FAILED" if wrong else "ok"
            print(f"{seed}: {drill}: {what or 'undisturbed'}: {took:.0f} s: {end}", flush=True)
            for sentence in wrong:
                print(f"    {sentence}", flush=True)
            if wrong and arguments.keep is not None:
                left_out = shutil.ignore_patterns("bed", "*.sock")
                shutil.copytree(directory, arguments.keep / directory.name, symlinks=True, ignore=left_out)
            shutil.rmtree(directory, ignore_errors=True)
    if arguments.page is not None:
        write_table(arguments.page, "drills", series.table(read_table(arguments.page, "drills")))
    return 1 if series.failed else 0


class Series:
    """Statistics of drills."""

    def __init__(self) -> None:
        self.drills = 0
        self.failed = 0
        self.seconds = 0.0
        self.faults: Counter[str] = Counter()

    def add(self, wrong: Sequence[str], suffered: Iterable[tuple[str, str]], took: float) -> None:
        """Count a drill; the arguments are what `play` returns."""
        self.drills += 1
        self.failed += bool(wrong)
        self.seconds += took
        self.faults.update(kind for kind, _ in suffered)

    def table(self, earlier: Iterable[Sequence[str]] = ()) -> Iterator[str]:
        """Yield a table in Markdown of what was played, together with the rows of ``earlier`` series."""
        known = Counter({what: int(number.replace(",", "")) for what, number in earlier})
        counts = {"drills": self.drills, "of which violated an invariant": self.failed}
        counts["minutes"] = round(self.seconds / 60)
        yield "| what | number |"
        yield "|---|--:|"
        for what, count in counts.items():
            yield f"| {what} | {count + known.pop(what, 0):,} |"
        for kind, count in sorted((known + self.faults).items()):
            yield f"| {kind} | {count:,} |"


def play(drill: Drill, directory: Path, keys: Keyring) -> tuple[list[str], list[tuple[str, str]], float]:
    """Play a drill; return what is wrong, the faults that took effect, and the seconds it took."""
    directory.mkdir()
    began = time.monotonic()  # clock: how long it took is shown
    suffered = []
    with ExitStack() as stack:
        world = World(drill, directory, keys, stack)
        stack.callback(world.launch.end)
        watch = stack.enter_context(world.start())
        for fault in drill.faults:
            if not world.wait(lambda step=fault.step: _has_reached(world, watch, step)):  # type: ignore[misc]
                break
            world.last(fault.delay)
            if what := world.suffer(fault):
                suffered.append((fault.kind, what))
        code = world.finish()
        found = judge.gather(
            directory,
            world.launch.run_directory(),
            code=code,
            clashes=watch.clashes()[:1],
            has_started=any(sample.living for sample in watch.samples),
            left=[] if code is None else world.left(),
            errors="".join(world.errors),
            taken=world.taken,
            has_fixed_ports=drill.has_fixed_ports,
            may_lose=any(kind not in _HARMLESS and not _is_short(kind, drill) for kind, _ in suffered),
        )
    expected = program.result_of(STEPS, WORKERS)
    return judge.violations(found, expected, world.finishers()), suffered, time.monotonic() - began  # clock: as above


def _has_reached(world: World, watch: ProcessWatch, step: int) -> bool:
    if step <= STARTED:
        return step < STARTED or any(sample.living for sample in watch.samples[-1:])
    return world.step() >= step


def _is_short(kind: str, drill: Drill) -> bool:
    return kind in ("cut", "black hole") and all(fault.seconds <= _SHORT for fault in drill.faults)


if __name__ == "__main__":
    sys.exit(main())
