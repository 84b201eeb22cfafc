"""Measure hot paths (a frame, a record, 64 KiB of output), and each verb as a whole."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from budgets import budgets, exceeded
from parts import Bench, Part, nothing, outcome, own_directory
from peers import TFLAUNCH, Job, launchers
from process_tree import ProcessTree, workshop
from rounds import Found, Sample, figures, in_turn, median, ratio, table

from tflaunch.core.events import TaskStarted
from tflaunch.store.journal import Journal
from tflaunch.store.log_writer import Kept, Marks, TaskLog
from tflaunch.store.run_dir import RunDirectory
from tflaunch.tui.screen import Screen
from tflaunch_worker import wire
from tflaunch_worker.agent.task_output import Spool, Stream

BASES = {"paths": "json", "verbs": "python"}
VERBS = ("check", "plan", "ls", "ps", "logs", "events", "down")
OF_A_SPEC = ("check", "plan")
TIMES = 500
CHUNK = b"step 120: loss 0.31, accuracy 0.94\n" * 1872  # 64 KiB, the size that an agent reads
LIMIT = 20.0
TASK = "worker:0"
EVENT = TaskStarted("localhost", TASK, 0, 4711, 62873.782086271)
RECORD: dict[str, object] = {"kind": "task_started", "seq": 120, **EVENT._asdict()}
TEXT = f"""\
In one process, {TIMES} times each, what an event (`frame`, `record`) and 64 KiB of output pass on their way: through
the agent (`output`), log and screen. The unit is one small JSON record, written and read, which says how fast the
machine is. Then verbs, from their start to their return, on a run of 8 tasks that has ended; the unit is the start
of the interpreter. Budgets are in [budgets](budgets.md).
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure both groups."""
    with workshop("hot") as (tree, scratch):

        def path(name: str) -> Sample:
            place = own_directory(scratch)
            begun = time.perf_counter()
            PATHS[name](place)
            return {"cost": 1e6 * (time.perf_counter() - begun) / TIMES}

        with _no_stdout():
            found = {"paths": Found(in_turn("hot paths", [*PATHS], bench.repeats, path), {})}
        directory = own_directory(scratch)
        verbs = _verbs(tree, directory, bench)

        def verb(name: str) -> Sample:
            run = tree.run(verbs[name], directory, nothing(), LIMIT)
            return outcome(run.exit_code, cost=1000 * run.seconds)

        for name in verbs:
            verb(name)  # warm-up
        found["verbs"] = Found(in_turn("verbs", [*verbs], bench.repeats, verb), {})
        return found


def _unit(directory: Path) -> None:
    for _ in range(TIMES):
        json.loads(json.dumps(RECORD))


def _frame(directory: Path) -> None:
    decoder = wire.Decoder()
    for _ in range(TIMES):
        decoder.feed(wire.encode(RECORD))


def _record(directory: Path) -> None:
    journal = Journal(RunDirectory.existing(directory, directory))
    for _ in range(TIMES):
        journal.record(EVENT, [], 1.0)
    journal.close()


def _output(directory: Path) -> None:
    stream = Stream(TASK, 0, Spool(str(directory)), time.monotonic)
    for number in range(1, TIMES + 1):
        stream.append(CHUNK)
        while stream.next_frame() is not None:
            pass
        stream.acknowledge(number * len(CHUNK))
    stream.close()


def _log(directory: Path) -> None:
    log = TaskLog(TASK, directory / "log", Marks(directory / "marks"), directory / "times")
    for _ in range(TIMES):
        log.append(CHUNK, [(0, 1.0)])
    log.close()
    (directory / "log").unlink()


def _screen(directory: Path) -> None:
    log = directory / "log"
    log.write_bytes(CHUNK)
    kept = Kept(str(log), 0)
    screen = Screen([TASK])
    for _ in range(TIMES):
        screen.show(TASK, CHUNK, kept)
    screen.close()


PATHS = {BASES["paths"]: _unit, "frame": _frame, "record": _record, "output": _output, "log": _log, "screen": _screen}


@contextmanager
def _no_stdout() -> Iterator[None]:
    """Discard what is written to stdout."""
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def _verbs(tree: ProcessTree, directory: Path, bench: Bench) -> dict[str, list[str]]:
    """Return the command of each verb, after creating a run for them to show."""
    known = launchers(bench.peers)
    up = known[TFLAUNCH].argv(Job(8, ("/bin/true",), directory))
    tree.run(up, directory, nothing(), LIMIT)
    program, spec = up[0], up[-1]
    commands = {verb: [program, verb, *([spec] if verb in OF_A_SPEC else [])] for verb in VERBS}
    return {BASES["verbs"]: [sys.executable, "-c", "pass"], **commands}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    lines = []
    for group, unit in (("paths", "µs"), ("verbs", "ms")):
        one, base = found[group], BASES[group]
        rows = []
        over = []
        for name in one.rounds:
            cost = ratio(one, name, base, "cost")
            limit = budgets().get(name if group == "paths" else f"tflaunch {name}", [None])[0]
            rows.append([f"`{name}`", *figures([median(one, name, "cost"), cost, limit])])
            over += [(name, cost, limit)] if limit is not None else []
        lines += ["", *table([group, unit, "units", "budget"], rows), *exceeded(over)]
    return lines


PART = Part("Hot paths", TEXT, measure, section)
