"""Planted bugs: each breaks one promise, and the oracle must find it, which shows that it can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from simulator import history
from simulator.case import draw_case
from simulator.edits import Edit
from tflaunch.agents import output
from tflaunch.core import policy, restart_budget, step
from tflaunch.core.events import Event, PortOpened, TaskExited
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.phases import Step
from tflaunch.core.task_table import StateTable
from tflaunch_worker import orphans
from tflaunch_worker.agent import agent, lease, left_files, task, task_output


class Mutation(NamedTuple):
    """A planted bug: a seed and the invariant that find it, where it is planted, and the replacement."""

    seed: int
    invariant: str
    where: Any
    name: str
    made: Callable[[Any], Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug, and remove it again."""
        original = getattr(self.where, self.name)
        setattr(self.where, self.name, self.made(original))
        try:
            yield
        finally:
            setattr(self.where, self.name, original)


def find(mutation: Mutation | Edit, seeds: Sequence[int]) -> int | None:
    """Return the first seed in which the invariant fails."""
    with mutation.planted():
        for seed in seeds:
            violation = history.play(draw_case(seed)).violation
            if violation is not None and violation.invariant == mutation.invariant:
                return seed
    return None


def _short_fence(original: Any) -> Any:
    return lambda plan: plan.lease / 2


def _nobody_lives(original: Any) -> Any:
    return lambda *_: False


def _never(original: Any) -> Any:
    return property(lambda self: self._heard + 1e9)


def _does_nothing(original: Any) -> Any:
    return lambda *_: None


def _finds_nothing(original: Any) -> Any:
    return lambda *_, **__: ([], set())


def _no_kill(original: Any) -> Any:
    """The stop ladder sends no KILL."""

    def kill(self: Any) -> None:
        if self._has_exited:
            original(self)

    return kill


def _blames_the_last(original: Any) -> Any:
    def exited(job: Job, state: Any, event: TaskExited, now: float) -> Step:
        stepped, actions = original(job, state, event, now)
        if job.phase is Phase.STOPPING and job.culprit is not None and event.code != 0:
            stepped = stepped._replace(culprit=step.culprit_of(event))
        return stepped, actions

    return exited


def _forgets_first(original: Any) -> Any:
    """An exit that is received later is never the first."""
    return lambda job, *_: job


def _one_more(original: Any) -> Any:
    def ask(spent: Any, restart: Any, *others: Any) -> Any:
        return original(spent, restart._replace(max=restart.max + 1) if restart.max else restart, *others)

    return ask


def _counts_nothing(original: Any) -> Any:
    """Identical failures are not counted."""
    return lambda spent, *_: spent


def _forgets_backing_off(original: Any) -> Any:
    return lambda job: None if job.phase is Phase.BACKING_OFF else original(job)


def _forgets_fences(original: Any) -> Any:
    def next_deadline(job: Job) -> float | None:
        hosts = {name: host._replace(fence_at=None) for name, host in job.hosts.items()}
        return original(job._replace(hosts=StateTable(hosts)))

    return next_deadline


def _repeats(original: Any) -> Any:
    """Output sent before a link was lost is accepted twice."""

    def read(self: Any, name: str, attempt: int, offset: int, body: bytes, times: Any) -> None:
        self._received[(name, attempt)] = offset
        original(self, name, attempt, offset, body, times)

    return read


def _notes_too_soon(original: Any) -> Any:
    """Output that was only received is acknowledged, and written later."""

    def read(self: Any, name: str, attempt: int, offset: int, body: bytes, times: Any) -> None:
        self._note(name, attempt, offset + len(body))
        words, later = self._words, []
        self._words = _Later(words, later)
        original(self, name, attempt, offset, body, times)
        self._words = words
        mailbox = words.mailbox
        mailbox.call_at(mailbox.now() + 0.2, lambda: [write() for write in later])

    return read


