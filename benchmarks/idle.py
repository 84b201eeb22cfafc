"""Measure CPU, wake-ups and memory of launchers while 64 tasks sleep, all idle at once in one run."""

import re
import time
from pathlib import Path
from typing import NamedTuple

from parts import Bench, Part, nothing, own_directory
from peers import TFLAUNCH, Job, launchers
from process_tree import ProcessTree, command_of, status_of, wait_for, workshop
from rounds import Found, Sample, figures, median, remarks, table

TASKS = 64
COMMAND = ("/bin/sleep", "1000")
DETACHED = "tflaunch up -d"
WINDOW = 12.0  # seconds per round
CALM = 15.0  # seconds between the last start and the first round
LIMIT = 60.0  # seconds within which 64 tasks must have started
QUIET = 1.0  # seconds without new processes


class Idler(NamedTuple):
    """A launcher that has started its tasks, and its own processes."""

    name: str
    pids: tuple[int, ...]


class Use(NamedTuple):
    """The resources that some processes have used since their start."""

    seconds: float
    switches: int


TEXT = f"""\
{TASKS} tasks of each launcher sleep; all launchers idle at the same time, and a round is {WINDOW:g} s. The
figures are of all processes of the launcher without the tasks: those of tflaunch are launcher, guard and agent.
A switch is a context switch of any of their threads, so each wake-up is one. PSS shares out what several
processes use together. tflaunch wakes here to check, at growing intervals, whether the tasks
have opened the ports that TensorFlow would; with `-d`, supervisor and agent also hold a lease and exchange a message
each second.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Start all launchers one after the other, then measure them together."""
    known = launchers(bench.peers)
    missing = {name: [launcher.remedy] for name, launcher in known.items() if not launcher.program}
    names = [*(name for name in known if name not in missing), DETACHED]
    with workshop("idle") as (tree, scratch):
        idlers = []
        for name in names:
            launcher = known[TFLAUNCH if name == DETACHED else name]
            job = Job(TASKS, COMMAND, own_directory(scratch), ("-d",) if name == DETACHED else ())
            idlers.append(Idler(name, _start(tree, launcher.argv(job), job.directory)))
        time.sleep(CALM)
        rounds: dict[str, list[Sample]] = {idler.name: [] for idler in idlers}
        for _ in range(bench.repeats):
            for name, sample in _window(idlers).items():
                rounds[name].append(sample)
        return {str(TASKS): Found(rounds, missing)}


def _start(tree: ProcessTree, argv: list[str], directory: Path) -> tuple[int, ...]:
    """Start a launcher; return its processes once all tasks run and no new processes appear."""
    before = set(tree.living())
    tree.start(argv, directory, nothing())

    def new() -> tuple[list[int], list[int]]:
        pids = [pid for pid in tree.living() if pid not in before]
        is_task = {pid: command_of(pid) == COMMAND for pid in pids}
        return [pid for pid in pids if is_task[pid]], [pid for pid in pids if not is_task[pid]]

    wait_for(lambda: len(new()[0]) == TASKS, LIMIT)
    seen = new()
    while True:
        time.sleep(QUIET)
        if (now := new()) == seen:
            return tuple(now[1])
        seen = now


def _window(idlers: list[Idler]) -> dict[str, Sample]:
    before = {idler.name: (time.monotonic(), _use(idler)) for idler in idlers}
    time.sleep(WINDOW)
    samples = {}
    for idler in idlers:
        begun, was = before[idler.name]
        use, seconds = _use(idler), time.monotonic() - begun
        samples[idler.name] = {
            "cpu_percent": 100 * (use.seconds - was.seconds) / seconds,
            "switches_per_second": (use.switches - was.switches) / seconds,
            "processes": len(idler.pids),
            **_memory(idler),
        }
    return samples


def _use(idler: Idler) -> Use:
    seconds, switches = 0.0, 0
    for pid in idler.pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            # In nanoseconds; /proc/PID/stat has only ticks of 10 ms.
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
            status = status_of(pid, int(task.name))
            switches += sum(int(count) for name, count in status.items() if name.endswith("ctxt_switches"))
    return Use(seconds, switches)


def _memory(idler: Idler) -> Sample:
    kilobytes = dict.fromkeys(("Rss", "Pss"), 0)
    for pid in idler.pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        for name in kilobytes:
            match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
            kilobytes[name] += int(match[1]) if match else 0
    return {f"{name.lower()}_mib": value / 1024 for name, value in kilobytes.items()}


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    (one,) = found.values()
    rows = []
    for name in one.rounds:
        wanted = ("cpu_percent", "switches_per_second", "rss_mib", "pss_mib")
        cells = [f"{median(one, name, 'processes') or 0:g}", *figures(median(one, name, what) for what in wanted)]
        rows.append([name, *cells])
    return [
        *table(["launcher", "processes", "CPU, % of a core", "switches per s", "RSS, MiB", "PSS, MiB"], rows),
        "",
        *remarks(found),
    ]


PART = Part("Idle", TEXT, measure, section, has_peers=True)
