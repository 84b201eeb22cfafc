"""The invariants I1 to I16 of the design, checked as the history proceeds.

I3 is judged when an attempt has failed and all its tasks are dead, and only if exactly one root cause took
effect in it, the user did not interrupt, and no timeout was the reason. See `_judge`.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.output import SimRunDirectory, check_log
from simulator.world import Violation, World
from tflaunch.core.actions import Action, StartTask, StopTask
from tflaunch.core.events import Event, HostLeaving, Interrupted, JobHung, StopRequested, TaskGone
from tflaunch.core.job_state import Cause, Job, Phase
from tflaunch.core.restart_budget import ALIKE, MOST_FREE
from tflaunch.core.restart_rules import is_preemption
from tflaunch.core.states import HostPhase, TaskPhase
from tflaunch.plan.model import Plan
from tflaunch.store.log_writer import path_of
from tflaunch_worker.agent.task_output import CHUNK, WINDOW

if TYPE_CHECKING:
    from simulator.processes import Process
    from tflaunch.store.log_sink import Times

_CLOCKS = 0.5  # maximum error of a host's timestamps, in seconds, unless its agent was frozen
_ALONE = ("parameter_server",)  # tasks have budgets of their own
_STARTED = (Cause.TASK, Cause.NOT_STARTED)


class RootCause(NamedTuple):
    """An injected fault that took effect."""

    time: float
    kind: str
    name: str
    host: str
    code: int | None
    signal: int | None


class Oracle:
    """Watches the world and the run."""

    def __init__(self, world: World, plan: Plan, ahead: float) -> None:
        self.world = world
        self.has_hung = False
        self.is_blurred = False  # an event happened that may or may not be a cause
        self.may_lose_words = False  # an agent may have ended before all its messages were received
        self.disturbances = 0  # how many of those are active now
        self.judged = 0
        self.moves = 0  # hosts in whose place others were put
        self._plan = plan
        self._ahead = ahead
        self._clock_error = _CLOCKS
        self._living: dict[str, list[Process]] = {}
        self._beyond_reach: set[Process] = set()
        self._causes: list[RootCause] = []
        self._told: dict[tuple[str, int], bytearray] = {}
        self._told_at: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self._heard: dict[tuple[str, int], int] = {}
        self._kept: dict[tuple[str, int], int] = {}
        self._gaps: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._unlogged: set[tuple[str, int]] = set()
        self._unstated: set[tuple[str, int]] = set()  # the same, of supervisors that were killed (docs/limits.md)
        self._ended: set[tuple[str, int]] = set()
        self._ended_before: set[tuple[str, int]] = set()
        self._abandoned: set[tuple[str, int]] = set()
        self.files = SimFiles()
        self._left: dict[str, tuple[str, int]] = {}
        self._contents: dict[tuple[str, int], bytes] = {}
        self._excused: set[str] = set()
        self._has_heir = False
        self._latest: dict[str, int] = {}
        self._interrupts = 0
        self._restarts = 0
        self._is_given_up = False
        self._raised: str | None = None  # the task that failed in this attempt as it does in each
        self._alike = 0  # consecutive attempts that failed so, without a newer epoch
        # The place of the last hang, in attempts that failed in no other way since; None after an end from outside,
        # which says nothing of the program.
        self._hung_at: str | None = ""
        self._epoch = self._furthest = 0
        self._furthest_heard = 0  # without the attempts of lost hosts, whose newest epochs perhaps nobody has heard of

    # ---- I1 and I2: living processes

    def process_began(self, process: Process) -> None:
        others = self._living.setdefault(process.task, [])
        for other in others:
            if other in self._beyond_reach:
                continue
            if other.attempt != process.attempt or other.host is not process.host:
                raise Violation("I1", f"{process} starts while {other} lives")
        others.append(process)
        self.world.note("starts", process)

    def process_ended(self, process: Process) -> None:
        self._living[process.task].remove(process)

    def living(self) -> list[Process]:
        return [process for processes in self._living.values() for process in processes]

    # ---- I10: the fence

    def guarded(self, task: str, address: str, admitted: Sequence[str]) -> None:
        """A host guards the port of a task that it starts, and has this address."""
        if address not in admitted:
            raise Violation("I10", f"{task} is guarded against its own host")

    # ---- I6: output

    def wrote(self, task: str, attempt: int, data: bytes) -> None:
        words = self._told.setdefault((task, attempt), bytearray())
        self._told_at.setdefault((task, attempt), []).append((len(words), self.world.now))
        words.extend(data)

    def dropped(self, task: str, attempt: int, offset: int, size: int) -> None:
        """A host had no space for output."""
        self._gaps.setdefault((task, attempt), []).append((offset, size))

    def may_misdate(self, seconds: float) -> None:
        """An agent answers this much later: its clock is known to half of the fastest round trip."""
        self._clock_error = max(self._clock_error, _CLOCKS + seconds / 2)

    def released(self, task: str, attempt: int, offset: int) -> None:
        """An agent released output because the supervisor acknowledged it."""
        if offset > self._kept.get((task, attempt), 0):
            kept = self._kept.get((task, attempt), 0)
            raise Violation("I6", f"{task} attempt {attempt} is acknowledged to {offset}, but kept to {kept}")

    def heard(self, task: str, attempt: int, data: bytes) -> None:
        """Output has arrived at the log."""
        self._in_order(task, attempt)
        begin = self._heard.get((task, attempt), 0)
        end = begin + len(data)
        told = self._told.get((task, attempt), b"")
        if told[begin:end] != data:
            raise Violation("I6", f"{task} attempt {attempt}, from byte {begin}: {data[:60]!r} was not written there")
        self._heard[(task, attempt)] = end

    def dated(self, task: str, attempt: int, size: int, times: Times) -> None:
        """Output has arrived with its read times, on our clock: none may be long before it was written."""
        begin, told = self._heard.get((task, attempt), 0), self._told_at.get((task, attempt), [])
        if not times or times[0][0] != 0 or any(not a < b < size for (a, _), (b, _) in pairwise(times)):
            raise Violation("I6", f"{task} attempt {attempt}: {size} bytes have the times {times}")
        for position, moment in times:
            number = bisect.bisect_right(told, (begin + position, inf)) - 1
            if moment - self._ahead < told[number][1] - self._clock_error:
                raise Violation("I6", f"{task} attempt {attempt}: byte {begin + position} is dated {moment}, too early")

    def kept(self, task: str, attempt: int) -> None:
        """What has arrived is in the log, or cannot be because the disk is full."""
        end = self._heard.get((task, attempt), 0)
        self._kept[(task, attempt)] = max(end, self._kept.get((task, attempt), 0))

    def not_logged(self, task: str, attempt: int, size: int) -> None:
        """The supervisor's disk had no room for the last output that has arrived, or for a part of it."""
        self._unlogged.add((task, attempt))
        end = self._heard[(task, attempt)]
        self._gaps.setdefault((task, attempt), []).append((end - size, size))

    def resumed(self, task: str, attempt: int, size: int | None) -> None:
        """Another supervisor has found so much of an attempt in the log."""
        heard = self._heard.get((task, attempt), 0)
        if size is None:  # the earlier one was killed before it has written any
            size = heard = 0
        elif size < heard:
            self._gaps.setdefault((task, attempt), []).append((size, heard - size))
        elif size > heard:
            raise Violation("I6", f"{task} attempt {attempt}: {size} bytes count as kept, but only {heard} arrived")
        self._heard[(task, attempt)] = size

    def lost(self, task: str, attempt: int, size: int) -> None:
        self._in_order(task, attempt)
        begin = self._heard.get((task, attempt), 0)
        gaps = self._gaps.get((task, attempt), [])
        if sum(max(min(begin + size, at + count) - max(begin, at), 0) for at, count in gaps) < size:
            raise Violation("I6", f"{task} attempt {attempt}: {size} bytes from {begin} are said lost, and are not")
        self._heard[(task, attempt)] = begin + size
        self.kept(task, attempt)

    def ended(self, task: str, attempt: int) -> None:
        """An attempt has sent its last output; a later supervisor may get it again."""
        if (task, attempt) in self._ended_before:
            return
        self._in_order(task, attempt)
        told, heard = len(self._told.get((task, attempt), b"")), self._heard.get((task, attempt), 0)
        if (task, attempt) in self._ended:
            raise Violation("I6", f"{task} attempt {attempt} ends twice")
        if told != heard:
            raise Violation("I6", f"{task} attempt {attempt} wrote {told} bytes; {heard} are in the log")
        self._ended.add((task, attempt))

    def abandoned(self, task: str, attempt: int) -> None:
        self._abandoned.add((task, attempt))

    def check_logs(self, run: SimRunDirectory, trouble: Sequence[str]) -> None:
        """The logs hold what has arrived; what a full disk has cost is stated there, or in ``trouble``."""
        for task in sorted({task for task, _ in self._told}):
            told = {attempt: bytes(data) for (name, attempt), data in self._told.items() if name == task}
            ended = {attempt for name, attempt in self._ended - self._abandoned if name == task}
            is_stated = any(path_of(run.logs, task).name in sentence for sentence in trouble)
            unlogged = self._unlogged | self._unstated if is_stated else self._unstated
            check_log(run, task, told, ended - {attempt for name, attempt in unlogged if name == task})

    def check_words(self) -> None:
        """After a run that was not cut short, all output has arrived from agents that could be reached."""
        if self.may_lose_words:
            return
        for task, attempt in self._told:
            if (task, attempt) not in self._ended | self._abandoned:
                told, heard = len(self._told[(task, attempt)]), self._heard.get((task, attempt), 0)
                raise Violation("I6", f"{task} attempt {attempt} wrote {told} bytes; {heard} are in the log at the end")

    def _in_order(self, task: str, attempt: int) -> None:
        if attempt < self._latest.get(task, 0):
            raise Violation("I6", f"attempt {attempt} of {task} speaks after attempt {self._latest[task]}")
        self._latest[task] = attempt

    # ---- I9: files that tasks leave

    def left_nothing(self, task: str) -> None:
        """An attempt begins."""
        self._left.pop(task, None)

    def left_file(self, task: str, name: str) -> bytes:
        """An attempt has ended; return the file that it has left."""
        file = self._left[task] = f"{task}/{name}", len(self._contents)
        size = random.Random(f"{self.world.now} {task}").choice((0, 1, 1000, CHUNK, CHUNK + 1, WINDOW + 7))
        self._contents[file] = bytes(index % 251 for index in range(7 + len(self._contents))).ljust(size, b"x")[:size]
        return self._contents[file]

    def _check_file(self, event: TaskGone) -> None:
        """What a task left is stored when the task counts as gone, unless nobody waited for it."""
        file = self._left.pop(event.task, None)
        if file is None or event.task in self._excused or self._is_given_up:
            return
        stored = self.files.complete.get((file[0], event.attempt))
        if stored != self._contents[file]:
            raise Violation("I9", f"{event.task} attempt {event.attempt} is gone, and its file is not here")

    # ---- I3: the culprit

    def cause(self, kind: str, name: str, host: str, code: int | None = None, number: int | None = None) -> None:
        self._causes.append(RootCause(self.world.now, kind, name, host, code, number))

    def raised(self, task: str) -> None:
        self._raised = task

    def trained(self, epoch: int) -> None:
        self._epoch = max(epoch, self._epoch)

    def blur(self) -> None:
        """The cause of later failures is unknown."""
        self.is_blurred = True

    # ---- the run

    def stepped(self, before: Job, event: Event, job: Job, actions: list[Action], news: Callable[[], str]) -> None:
        if isinstance(event, Interrupted):
            self._interrupts += 1
            self._is_given_up |= before.phase is Phase.STOPPING  # hosts that cannot be reached are left to their agents
        if isinstance(event, StopRequested):
            self._interrupts += 1
            self._is_given_up |= event.grace == 0
        self._check_stale(before, event, job)
        if before.tasks is not job.tasks:
            self._check_gone(before, job)
        self._check_starts(actions)
        self._check_places(before, job, actions)
        self._excused |= {action.task for action in actions if isinstance(action, StopTask) and not action.grace}
        if isinstance(event, HostLeaving):
            self._excused |= {process.task for process in job.plan.on_host(event.host)}
        if isinstance(event, TaskGone):
            self._check_file(event)
        if before.phase is not job.phase:
            self.world.note("job:", before.phase.value, "->", job.phase.value, news())
            self._check_phase(before, job)
        if before.restarts.budget is not job.restarts.budget:
            self._check_budget(job, job.restarts.budget, "the job")
        for name, task in job.tasks.items():
            if task.budget is not before.tasks[name].budget:
                self._check_budget(job, task.budget, name)

    def _check_stale(self, before: Job, event: Event, job: Job) -> None:
        """I3: what is told of an earlier attempt, or of one that ends already, accuses nobody."""
        is_stale = isinstance(event, JobHung) and (event.attempt, Phase.RUNNING) != (before.attempt, before.phase)
        if is_stale and job.culprit != before.culprit:
            raise Violation("I3", f"{event} has ended attempt {before.attempt}, {before.phase.value}")

    def _check_starts(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartTask):
                for process in self._within_reach(action.task):
                    raise Violation("I1", f"attempt {action.attempt} is ordered while {process} lives")

    def _check_places(self, before: Job, job: Job, actions: list[Action]) -> None:
        """I11: one host is in the place of each host of the plan; tasks start there, and leave only dead hosts."""
        for action in actions:
            if isinstance(action, StartTask) and action.host != job.host_of(action.task):
                raise Violation("I11", f"{action} is ordered, but the task is on {job.host_of(action.task)}")
        if before.hosts is job.hosts or not self._plan.spares:
            return
        homes = sorted(host.stands_for for host in job.hosts.values() if host.stands_for)
        if homes != sorted(host.host for host in self._plan.hosts if host.host not in self._plan.spares):
            raise Violation("I11", f"the hosts with tasks stand for {homes}")
        for name, host in job.hosts.items():
            if host.is_spare and not before.hosts[name].is_spare:
                self.world.note("moved from", name)
                self.moves += 1
                there = [process for process in self.living() if process.host.name == name]
                left = [process for process in there if process not in self._beyond_reach]
                if left and not self._is_given_up:
                    raise Violation("I11", f"tasks have moved from {name}, where {left[0]} lives")

    def _check_gone(self, before: Job, job: Job) -> None:
        if self._is_given_up:
            return
        for name, task in job.tasks.items():
            earlier = before.tasks[name]
            if task is earlier or task.phase is not TaskPhase.GONE or earlier.phase is TaskPhase.GONE:
                continue
            if task.unended is not None:
                continue  # the exit code says so
            for process in self._within_reach(name):
                # Where no process dies, a lost link hides that: the fence assumes that KILL works (docs/limits.md).
                if process.host.is_stuck and before.hosts[process.host.name].phase is HostPhase.DISCONNECTED:
                    self._beyond_reach.add(process)
                else:
                    raise Violation("I1", f"attempt {task.attempt} counts as gone while {process} lives")

    def _within_reach(self, task: str) -> list[Process]:
        return [process for process in self._living.get(task, ()) if process not in self._beyond_reach]

    def _check_budget(self, job: Job, budget: Any, whose: str) -> None:
        restart = job.plan.restart
        for kind, spent, most in (("charged", budget.charged, restart.max), ("free", budget.free, MOST_FREE)):
            recent = [moment for moment in spent if spent[-1] - moment < restart.window]
            if len(recent) > most:
                raise Violation("I4", f"{whose}: {len(recent)} {kind} restarts within {restart.window:g} s, not {most}")

    def _check_phase(self, before: Job, job: Job) -> None:
        if job.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
            self._causes.clear()
            if (
                self._epoch > self._furthest_heard
            ):  # of an attempt whose host was lost or drained: it ended without a verdict
                self._alike = 0
            self._furthest = max(self._epoch, self._furthest)
            self._raised, self._epoch = None, 0
            self.is_blurred = self.disturbances > 0
        if before.phase is Phase.BACKING_OFF and job.phase not in (Phase.STOPPING, Phase.ENDED):
            self._restarts += job.culprit is None or job.culprit.cause not in (Cause.GROWTH, Cause.REQUEST)
            spent = job.restarts.budget.restarts
            if self._restarts > spent:
                raise Violation("I4", f"{self._restarts} restarts, but only {spent} are in the budget")
        if job.phase in (Phase.BACKING_OFF, Phase.ENDED) and before.phase is not Phase.BACKING_OFF:
            self._judge(job)
        if job.phase is Phase.BACKING_OFF and job.culprit is not None and job.culprit.cause is Cause.NOT_STARTED:
            raise Violation("I4", f"restarted, though no attempt can do better: {job.culprit}")
        if before.phase is Phase.STOPPING and job.phase is not Phase.STOPPING:
            self._check_progress(job)
        if job.phase is Phase.ENDED:
            self._check_exit_code(job)

    def _check_progress(self, job: Job) -> None:
        """I4: a gang that fails alike without a newer epoch is given up; one that progresses never is."""
        is_newer, self._furthest = self._epoch > self._furthest, max(self._epoch, self._furthest)
        self._check_hang(job, is_newer)
        culprit, is_sole = job.culprit, len(self._causes) == 1 and not self.is_blurred and not self._interrupts
        if culprit is None or not is_sole or culprit.name != self._raised or job.plan.strategy in _ALONE:
            self._alike = 0
            return
        self._alike = 1 if self._epoch > self._furthest_heard else self._alike + 1
        self._furthest_heard = max(self._epoch, self._furthest_heard)
        if job.exit_code is None and self._alike >= ALIKE:
            raise Violation("I4", f"restarted after {self._alike} attempts that failed alike without progress")
        reason = job.restarts.no_retry_reason
        if is_newer and reason and job.plan.restart.max:
            raise Violation("I4", f"not restarted though epoch {self._epoch} was reached: {reason}")

    def _check_hang(self, job: Job, is_newer: bool) -> None:
        """I4: a second hang at one place in a row ends the job, unless the first was followed by progress."""
        culprit, reason = job.culprit, job.restarts.no_retry_reason
        is_hang = culprit is not None and culprit.cause is Cause.TIME and culprit.failure != ""
        place, earlier = culprit.failure if culprit is not None and is_hang else "", self._hung_at
        if place and place == earlier and not is_newer and job.exit_code is None:
            raise Violation("I4", f"restarted after a second hang at {place} without progress")
        is_first = earlier is not None and place != earlier
        is_heard = not self.is_blurred and not job.hosts_in(HostPhase.DOWN)  # no epochs of a host that was given up
        if place and "a hang at" in reason and (is_first or (is_newer and is_heard)):
            raise Violation("I4", f"not restarted after the first hang at {place}, though the last was at {earlier!r}")
        is_own = is_hang or (culprit is not None and culprit.cause is Cause.TASK and culprit.signal is None)
        self._hung_at = place if is_own and not is_preemption(culprit.code, None) else None

    def _judge(self, job: Job) -> None:
        """I3: if exactly one fault took effect in an attempt, it is the culprit."""
        culprit = job.culprit
        if culprit is None or self._interrupts or self.is_blurred:
            return
        if culprit.cause in (Cause.TIME, Cause.GROWTH, Cause.REQUEST, Cause.UNREACHABLE, Cause.SIGNAL):
            return
        known = [cause for cause in self._causes if cause.time <= job.failed_at - self._ahead + 1e-6]
        if not known and not self._causes:
            invariant = "I8" if self._has_heir else "I3"
            raise Violation(invariant, f"nothing had failed, but {culprit} is blamed")
        if len(self._causes) != 1:
            return
        cause = self._causes[0]
        self.judged += 1
        is_right = (culprit.cause.value, culprit.name, culprit.code, culprit.signal) == (
            cause.kind, cause.name, cause.code, cause.signal,
        )  # fmt: skip
        if not is_right:
            raise Violation("I3", f"{cause} came first, but {culprit} is blamed")

    def _check_exit_code(self, job: Job) -> None:
        """The exit code is the culprit's, by the contract."""
        culprit, code = job.culprit, job.exit_code
        if job.unended():
            if code != 125:
                raise Violation("I5", f"exit code {code}, though {job.unended()} may live")
            return
        if code == 0:
            missing = [name for name in job.success_tasks if not job.tasks[name].has_succeeded]
            if missing or (self._interrupts and culprit is not None):
                raise Violation("I3", f"exit code 0, but {missing} did not succeed")
            return
        if culprit is None:
            raise Violation("I3", f"exit code {code}, and no culprit")
        if culprit.signal is not None:
            wanted = 128 + culprit.signal
        elif culprit.cause in _STARTED:
            assert culprit.code is not None
            wanted = 1 if culprit.code in (124, 125) else culprit.code
        elif culprit.cause is Cause.TIME:
            wanted = 124
        else:
            wanted = 125 if job.has_started else 3
        if code != wanted:
            raise Violation("I3", f"exit code {code}, not {wanted}, for {culprit}")

    def has_heir(self) -> None:
        """Another supervisor takes over."""
        self._ended_before |= self._ended
        self._unstated |= self._unlogged
        self._has_heir = True

    def given_up(self) -> None:
        """From now on the supervisor need not know which processes live."""
        self._is_given_up = True


class SimFiles:
    """Stores the files that tasks leave (`LeftFileStore`), for all supervisors of a run."""

    def __init__(self) -> None:
        self.complete: dict[tuple[str, int], bytes] = {}
        self._parts: dict[tuple[str, int], bytes] = {}

    def kept(self, *file: Any) -> int:
        return len(self.complete.get(file, self._parts.get(file, b"")))

    def write(self, source: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        self._parts[(source, attempt)] = self._parts.get((source, attempt), b"") + data
        done()

    def end(self, *file: Any) -> None:
        self.complete.setdefault(file, self._parts.get(file, b""))