class _Later:
    def __init__(self, words: Any, later: list[Callable[[], None]]) -> None:
        self._words = words
        self._later = later

    def write(self, *about: Any) -> None:
        self._later.append(lambda: self._words.write(*about))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._words, name)


def _silent_about_ports(original: Any) -> Any:
    def record(self: Any, event: Event, actions: list[Any], now: float) -> None:
        if not isinstance(event, PortOpened):
            original(self, event, actions, now)

    return record


def _rounded(original: Any) -> Any:
    """Times in the journal differ from those of the steps."""
    return lambda self, event, actions, now: original(self, event, actions, round(now, 3))


def _ends_all(original: Any) -> Any:
    """The lease is not awaited."""
    return lambda self: self._end_all(0)


def _remembers_nothing(original: Any) -> Any:
    """Output that an earlier supervisor had kept is requested again."""

    def known(self: Any, name: str, attempt: int) -> int:
        return self._received.setdefault((name, attempt), 0)

    return known


def _obeys_twice(original: Any) -> Any:
    return lambda *_: True


def _brought_at_once(original: Any) -> Any:
    """A task counts as gone before its files are at home."""

    def bring(self: Any, task: str, attempt: int, released: Callable[[], None]) -> None:
        original(self, task, attempt, lambda: None)
        released()

    return bring


MUTATIONS: Mapping[str, Mutation | Edit] = {
    "a restart before the old attempt is gone": Mutation(1, "I1", policy, "gang_alive", _nobody_lives),
    "a fence that is too short": Mutation(17, "I1", policy, "fence", _short_fence),
    "a lease that is never over": Mutation(45, "I2", lease.Lease, "ends_at", _never),
    "an agent that outlives its client": Mutation(62, "I2", agent.Agent, "_link_lost", _does_nothing),
    "orphans are not looked for beside an attempt": Mutation(35, "I1", orphans, "kill_once", _finds_nothing),
    "orphans are not looked for at the end": Mutation(25, "I2", orphans, "kill_once", _finds_nothing),
    "a ladder without KILL": Mutation(28, "I2", task.Task, "_kill", _no_kill),
    "the last failure is the culprit": Mutation(1, "I3", step, "_on_exited", _blames_the_last),
    "a late word about an early exit": Mutation(86, "I3", step, "_reconsider", _forgets_first),
    "one restart too many": Mutation(8, "I4", restart_budget, "decide_restart", _one_more),
    "failures alike are not counted": Mutation(272, "I4", restart_budget, "_count_alike", _counts_nothing),
    "progress is not seen": Mutation(92, "I4", restart_budget.Reached, "is_beyond", _nobody_lives),
    "TimePassed is not scheduled": Mutation(85, "I5", step, "next_deadline", _forgets_backing_off),
    "fences are not scheduled": Mutation(10, "I5", step, "next_deadline", _forgets_fences),
    "output is taken twice": Mutation(58, "I6", output.Output, "_read_bytes", _repeats),
    "acknowledged before written": Mutation(0, "I6", output.Output, "_read_bytes", _notes_too_soon),
    "an event is not journaled": Mutation(0, "I7", history.SimJournal, "record", _silent_about_ports),
    "times are rounded in the journal": Mutation(0, "I7", history.SimJournal, "record", _rounded),
    "an heir does not know what was kept": Mutation(26, "I6", output.Output, "_known", _remembers_nothing),
    "an agent does not wait for an heir": Mutation(105, "I8", agent.Agent, "_link_lost", _ends_all),
    "what was on its way is not sent again": Mutation(26, "protocol", task_output.Stream, "rewind", _does_nothing),
    "a file is left behind": Mutation(1, "I9", left_files.LeftFiles, "bring", _brought_at_once),
    "files are not announced again": Mutation(2528, "I5", left_files.LeftFiles, "announce_all", _does_nothing),
    "orders are obeyed twice": Mutation(26, "protocol", agent.Agent, "_is_new", _obeys_twice),
}
