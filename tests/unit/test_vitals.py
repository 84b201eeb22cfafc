"""Regular measurements of tasks: from the agent to what people read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from support.job_history import HERE, History, Willing, mirrored
from support.specs import clustered
from support.still_loop import StillLoop
from tflaunch.agents.session import Session
from tflaunch.core.events import BreakpointReached, Event, MemoryGrew, TaskCaughtUp, TaskFellBehind
from tflaunch.core.job_state import Job
from tflaunch.core.vitals import HostVitals, TaskVitals, read_vitals
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.explain.status import StatusInputs, status
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.metrics import families
from tflaunch.runtime.vitals_monitor import VitalsMonitor
from tflaunch.tui import layout
from tflaunch_worker.agent.vitals import VitalsReporter
from tflaunch_worker.inspect import task_load

pytestmark = pytest.mark.unit

LATE = TaskFellBehind(HERE, "worker:1", 0, 0.31, "its generator sleeps (data.py, line 40)")
GROWS = MemoryGrew(HERE, "worker:1", 0, 10 * 2.0**20, 7200.0)
GIB = 2**30


def said(history: History, *events: Event) -> list[str]:
    """Return the messages about events that happen now."""
    messages = []
    for event in events:
        before = history.job
        history.happens(event)
        messages += messages_about(before, event, history.job, history.now, Logs("/logs", lambda *_: []))
    return messages


def shown(history: History) -> tuple[dict[str, Any], str]:
    """Return the tasks of the status, and how `ps` shows it."""
    current = status(history.job, StatusInputs(0.0, "/logs", True, history.now))
    text = layout.table(current, 200, history.now)
    return {task.task: task for task in current.tasks}, text


def test_a_late_task_is_shown_with_its_reason() -> None:
    """Which task the others wait for, until it has caught up; a better reason is reported once."""
    history = mirrored(3)
    sentence = "worker:1 is the last in most steps, and the others wait for it 31% of the time: its generator sleeps"
    assert said(history, LATE, LATE) == [f"{sentence} (data.py, line 40)"]
    assert said(history, LATE._replace(reason="it reads")) == ["worker:1 is late because it reads"]
    tasks, text = shown(history)
    assert [tasks[f"worker:{index}"].waits_for for index in range(3)] == ["worker:1", None, "worker:1"]
    assert (tasks["worker:1"].late_share, tasks["worker:1"].late_reason) == (0.31, "it reads")
    assert "WAITS FOR" in text
    assert "the others wait for it 31% of the time: it reads" in text
    assert said(history, TaskCaughtUp(HERE, "worker:1", 0)) == ["worker:1 is no longer late"]
    assert "WAITS FOR" not in shown(history)[1]


def test_nobody_waits_for_a_task_of_an_earlier_attempt() -> None:
    """Or for one that has ended."""
    history = mirrored(3).happens(LATE._replace(attempt=7))
    assert "WAITS FOR" not in shown(history)[1]
    history.happens(LATE).ends("worker:1", 0)
    assert "WAITS FOR" not in shown(history)[1]


def test_memory_that_grows_is_shown_with_when_it_is_full() -> None:
    """Told once; later predictions only change what `ps` and metrics show."""
    history = mirrored(2)
    sentence = "the memory of worker:1 grows by 600 MiB per minute: out of memory in about 2 h"
    assert said(history, GROWS, GROWS._replace(left=7000.0)) == [f"warning: {sentence}"]
    tasks, text = shown(history)
    assert tasks["worker:1"].memory_full_at == history.now + 7000
    assert sentence in text
    current = status(history.job, StatusInputs(0.0, "/logs", True, history.now))
    values = {sample.name: sample.value for family in families(current, 0.0) for sample in family.samples}
    assert values["tflaunch_task_memory_growth_bytes_per_second"] == 10 * 2**20
    assert said(history, MemoryGrew(HERE, "worker:1", 0, 0.0, 0.0)) == []
    assert shown(history)[0]["worker:1"].memory_full_at is None


@pytest.mark.parametrize(("left", "text"), [(12.0, "10 s"), (300.0, "5 min"), (5400.0, "2 h"), (40_000.0, "11 h")])
def test_predictions_are_rounded(left: float, text: str) -> None:
    """They are not more precise."""
    assert said(mirrored(2), GROWS._replace(left=left))[0].endswith(f"in about {text}")


# ---- the supervisor's side


class _Host:
    """A session that passes on what the test gives it."""

    def __init__(self) -> None:
        self.measurements = self

    def tell_vitals(self, tell: Callable[[HostVitals, float], None]) -> None:
        """Remember the function to call."""
        self.tell = tell


class _Events:
    """A mailbox that applies events at once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.events: list[Event] = []
        self.watch: Callable[[Job, float], None] = lambda _, __: None

    def now(self) -> float:
        """Return the time of the history."""
        return self.history.now

    def put(self, event: Event) -> None:
        """Let an event happen."""
        self.events.append(event)
        self.history.happens(event)
        self.watch(self.history.job, self.history.now)


