"""Every reachable state of small jobs, with every event in each: the invariants hold in all of them.

The world is modelled as the set of attempts that live on the hosts: an action of the supervisor
changes it, and only what the world allows can happen next. Besides, every state is told stale news.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import pytest

from specs import clustered
from tflaunch import supervisor
from tflaunch.actions import Action, HoldPorts, StartTask, StopTask
from tflaunch.events import (
    Event,
    HostJoined,
    HostLost,
    Interrupted,
    PortOpened,
    PortsHeld,
    PortsRefused,
    TaskExited,
    TaskGone,
    TaskNotStarted,
    TaskStarted,
    TimePassed,
)
from tflaunch.plan import Plan
from tflaunch.states import Cause, Job, Phase

pytestmark = pytest.mark.unit

HERE = "localhost"
MANY_SECONDS = 1e6

ONCE = {"max": 1, "backoff": [1, 1], "window": MANY_SECONDS}
SIDECAR = {"board": {"command": "board"}}

EXITS = ((0, None), (7, None), (None, 9))
"""How processes end in the walk: (code, signal). The widest job knows only two ends, to stay walkable."""
FEW_EXITS = ((0, None), (None, 9))

JOBS = {
    "mirrored": clustered({"worker": 2}, restart=ONCE),
    "chief rule": clustered({"worker": 2}, restart={"max": 0}, success="chief"),
    "parameter server": clustered({"chief": 1, "worker": 1, "ps": 1}, restart=ONCE),
    "evaluator": clustered({"worker": 1, "evaluator": 1}, restart=ONCE),
    "sidecar": clustered({"worker": 1}, restart=ONCE, sidecars=SIDECAR),
    "limits": clustered({"worker": 2}, restart=ONCE, timeouts={"start": 30, "finish": 5, "deadline": 90}),
    "no cluster": clustered({"worker": 2}, strategy="none", restart=ONCE),
}


class World(NamedTuple):
    """What is true on the hosts. ``alive``: (task, attempt, how far it is)."""

    alive: frozenset[tuple[str, int, str]] = frozenset()
    is_asked_for_ports: bool = False
    is_host_lost: bool = False
    interrupts: int = 0
    first_fault: tuple[str, int] | None = None


class State(NamedTuple):
    """One node of the walk."""

    job: Job
    world: World
    now: float

    def key(self) -> Any:
        """Return what tells this node from others: times count from now, and only what follows from nothing else."""
        tasks = tuple(
            task._replace(since=0.0, resume_at=self._from_now(task.resume_at), restarts=(0.0,) * len(task.restarts))
            for task in self.job.tasks.values()
        )
        job = self.job._replace(
            plan=None,  # type: ignore[arg-type]
            original=None,  # type: ignore[arg-type]
            tasks=tasks,  # type: ignore[arg-type]
            ports=frozenset(self.job.ports),  # type: ignore[arg-type]
            started_at=0.0,
            attempt_started_at=0.0,
            restarts=(0.0,) * len(self.job.restarts),
            resume_at=self._from_now(self.job.resume_at),
            finish_by=self._from_now(self.job.finish_by),
        )
        return job, self.world, self._from_now(supervisor.next_deadline(self.job))

    def _from_now(self, time: float | None) -> float | None:
        return None if time is None else max(time - self.now, 0.0)


def possible(state: State) -> list[tuple[Event, World, float]]:
    """Return every event that the world allows, with the world and the time after it."""
    job, world, now = state
    found: list[tuple[Event, World, float]] = []
    if world.is_host_lost:
        pass
    elif job.phase is Phase.JOINING:
        found.append((HostJoined(HERE), world, now))
    if world.is_asked_for_ports and not world.is_host_lost:
        answered = world._replace(is_asked_for_ports=False)
        ports = {task.task: 10 + number for number, task in enumerate(job.plan.tasks)}
        found.append((PortsHeld(HERE, ports), answered, now))
        found.append((PortsRefused(HERE, {"worker:0": "busy"}), answered, now))
    for entry in world.alive:
        found += [(event, after, now) for event, after in _of_task(job, world, entry)]
    if not world.is_host_lost:
        found.append((HostLost(HERE, "gone"), world._replace(is_host_lost=True, alive=frozenset()), now))
    if world.interrupts < 2 and (job.phase is Phase.STOPPING or not world.interrupts):
        found.append((Interrupted(2), world._replace(interrupts=world.interrupts + 1), now))
    deadline = supervisor.next_deadline(job)
    if deadline is not None:
        found.append((TimePassed(), world, max(now, deadline)))
    return found


def _of_task(job: Job, world: World, entry: tuple[str, int, str]) -> list[tuple[Event, World]]:
    task, attempt, stage = entry
    others = world.alive - {entry}

    def becomes(stage: str) -> World:
        return world._replace(alive=others | {(task, attempt, stage)})

    if stage == "exited":
        return [(TaskGone(HERE, task, attempt), world._replace(alive=others))]
    if stage == "starting" and len(job.tasks) > 2:
        return [(TaskStarted(HERE, task, attempt, 1, 0.0), becomes("running"))]
    if stage == "starting":
        not_started = TaskNotStarted(HERE, task, attempt, 127, "not found")
        return [
            (TaskStarted(HERE, task, attempt, 1, 0.0), becomes("running")),
            (not_started, _with_fault(job, becomes("exited"), task, 127)),
        ]
    is_wide = len(job.tasks) > 2
    found: list[tuple[Event, World]] = []
    for code, number in FEW_EXITS if is_wide else EXITS:
        exited = TaskExited(HERE, task, attempt, code, number, 0.0)
        after = becomes("exited")
        found.append((exited, after if code == 0 else _with_fault(job, after, task, code or 137)))
    if stage == "running" and not is_wide:
        found.append((PortOpened(HERE, task, attempt), becomes("open")))
    return found


def _with_fault(job: Job, world: World, task: str, code: int) -> World:
    """Remember the first fault of an attempt: of a task that counts, and that nobody had asked to stop."""
    counts = task.startswith(("worker", "chief", "ps"))
    if counts and job.phase is Phase.RUNNING and not job.tasks[task].is_stopping:
        return world._replace(first_fault=(task, code))
    return world


def apply(world: World, actions: list[Action]) -> World:
    """Return the world after the supervisor's actions; asserts I1 on the way."""
    for action in actions:
        match action:
            case HoldPorts():
                world = world._replace(is_asked_for_ports=True)
            case StartTask(host=_, task=task, attempt=attempt):
                living = [entry for entry in world.alive if entry[0] == task]
                assert not living, f"I1: attempt {attempt} of {task} starts while {living} lives"
                world = world._replace(alive=world.alive | {(task, attempt, "starting")})
            case StopTask(host=_, task=task, attempt=attempt):
                known = {(name, number) for name, number, _ in world.alive}
                assert (task, attempt) in known, f"{task} is stopped but does not live"
    return world


