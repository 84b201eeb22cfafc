"""Measure how soon a run of the local queue begins when its host becomes free, with 1,000 runs waiting."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import peers
from parts import Bench, Part, nothing, own_directory
from process_tree import ProcessTree, StuckError, wait_for, workshop
from rounds import Found, Sample, figures, in_turn, median, ratio, remarks, table

from tflaunch.clusterspec.spec_file import read_spec_file
from tflaunch.discovery import prepare
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

ENTRIES = 1000
DISPATCHES = 20
"""Number of runs that begin in each round."""
OURS, BARE = "next run", "bare interpreter"
PAUSE = 0.0005  # seconds between two looks at the run that is to begin
LIMIT = 300.0
WORDS = {"median_ms": "from the release to the record, ms", "worst_ms": "the slowest of these, ms"}
TEXT = f"""\
{ENTRIES:,} runs wait in the queue for this machine (`up -d --matrix`), which a process holds as a run does: with a
journal and its lock. It releases the lock; the next run has begun when its journal has a record. Then another such
process takes the machine before that run ends. This is done {DISPATCHES} times in each round. The ratio is to the start
of a bare interpreter in the same round.
"""


class Blocker:
    """A run that holds this machine, without tasks."""

    def __init__(self, plan: Plan) -> None:
        directory = RunDirectory(plan.name)
        self._lock = run_dir.take_lock(directory.path)
        self._journal = Journal(directory)
        self._journal.record_plan(directory, serialize.as_json(plan), 0.0)

    def release(self) -> float:
        """End the run; return the monotonic time at which the machine is free."""
        self._journal.record_end(0, [], "succeeded")
        self._journal.close()
        os.close(self._lock)
        return time.monotonic()


class Queue:
    """A queue for this machine, and what holds it."""

    def __init__(self, tree: ProcessTree, directory: Path) -> None:
        """Fill the queue."""
        os.environ["TFLAUNCH_HOME"] = str(directory / "home")
        spec = directory / "job.json"
        about = {"cluster": {"worker": 1}, "strategy": "none", "command": ["sleep", "0.5"]}
        spec.write_text(json.dumps({"name": "blocker", **about}))
        self._plan = prepare.plan_spec(read_spec_file(spec))[0]
        self._blocker = Blocker(self._plan)
        self._runs = directory / "home" / "runs"
        tickets = directory / "home" / "queue" / "tickets"
        spec.write_text(json.dumps({"name": "queued", **about, "env": {"N": "{matrix.n}"}}))
        values = ",".join(map(str, range(ENTRIES)))
        command = [peers.tflaunch(), "up", "-d", str(spec), "--matrix", f"n={values}"]
        if not tree.start(command, directory, nothing()).wait(LIMIT):
            raise StuckError("the queue was not filled")
        (ticket,) = tickets.iterdir()
        self._left = ticket.read_text().split()
        self._waiter = int(ticket.name.partition("-")[2])

    def begin_some(self) -> Sample:
        """Free the machine again and again."""
        seconds = [self._begin_one() for _ in range(DISPATCHES)]
        return {"median_ms": 1000 * statistics.median(seconds), "worst_ms": 1000 * max(seconds)}

    def _begin_one(self) -> float:
        run = self._runs / self._left.pop(0)
        released = self._blocker.release()
        wait_for(lambda: _has_record(run / JOURNAL_NAME), LIMIT, pause=PAUSE)
        seconds = time.monotonic() - released
        self._blocker = Blocker(self._plan)
        wait_for(lambda: not run_dir.is_locked(run), LIMIT)
        return seconds

    def end(self) -> None:
        """Empty the queue."""
        os.kill(self._waiter, signal.SIGTERM)
        self._blocker.release()


def measure(bench: Bench) -> dict[str, Found]:
    """Fill a queue, and let runs of it begin."""
    with workshop("queue") as (tree, scratch):
        queue = Queue(tree, own_directory(scratch))
        try:
            found = in_turn(
                "queue", [BARE, OURS], bench.repeats, lambda name: _bare() if name == BARE else queue.begin_some()
            )
        finally:
            queue.end()
        return {str(ENTRIES): Found(found, {})}


def _has_record(journal: Path) -> bool:
    try:
        return journal.stat().st_size > 0
    except FileNotFoundError:
        return False


def _bare() -> Sample:
    """Start an interpreter that does nothing, as often."""
    seconds = []
    for _ in range(DISPATCHES):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        seconds.append(time.monotonic() - begun)
    return {"median_ms": 1000 * statistics.median(seconds), "worst_ms": 1000 * max(seconds)}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    (one,) = found.values()
    rows = []
    for what, words in WORDS.items():
        ours, bare = median(one, OURS, what), median(one, BARE, what)
        rows.append([words, *figures([ours, bare, ratio(one, OURS, BARE, what)])])
    return [*table(["", OURS, BARE, "ratio"], rows), "", *remarks(found)]


PART = Part("Queue", TEXT, measure, section)
