"""The loop: take an event, let the supervisor decide, perform its actions; until the job has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from tflaunch import diagnosis, supervisor
from tflaunch import plan as planning
from tflaunch.actions import Action, HoldPorts, StartTask, StopTask
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.events import Event, HostLost, Interrupted, TimePassed
from tflaunch.hosts.link import Link
from tflaunch.hosts.session import Session
from tflaunch.journal import Journal, RunDirectory
from tflaunch.mailbox import Mailbox
from tflaunch.plan import Plan
from tflaunch.screen import Screen
from tflaunch.states import Phase
from tflaunch.words import TaskWords

_KEEP_ALIVES_PER_LEASE = 3
_LEAVE_PATIENCE = 10.0  # an agent that does not even leave is left to its guard and its lease


class Run:
    """One run of a plan, from the first agent to the last word. Holds the current job."""

    def __init__(self, plan: Plan, directory: RunDirectory, links: Mapping[str, Link]) -> None:
        self._directory = directory
        self._mailbox = Mailbox()
        self._screen = Screen([process.task for process in plan.processes()])
        self._words = TaskWords(directory.logs, self._screen, self._mailbox)
        self._journal = Journal(directory)
        self._sessions = {host: Session(host, link, self._mailbox, self._words) for host, link in links.items()}
        self._job = supervisor.begin(directory.run, plan, time.monotonic())
        self._keep_alive_at: float | None = None
        self._cut_short_by: int | None = None

    def execute(self) -> int:
        """Run the job to its end and return tflaunch's exit code."""
        plan = planning.as_json(self._job.original)
        self._directory.write_plan(plan)
        self._journal.record_plan(self._directory.run, plan, self._job.started_at)
        with _signals_to(self._mailbox):
            self._greet()
            self._serve()
            self._leave()
        self._screen.say(self._last_words())
        self._close()
        return self._exit_code()

    # ---- the beginning

    def _greet(self) -> None:
        """Introduce ourselves to the agents."""
        plan = self._job.original
        for session in self._sessions.values():
            session.hello(self._directory.run, plan.lease, plan.timeouts.grace)
        self._schedule_keep_alive()

    # ---- the loop

    def _serve(self) -> None:
        while self._job.phase is not Phase.ENDED:
            event = self._mailbox.take(self._next_time())
            now = time.monotonic()
            if event is not None:
                self._handle(event, now)
            self._keep_alive(now)
            deadline = supervisor.next_deadline(self._job)
            if deadline is not None and now >= deadline:
                self._handle(TimePassed(), now)

    def _next_time(self) -> float | None:
        times = (supervisor.next_deadline(self._job), self._keep_alive_at)
        return min((moment for moment in times if moment is not None), default=None)

    def _handle(self, event: Event, now: float) -> None:
        before = self._job
        self._job, actions = supervisor.step(before, event, now)
        self._journal.record(event, actions, now)
        if isinstance(event, HostLost):
            for process in self._job.plan.processes():
                if process.host == event.host:
                    self._words.abandon(process.task)
        for action in actions:
            self._perform(action)
        for message in diagnosis.news(before, event, self._job, str(self._directory.logs)):
            self._screen.say(message)

    def _perform(self, action: Action) -> None:
        session = self._sessions[action.host]
        match action:
            case HoldPorts():
                session.say("hold_ports", ports=action.ports)
            case StartTask():
                self._words.begin(action.task, action.attempt)
                session.say("start_task", **self._start_order(action))
            case StopTask():
                session.say("stop_task", task=action.task, attempt=action.attempt, grace=action.grace)

    def _start_order(self, action: StartTask) -> dict[str, object]:
        process = self._job.plan.find(action.task)
        env = {**process.env, "TFLAUNCH_RUN": self._job.run, "TFLAUNCH_ATTEMPT": str(action.attempt)}
        return {
            "task": action.task,
            "attempt": action.attempt,
            "argv": process.argv,
            "env": env,
            "unset": process.unset,
            "workdir": process.workdir,
            "port": self._job.ports.get(action.task, 0),
        }

    # ---- leases

    def _schedule_keep_alive(self) -> None:
        lease = self._job.original.lease
        if lease > 0:
            self._keep_alive_at = time.monotonic() + lease / _KEEP_ALIVES_PER_LEASE

    def _keep_alive(self, now: float) -> None:
        """Tell the agents that we live; with a lease of 0 the connection itself says so."""
        if self._keep_alive_at is not None and now >= self._keep_alive_at:
            for session in self._sessions.values():
                session.say("keep_alive")
            self._schedule_keep_alive()

    # ---- the end

    def _leave(self) -> None:
        """Send the agents home, once the last output has arrived."""
        self._wait(lambda: self._words.is_complete or not self._is_connected(), patience=None)
        for session in self._sessions.values():
            session.leave()
        self._wait(lambda: not self._is_connected(), patience=_LEAVE_PATIENCE)

    def _wait(self, is_over: Callable[[], bool], patience: float | None) -> None:
        """Serve the sessions until a condition holds; a signal cuts the wait short."""
        until = None if patience is None else time.monotonic() + patience
        while not is_over() and (until is None or time.monotonic() < until):
            event = self._mailbox.take(until)
            if isinstance(event, Interrupted):
                self._cut_short_by = event.signal
                return

    def _is_connected(self) -> bool:
        return any(session.is_open for session in self._sessions.values())

    def _exit_code(self) -> int:
        """Return the job's code; Ctrl-C never gives 0, not even during the last output."""
        code = EXIT_INTERNAL if self._job.exit_code is None else self._job.exit_code
        return 128 + self._cut_short_by if code == 0 and self._cut_short_by is not None else code

    def _last_words(self) -> str:
        lines = self._words.trouble()
        if self._journal.lost:
            lines.append(f"{self._journal.lost} records of the journal could not be written")
        lines.append(diagnosis.summary(self._job, str(self._directory.logs), self._words.tail))
        return "\n".join(lines)

    def _close(self) -> None:
        self._screen.close()
        self._words.close()
        self._journal.close()
        self._mailbox.close()


@contextmanager
def _signals_to(mailbox: Mailbox) -> Iterator[None]:
    """Turn Ctrl-C, TERM and HUP into events; HUP stays ignored under nohup."""

    def enqueue(number: int, frame: FrameType | None) -> None:
        mailbox.put(Interrupted(number))

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    earlier = {number: signal.signal(number, enqueue) for number in wanted}
    earlier_wake = signal.set_wakeup_fd(mailbox.wake_descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_wake)
        for number, handler in earlier.items():
            signal.signal(number, handler)
