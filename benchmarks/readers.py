"""Measure how five `ps --watch` and five `logs -f`, some of them stopped, or ten open pages, affect a run of 64 tasks.

The tasks mostly wait: each writes a line, sleeps, and repeats. If all cores were busy, the terminals' own CPU use
would slow every run, which says nothing about the supervisor. Here a task shows a delay only if its writes block:
it sleeps between its lines, so every delay adds to its time. An evaluator that repeatedly exits and requests a
restart shows how fast the supervisor reacts: from each of its exits to the start of the next attempt.
"""

import json
import signal
import statistics
import sys
from functools import partial
from pathlib import Path

import peers
from parts import Bench, Part, journal, nothing, own_directory
from process_tree import ProcessTree, Started, StuckError, command_of, cpu_seconds, parent_of, wait_for, workshop
from rounds import Found, Sample, figures, in_turn, median, ratio, remarks, table

TASKS = 64
LINES = 160
PAUSE = 0.05  # seconds between two lines
KINDS = (["ps", "--watch"], ["logs", "-f"])
STOPPED = 2
"""Number of stopped readers of each kind."""
ALONE, WATCHED, SHOWN = "alone", "with 10 readers", "with 10 pages"
EACH = 5
"""Number of readers of each kind."""
PAGES = 10
BROWSER = """
import http.client, sys, threading
host, run, token, pages = sys.argv[1:]
def ask(path, cookie=""):
    connection = http.client.HTTPConnection(host)
    connection.request("GET", path, headers={"Cookie": cookie})
    return connection.getresponse()
cookie = ask("/?token=" + token).headers["Set-Cookie"].partition(";")[0]
def read(page):
    for line in page:
        pass
for number in range(int(pages)):
    page = ask(f"/api/runs/{run}/live?logs=*", cookie)
    while not page.readline().startswith(b"event: status"):
        pass
    threading.Thread(target=read, args=[page]).start()
print("open", flush=True)
"""
"""Opens pages with the output of all tasks, as a browser does, and reads what they are sent."""
LIMIT = 120.0
WORDS = {
    "duration": "first line to last line, s",
    "supervisor": "CPU of the supervisor, s",
    "agent": "CPU of the agent, s",
    "readers": "CPU of the readers, s",
    "reaction_ms": "from an exit of a task to its next start, ms",
    "slowest_ms": "the slowest of these, ms",
}
PULSE = "until test -e go; do sleep 0.1; done; sleep 0.7; exit 42"
"""42 means \"saved, restart me\", which is not charged to the budget."""
PROGRAM = f"""
import os, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.1)
print("ready", flush=True)
wait_for("go")
begun = time.monotonic()
for number in range({LINES}):
    print("step", number, "of {LINES}: a line as long as those of programs that train", flush=True)
    time.sleep({PAUSE})
ended = time.monotonic()
with open("done-" + os.environ["TFLAUNCH_TASK"] + ".new", "w") as file:
    file.write(repr([begun, ended]))
os.rename(file.name, file.name[:-4])
wait_for("end")
"""
TEXT = f"""\
{TASKS} tasks, which together write {round((TASKS - 1) / PAUSE, -1):,.0f} lines a second for {LINES * PAUSE:g}
s: alone; with ten other terminals, five `ps --watch` and five `logs -f`, two of each stopped; and with ten pages of one
`tflaunch web` open, each with the output of all tasks. Ratios are to the run alone.
"""


def measure(bench: Bench) -> dict[str, Found]:
    """Measure a run without and with readers."""

    def one(name: str) -> Sample:
        with workshop("readers") as (tree, scratch):
            watched = Watched(tree, own_directory(scratch))
            if name == WATCHED:
                watched.watch(EACH)
            elif name == SHOWN:
                watched.show(PAGES)
            return watched.measure()

    return {str(TASKS): Found(in_turn("readers", [ALONE, WATCHED, SHOWN], bench.repeats, one), {})}


