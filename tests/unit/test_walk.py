"""Every reachable state of small jobs, with every event in each: the invariants hold in all of them.

The world is modelled as the set of attempts that are alive on the hosts: an action of the supervisor
changes it, and only events that the world allows can follow. In addition, every state receives stale events.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest

from support.launch import LONG
from support.page_tables import write_table
from support.specs import REPOSITORY, clustered, planned
from tflaunch.core import lost_hosts, policy, step, time_limits
from tflaunch.core.actions import AbandonHost, Action, HoldPorts, JoinHost, LookUpNames, ProbePeers, StartTask, StopTask
from tflaunch.core.events import (
    Event,
    HostJoined,
    HostLost,
    HostUnreachable,
    Interrupted,
    LinkLost,
    LinkRestored,
    NamesResolved,
    PeersProbed,
    PortOpened,
    PortsHeld,
    PortsRefused,
    RestartRequested,
    StopRequested,
    TaskExited,
    TaskGone,
    TaskNotStarted,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.host_state import HostPhase
from tflaunch.core.job_state import Cause, Job, Phase
from tflaunch.core.restart_budget import Budget
from tflaunch.core.task_state import Stop, TaskPhase
from tflaunch.plan import tensorboard
from tflaunch.plan.model import Plan

pytestmark = pytest.mark.unit

MANY_SECONDS = 1e6

NEVER = {"max": 0}
ONCE = {"max": 1, "backoff": [1, 1], "window": MANY_SECONDS}
SIDECAR = {"board": {"command": "board"}}

EXITS = ((0, None), (7, None), (None, 9))
"""How processes end in the walk: (code, signal)."""
FEW_EXITS = ((0, None), (None, 9))
"""How they end in the largest jobs, and in all that restart."""

REQUIRED = {"command": "serve", "required": True}
JOBS = {
    "mirrored": clustered({"worker": 2}, restart=ONCE, timeouts={"lost_host": 0}),
    "chief rule": clustered({"worker": 2}, restart=NEVER, success="chief"),
    "parameter server": clustered({"chief": 1, "worker": 1, "ps": 1}, restart=NEVER),
    "evaluator": clustered({"worker": 1, "evaluator": 1}, restart=NEVER),
    "sidecar": clustered({"worker": 1}, restart=NEVER, sidecars=SIDECAR),
    "sidecars alone": planned({"sidecars": {"a": REQUIRED, "b": REQUIRED}, "restart": NEVER}),
    "tensorboard": clustered({"worker": 1}, restart=ONCE, tensorboard="logs/"),
    "tensorboard far away": clustered({"worker": ["far"]}, restart=NEVER, tensorboard="."),
    "limits": clustered({"worker": 2}, restart=NEVER, timeouts={"finish": 5, "deadline": 90}),
    "no cluster": clustered({"worker": 2}, strategy="none", restart=NEVER),
    "one far host": clustered({"worker": ["far"]}, restart=ONCE, timeouts={"lost_host": 2}),
    "two far hosts": clustered({"worker": ["far", "farther"]}, restart=NEVER),
}
RESTARTED = {
    name: JOBS[name]._replace(restart=JOBS["mirrored"].restart)
    for name in ("parameter server", "evaluator", "sidecar", "limits", "no cluster", "two far hosts")
}
"""Jobs that restart once, which makes their walks ten times as long: in `make nightly` only. "mirrored" shows by day
what a restart of all tasks leads to, "tensorboard" that of a sidecar.
"""


SAFE = ("evaluator", "sidecar", "tensorboard", "limits", "no cluster", "parameter server")
"""Jobs that are walked without losing a host: what a loss causes does not depend on what these jobs test. In these
the user requests restarts and the end from another terminal.
"""
OF_SAFE = 9

STUCK = ("chief rule", "sidecars alone", "one far host")
"""Jobs in which time passes although tasks that were killed have not ended; in the others KILL works."""


class World(NamedTuple):
    """The true state of the hosts.

    ``alive``: (task, attempt, progress). ``links``: (host, state of its agent): joining,
    up, disconnected, leaving, down. ``asked``: requests to hosts. ``lost``: how many hosts and links
    were lost: at most two in a walk. ``requests``: what the user has requested from another terminal. ``may_stick``:
    tasks may outlive KILL.
    """

    alive: frozenset[tuple[str, int, str]] = frozenset()
    links: frozenset[tuple[str, str]] = frozenset()
    asked: frozenset[tuple[str, str]] = frozenset()
    lost: int = 0
    interrupts: int = 0
    requests: int = 0
    first_fault: tuple[str, int] | None = None
    may_stick: bool = False


class State(NamedTuple):
    job: Job
    world: World
    now: float

    def key(self) -> Any:
        """Return what distinguishes this node: times are relative to now, and derived values are left out."""
        tasks = tuple(
            task._replace(
                since=0.0,
                stop=task.stop and Stop(None, max(task.stop.kill_at - self.now, 0.0)),  # grace decides nothing
                resume_at=self._from_now(task.resume_at),
                budget=_counted(task.budget),
            )
            for task in self.job.tasks.values()
        )
        job = self.job._replace(
            plan=None,  # type: ignore[arg-type]
            original=None,  # type: ignore[arg-type]
            tasks=tasks,  # type: ignore[arg-type]
            ports=frozenset(self.job.ports),  # type: ignore[arg-type]
            hosts=tuple(  # type: ignore[arg-type]
                host._replace(
                    since=0.0,
                    joined_at=0.0,
                    fence_at=self._from_now(host.fence_at),
                    away_since=self._from_now(lost_hosts.limit_of(self.job, host)),
                    retry_at=self._from_now(host.retry_at),
                )
                for host in self.job.hosts.values()
            ),
            culprit=self.job.culprit and self.job.culprit._replace(time=0.0),
            join_by=0.0,
            failed_at=0.0,
            started_at=0.0,
            attempt_started_at=0.0,
            restarts=self.job.restarts._replace(
                budget=_counted(self.job.restarts.budget),
                last_failure=None,  # has no influence on decisions
            ),
            deadlines=self.job.deadlines._replace(
                save_by=self._from_now(self.job.deadlines.save_by),
                resume_at=self._from_now(self.job.deadlines.resume_at),
                finish_by=self._from_now(self.job.deadlines.finish_by),
                late_at=self._from_now(self.job.deadlines.late_at),
                confirm_by=self._from_now(self.job.deadlines.confirm_by),
            ),
        )
        return job, self.world, self._from_now(time_limits.next_deadline(self.job))

    def _from_now(self, time: float | None) -> float | None:
        return None if time is None else max(time - self.now, 0.0)


def _counted(budget: Budget) -> Budget:
    """Return a budget as its counts: all times fall into the window, and failures are too rare for a crash loop."""
    return Budget((0.0,) * len(budget.charged), (0.0,) * len(budget.free), "", 0, budget.advanced, budget.furthest)


def possible(state: State) -> list[tuple[Event, World, float]]:
    """Return every event that the world allows, with the world and the time after it."""
    job, world, now = state
    found: list[tuple[Event, World, float]] = []
    links = dict(world.links)
    for host, link in links.items():
        found += [(event, after, now) for event, after in _of_host(job, world, host, link)]
    for host, what in world.asked:
        if links[host] == "up":
            found += [(event, after, now) for event, after in _answers(job, world, host, what)]
    for entry in world.alive:
        if links[job.plan.find(entry[0]).host] in ("up", "leaving"):
            found += [(event, after, now) for event, after in _of_task(job, world, entry)]
    if world.interrupts < 2 and (job.phase is Phase.STOPPING or not world.interrupts):
        found.append((Interrupted(2), world._replace(interrupts=world.interrupts + 1), now))
    if world.requests < 1 and world.lost == OF_SAFE and job.phase is Phase.RUNNING and not _is_wide(job):
        found += _requests(job, world._replace(requests=1), now)
    deadline = time_limits.next_deadline(job)
    if deadline is not None and (world.may_stick or deadline != job.deadlines.confirm_by):
        late = max(now, deadline)
        found.append((TimePassed(), _after_fences(job, world, late), late))
    return found


def _requests(job: Job, asked: World, now: float) -> list[tuple[Event, World, float]]:
    """Return what the user may request from another terminal."""
    alone = [process.task for process in job.plan.processes() if policy.restarts_alone(job.plan, process)]
    if alone:
        return [(RestartRequested(task), asked, now) for task in alone]
    found: list[tuple[Event, World, float]] = [(RestartRequested(task), asked, now) for task in ("", *job.tasks)]
    return found + [(StopRequested(grace), asked._replace(interrupts=1), now) for grace in (0.0, 10.0)]


def _becomes(world: World, host: str, link: str, **changes: Any) -> World:
    others = frozenset(entry for entry in world.links if entry[0] != host)
    return world._replace(links=others | {(host, link)}, **changes)


def _dead(job: Job, world: World, host: str) -> World:
    alive = frozenset(entry for entry in world.alive if job.plan.find(entry[0]).host != host)
    asked = frozenset(entry for entry in world.asked if entry[0] != host)
    return _becomes(world, host, "down", alive=alive, asked=asked)


def _after_fences(job: Job, world: World, now: float) -> World:
    """Return the world after agents that were silent for the fence have stopped their tasks."""
    for host in job.hosts.values():
        if host.fence_at is not None and now >= host.fence_at:
            world = _dead(job, world, host.host)
    return world


def _of_host(job: Job, world: World, host: str, link: str) -> list[tuple[Event, World]]:
    is_far = job.plan.lease > 0
    may_fail = world.lost < (2 if is_far else 1)
    found: list[tuple[Event, World]] = []
    if link == "joining":
        found.append((HostJoined(host), _becomes(world, host, "up")))
        if is_far and may_fail:
            found.append((HostUnreachable(host, "refused"), _becomes(world, host, "down", lost=world.lost + 1)))
    elif link == "up" and may_fail:
        found.append((HostLost(host, "killed"), _dead(job, world, host)._replace(lost=world.lost + 1)))
        if is_far:
            found.append((LinkLost(host, "cut"), _becomes(world, host, "disconnected", lost=world.lost + 1)))
    elif link == "disconnected":
        found.append((LinkRestored(host, False), _becomes(world, host, "up")))
        found.append((LinkRestored(host, True), _becomes(world, host, "leaving")))
        found.append((HostLost(host, "its lease was over"), _dead(job, world, host)))
    elif link == "leaving" and all(job.plan.find(task).host != host for task, _, _ in world.alive):
        found.append((HostLost(host, "its lease was over"), _dead(job, world, host)))
    return found


def _answers(job: Job, world: World, host: str, what: str) -> list[tuple[Event, World]]:
    answered = world._replace(asked=world.asked - {(host, what)})
    if what == "names":
        others = [task.address.host for task in job.plan.tasks if task.address and task.host != host]
        bad, good = dict.fromkeys(others, "127.0.1.1"), dict.fromkeys(others, "10.0.0.9")
        return [(NamesResolved(host, good), answered), (NamesResolved(host, bad), answered)]
    if what == "peers":
        return [(PeersProbed(host, {}), answered), (PeersProbed(host, {"worker:0": "timed out"}), answered)]
    if what == "port of tensorboard":
        held = PortsHeld(host, {"tensorboard": 6006})
        return [(held, answered), (PortsRefused(host, {"tensorboard": "busy"}), answered)]
    tasks = [task.task for task in job.plan.tasks if task.host == host]
    held = PortsHeld(host, {task: 10 + number for number, task in enumerate(tasks)})
    return [(held, answered), (PortsRefused(host, {tasks[0]: "busy"}), answered)]


def _of_task(job: Job, world: World, entry: tuple[str, int, str]) -> list[tuple[Event, World]]:
    task, attempt, stage = entry
    host = job.plan.find(task).host
    others = world.alive - {entry}

    def becomes(stage: str) -> World:
        return world._replace(alive=others | {(task, attempt, stage)})

    if stage == "exited":
        return [(TaskGone(host, task, attempt), world._replace(alive=others))]
    if stage == "starting" and _is_wide(job):
        return [(TaskStarted(host, task, attempt, 1, 0.0), becomes("running"))]
    if stage == "starting":
        not_started = TaskNotStarted(host, task, attempt, 127, "not found")
        return [
            (TaskStarted(host, task, attempt, 1, 0.0), becomes("running")),
            (not_started, _with_fault(job, becomes("exited"), task, 127)),
        ]
    is_wide = _is_wide(job)
    found: list[tuple[Event, World]] = []
    for code, number in FEW_EXITS if is_wide or job.plan.restart.max else EXITS:
        exited = TaskExited(host, task, attempt, code, number, 0.0)
        after = becomes("exited")
        found.append((exited, after if code == 0 else _with_fault(job, after, task, code or 137)))
    if stage == "running" and not is_wide:
        found.append((PortOpened(host, task, attempt), becomes("open")))
    return found


def _is_wide(job: Job) -> bool:
    """Return whether a job has so large a state space that the walk is restricted."""
    return len(job.tasks) > 2 or len(job.hosts) > 1 or tensorboard.tensorboard_of(job.plan) is not None


def _with_fault(job: Job, world: World, task: str, code: int) -> World:
    """Record the first fault of an attempt: of a task that counts, and was not asked to stop or cannot start again."""
    counts = task.startswith(("worker", "chief", "ps")) or not job.plan.tasks
    if counts and job.phase is Phase.RUNNING and (code == 127 or not job.tasks[task].is_stopping):
        return world._replace(first_fault=(task, code))
    return world


def apply(job: Job, world: World, actions: list[Action]) -> World:
    """Return the world after the supervisor's actions, and assert I1 on the way."""
    for action in actions:
        match action:
            case JoinHost():
                world = _becomes(world, action.host, "joining")
            case AbandonHost():
                # After two Ctrl-C, an unreachable host is left to its agent, which stops the tasks.
                # A host that does not respond while it is started has no task.
                # One that does not confirm the end of its tasks is given up, and the exit code says so.
                assert (
                    world.interrupts or job.unended() or world.links & {(action.host, "down"), (action.host, "joining")}
                )
                world = _dead(job, world, action.host)
            case LookUpNames():
                world = world._replace(asked=world.asked | {(action.host, "names")})
            case HoldPorts(exclusive=True):
                world = world._replace(asked=world.asked | {(action.host, "port of tensorboard")})
            case HoldPorts():
                world = world._replace(asked=world.asked | {(action.host, "ports")})
            case ProbePeers():
                world = world._replace(asked=world.asked | {(action.host, "peers")})
            case StartTask(host=_, task=task, attempt=attempt):
                living = [entry for entry in world.alive if entry[0] == task]
                assert not living, f"I1: attempt {attempt} of {task} starts while {living} lives"
                world = world._replace(alive=world.alive | {(task, attempt, "starting")})
            case StopTask(host=_, task=task, attempt=attempt):
                known = {(name, number) for name, number, _ in world.alive}
                assert (task, attempt) in known, f"{task} is stopped but does not live"
    return world


