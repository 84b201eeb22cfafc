"""When a silent job is noticed, and when it is ended: real watch, core and rules; played agents and time."""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.job_history import HERE, RUN, TASK, History, mirrored, parameter_server
from support.specs import clustered
from support.ungreeted_run import supervision
from tflaunch.core.annotations import Annotation, HangNoticed
from tflaunch.core.events import (
    BreakpointLeft,
    BreakpointReached,
    HostLeaving,
    JobHung,
    LinkLost,
    LinkRestored,
    StopRequested,
    TaskExited,
    TaskGone,
)
from tflaunch.core.measures import Progress
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.features.hang.silence import SilenceRecord, Stage, limits, stage_of
from tflaunch.features.hang.watcher import HangWatcher

pytestmark = pytest.mark.unit

MINUTE, HOUR = 60.0, 3600.0
CASES = 5000 if os.environ.get("TFLAUNCH_TEST_LONG") else 20
LIBRARY = ["/venv/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", 53, "quick_execute"]


class Does(NamedTuple):
    """What a task does for a while: how often it writes, its last step, and what it uses in a second."""

    seconds: float
    every: float = 0.0
    cpu: float = 0.0
    traffic: float = 0.0
    gpu: float = 0.0
    step: int | None = None
    line: int = 40
    state: str = "S"


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

    def evidence(self, name: str, now: float) -> dict[str, Any]:
        past = list(self._past(now)) or [(self.program[0], 0.0)]
        spoke, at = None, self.began
        for does, seconds in past:
            if does.every and seconds >= does.every:
                spoke = at + seconds // does.every * does.every
            at += seconds
        steps = [does for does, _ in past if does.step is not None]
        doing = past[-1][0]
        report: dict[str, Any] | None = {"step": steps[-1].step, "metrics": {}} if steps else None
        frames = [*([LIBRARY] * (doing.line == 40)), ["/code/train.py", doing.line, "<module>"]]
        thread = {"id": 7, "state": "S", "wchan": "futex", "target": "", "has_moved": False, "frames": frames}
        process = {"pid": 7, "name": "python", "state": doing.state, "cpu": doing.cpu, "unread": "", "sockets": []}
        used = {"cpu_seconds": sum(each.cpu * seconds for each, seconds in past), "threads": [thread]}
        used["traffic"] = int(sum(each.traffic * seconds for each, seconds in past))
        silence = None if spoke is None else now - spoke
        return {"task": name, "attempt": 0, "silence": silence, "progress": report, "processes": [{**process, **used}]}


class World:
    """A job, its agent on this machine, and a clock."""

    def __init__(self, directory: Path, history: History, *tasks: Task, roles: Mapping[str, str] | None = None) -> None:
        self.roles = roles or {}
        self.history, self.time, self.said = history, history.now, list[Any]()
        self.tasks = {task.task: played for task, played in zip(history.job.plan.tasks, tasks, strict=True)}
        for task in tasks:
            task.began = self.time
        self.is_heard, self.calls, self._numbers = True, self, itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        told = supervision(history.job, directory, self, {HERE: self})
        self.told = told._replace(status=self.status, measured=lambda tell: tell(self.status()))
        self.watcher = HangWatcher(self.told)
        self.watcher.watch(history.job, self.time)

    # ---- as a mailbox

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def put(self, mail: Any) -> None:
        self.said.append((self.time - self.history.now, mail))
        self.happens(mail)

    # ---- as a session and its calls

    def has_started(self, task: str, attempt: int) -> bool:
        return True

    def begin(self, kind: str, waiter: Any) -> None:
        if self.is_heard:
            self.call_at(self.time + (3.0 if kind == "gather_evidence" else 0.1), lambda: self._answer(waiter))

    def _answer(self, waiter: Any) -> None:
        for name, task in self.tasks.items():
            waiter.told(task.evidence(name, self.time), b"")
        waiter.answered({}, b"")

    # ---- what happens

    def noticed(self) -> str:
        """Return what the screen says of a hang; "" for nothing."""
        return self.history.known.noticed_of(self.history.job)

    def take_over(self) -> None:
        """Let another supervisor go on."""
        self._timers.clear()
        self.watcher = HangWatcher(self.told)
        self.watcher.take_annotations(self.history.known)
        self.watcher.watch(self.history.job, self.time)

    def status(self) -> Status:
        return RUN._replace(tasks=tuple(self._status_of(name) for name in self.tasks))

    def _status_of(self, name: str) -> TaskStatus:
        role = self.roles.get(name, name.partition(":")[0])
        return TASK._replace(task=name, role=role, gpu_percent=self.tasks[name].program[-1].gpu)

    def happens(self, *events: Any) -> None:
        for event in events:
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


STEPS = Does(20 * MINUTE, every=1.0, step=100)
"""A minute for the first step would be a stage of its own; this one has passed it."""