class Watched:
    """A run of many tasks, and its readers."""

    def __init__(self, tree: ProcessTree, directory: Path) -> None:
        """Start the run."""
        self._tree = tree
        self._directory = directory
        self._readers: list[Started] = []
        spec = {
            "cluster": {"worker": TASKS - 1, "evaluator": 1},
            "command": [sys.executable, "-I", "-S", "-c", PROGRAM],
            "roles": {"evaluator": {"command": ["sh", "-c", PULSE]}},
            "restart": {"max": 1_000_000, "backoff": [0, 0]},
        }
        (directory / "job.json").write_text(json.dumps(spec))
        if not self._start(nothing(), "up", "-d", "job.json").wait(LIMIT):
            raise StuckError("the run did not start")
        (self._supervisor,) = (pid for pid in tree.living() if "up" in command_of(pid))
        started = [record for record in journal(directory) if record["kind"] == "task_started"]
        self._agent = parent_of(started[0]["pid"])

    def watch(self, count: int) -> None:
        """Open ``count`` terminals of each kind, and stop some of them once all have output."""
        for words in KINDS:
            shown = [self._directory / f"{words[0]}-{number}" for number in range(count)]
            readers = [self._start(path, *words) for path in shown]
            wait_for(partial(_all_show, shown), LIMIT)
            for reader in readers[:STOPPED]:
                reader.process.send_signal(signal.SIGSTOP)
            self._readers += readers

    def show(self, pages: int) -> None:
        """Serve the page, and open it ``pages`` times."""
        link = self._directory / "link"
        server = self._tree.start([peers.tflaunch(), "web"], self._directory, link)
        wait_for(lambda: "token=" in link.read_text(), LIMIT)
        address, _, token = link.read_text().partition("http://")[2].split()[0].partition("/?token=")
        shown = self._directory / "shown"
        command = [sys.executable, "-c", BROWSER, address, journal(self._directory)[0]["run"], token, str(pages)]
        browser = self._tree.start(command, self._directory, shown, nothing())
        wait_for(partial(_all_show, [shown]), LIMIT)
        self._readers += [server, browser]

    def measure(self) -> Sample:
        """Let the tasks run, and measure."""
        who = [[self._supervisor], [self._agent], [reader.process.pid for reader in self._readers]]
        before = [cpu_seconds(pids) for pids in who]
        (self._directory / "go").touch()
        wait_for(lambda: len([*self._directory.glob("done-*[0-9]")]) == TASKS - 1, LIMIT, pause=0.05)
        supervisor, agent, readers = (cpu_seconds(pids) - was for pids, was in zip(who, before, strict=True))
        times = [json.loads(path.read_text()) for path in self._directory.glob("done-*[0-9]")]
        begun, ended = min(first for first, _ in times), max(last for _, last in times)
        reactions = self._reactions(begun, ended)
        return {
            "duration": ended - begun,
            "supervisor": supervisor,
            "agent": agent,
            "readers": readers,
            "reaction_ms": 1000 * statistics.median(reactions),
            "slowest_ms": 1000 * max(reactions),
        }

    def _reactions(self, begun: float, ended: float) -> list[float]:
        records = [record for record in journal(self._directory) if record.get("task") == "evaluator:0"]
        starts = {record["attempt"]: record["at"] for record in records if record["kind"] == "task_started"}
        exits = {record["attempt"]: record["at"] for record in records if record["kind"] == "task_exited"}
        return [
            starts[attempt + 1] - at for attempt, at in exits.items() if begun < at < ended and attempt + 1 in starts
        ]

    def _start(self, output: Path, *words: str) -> Started:
        return self._tree.start([peers.tflaunch(), *words], self._directory, output, nothing())


def _all_show(shown: list[Path]) -> bool:
    return all(path.stat().st_size for path in shown)


def section(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document."""
    (one,) = found.values()
    rows = [
        [
            words,
            *figures(
                [
                    median(one, ALONE, what),
                    *(
                        figure
                        for name in (WATCHED, SHOWN)
                        for figure in (median(one, name, what), ratio(one, name, ALONE, what))
                    ),
                ]
            ),
        ]
        for what, words in WORDS.items()
    ]
    return [*table(["", ALONE, WATCHED, "ratio", SHOWN, "ratio"], rows), "", *remarks(found)]


PART = Part("Readers", TEXT, measure, section)
