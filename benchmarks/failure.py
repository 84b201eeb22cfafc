"""Kill one of 8 tasks, and measure how long until the others are dead, and until the launcher returns."""

import os
import random
import signal
import threading
import time

from parts import Bench, Part, nothing, own_directory
from peers import PARALLEL, TFLAUNCH, Job, Launcher, launchers
from process_tree import ProcessTree, all_ended, command_of, wait_for, workshop
from rounds import Found, Sample, figures, in_turn, median, remarks, table, values

TASKS = 8
COMMAND = ("/bin/sleep", "1000")
OPTIONS = {PARALLEL: ("--halt", "now,fail=1")}
ROWS = (TFLAUNCH, PARALLEL, "honcho", "torchrun", "mpirun")
LIMIT = 15.0
MOMENT = (1.0, 1.5)
"""Seconds after the last task's start at which to kill, at random: some launchers only poll now and then."""
TEXT = f"""\
One of {TASKS} tasks (`sleep 1000`) is killed (SIGKILL): seconds until the last of the others is dead, and until
the launcher has returned. tflaunch is configured not to restart (`restart.max` 0), GNU parallel `--halt now,fail=1`.
supervisord, a shell script and a bare `Popen` have no part here: they leave the others alone.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure all launchers that end the other tasks when one fails."""
    known = launchers(bench.peers)
    able = [name for name in ROWS if known[name].program]
    missing = {name: [known[name].remedy] for name in ROWS if name not in able}
    with workshop("failure") as (tree, scratch):

        def one(name: str) -> Sample:
            job = Job(TASKS, COMMAND, own_directory(scratch), OPTIONS.get(name, ()))
            return _one(tree, known[name], job)

        for name in able:
            one(name)  # warm-up
        return {str(TASKS): Found(in_turn("failure", able, bench.repeats, one), missing)}


def _one(tree: ProcessTree, launcher: Launcher, job: Job) -> Sample:
    started = tree.start(launcher.argv(job), job.directory, nothing())
    sleepers = wait_for(lambda: _sleepers(tree), LIMIT)
    time.sleep(random.uniform(*MOMENT))
    victim, *others = sleepers
    returned: list[float] = []

    def wait() -> None:
        started.process.wait()
        returned.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    ended = all_ended(others, killed + LIMIT)
    sample = {"others": time.monotonic() - killed} if ended else {"hung": 1.0}
    waiting.join(killed + LIMIT - time.monotonic())
    left = tree.left_running() if returned else 0
    tree.end()
    waiting.join()
    return {**sample, "returned": returned[0] - killed, "exit_code": started.process.returncode, "left": left}


def _sleepers(tree: ProcessTree) -> list[int]:
    """Return the PIDs of the tasks, empty until all have started."""
    found = [pid for pid in tree.living() if command_of(pid) == COMMAND]
    return found if len(found) == TASKS else []


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    (one,) = found.values()
    rows = []
    for name in [*one.rounds, *one.notes]:
        highest = [max(values(one, name, what), default=None) for what in ("others", "returned")]
        dead, returned = (median(one, name, what) for what in ("others", "returned"))
        codes = sorted({f"{code:g}" for code in values(one, name, "exit_code")})
        cells = figures([dead, highest[0], returned, highest[1]])
        rows.append([name, *cells, ", ".join(codes)])
    return [*table(["launcher", "others dead, s", "max", "returned, s", "max", "exit code"], rows), "", *remarks(found)]


PART = Part("Failure of a task", TEXT, measure, section, has_peers=True)
