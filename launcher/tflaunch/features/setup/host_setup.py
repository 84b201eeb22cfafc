"""Have hosts that wait for it set up, all at once, and tell the job the result."""

from functools import partial
from typing import Any

from tflaunch.agents.calls import Waiter
from tflaunch.core.events import HostPrepared, HostRefused
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.states import CODE, SETUP, SPARE, HostPhase, HostState
from tflaunch.explain.wording import listed
from tflaunch.plan import attempts, placeholders, task_env
from tflaunch.plan.model import SetupPlan, TaskPlan
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields, schema
from tflaunch_worker.readable import printable

_LONGEST_PROBLEM, _LONGEST_LOG, _LONGEST_LINE, _MOST_LINES = 500, 400, 300, 20
_NOTICED_AFTER = 2.0  # seconds
_LONGEST_COMMAND = 80
_read_lines = schema.list_of(schema.text())


class HostSetup(Watcher):
    """Asks each new agent once what its host needs, and again over another link."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._asked: dict[str, float] = {}  # host to when the agent joined that was asked
        self._refused: dict[str, int] = {}  # host to the attempt
        self._is_told = False

    def watch(self, job: Job, now: float) -> None:
        """Ask the hosts that wait."""
        self.job = job
        if job.hosts.count(SETUP, (SPARE, SETUP)):
            for state in [state for state in job.hosts.values() if self._is_due(state)]:
                self._ask(state)

    def _is_due(self, state: HostState) -> bool:
        is_lacking = SETUP in state.awaits and CODE not in state.awaits and state.phase is HostPhase.CONNECTED
        is_needed = not state.flaw if state.is_spare else self.job.phase in (Phase.PREPARING, Phase.RUNNING)
        is_asked = self._asked.get(state.host) == state.joined_at
        was_refused = self._refused.get(state.host) == self.job.attempt
        return is_lacking and is_needed and not (is_asked or was_refused)

    def _ask(self, state: HostState) -> None:
        host, session = state.host, self.supervision.sessions[state.host]
        if not session.is_greeted:
            return
        self._asked[host] = state.joined_at
        setups = self._setups_on(state)
        left = set(setups)

        def finish(setup: SetupPlan | None) -> None:
            left.discard(setup)
            if not left:
                self.supervision.mailbox.put(HostPrepared(host, SETUP))

        finish(None)
        for setup, task in setups.items():
            answered, refused = partial(self._take, host, partial(finish, setup)), partial(self._refuse, host)
            about = {**self._program_of(setup, task), "files": setup.files, "limit": self.job.plan.timeouts.setup}
            session.calls.begin(
                "set_up", Waiter(answered, lambda _: self._asked.pop(host, None), refused=refused), **about
            )
        mailbox = self.supervision.mailbox
        mailbox.call_at(mailbox.now() + _NOTICED_AFTER, self._tell)

    def _setups_on(self, state: HostState) -> dict[SetupPlan, TaskPlan]:
        """Return a host's setups, each with a task; a spare has those that may move there."""
        plan = self.job.original
        there = (
            [attempts.task_on(plan, task, state.host) for task in plan.processes()]
            if state.is_spare
            else [process for process in self.job.process_plans() if process.host == state.host]
        )
        return {task.setup: task for task in reversed(there) if task.setup is not None}

    def _program_of(self, setup: SetupPlan, task: TaskPlan) -> dict[str, Any]:
        """Return the commands as a program with the environment of a task."""
        job = self.job
        filled = placeholders.fill(task._replace(workdir=setup.directory), job.plan, job.run, str(job.attempt))
        process = filled._replace(argv=(setup.python, *setup.commands))
        return task_env.program_of(job.plan, process, job.run, job.attempt, self.supervision.config.secrets)

    def _take(self, host: str, finish: Any, answer: dict[str, Any], body: bytes) -> None:
        problem = printable(fields.text(answer, "problem"), _LONGEST_PROBLEM)
        lines = [printable(line, _LONGEST_LINE) for line in _read_lines("lines", answer.get("lines"))[:_MOST_LINES]]
        log = printable(fields.text(answer, "log"), _LONGEST_LOG)
        if problem and log and self.job.plan.made_hosts is None:  # a host that was made for the run ends with it
            problem += f"; its output is in {log} there"
        if problem:
            self._refuse(host, problem, lines)
        else:
            finish()

    def _refuse(self, host: str, problem: str, lines: list[str] | None = None) -> None:
        self._refused[host] = self.job.attempt
        self._asked.pop(host, None)
        self.supervision.mailbox.put(HostRefused(host, SETUP, problem, tuple(lines or ())))

    def _tell(self) -> None:
        """Say once which hosts the job waits for."""
        hosts = [state.host for state in self.job.hosts.values() if SETUP in state.awaits and not state.is_spare]
        if not hosts or self._is_told or self.job.phase is not Phase.PREPARING:
            return
        self._is_told = True
        first = next(iter(self._setups_on(self.job.hosts[hosts[0]])), None)
        commands = printable("; ".join(first.commands), _LONGEST_COMMAND) if first else ""
        self.supervision.say(f"setup on {listed(hosts)}: {commands}")
