"""One history: the real run of a random job, in a random world with random faults."""

from __future__ import annotations

import gc
import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from simulator import kernel, programs
from simulator.case import Case, Moment
from simulator.code import SimCode
from simulator.connectors import Aside, SimConnector, SimLocalConnector
from simulator.faults import HANGS_AT, Cell, Faults
from simulator.file_system import Disk, FileSystem
from simulator.hosts import SimHost
from simulator.mailbox import SimMailbox, SupervisorDied
from simulator.oracle import Oracle
from simulator.output import Reader, SimRunDirectory
from simulator.programs import Stage
from simulator.world import Violation, World
from tflaunch.agents import link_state
from tflaunch.agents import session as sessions
from tflaunch.core import event_records, policy, step
from tflaunch.core.actions import Action
from tflaunch.core.annotations import NOTHING, Annotation, Annotations, HangExplained, MemoryGrew
from tflaunch.core.events import Event, Interrupted, JobHung, TaskStarted
from tflaunch.core.job_state import Job
from tflaunch.core.restart_budget import MOST_FREE
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.plan.model import PRIVATE
from tflaunch.runtime.loop import Collaborators, Run
from tflaunch.store import journal
from tflaunch.store.journal import Journal
from tflaunch_worker.agent.lease import FIRST_WORD

_SECRET = "s3cr3t-of-ann"
_AHEAD = 5000.0  # of the supervisor's clock
_PATIENCE = 150.0  # seconds until the user of a hanging job loses patience
_COMMAND = 2.0  # seconds for a command to check all hosts
_SLACK = 20.0  # seconds for what is not counted: handshakes, agents' starts, slow screens


class Result(NamedTuple):
    """The result of a history.

    ``moments``: the steps of its supervisors, each once; ``cells``: how often a fault was injected, by the step before.
    """

    case: Case
    ending: str
    violation: Violation | None
    steps: int
    events: int
    judged: int
    moves: int
    faults: Counter[str]
    moments: frozenset[Moment]
    cells: Counter[Cell]
    world: World
    journal: tuple[str, ...]

    def digest(self) -> str:
        happened = (entry.line() for entry in self.world.happened)
        return hashlib.sha256("\n".join([*happened, *self.journal]).encode()).hexdigest()