def check(before: State, event: Event, after: State, plan: Plan) -> None:
    job, world = after.job, after.world
    if job.phase is Phase.ENDED:
        assert not world.alive, f"I2: {world.alive} lives after the end"
        assert job.exit_code is not None
        check_exit_code(after)
    assert len(job.restarts.budget.charged) <= plan.restart.max, "I4: more gang restarts than the budget"
    for task in job.tasks.values():
        assert len(task.budget.charged) <= plan.restart.max, "I4: more restarts of a task than the budget"
        assert task.attempt >= before.job.tasks[task.task].attempt, "attempts only grow"
    believed = {(task.task, task.attempt) for task in job.alive()}
    assert believed == {entry[:2] for entry in world.alive}, "the job knows who lives"


def check_exit_code(state: State) -> None:
    """I3: the culprit is the first fault, and it determines the exit code."""
    job, world = state.job, state.world
    if job.unended():
        assert job.exit_code == 125, "what may still run is not told"
        return
    if world.interrupts and job.culprit is not None and job.culprit.cause is Cause.SIGNAL:
        assert job.exit_code == 128 + (job.culprit.signal or 0)
        assert job.culprit.signal == 2 or world.requests
    if world.interrupts:
        assert job.exit_code != 0, "Ctrl-C never exits 0"
    if job.culprit is not None and job.culprit.cause in (Cause.TASK, Cause.NOT_STARTED):
        assert world.first_fault == (job.culprit.name, job.exit_code), "I3"