class World:
    """A job whose agents measure; ``places`` are the answers about stacks, each given at once."""

    def __init__(self, *places: str, workers: int = 2) -> None:
        self.history = mirrored(workers)
        self.host, self.mailbox = _Host(), _Events(self.history)
        self.places = list(places)
        sessions = cast("dict[str, Session]", {HERE: self.host})
        find = lambda _, tell: tell(self.places.pop(0) if self.places else "")  # noqa: E731
        self.monitor = VitalsMonitor(self.history.job, sessions, cast("Mailbox", self.mailbox), find)
        self.mailbox.watch = self.monitor.watch
        self.workers = workers
        self.count = 0
        self.pending = dict.fromkeys(self.history.job.tasks, 0)

    def measures(self, times: int, late: str = "", growth: float = 0.0, room: int = 10 * GIB) -> list[Event]:
        """Let the agent measure every two seconds; return what the monitor reports."""
        before = len(self.mailbox.events)
        for _ in range(times):
            self.history.now += 2
            self.count += 1
            tasks = {}
            for index in range(self.workers):
                task, is_late = f"worker:{index}", late == f"worker:{index}"
                self.pending[task] += 10 if is_late else 1
                tasks[task] = {
                    "attempt": self.history.job.tasks[task].attempt,
                    "rss": int(GIB + (growth * self.count * 2 if index else 0)),
                    "load": [self.count * 1.0, 0.0, 0, 0.0, 0],
                    "samples": self.count * 30,
                    "pending": self.pending[task],
                    "waits": [330, 330] if is_late else [10],
                }
            self.monitor.watch(self.history.job, self.history.now)
            self.host.tell(read_vitals({"room": room, "tasks": tasks}), self.history.now)
        return self.mailbox.events[before:]


def test_the_monitor_reports_a_late_task_and_when_it_has_caught_up() -> None:
    """Once, with where it waits."""
    world = World("it sleeps (train.py, line 3)")
    (event,) = world.measures(20, late="worker:1")
    assert isinstance(event, TaskFellBehind)
    assert (event.task, event.reason) == ("worker:1", "it sleeps (train.py, line 3)")
    (event,) = world.measures(40)
    assert event == TaskCaughtUp(HERE, "worker:1", 0)


def test_a_slow_network_is_named_before_a_task_that_only_seems_late() -> None:
    """The data of worker:1 arrives late, so the others wait for the next task in the ring."""
    addresses = {"h1": "10.0.0.1", "h2": "10.0.0.2", "h3": "10.0.0.3"}
    history = Willing(clustered({"worker": list(addresses)}))
    for host, address in addresses.items():
        history.job = history.job.with_host(host, addresses=address)
    hosts, mailbox = {host: _Host() for host in addresses}, _Events(history)
    sessions = cast("dict[str, Session]", hosts)
    monitor = VitalsMonitor(history.job, sessions, cast("Mailbox", mailbox), lambda _, tell: tell(""))
    queues = {"h1": [["10.0.0.1", "10.0.0.2", 0.5]], "h2": [["10.0.0.2", "10.0.0.3", 0.6]], "h3": []}
    for second in range(1, 30):
        history.now += 1
        monitor.watch(history.job, history.now)
        for index, host in enumerate(addresses):
            known = {
                "attempt": 0,
                "rss": GIB,
                "load": [second * 1.0, 0.0, 0, 0.0, 0],
                "samples": second * 20,
                "pending": second * (4 if host == "h3" else 0),
                "waits": [100] if host == "h3" else [],
                "queues": queues[host],
            }
            hosts[host].tell(read_vitals({"tasks": {f"worker:{index}": known}}), history.now)
    (event,) = mailbox.events
    assert isinstance(event, TaskFellBehind)
    assert (event.task, event.reason) == (
        "worker:1",
        "its network is slow: data to h3 waits to be sent 60% of the time, and between the other hosts 0%",
    )


def test_a_place_that_is_not_found_at_once_is_told_later() -> None:
    """The task waits there for a part of each step only."""
    world = World("", "", "it sleeps (train.py, line 3)")
    first, second = world.measures(20, late="worker:1")
    assert isinstance(first, TaskFellBehind)
    assert isinstance(second, TaskFellBehind)
    assert first.reason.startswith("it uses no more CPU")
    assert second.reason == "it sleeps (train.py, line 3)"


def test_nobody_is_late_while_a_task_is_debugged() -> None:
    """The others wait for it, but that is known."""
    world = World()
    world.history.happens(BreakpointReached(HERE, "worker:1", 0, "a.py", 1, "f"))
    assert world.measures(30, late="worker:1") == []


def test_the_monitor_predicts_when_memory_is_full() -> None:
    """By the growth of each task and the room of its host; not again every two seconds."""
    world = World()
    events = world.measures(120, growth=20 * 2**20)
    assert all(isinstance(event, MemoryGrew) and event.task == "worker:1" for event in events)
    assert len(events) == 1
    (event,) = events
    assert isinstance(event, MemoryGrew)
    assert event.rate == pytest.approx(20 * 2**20, rel=0.1)
    assert event.left == pytest.approx(10 * GIB / (20 * 2**20), rel=0.1)