@pytest.mark.parametrize(
    ("program", "noticed", "ended"),
    [
        # A step a second: a silence between steps is noticed after two minutes, and ends the job after fifteen.
        ([Does(MINUTE, every=5.0), STEPS, Does(1.0)], 21 + 2, 21 + 15),
        # A minute between steps: three and ten times that are longer.
        ([Does(MINUTE, every=5.0), Does(20 * MINUTE, every=2 * MINUTE, step=100), Does(1.0)], 21 + 6, 21 + 20),
        # What comes before the first step has an hour, whatever lines there were before.
        ([Does(MINUTE, every=5.0), Does(1.0)], 1 + 10, 1 + 60),
    ],
)
def test_a_hang_is_noticed_and_ended(tmp_path: Path, program: list[Does], noticed: float, ended: float) -> None:
    world = World(tmp_path, mirrored(), Task(*program), Task(*program[:-1], Does(1.0, line=7)))
    (first, noticed_at), (second, ended_at) = world.go_on(3 * HOUR)
    assert (first, second) == ("noticed", "ended")
    assert noticed <= noticed_at < noticed + 1
    assert ended <= ended_at < ended + 1.5
    hung = next(mail for _, mail in world.said if isinstance(mail, JobHung))
    assert hung.place == "train.py, line 7"


MOVES = {
    "computes": Does(1.0, cpu=0.03),
    "downloads": Does(1.0, traffic=5000.0),
    "has a GPU at work": Does(1.0, gpu=50.0),
    "is in a debugger": Does(1.0, state="t"),
    "is stopped": Does(1.0, state="T"),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_task_that_moves_or_is_held_is_never_ended(tmp_path: Path, what: str) -> None:
    """Though all have been silent for half a day before their first step; it is noticed once."""
    world = World(tmp_path, mirrored(), Task(Does(MINUTE, every=5.0), Does(1.0)), Task(MOVES[what]))
    assert [name for name, _ in world.go_on(12 * HOUR)] == ["noticed"]


@pytest.mark.parametrize(("role", "ends"), [("evaluator", False), ("sidecar", True)])
def test_a_job_may_wait_for_an_evaluator_but_not_for_a_sidecar_that_does_not_listen(
    tmp_path: Path, role: str, ends: bool
) -> None:
    job = History(clustered({"worker": 2, "evaluator": 1})).start()
    waits = Task(Does(MINUTE, every=5.0), Does(1.0))
    world = World(tmp_path, job, waits, waits, Task(Does(1.0, cpu=0.5)), roles={"evaluator:0": role})
    assert ("ended" in dict(world.go_on(3 * HOUR))) is ends


def test_tasks_that_compute_end_after_an_hour_without_a_step(tmp_path: Path) -> None:
    """So do those that wait in NCCL; between epochs, an evaluation may take as long as it likes."""
    spins = Does(1.0, cpu=1.0, gpu=100.0)
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), STEPS, spins) for _ in "01"])
    assert 60 < dict(world.go_on(3 * HOUR))["ended"] - 21 < 80
    assert stage_of(world.history.job, [Progress(100, 1, 2, 100, None, {}, 1.0)]) is Stage.EPOCHS


def test_a_notice_ends_when_a_task_ends(tmp_path: Path) -> None:
    """The others go on, until they are silent for too long again."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(15 * MINUTE)
    world.happens(TaskExited(HERE, "worker:1", 0, 0, None, world.time), TaskGone(HERE, "worker:1", 0))
    world.go_on(MINUTE)
    assert [mail.sentence == "" for _, mail in world.said] == [False, True]


HOLDS_UP = {
    "breakpoint": (BreakpointReached(HERE, "worker:1", 0, "a.py", 1, "f"), BreakpointLeft(HERE, "worker:1", 0)),
    "lost link": (LinkLost(HERE, "no route"), LinkRestored(HERE, False)),
}


@pytest.mark.parametrize("how", HOLDS_UP)
@pytest.mark.parametrize("supervisors", [1, 2])
def test_what_holds_up_a_job_suspends_its_limits(tmp_path: Path, how: str, supervisors: int) -> None:
    """A notice is taken back at once, also that of an earlier supervisor; afterwards the limits begin again in full."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(HOUR - MINUTE)
    if supervisors > 1:
        world.take_over()
    began, ended = HOLDS_UP[how]
    assert world.noticed()
    world.happens(began)
    assert not world.noticed()
    world.happens(ended)
    assert not world.noticed()
    assert "ended" not in dict(world.go_on(59 * MINUTE))
    assert "ended" in dict(world.go_on(5 * MINUTE))