def stale(state: State) -> list[Event]:
    """Return events of attempts that are over, and of tasks that never existed."""
    events: list[Event] = [TaskExited("localhost", "nobody:0", 0, 1, None, 0.0)]
    for task in state.job.tasks.values():
        events.append(TaskExited("localhost", task.task, task.attempt - 1, 1, None, 0.0))
        events.append(TaskGone("localhost", task.task, task.attempt - 1))
        events.append(TaskStarted("localhost", task.task, task.attempt + 1, 1, 0.0))
    return events


DAILY = ("parameter server", "sidecars alone", "tensorboard", "limits", "two far hosts")
"""Jobs that are walked in `make test`: servers, a restart of a gang and of a sidecar, time limits, and lost hosts."""


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *(pytest.param(*job, marks=() if job[0] in DAILY else pytest.mark.thorough, id=job[0]) for job in JOBS.items()),
        *(pytest.param(*job, id=f"{job[0]} that restarts") for job in RESTARTED.items() if LONG),
    ],
)
def test_invariants_hold_in_every_reachable_state(name: str, plan: Plan) -> None:
    """I1 to I5: one attempt at a time, no process left, the right culprit, the budget, and guaranteed termination."""
    lost = OF_SAFE if name in SAFE else len(plan.hosts) - 1
    world = World(lost=lost, may_stick=name in STUCK, links=frozenset((host.host, "joining") for host in plan.hosts))
    first = State(step.begin_job("run", plan, 0.0), world, 0.0)
    keys = {first.key(): 0}
    leads_from: list[set[int]] = [set()]
    ended = []
    queue = deque([(0, first)])
    while queue:
        number, state = queue.popleft()
        if state.job.phase is Phase.ENDED:
            ended.append(number)
            continue
        for event in stale(state):
            assert step.step(state.job, event, state.now) == (state.job, [])
        for event, world, now in possible(state):
            job, actions = step.step(state.job, event, now)
            is_new_attempt = job.attempt != state.job.attempt
            known = world._replace(first_fault=None) if is_new_attempt else world
            after = State(job, apply(job, known, actions), now)
            check(state, event, after, plan)
            found = keys.setdefault(after.key(), len(keys))
            if found == len(leads_from):
                leads_from.append(set())
                queue.append((found, after))
            leads_from[found].add(number)
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


def test_the_page_says_which_event_counts_in_which_state() -> None:
    """TFLAUNCH_WRITE_TABLE=1 writes its table."""
    page, lines = REPOSITORY / "docs" / "architecture.md", list(rules_in_markdown())
    if os.environ.get("TFLAUNCH_WRITE_TABLE"):
        write_table(page, "events", lines)
    assert "\n".join(lines) in page.read_text()
    assert set(step.RULES) == set(get_args(Event))


def rules_in_markdown() -> Iterator[str]:
    """Yield a table for events of hosts, one for those of tasks, and one for what concerns the whole job."""
    for states, of in ((HostPhase, "host"), (TaskPhase, "task"), (Phase, "job")):
        yield from ["", f"| event of a {of} that is | {' | '.join(state.value for state in states)} | handled by |"]
        yield f"|---|{':-:|' * len(states)}---|"
        for event, rule in step.RULES.items():
            if isinstance(next(iter(rule.states)), states):
                cells = " | ".join("●" if state in rule.states else "" for state in states)
                module = rule.handle.__module__.rpartition(".")[2]
                yield f"| {event.__name__} | {cells} | `{module}.{rule.handle.__name__}` |"