def test_measurements_of_unknown_tasks_and_attempts_are_ignored() -> None:
    """A message may be older than a restart."""
    world = World()
    old = TaskVitals("worker:0", 5, GIB, None, None, ())
    world.host.tell(HostVitals(GIB, (old, old._replace(task="worker:9"))), 3.0)
    assert world.mailbox.events == []


@pytest.mark.parametrize(
    "known",
    [
        {"attempt": 0},
        {"attempt": 0, "rss": -1},
        {"attempt": 0, "rss": 1, "load": [1, 2]},
        {"attempt": 0, "rss": 1, "load": [1, 2, 3, 4, 99]},
        {"attempt": 0, "rss": 1, "samples": 1, "pending": 1, "waits": ["x"]},
        {"attempt": 0, "rss": 1, "history": [[1, 2, 3]]},
        {"attempt": 0, "rss": 1, "history": [[-1, 2]]},
        "text",
    ],
)
def test_a_malformed_measurement_ends_the_link(known: object) -> None:
    """As any message that breaks the protocol."""
    with pytest.raises(ValueError, match="must"):
        read_vitals({"tasks": {"worker:0": known}})


# ---- the agent's side


class NoConnections:
    """Watches tasks that have no connection yet."""

    def add(self, task: str, port: int) -> None:
        """Do nothing."""

    def known(self, task: str) -> None:
        """Return nothing."""


def reporter() -> tuple[StillLoop, VitalsReporter, list[dict[str, Any]]]:
    """Return a reporter of a host with 1 GiB of room, its loop, and what it has told so far."""
    loop, told = StillLoop(), list[dict[str, Any]]()

    def tell(known: dict[str, Any]) -> bool:
        told.append(known)
        return True

    return loop, VitalsReporter(cast("Any", loop), lambda: GIB, cast("Any", NoConnections), tell), told


def test_the_agent_measures_its_tasks_until_they_are_gone() -> None:
    """Their memory, with its history for a new supervisor."""
    loop, measuring, told = reporter()
    measuring.add("sidecar", 2, os.getpid, 0)
    for _ in range(3):
        loop.next()
    measuring.resend_history()
    loop.next()
    loop.next()
    known = [each["tasks"]["sidecar"] for each in told]
    assert [each["attempt"] for each in known] == [2] * 5
    assert all(each["rss"] > 2**20 for each in known)
    assert [len(each.get("history", [])) for each in known] == [0, 0, 0, 4, 0]
    assert read_vitals(told[3]).tasks[0].history[0][0] == pytest.approx(30.0, abs=0.2)
    measuring.remove("sidecar")
    loop.next()
    assert len(told) == 5
    assert loop.timers == []


def test_what_costs_more_is_measured_less_often() -> None:
    """In a collective, waits are reported every second; threads are visited and room is measured less often."""
    loop, measuring, told = reporter()
    measuring.add("worker:0", 0, os.getpid, 2222)
    for _ in range(20):
        loop.next()
    full = [each for each in told if each["room"] is not None]
    assert 1 <= len(full) <= 10
    assert all(each["tasks"]["worker:0"]["load"][0] > 0 for each in told)
    assert all(each["tasks"]["worker:0"]["load"][1] is None for each in told if each not in full)


def test_the_agent_says_which_task_has_grown() -> None:
    """After a kill for lack of memory."""
    loop = StillLoop()
    program = "import sys; keep = []\nfor _ in sys.stdin: keep.append(bytearray(b'x') * 100_000_000); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        measuring = VitalsReporter(cast("Any", loop), lambda: None, cast("Any", None), lambda _: True)
        measuring.add("worker:0", 0, os.getpid, 0)
        measuring.add("worker:1", 0, lambda: child.pid, 0)
        for _ in range(6):
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()
            loop.next()
        assert measuring.growth().startswith("worker:1 had grown from ")
        assert measuring.growth().endswith(" in 50 s")
        child.stdin.close()


def test_the_load_of_a_process_is_read() -> None:
    """Its CPU time, waits for a CPU, and memory; nothing for one that is gone."""
    load = task_load.load_of([os.getpid()], with_threads=True)
    assert load.cpu > 0
    assert load.delay is None or load.delay >= 0
    assert load.rss_bytes > 2**20
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert task_load.load_of([gone.pid], with_threads=True).rss_bytes == 0
    assert task_load.rss_of([gone.pid]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4:cpu,cpuacct:/a/b\n0::/x", ["/g/cpu/a/b", "/g/cpu/a"]),
        ("1:cpu:/\n", []),
        ("0::/a\n", []),
        ("", []),
    ],
)
def test_cpu_groups_are_found_in_either_version(text: str, expected: list[str]) -> None:
    """Without the root, which has no limit."""
    assert task_load.cpu_groups(text, "/g") == expected