class SimJournal(Journal):
    """The real journal, kept in memory as JSON; each record is read back and replayed at once."""

    def __init__(self, history: History) -> None:
        self._seq = 0
        self.records: list[str] = []
        self.steps = 0
        self.death_comes = False
        self.torn_at: float | None = None  # the share that is written of the next records before death
        self._history = history
        self._shadow = history.job
        self._known = NOTHING

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.records]

    def has_interrupt(self) -> bool:
        return any(record["kind"] == "interrupted" for record in self.read())

    def compare(self, event: object) -> None:
        """I7: the replayed job equals the job in memory, and so does what annotations have told."""
        job, known = self._history.run.job, self._history.run.known
        if self._known != known:
            raise Violation("I7", f"after {event} the folded journal knows {self._known}, not {known}")
        if self._shadow != job:
            raise Violation("I7", f"after {event} the folded journal differs: {_difference(self._shadow, job)}")

    def record(self, event: Event | Annotation, actions: list[Action], now: float) -> None:
        """Keep the records, replay them, and have the oracle check the step."""
        history = self._history
        history.world.note("event", event)
        for action in actions:
            history.world.note("    action", action)
        first = len(self.records)
        super().record(event, actions, now)
        before, known = self._shadow, self._known
        if self.torn_at is not None:
            is_torn_out = self._tear(first)
            if is_torn_out:
                if isinstance(event, Interrupted):
                    history.lose_patience()  # nobody knows of the Ctrl-C any more, except for the user
                raise SupervisorDied
        if first < len(self.records):  # without a bug, the event comes first, and then the actions
            record = json.loads(self.records[first])
            happened = event_records.from_record(record)
            if isinstance(happened, Annotation):
                self._known = self._known.noted(happened, record["now"])
            elif happened is not None:
                self.steps += 1
                self._shadow, _ = step.step(self._shadow, happened, record["now"])
        self.compare(event)
        history.screen.expect(before, event, self._shadow, now, known)
        history.check_progress()
        if not isinstance(event, Annotation):
            job = history.run.job
            history.stage.generation = job.attempt
            history.faults.stepped(Moment(before.phase.value, type(event).__name__))
            history.oracle.stepped(before, event, self._shadow, actions, lambda: str(job.culprit or ""))
            history.annotate(before, event)
        if self.death_comes or self.torn_at is not None:
            self.death_comes, self.torn_at = False, None
            raise SupervisorDied

    def _tear(self, first: int) -> bool:
        """Keep a part of the records from ``first`` on, as a file has it; return whether the event is not in it."""
        assert self.torn_at is not None
        text = "".join(f"{line}\n" for line in self.records[first:])
        self.records[first:] = text[: int(self.torn_at * len(text))].split("\n")[:-1]  # as `read_journal` does
        self._seq = len(self.records)
        self._history.world.note("the journal ends in the middle of a line")
        return len(self.records) == first

    def _write(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            head = {"seq": self._seq, "time": round(self._history.wall_clock(), 6)}
            self.records.append(journal.encode_record({**head, **entry}))
            self._seq += 1


class Screen:
    """What the user reads: the sentences that the records of the journal give, in their order, and no others."""

    def __init__(self, world: World) -> None:
        self.tail: Callable[[str, int], list[str]] = lambda *_: []
        """Returns the last lines of a task's log."""
        self._world = world
        self._expected: deque[str] = deque()

    def expect(self, before: Job, event: Event | Annotation, after: Job, now: float, known: Annotations) -> None:
        """A step or an annotation was replayed from the journal."""
        self._expected.extend(messages_about(before, event, after, now, Logs("logs", self.tail), known))

    def forget(self) -> None:
        """The supervisor was killed before it has said all."""
        self._expected.clear()

    def say(self, text: str) -> None:
        self._world.note("said:", text)
        expected = self._expected.popleft() if self._expected else "nothing"
        if text != expected:
            raise Violation("I13", f"the screen says {text!r}, and the journal {expected!r}")
        if _SECRET in text:
            raise Violation("I12", f"a secret is on the screen: {text!r}")


class History:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.world = world = World(case.seed)
        self.plan = plan = case.plan()
        self.script = script = case.script
        self.oracle = Oracle(world, plan, _AHEAD)
        self.stage = Stage(world, self.oracle, script, plan.strategy)
        self.stage.watch = self._watch_hang
        self.hosts = {one.host: SimHost(one.host, one.is_local, world, self.oracle, self.stage) for one in plan.hosts}
        self._here = next((host for host in self.hosts.values() if host.is_local), None)
        self._wall_ahead = 0.0  # of the supervisor's machine, if it is none of the hosts
        disk = Disk(self.freeze) if self._here is None else self._here.disk
        self.machine = kernel.current.machine = FileSystem(disk, self.wall_clock)
        self.directory = SimRunDirectory(self.machine)
        of_user = FileSystem(Disk(self.freeze), self.wall_clock)  # also a user whose logs have no room may edit
        self.code = None if plan.sync is None else SimCode(of_user, world.rarely)
        for host in self.hosts.values():
            host.code = self.code
        self.liars = _Liars(self.hosts)
        self.screen = Screen(world)
        self.mailbox = SimMailbox(world, _AHEAD, self.liars)
        self.job = step.begin_job("run", plan, self.mailbox.now())
        self.journal = SimJournal(self)
        self._asides: list[Aside] = []
        self._supervisors = 0
        self._obeyed_by = 0.0  # when the run must have ended, after an interrupt
        self.stepped_at = 0.0
        self.run = self._make_run()
        self.is_over = False
        self.faults = Faults(self)

    def wall_clock(self) -> float:
        return self.world.wall_clock(self._wall_ahead if self._here is None else self._here.wall_ahead)

    def set_clock(self, seconds: float) -> None:
        if self._here is None:
            self._wall_ahead += seconds
        else:
            self._here.wall_ahead += seconds

    def annotate(self, before: Job, event: Event) -> None:
        """What watches a real run finds out: that a task grows, or why tasks hang."""
        culprit = self.run.job.culprit
        if isinstance(event, TaskStarted):
            self.mailbox.put(MemoryGrew(event.host, event.task, event.attempt, 2.0**20, 60.0))
        elif culprit is not None and culprit is not before.culprit and policy.has_hung(culprit):
            self.mailbox.put(HangExplained("worker:0 sleeps"))

    def _watch_hang(self, attempt: int) -> None:
        """What the watch of silences does for a job with a limit of its own."""
        if limit := self.plan.timeouts.stall:
            self.world.after(limit, lambda: self.mailbox.put(JobHung(attempt, "no output", HANGS_AT)))

    def _make_run(self) -> Run:
        """Assemble a supervisor: the first, or one that takes over."""
        world, plan, mailbox = self.world, self.plan, self.mailbox
        slowness = world.random.choice((0.0, 0.0, 0.0, 0.3))
        self.reader = Reader(world, self.oracle, self.machine, slowness, is_skipping=world.rarely.random() < 0.5)
        self.sink = self.directory.sink(self.oracle, mailbox, self.reader)
        self.screen.tail = self.sink.tail
        self._supervisors += 1
        clock = f"clock {self._supervisors}"
        limits, is_private = (plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat), plan.network == PRIVATE
        terms = link_state.Terms("run", *limits, clock=clock, private=is_private)
        made = {}
        self.connectors = {}
        for name, host in self.hosts.items():
            kind = SimLocalConnector if host.is_local else SimConnector
            self.connectors[name] = connector = kind(host, plan.timeouts.connect)
            aside = Aside(world, connector)
            self._asides.append(aside)
            sink, files = self.sink, self.oracle.files
            made[name] = sessions.Session(name, connector, terms, mailbox, sink, files, aside.do)  # type: ignore[arg-type]
        code = None if self.code is None else self.code.gather()
        secrets, lag = {"TOKEN": _SECRET}, policy.SETTLES_WITHIN * (self.case.seed % 2)
        say = self.screen.say
        parts = Collaborators(mailbox, self.journal, self.sink, made, say, "logs", code, (), (), secrets, lag)
        return Run(self.job, parts)

    def play(self) -> str:
        world = self.world
        world.note("seed", self.case.seed, "plan", self.plan.name, self.plan.strategy, f"lease {self.plan.lease:g}",
                   self.plan.restart, self.plan.timeouts, self.plan.elastic)  # fmt: skip
        world.note("tasks", {process.task: process.host for process in self.plan.processes()})
        world.note(self.script)
        self.faults.schedule(self.case.faults)
        world.at(_PATIENCE, self._end_may_be_missed)
        world.at(self._bound(), self._end_must_have_come)
        try:
            self.run.execute()
        except SupervisorDied:
            if not self._takes_over():
                return "supervisor killed"
        self.is_over = True
        for aside in self._asides:
            aside.is_last = True
        world.note("the run has ended with", self.run.exit_code)
        self._close_links()
        self.reader.read_rest()
        if not self.run.is_cut_short:
            self.oracle.check_words()
        self.oracle.check_logs(self.directory, self.sink.trouble())
        self._check_secrets()
        self._check_nothing_lives()
        return f"exit {self.run.exit_code}"

    # ---- another supervisor

    def kill_supervisor(self) -> None:
        """Kill -9: during a wait, or just after it has journaled what it is about to do."""
        if self.world.chance(0.5):
            self.mailbox.selector.death = SupervisorDied()
        else:
            self.journal.death_comes = True

    def die_while_logging(self, share: float) -> None:
        """Kill -9 in the next write to a log, of which this share is written."""
        self.machine.break_off(share, SupervisorDied())

    def _takes_over(self) -> bool:
        """Have the run resumed, if at all, however often its supervisor dies."""
        while True:
            self._bury_supervisor()
            lease = self.plan.lease
            if lease == 0 or not self.world.chance(0.8):
                self.is_over = True
                self.oracle.given_up()
                self._check_after_fence()
                return False
            is_early = self.world.chance(0.7)
            gap = self.world.within(0.1, 0.4 * lease) if is_early else self.world.within(0.4 * lease, 1.5 * lease)
            self.faults.supervisor_is_away(gap, is_early)
            self.world.run_until(self.world.now + gap)
            self.stepped_at = self.world.now
            self.world.fault("supervisor replaced, " + ("early" if is_early else "about the lease"))
            if 0 < self._obeyed_by < float("inf") and not self.journal.has_interrupt():
                self.lose_patience()  # it was killed before it had read the Ctrl-C
            self._kill_orphans_here()
            self.mailbox = SimMailbox(self.world, _AHEAD, self.liars)
            self.oracle.has_heir()
            try:
                self.run = self._make_run()
                self.run.recall(self.journal.read())
                self.journal.compare("the recall")
                self.run.resume()
            except SupervisorDied:
                continue
            return True

    def _kill_orphans_here(self) -> None:
        """What `up --resume` does before it takes over."""
        for host in self.hosts.values():
            while host.is_local and not host.is_locked and host.sweep():
                self.world.step()

    # ---- the end

    def _bound(self) -> float:
        """I5: when the run must have ended, if nothing hangs and it is not interrupted.

        Allows the attempts of the budgets, each with all its waits, and as many more for faults; and one for each epoch
        of a training that resumes, because a restart after progress is free.
        """
        plan = self.plan
        attempts = (plan.restart.max + 3) * (len(plan.tasks) + len(plan.hosts))
        attempts += programs.EPOCHS if self.script.epochs == "resumes" else 0
        attempts += MOST_FREE if plan.timeouts.lost_host else 0
        return 200 + plan.timeouts.lost_host + attempts * self._attempt_takes()

    def _attempt_takes(self) -> float:
        """The seconds that an attempt takes at most, with all its waits, if nothing hangs."""
        plan, script = self.plan, self.script
        waits = policy.fence(plan) + plan.timeouts.connect * 3 + plan.timeouts.grace * 2 + plan.restart.backoff[1]
        work = script.starting + script.duration * 2 + 15 + (plan.timeouts.finish or 0)
        rest = plan.elastic.retry * 4 if plan.elastic is not None else 0
        return waits + work + rest

    def check_progress(self) -> None:
        """I14: a step follows another one, or the last fault, within the time of an attempt, unless a task hangs."""
        now, since = self.world.now, max(self.stepped_at, self.world.fault_at, self.mailbox.selector.frozen_until)
        self.stepped_at = now
        hangs = self.oracle.has_hung or self.script.hang_share > 0
        if not hangs and not self.oracle.disturbances and now - since > self._attempt_takes() + _SLACK:
            raise Violation("I14", f"nothing was done for {now - since:.0f} s")

    def freeze(self, seconds: float) -> None:
        """The supervisor gets no CPU time; the user knows, and waits so much longer."""
        self.mailbox.selector.frozen_until = self.world.now + seconds
        if self.world.now < self._obeyed_by < float("inf"):
            self._obeyed_by += seconds
            self.world.at(self._obeyed_by, self._must_have_obeyed)

    def lose_patience(self) -> None:
        """The user looks again soon whether the run has ended."""
        self._obeyed_by = float("inf")
        self.world.after(_SLACK, self._end_may_be_missed)

    def _end_may_be_missed(self) -> None:
        """If something hangs, or may fail forever because the window is short, the user loses patience."""
        hangs = self.oracle.has_hung or self.script.hang_share > 0
        if (hangs or self.plan.restart.window < 1000) and not self.is_over:
            self.world.note("the user has lost patience")
            if self._asides[-1].is_dead:
                self.world.after(_SLACK, self._end_may_be_missed)
                return
            self.mailbox.put(Interrupted(2))
            bound = policy.fence(self.plan) * 2 + self.plan.timeouts.grace * 2 + self.plan.timeouts.connect + _SLACK
            self._obeyed_by = self.world.now + bound
            self.world.after(bound, self._must_have_obeyed)

    def _must_have_obeyed(self) -> None:
        """I5, after an interrupt that was not lost with the supervisor."""
        if self.world.now >= self._obeyed_by:
            self._end_must_have_come()

    def _end_must_have_come(self) -> None:
        """I5."""
        if not self.is_over:
            raise Violation("I5", f"the job is still {self.run.job.phase.value} after {self.world.now:.0f} s")

    def _check_nothing_lives(self) -> None:
        """I2: no process of the run lives where the supervisor can reach it; after the fence, anywhere."""
        urgent = any(host.reason and not host.fence_at for host in self.run.job.hosts.values())
        for process in self.oracle.living():
            if process.host.is_reachable and not urgent and not process.host.is_stuck:
                raise Violation("I2", f"{process} lives after the end")
        self._check_after_fence()

    def _check_secrets(self) -> None:
        """I12: no secret is in the journal, nor in the files and the output that were not a program's own words."""
        for line in self.journal.records:
            if _SECRET in line:
                raise Violation("I12", f"a secret is in the journal: {line}")

    def _bury_supervisor(self) -> None:
        """The kernel closes its links; or the machine is cut off, and the peers are not notified."""
        self.world.note("the supervisor is dead")
        for aside in self._asides:
            aside.is_dead = True
        self.journal.death_comes, self.journal.torn_at = False, None
        self.machine.break_off(None, None)
        self.screen.forget()
        self.reader.die()
        is_silent = self.plan.lease > 0 and self.world.chance(0.3)
        for host in self.hosts.values():
            for wire in host.wires:
                if is_silent and not host.is_local:
                    wire.die()
        self._close_links()

    def _close_links(self) -> None:
        for host in self.hosts.values():
            for wire in host.wires:
                wire.supervisor.close()

    def _check_after_fence(self) -> None:
        for host in self.hosts.values():
            host.unstick()
        patience = max(policy.fence(self.plan), 35.0)
        self.world.run_until(self.world.now + patience)
        for host in self.hosts.values():
            if host.has_orphans and host.name in self.faults.orphaned:
                host.when_swept(lambda: None)  # the next command sweeps
        self.world.run_until(self.world.now + _COMMAND)
        for process in self.oracle.living():
            raise Violation("I2", f"{process} lives {patience:g} s after the end")
        # The first message, which begins the lease of an agent without tasks, may be late, or lost without a sign.
        if any(host.agent is not None for host in self.hosts.values()):
            self.world.run_until(self.world.now + FIRST_WORD + self.plan.lease)
        for host in self.hosts.values():
            if host.agent is not None:
                raise Violation("I2", f"the agent on {host.name} lives {FIRST_WORD:g} s after the end")


class _Liars(Container[str]):
    def __init__(self, hosts: Mapping[str, SimHost]) -> None:
        self._hosts = hosts

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._hosts and self._hosts[name].has_lied


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from looking at the world again and again: 10 % of the time of a history."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def play(case: Case) -> Result:
    with kernel.installed(), _without_collector():
        history = History(case)
        violation, ending = None, "violation"
        try:
            ending = history.play()
        except Violation as found:
            violation = found
        except Exception as error:  # noqa: BLE001 - none may escape, and which it was is worth a story
            import traceback

            violation = Violation("exception", "".join(traceback.format_exception(error)))
        world, oracle, faults = history.world, history.oracle, history.faults
        counts = (history.journal.steps, world.count, oracle.judged, oracle.moves)
        moments, records = frozenset(faults.moments), tuple(history.journal.records)
        return Result(case, ending, violation, *counts, world.faults, moments, faults.cells, world, records)


def _difference(folded: Job, job: Job) -> str:
    return "; ".join(
        f"{name}: {getattr(folded, name)!r} is not {getattr(job, name)!r}"
        for name in Job._fields
        if getattr(folded, name) != getattr(job, name)
    )