@pytest.mark.parametrize("event", [HostLeaving(HERE, "it is drained", True), StopRequested(10.0)])
def test_no_notice_outlives_a_drain_or_a_stop(tmp_path: Path, event: Any) -> None:
    """Nor is it said that the tasks go on."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(15 * MINUTE)
    assert world.noticed()
    world.happens(event)
    assert not world.noticed()
    assert len(world.go_on(MINUTE)) == 1


def test_a_notice_says_who_is_stopped_until_that_goes_on(tmp_path: Path) -> None:
    """Then the silence begins again."""
    waits = Task(Does(MINUTE, every=5.0), Does(1.0))
    stopped = Task(Does(MINUTE, every=5.0), Does(19 * MINUTE), Does(HOUR, state="T"), Does(1.0))
    world = World(tmp_path, mirrored(), waits, stopped)
    for minutes, sentence in ((12, "worker:0, worker:1 wait"), (48, "worker:1 is stopped"), (23, "")):
        world.go_on(minutes * MINUTE)
        assert world.noticed().startswith(sentence), minutes
    assert world.noticed() == ""
    assert [name for name, _ in world.go_on(55 * MINUTE)] == ["noticed"] * 4
    assert "ended" in dict(world.go_on(10 * MINUTE))


def test_a_limit_of_the_user_counts_silence_alone(tmp_path: Path) -> None:
    """0 is for never."""
    for stall, ended in ((1800.0, 1 + 30), (0, None)):
        job = mirrored(timeouts={"stall": stall})
        world = World(tmp_path, job, *[Task(Does(MINUTE, every=5.0), Does(1.0, cpu=1.0)) for _ in "01"])
        at = dict(world.go_on(5 * HOUR)).get("ended")
        assert at is None if ended is None else ended <= (at or 0) < ended + 1


def test_a_server_is_no_hang(tmp_path: Path) -> None:
    """Without a cluster and without a step, only who waits in a library for others may hang."""
    for line, is_ended in ((7, False), (40, True)):
        history = History(clustered({"worker": 1}, strategy="none")).start()
        world = World(tmp_path, history, Task(Does(MINUTE, every=5.0), Does(1.0, line=line)))
        assert ("ended" in dict(world.go_on(5 * HOUR))) is is_ended


def test_what_servers_write_is_no_sign_of_training(tmp_path: Path) -> None:
    """Those of a ParameterServerStrategy go on writing while their chief hangs."""
    serves = Task(Does(1.0, every=1.0))
    world = World(tmp_path, parameter_server(), Task(Does(MINUTE, every=5.0), STEPS, Does(1.0)), *[serves] * 3)
    assert 15 < dict(world.go_on(HOUR))["ended"] - 21 < 17


def test_a_job_of_which_nothing_is_heard_is_not_ended(tmp_path: Path) -> None:
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), STEPS, Does(1.0)) for _ in "01"])
    world.go_on(21 * MINUTE)
    world.is_heard = False
    assert "ended" not in dict(world.go_on(5 * HOUR))


def test_the_next_run_begins_with_what_this_one_has_learned(tmp_path: Path) -> None:
    """Not with what another command has shown."""
    record = SilenceRecord({}, 1.0)
    for now, stage, silence in (
        (0.0, Stage.FIRST_STEP, 0.0),
        (100.0, Stage.FIRST_STEP, 100.0),
        (110.0, Stage.STEPS, 1.0),
    ):
        _, _, has_news = record.note(stage, silence, now)
    assert has_news
    assert record.longest == {Stage.FIRST_STEP: 110.0}
    assert limits(Stage.FIRST_STEP, record.longest, 1.0) == (600.0, 1100.0, float("inf"))
    program = [Does(MINUTE, every=5.0), STEPS, Does(1.0)]
    World(tmp_path, mirrored(), *[Task(*program) for _ in "01"]).go_on(21 * MINUTE)
    for command, minutes in (("train", 15), ("other", 60)):
        history = History(clustered({"worker": 2}, command=[command])).start()
        world = World(tmp_path, history, *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
        assert minutes <= dict(world.go_on(3 * HOUR))["ended"] - 1 < minutes + 2


def test_no_healthy_job_is_ended(tmp_path: Path) -> None:
    """In which one task moves at least, in some way, and all others may wait for it for hours."""
    ways = [each for each in MOVES.values() if not each.gpu]
    for case in range(CASES):
        chance = random.Random(case)
        programs = [[Does(chance.uniform(1, 300), every=chance.uniform(0.1, 30))] for _ in "01"]
        for step in range(1, chance.randint(2, 6)):
            seconds, mover = chance.choice((10.0, 600.0, 5000.0, 20000.0)), chance.randrange(2)
            for number, program in enumerate(programs):
                way = chance.choice(ways) if number == mover else Does(1.0)
                program.append(way._replace(seconds=seconds))
                program.append(Does(chance.uniform(10, 600), every=chance.uniform(0.1, 30), step=step))
        world = World(tmp_path, mirrored(), *[Task(*program) for program in programs])
        length = min(sum(does.seconds for does in program) for program in programs)
        assert "ended" not in dict(world.go_on(length)), f"case {case}"