def check(before: State, event: Event, after: State, plan: Plan) -> None:
    """Assert the invariants of one step."""
    job, world = after.job, after.world
    if job.phase is Phase.ENDED:
        assert not world.alive, f"I2: {world.alive} lives after the end"
        assert job.exit_code is not None
        check_exit_code(after)
    assert len(job.restarts) <= plan.restart.max, "I4: more gang restarts than the budget"
    for task in job.tasks.values():
        assert len(task.restarts) <= plan.restart.max, "I4: more restarts of a task than the budget"
        assert task.attempt >= before.job.tasks[task.task].attempt, "attempts only grow"
    believed = {(task.task, task.attempt) for task in job.alive()}
    assert believed == {entry[:2] for entry in world.alive}, "the job knows who lives"


def check_exit_code(state: State) -> None:
    """I3: the culprit is the first fault, and the exit code is its."""
    job, world = state.job, state.world
    if world.interrupts and job.culprit is not None and job.culprit.cause is Cause.SIGNAL:
        assert job.exit_code == 130
    if world.interrupts:
        assert job.exit_code != 0, "Ctrl-C never exits 0"
    if job.culprit is not None and job.culprit.cause in (Cause.TASK, Cause.NOT_STARTED):
        assert world.first_fault == (job.culprit.name, job.exit_code), "I3"


def stale(state: State) -> list[Event]:
    """Return news of attempts that are over, and of tasks that never were."""
    events: list[Event] = [TaskExited(HERE, "nobody:0", 0, 1, None, 0.0)]
    for task in state.job.tasks.values():
        events.append(TaskExited(HERE, task.task, task.attempt - 1, 1, None, 0.0))
        events.append(TaskGone(HERE, task.task, task.attempt - 1))
        events.append(TaskStarted(HERE, task.task, task.attempt + 1, 1, 0.0))
    return events


@pytest.mark.parametrize("plan", JOBS.values(), ids=JOBS.keys())
def test_invariants_hold_in_every_reachable_state(plan: Plan) -> None:
    """I1 to I5: one attempt at a time, nothing left, the right culprit, the budget, and always an end."""
    first = State(supervisor.begin("run", plan, 0.0), World(), 0.0)
    keys = {first.key(): 0}
    leads_from: list[set[int]] = [set()]
    ended = []
    queue = deque([first])
    while queue:
        state = queue.popleft()
        number = keys[state.key()]
        if state.job.phase is Phase.ENDED:
            ended.append(number)
            continue
        for event in stale(state):
            assert supervisor.step(state.job, event, state.now) == (state.job, [])
        for event, world, now in possible(state):
            job, actions = supervisor.step(state.job, event, now)
            is_new_attempt = job.attempt != state.job.attempt
            after = State(job, apply(world._replace(first_fault=None) if is_new_attempt else world, actions), now)
            check(state, event, after, plan)
            key = after.key()
            if key not in keys:
                keys[key] = len(keys)
                leads_from.append(set())
                queue.append(after)
            leads_from[keys[key]].add(number)
    assert ended
    assert len(_all_that_lead_to(ended, leads_from)) == len(keys), "I5: some state can never end"


def _all_that_lead_to(ends: list[int], leads_from: list[set[int]]) -> set[int]:
    reached = set(ends)
    queue = deque(ends)
    while queue:
        for earlier in leads_from[queue.popleft()] - reached:
            reached.add(earlier)
            queue.append(earlier)
    return reached
