"""A job whose silence is watched: the real watch, core and rules; played agents, tasks and time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.job_history import RUN, TASK, History
from support.ungreeted_run import supervision
from tflaunch.core.annotations import Annotation, HangNoticed
from tflaunch.core.events import JobHung
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.hang.watcher import HangWatcher

MINUTE, HOUR = 60.0, 3600.0
LIBRARY = ["/venv/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", 53, "quick_execute"]
IN_LIBRARY = 40
"""The line at which a task calls the library."""


class Does(NamedTuple):
    """What a task does for a while: how often it writes, its last step, and what it uses in a second.

    ``new_line``, ``new_process``: seconds after which it is at another line, or in another process.
    """

    seconds: float
    every: float = 0.0
    cpu: float = 0.0
    wait: float = 0.0
    traffic: float = 0.0
    gpu: float = 0.0
    step: int | None = None
    line: int = IN_LIBRARY
    state: str = "S"
    new_line: float = 0.0
    new_process: float = 0.0


class Task:
    """A task that does one thing after the other, and the last one until the end."""

    def __init__(self, *program: Does) -> None:
        self.program = program
        self.began = 0.0

    def _past(self, now: float) -> Iterator[tuple[Does, float]]:
        """Yield what it has done, and for how long."""
        left = now - self.began
        for number, does in enumerate(self.program, 1):
            seconds = left if number == len(self.program) else min(left, does.seconds)
            if seconds > 0:
                yield does, seconds
            left -= seconds

    def doing(self, now: float) -> Does:
        return [self.program[0], *(does for does, _ in self._past(now))][-1]

    def signs(self, name: str, now: float) -> dict[str, Any]:
        spoke, at, report = None, self.began, None
        for does, seconds in self._past(now):
            if does.every and seconds >= does.every:
                spoke = at + seconds // does.every * does.every
            if does.step is not None:
                report = {"step": does.step, "metrics": {}}
            at += seconds
        return {"task": name, "attempt": 0, "silence": None if spoke is None else now - spoke, "progress": report}

    def evidence(self, name: str, now: float) -> dict[str, Any]:
        past = list(self._past(now)) or [(self.program[0], 0.0)]
        doing, seconds = past[-1]
        line = doing.line + int(doing.new_line and seconds / doing.new_line)
        pid = 7 + int(doing.new_process and seconds / doing.new_process)
        frames = [*([LIBRARY] * (line == IN_LIBRARY)), ["/code/train.py", line, "<module>"]]
        thread = {"id": pid, "state": "S", "wchan": "futex", "target": "", "has_moved": False, "frames": frames}
        process = {
            "pid": pid,
            "name": "python",
            "state": doing.state,
            "cpu": doing.cpu,
            "cpu_wait": doing.wait,
            "unread": "",
            "threads": [thread],
            "sockets": [],
            "cpu_seconds": sum(each.cpu * seconds for each, seconds in past),
            "wait_seconds": sum(each.wait * seconds for each, seconds in past),
            "traffic": int(sum(each.traffic * seconds for each, seconds in past)),
        }
        return {**self.signs(name, now), "processes": [process]}


class Host:
    """A session with an agent that answers after ``delay`` seconds more than it needs, and not while it is deaf."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self.deaf_until = self.delay = 0.0
        self.calls = self

    def has_started(self, task: str, attempt: int) -> bool:
        return True

    def begin(self, kind: str, waiter: Any) -> None:
        world, needs = self._world, 3.0 if kind == "gather_evidence" else 0.1
        if world.time >= self.deaf_until:
            world.call_at(world.time + needs + self.delay, lambda: self._answer(kind, waiter))

    def _answer(self, kind: str, waiter: Any) -> None:
        for name, task in self._world.tasks.items():
            if self._world.history.job.host_of(name) == self._name:
                tell = task.evidence if kind == "gather_evidence" else task.signs
                waiter.told(tell(name, self._world.time), b"")
        waiter.answered({}, b"")


class World:
    """A job, its agents, and a clock."""

    def __init__(self, directory: Path, history: History, *tasks: Task, roles: Mapping[str, str] | None = None) -> None:
        self.roles = roles or {}
        self.history, self.said = history, list[Any]()
        self.time = self.began = history.now
        self.tasks = {task.task: played for task, played in zip(history.job.plan.tasks, tasks, strict=True)}
        for task in tasks:
            task.began = self.time
        self.hosts = {host.host: Host(self, host.host) for host in history.job.plan.hosts}
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        told = supervision(history.job, directory, self, self.hosts)
        self._supervision = told._replace(status=self.status, measured=lambda tell: tell(self.status()))
        self.take_over()

    def take_over(self) -> None:
        """Let a supervisor begin, or another one go on."""
        self._timers.clear()
        self.watcher = HangWatcher(self._supervision)
        self.watcher.take_annotations(self.history.known)
        self.watcher.watch(self.history.job, self.time)

    # ---- as a mailbox

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def put(self, mail: Any) -> None:
        self.said.append((self.time - self.began, mail))
        self.happens(mail)

    # ---- what happens

    def status(self) -> Status:
        return RUN._replace(tasks=tuple(self._status_of(name) for name in self.tasks))

    def _status_of(self, name: str) -> TaskStatus:
        role = self.roles.get(name, name.partition(":")[0])
        return TASK._replace(task=name, role=role, gpu_percent=self.tasks[name].doing(self.time).gpu)

    def happens(self, *events: Any) -> None:
        for event in events:
            self.history.now = self.time
            self.history.happens(event)
            if isinstance(event, Annotation):
                self.watcher.take_annotations(self.history.known)
            else:
                self.watcher.watch(self.history.job, self.time)

    def go_on(self, seconds: float) -> list[tuple[str, float]]:
        """Let time pass; return what was said since the beginning, and when, in minutes."""
        end = self.time + seconds
        while self._timers and self._timers[0][0] <= end:
            self.time, _, call = heapq.heappop(self._timers)
            call()
        self.time = end
        names = {JobHung: "ended", HangNoticed: "noticed"}
        return [(names[type(mail)], at / MINUTE) for at, mail in self.said if type(mail) in names]

    def noticed(self) -> str:
        """Return what the screen says of a hang; "" for nothing."""
        return self.history.known.noticed_of(self.history.job)
