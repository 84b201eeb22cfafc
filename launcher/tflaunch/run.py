"""The loop: take an event, let the supervisor decide, perform its actions; until the job has ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from tflaunch import diagnosis, supervisor
from tflaunch import plan as planning
from tflaunch.actions import AbandonHost, Action, HoldPorts, JoinHost, LookUpNames, SendFiles, StartTask, StopTask
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.events import Event, Interrupted, TimePassed
from tflaunch.hosts.link import Link, Way
from tflaunch.hosts.session import Session, Terms
from tflaunch.journal import Journal, RunDirectory
from tflaunch.mailbox import Mailbox
from tflaunch.plan import Plan
from tflaunch.screen import Screen
from tflaunch.states import Phase
from tflaunch.words import TaskWords

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tflaunch.hosts.code import Code

_AT_ONCE = 128  # hosts that are reached at the same time
_LEAVE_PATIENCE = 10.0  # an agent that does not even leave is left to its guard and its lease


class Run:
    """One run of a plan, from the first agent to the last word. Holds the current job."""

    def __init__(
        self, plan: Plan, directory: RunDirectory, ways: Mapping[str, Way], links: Mapping[str, Link], code: Code | None
    ) -> None:
        """Prepare a run.

        Args:
            plan: what to run.
            directory: where its plan, journal and logs are kept.
            ways: how the agent of each host is reached.
            links: agents that were started already.
            code: the user's code, if it has to be brought to hosts.
        """
        self._code = code
        self._directory = directory
        self._mailbox = Mailbox()
        self._screen = Screen([process.task for process in plan.processes()])
        self._words = TaskWords(directory.logs, self._screen, self._mailbox)
        self._journal = Journal(directory)
        self._threads: ThreadPoolExecutor | None = None
        terms = Terms(directory.run, plan.lease, plan.timeouts.grace, plan.timeouts.heartbeat)
        self._sessions = {
            host: Session(host, way, terms, self._mailbox, self._words, self._aside) for host, way in ways.items()
        }
        self._links = links
        self._job = supervisor.begin(directory.run, plan, time.monotonic())
        self._cut_short_by: int | None = None

    def execute(self) -> int:
        """Run the job to its end and return tflaunch's exit code."""
        plan = planning.as_json(self._job.original)
        self._directory.write_plan(plan)
        self._journal.record_plan(self._directory.run, plan, self._job.started_at)
        with _signals_to(self._mailbox):
            self._reach()
            self._serve()
            self._leave()
        self._screen.say(self._last_words())
        self._close()
        return self._exit_code()

    # ---- the beginning

    def _reach(self) -> None:
        """Reach the agents of all hosts, at once."""
        for host, session in self._sessions.items():
            if host in self._links:
                session.join_over(self._links[host])
            else:
                session.join()

    def _aside(self, function: Callable[[], None]) -> None:
        """Run what may wait in a thread of its own."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor  # a run on this machine alone never needs it

            self._threads = ThreadPoolExecutor(_AT_ONCE, "reach")
        self._threads.submit(function)

    # ---- the loop

    def _serve(self) -> None:
        while self._job.phase is not Phase.ENDED:
            event = self._mailbox.take(supervisor.next_deadline(self._job))
            now = time.monotonic()
            if event is not None:
                self._handle(event, now)
            deadline = supervisor.next_deadline(self._job)
            if deadline is not None and now >= deadline:
                self._handle(TimePassed(), now)

    def _handle(self, event: Event, now: float) -> None:
        before = self._job
        self._job, actions = supervisor.step(before, event, now)
        self._journal.record(event, actions, now)
        for action in actions:
            self._perform(action)
        for message in diagnosis.news(before, event, self._job, str(self._directory.logs)):
            self._screen.say(message)

    def _perform(self, action: Action) -> None:
        session = self._sessions[action.host]
        match action:
            case JoinHost():
                session.join()
            case AbandonHost():
                session.abandon()
                for process in self._job.plan.on_host(action.host):
                    self._words.abandon(process.task)
            case SendFiles():
                assert self._code is not None
                session.send_files(self._code)
            case LookUpNames():
                session.order("look_up_names", names=action.names)
            case HoldPorts():
                session.order("hold_ports", ports=action.ports)
            case StartTask():
                self._words.begin(action.task, action.attempt)
                session.order("start_task", **self._start_order(action))
            case StopTask():
                session.order("stop_task", task=action.task, attempt=action.attempt, grace=action.grace)

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
            "inherit": self._job.plan.is_local(process.host),
            "port": self._job.ports.get(action.task, 0),
        }

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
