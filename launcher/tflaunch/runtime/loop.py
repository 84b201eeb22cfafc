"""The event loop: take an event, let the core decide, perform its actions."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tflaunch.agents.calls import UserCode
from tflaunch.agents.session import Session
from tflaunch.core import policy, port_fence, replay, step, time_limits
from tflaunch.core.actions import (
    AbandonHost,
    Action,
    HoldPorts,
    ImportModules,
    JoinHost,
    LookUpNames,
    ProbePeers,
    SendFiles,
    StartTask,
    StopTask,
    UpdateFence,
)
from tflaunch.core.annotations import NOTHING, Annotation, Annotations
from tflaunch.core.events import Event, Interrupted, Superseded, TimePassed
from tflaunch.core.job_state import Job, Phase
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.feature import find_task_starter
from tflaunch.mailbox import Mailbox
from tflaunch.plan import attempts, placeholders, task_env
from tflaunch.plan.model import PRIVATE, SIDECAR, Plan, TaskPlan
from tflaunch.plan.tensorboard import is_board
from tflaunch.plan.tf_config import has_cluster, visible_roles
from tflaunch.store.journal import Journal, TakenOverError
from tflaunch.store.log_sink import LogSink
from tflaunch.transport.base import Link
from tflaunch_worker import function, signals

_LONGEST_COLLECTION = 7 * 86400.0  # seconds; the rest is left to `tflaunch fetch`
_LEAVE_PATIENCE = 10.0  # seconds; an agent that does not even leave is left to its guard and its lease


class Collaborators(NamedTuple):
    """The collaborators of a run.

    ``say`` shows a message to the user; ``logs`` is the directory of the tasks' logs, for such messages; ``code``
    is the user's code, if hosts need a copy; ``watchers`` get the job and the time after each step, ``readers`` what
    annotations say; ``secrets`` are the values that tasks get beside the plan's environment, None for one that is
    unknown; ``signal_lag`` is how many seconds after tasks and agents this process may get a signal meant for all.
    """

    mailbox: Mailbox
    journal: Journal
    log_sink: LogSink
    sessions: Mapping[str, Session]
    say: Callable[[str], None]
    logs: str
    code: UserCode | None = None
    watchers: tuple[Callable[[Job, float], None], ...] = ()
    readers: tuple[Callable[[Annotations], object], ...] = ()
    secrets: Mapping[str, str | None] = {}
    signal_lag: float = 0.0


class Run:
    """One run of a plan, from the first agent to the last output."""

    def __init__(self, job: Job, collaborators: Collaborators) -> None:
        """Prepare to run ``job``, without side effects."""
        self.job = job
        """The current state of the job."""
        self.known = NOTHING
        """What is known of the run beside the state of its job."""
        self._collaborators = collaborators
        self._cut_short_by: int | None = None
        self._cluster: tuple[Plan | None, bytes] = None, b""
        self._fence: tuple[object, bytes] = None, b""
        self._secret = os.urandom(16).hex()

    @property
    def is_cut_short(self) -> bool:
        """Whether a signal ended the wait for the last output, which may be incomplete."""
        return self._cut_short_by is not None

    @property
    def exit_code(self) -> int:
        """The job's exit code; after Ctrl-C never 0, not even during the last output."""
        code = EXIT_INTERNAL if self.job.exit_code is None else self.job.exit_code
        if code or self._cut_short_by is None:
            return code
        return 128 + self._cut_short_by

    def execute(self, links: Mapping[str, Link] = {}) -> None:
        """Run the job to its end. ``links``: agents that are already started."""
        for host, session in self._collaborators.sessions.items():
            session.join(links.get(host))
        self._serve()
        self._leave()

    def recall(self, records: Iterable[dict[str, Any]]) -> None:
        """Restore the state of a killed supervisor from its journal."""
        for session in self._collaborators.sessions.values():
            session.begin_recall()
        for _, event, now, actions, job, known in replay.transitions(self.job, records):
            self.job, self.known = job, known.noted(event, now)
            if not isinstance(event, Annotation) and (teller := self._session_of(event)) is not None:
                teller.recall(event)
            for action in actions:
                self._perform(action)
        self._tell_readers()

    def resume(self) -> None:
        """Run a recalled job to its end, with the agents and tasks that are still alive."""
        for session in self._collaborators.sessions.values():
            session.resume()
        self._serve()
        self._leave()

    def _session_of(self, event: Event) -> Session | None:
        host = getattr(event, "host", None)
        return None if host is None else self._collaborators.sessions[host]

    # ---- the loop

    def _serve(self) -> None:
        try:
            self._serve_to_end()
        except TakenOverError:  # tasks and logs belong to the other one
            self._collaborators.log_sink.leave_to_others()
            raise

    def _serve_to_end(self) -> None:
        mailbox = self._collaborators.mailbox
        deadline = time_limits.next_deadline(self.job)
        while self.job.phase is not Phase.ENDED:
            may_be_told = self.job.phase is Phase.RUNNING and not self.job.is_told_to_end
            now, came = mailbox.take_in_order(deadline, self._collaborators.signal_lag if may_be_told else 0.0)
            for mail in came:
                if isinstance(mail, Superseded):  # by a higher fencing number
                    raise TakenOverError(self.job.run)
                if isinstance(mail, Annotation):
                    self._annotate(mail, now)
                else:
                    deadline = self._handle(mail, now)
            if deadline is not None and now >= deadline:
                deadline = self._handle(TimePassed(), now)

    def _handle(self, event: Event, now: float) -> float | None:
        """Apply an event; return the time of the next deadline, None for never."""
        before = self.job
        self.job, actions = step.step(before, event, now)
        self._collaborators.journal.record(event, actions, now)
        session = self._session_of(event)
        if session is not None:
            session.recorded(event)
        for action in actions:
            self._perform(action)
        if isinstance(event, Interrupted) and self.job.interrupts >= policy.MOST_INTERRUPTS:
            self._cut_short_by = event.signal
        for watch in self._collaborators.watchers:
            watch(self.job, now)
        self._tell(before, event, now)
        return time_limits.next_deadline(self.job)

    def _annotate(self, annotation: Annotation, now: float) -> None:
        """Record what the job does not react to, and tell it."""
        before, self.known = self.known, self.known.noted(annotation, now)
        self._collaborators.journal.record(annotation, [], now)
        self._tell_readers()
        self._tell(self.job, annotation, now, before)

    def _tell_readers(self) -> None:
        for take in self._collaborators.readers:
            take(self.known)

    def _tell(self, before: Job, event: Event | Annotation, now: float, known: Annotations = NOTHING) -> None:
        logs = Logs(self._collaborators.logs, self._collaborators.log_sink.tail)
        for message in messages_about(before, event, self.job, now, logs, known):
            self._collaborators.say(message)

    def _perform(self, action: Action) -> None:
        session = self._collaborators.sessions[action.host]
        match action:
            case JoinHost():
                session.join()  # no limit: it only begins to join
            case AbandonHost():
                self._abandon(session)
            case SendFiles():
                assert self._collaborators.code is not None
                session.send_files(self._collaborators.code)
            case LookUpNames() | HoldPorts() | ProbePeers():
                self._prepare(session, action)
            case UpdateFence():
                self._set_fence(session)
            case StartTask():
                self._start(session, action)
            case ImportModules():
                self._import_modules(session, action.task)
            case StopTask():
                about = {"task": action.task, "attempt": action.attempt, "grace": action.grace}
                session.order("stop_task", **about, with_stacks=action.with_stacks)

    def _prepare(self, session: Session, action: LookUpNames | HoldPorts | ProbePeers) -> None:
        match action:
            case LookUpNames():
                session.order("look_up_names", names=action.names)
            case HoldPorts():
                session.order("hold_ports", ports=action.ports, private=self.job.plan.network == PRIVATE)
            case ProbePeers():
                self._set_fence(session)
                about = {"ports": action.ports, "peers": action.peers, "run": self.job.run, "secret": self._secret}
                session.order("probe_peers", **about, patience=self.job.plan.timeouts.connect)

    def _start(self, session: Session, action: StartTask) -> None:
        self._collaborators.log_sink.begin(action.task, action.attempt)
        plan = self.job.plan
        process = placeholders.fill(plan.find(action.task), plan, self.job.run, str(action.attempt))
        if has_cluster(plan.strategy):
            session.order_if_new("set_cluster", self._addresses(plan))
        self._set_fence(session)
        session.order("start_task", **self._start_order(action, process))

    def _import_modules(self, session: Session, task: str) -> None:
        """Have a spare host import the modules of a task that it may get."""
        original = self.job.original
        plan, moved = self.job.plan, attempts.task_on(original, original.find(task), session.host)
        process = placeholders.fill(moved, plan, self.job.run, "0")
        order = find_task_starter(plan).order(plan, moved, is_first=False)
        session.order("import_modules", task=task, **self._program(process, 0), **order)

    def _abandon(self, session: Session) -> None:
        """Give up a host and the output of its tasks, which may be elsewhere by now."""
        session.abandon()
        for task, attempt in session.started_attempts:
            self._collaborators.log_sink.abandon(task, attempt)

    def _set_fence(self, session: Session) -> None:
        """Tell an agent from which addresses connections may reach its tasks."""
        if not port_fence.is_fenced(self.job.plan):
            return
        known = self.job.hosts, self.job.port_fence.seen
        if self._fence[0] != known:
            self._fence = known, json.dumps(port_fence.admitted(self.job), separators=(",", ":")).encode("ascii")
        # Connections from a host to itself may come from any of its addresses: without them, it has no fence.
        session.order_if_new("set_fence", self._fence[1] if self.job.hosts[session.host].addresses else b"[]")

    def _addresses(self, plan: Plan) -> bytes:
        """Return the addresses of a plan's tasks as JSON, the same object each time."""
        if self._cluster[0] is not plan:
            self._cluster = plan, json.dumps(attempts.addresses(plan), separators=(",", ":")).encode("ascii")
        return self._cluster[1]

    def _start_order(self, action: StartTask, process: TaskPlan) -> dict[str, object]:
        plan = self.job.plan
        roles = visible_roles(plan.strategy, process.role)
        return {
            "task": action.task,
            "attempt": action.attempt,
            **self._program(process, action.attempt),
            **find_task_starter(plan).order(plan, plan.find(action.task), is_first=not action.attempt),
            "unforked": action.unforked,
            "tf_config": roles and {"roles": roles, "role": process.role, "index": process.task_index},
            "port": self.job.ports.get(action.task, 0),
            "chooses_port": is_board(process),
            "stop_signal": None if process.role == SIDECAR else signals.number_of(plan.stop_signal),
            "left_files": {function.OUTCOME: function.MOST_BYTES} if plan.calls_function(process) else {},
            "private": plan.network == PRIVATE and not is_board(process),  # whose port is for programs outside
        }

    def _program(self, process: TaskPlan, attempt: int) -> dict[str, object]:
        return task_env.program_of(self.job.plan, process, self.job.run, attempt, self._collaborators.secrets)

    # ---- the end

    def _leave(self) -> None:
        """Dismiss the agents, once the last output has arrived."""
        log_sink, sessions = self._collaborators.log_sink, self._collaborators.sessions.values()
        connected = deque(sessions)

        def are_all_gone() -> bool:
            while connected and not connected[0].is_open:
                connected.popleft()
            return not connected

        # A reader may be slow; a silent host gets no extra time, because past the fence it has ended by itself.
        while not self.serve_until(lambda: log_sink.is_complete or are_all_gone(), policy.fence(self.job.plan)):
            for session in sessions:
                if not session.is_linked:
                    self._abandon(session)
            if self.is_cut_short:
                break
        for session in sessions:
            session.leave()
        self.serve_until(are_all_gone, patience=_LEAVE_PATIENCE)

    def serve_until(self, is_over: Callable[[], bool], patience: float = _LONGEST_COLLECTION) -> bool:
        """Serve events until a condition holds or a signal comes; return whether it does."""
        mailbox = self._collaborators.mailbox
        until = mailbox.now() + patience
        while not is_over() and mailbox.now() < until and not self.is_cut_short:
            event = mailbox.take(until)
            if isinstance(event, Interrupted) and not event.is_announced:
                self._cut_short_by = event.signal
            elif isinstance(event, Annotation):
                self._annotate(event, mailbox.now())
        return is_over()
