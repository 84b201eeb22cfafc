"""Measure what a job of many tasks and hosts costs its supervisor, complete except for the screen.

The hosts are simulated by another process (`simulated_hosts`), over a socket each.
"""

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from parts import Bench, Part, own_directory
from process_tree import forked, status_of, workshop
from rounds import Found, Sample, figures, in_turn, median, table
from simulated_hosts import FINISH, KILL, Door, SimulatedHosts

from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.clusterspec import load
from tflaunch.core import step
from tflaunch.core.job_state import Job, Phase
from tflaunch.discovery import local_machine
from tflaunch.mailbox import Mailbox
from tflaunch.plan import lint, planner, serialize
from tflaunch.plan.model import Plan
from tflaunch.runtime.daemon import Notes
from tflaunch.runtime.loop import Collaborators, Run
from tflaunch.store.journal import Journal
from tflaunch.store.left_files import LeftFileStore
from tflaunch.store.log_sink import LogSink
from tflaunch.store.log_writer import Marks
from tflaunch.store.run_dir import JOURNAL_NAME, LEFT_FILES_NAME, RunDirectory

SHAPES = {"1 task on a host": (1, (100, 1_000, 5_000, 10_000)), "10 tasks on a host": (10, (100, 1_000, 10_000))}
"""Number of tasks per host, and in total."""
MOST_ROUNDS = 3
TEXT = """\
A job of mirrored workers, from its spec to its end, with all that a supervisor consists of but the screen: plan,
journal, logs, and a session with each host over a socket of its own. The hosts are simulated by another process, and
their tasks say nothing. All tasks start and open their ports; then nothing happens for a while (*idle*); one is killed,
the others are ended, all start again; then all end well. CPU is that of the supervisor's process in the whole run,
memory the most that it has held above what it began with. In parentheses: where each task, or event, costs more than
1.2 times as much as with the fewest tasks, how many times.
"""
_SPARE = 100  # other open files
_QUIET, _IDLE = 1.0, 4.0  # seconds after the launch, and seconds of the idle measurement
_NOTABLE = 1.2
_NAME = "supervisor"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class _Conductor:
    """Watches a run (`loop.Watcher`), records times, and triggers a task's kill and the end of all."""

    def __init__(self, hosts: socket.socket, mailbox: Mailbox) -> None:
        self.marks: dict[str, float] = {}
        self.events = 0
        self.idle = 0.0
        self._hosts = hosts
        self._mailbox = mailbox

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step."""
        self.events += 1
        if job.phase is Phase.PREPARING:
            self._note("joined")
        if job.phase is Phase.STOPPING:
            self._note("failed")
        if job.phase is not Phase.RUNNING or not job.formation.is_complete:
            return
        if job.attempt == 0 and "launched" not in self.marks:
            self._note("launched")
            self._mailbox.call_at(now + _QUIET, self._be_idle)
        elif job.attempt == 1 and "restarted" not in self.marks:
            self._note("restarted")
            self._hosts.sendall(FINISH)

    def _be_idle(self) -> None:
        began = time.process_time()

        def end() -> None:
            self.idle = 100 * (time.process_time() - began) / _IDLE
            self._hosts.sendall(KILL)

        self._mailbox.call_at(time.monotonic() + _IDLE, end)

    def _note(self, what: str) -> None:
        self.marks.setdefault(what, time.monotonic())


def measure(bench: Bench) -> dict[str, Found]:
    """Measure jobs of all sizes."""
    found = {}
    with workshop("scale") as (_, scratch):
        for shape, (per_host, sizes) in SHAPES.items():
            for size in sizes:
                key, hosts = f"{size} {shape}", size // per_host
                missing = _missing_files(size, hosts)
                if missing:
                    found[key] = Found({_NAME: []}, {f"{size} tasks, {shape}": [missing]})
                    continue

                def one(_: str, size: int = size, hosts: int = hosts) -> Sample:
                    return forked(partial(_one, own_directory(scratch), size, hosts))

                rounds = min(bench.repeats, MOST_ROUNDS)
                found[key] = Found(in_turn(f"scale, {size} tasks, {shape}", (_NAME,), rounds, one), {})
    return found


def _missing_files(tasks: int, hosts: int) -> str:
    """Return a note if this many files cannot be open here, otherwise ""."""
    needed, (_, most) = hosts + tasks + _SPARE, resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"not measured: it needs {needed} open files, and the limit is {most}" if needed > most else ""


def _one(directory: Path, size: int, hosts: int) -> Sample:
    """Execute a run in this process."""
    os.environ["TFLAUNCH_HOME"] = str(directory / "home")
    before, began = _memory("VmRSS"), time.monotonic()
    plan = _plan(directory, size, hosts)
    planned = time.monotonic()
    run_directory = RunDirectory(plan.name)
    mailbox = Mailbox()
    with _hosts(directory) as (door, conductor_end):
        conductor = _Conductor(conductor_end, mailbox)
        cpu, started = time.process_time(), time.monotonic()
        exit_code = _supervise(plan, run_directory, mailbox, door, conductor)
        used = time.process_time() - cpu
        with conductor_end.makefile() as answer:
            stopped = float(answer.readline())
    marks = conductor.marks
    return {
        "failed": float(exit_code != 0),
        "plan": planned - began,
        "join": marks["joined"] - started,
        "launch": marks["launched"] - started,
        "stop": stopped,
        "restart": marks["restarted"] - marks["failed"],
        "idle": conductor.idle,
        "cpu": used,
        "event": 1e6 * used / conductor.events,
        "mib": _memory("VmHWM") - before,
        "journal": (run_directory.path / JOURNAL_NAME).stat().st_size / 2**20,
    }


def _plan(directory: Path, size: int, hosts: int) -> Plan:
    spec = directory / "scale.json"
    names = [_host(number % hosts) for number in range(size)]
    restart = {"max": 3, "backoff": [0, 0]}
    spec.write_text(json.dumps({"cluster": {"worker": names}, "command": ["python", "train.py"], "restart": restart}))
    loaded = load.load_spec(spec)
    if problems := lint.check_spec(loaded):
        raise SystemExit(str(problems[0]))
    return planner.make_plan(loaded, directory, local_machine.describe_machine([]))


def _host(number: int) -> str:
    """Return a name of four letters: with longer ones, ten thousand tasks do not fit in a TF_CONFIG."""
    return "".join(_LETTERS[number // 26**place % 26] for place in (3, 2, 1, 0))


@contextmanager
def _hosts(directory: Path) -> Iterator[tuple[Door, socket.socket]]:
    """Run simulated hosts in another process; yield their connector, and the socket that controls them."""
    path = directory / "hosts"
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(4096)
        process = get_context("fork").Process(target=_be_hosts, args=(listener, theirs, ours))
        process.start()
    theirs.close()
    try:
        yield Door(path), ours
    finally:
        ours.close()
        process.join()


def _be_hosts(listener: socket.socket, conductor: socket.socket, other_end: socket.socket) -> None:
    other_end.close()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    SimulatedHosts(listener, conductor).serve()


def _supervise(plan: Plan, directory: RunDirectory, mailbox: Mailbox, door: Door, conductor: _Conductor) -> int:
    """Run a plan to its end, with the collaborators that `wiring` opens; return the exit code."""
    job = step.begin_job(directory.run, plan, mailbox.now())
    record = serialize.as_json(plan)
    directory.write_plan(record)
    journal = Journal(directory)
    journal.record_plan(directory, record, job.started_at)
    words = LogSink(directory.logs, Marks(directory.marks), directory.times, Notes(), mailbox)
    left_files = LeftFileStore(directory.path / LEFT_FILES_NAME)
    terms = Terms(directory.run, plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat)
    with ThreadPoolExecutor(128) as pool:

        def in_thread(function: Callable[[], None]) -> None:
            pool.submit(function)

        sessions = {
            host.host: Session(host.host, door, terms, mailbox, words, left_files, in_thread) for host in plan.hosts
        }
        parts = Collaborators(
            mailbox, journal, words, sessions, lambda _: None, str(directory.logs), watchers=(conductor.watch,)
        )
        run = Run(job, parts)
        run.execute({})
    journal.record_end(run.exit_code, words.trouble(), "succeeded")
    for part in (words, journal, mailbox):
        part.close()
    return run.exit_code


def _memory(what: str) -> float:
    """Return a memory figure of this process in MiB."""
    return int(status_of(os.getpid())[what].split()[0]) / 1024


_COLUMNS = {
    "plan": "plan, s",
    "join": "all joined, s",
    "launch": "all run, s",
    "stop": "kill: others told, s",
    "restart": "all run again, s",
    "idle": "idle: CPU, % of a core",
    "cpu": "CPU, s",
    "event": "CPU per event, µs",
    "mib": "memory, MiB",
    "journal": "journal, MiB",
}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    lines: list[str] = []
    for shape, (_, sizes) in SHAPES.items():
        fewest = found.get(f"{sizes[0]} {shape}")
        rows = []
        for size in sizes:
            one = found.get(f"{size} {shape}")
            if one is not None and one.rounds[_NAME] and fewest is not None:
                times = size / sizes[0]
                rows.append([f"{size:,}", *(_cell(one, fewest, what, times) for what in _COLUMNS)])
        lines += ["", *table([f"tasks, {shape}", *_COLUMNS.values()], rows)] if rows else []
    notes = [f"- {name}: {'; '.join(texts)}." for one in found.values() for name, texts in one.notes.items()]
    return [*lines, "", *notes]


def _cell(one: Found, fewest: Found, what: str, times: float) -> str:
    """Return a figure of a job with ``times`` as many tasks as the smallest, and its growth per task."""
    value, least = median(one, _NAME, what), median(fewest, _NAME, what)
    (text,) = figures([value])
    if value is None or not least:
        return text
    growth = value / least / (1 if what == "event" else times)
    return f"{text} ({growth:.1f})" if growth > _NOTABLE else text


PART = Part("Scale", TEXT, measure, section)
