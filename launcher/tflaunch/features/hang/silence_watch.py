"""End a job that hangs: look at tasks that are silent for too long, and compare."""

import math
import os
from collections.abc import Mapping

from tflaunch.core import policy
from tflaunch.core.annotations import HangExplained, HangNoticed
from tflaunch.core.events import JobHung
from tflaunch.core.job_state import Job, Phase
from tflaunch.explain.run_status import Status
from tflaunch.features.hang import hang, looks
from tflaunch.features.hang.evidence import Evidence
from tflaunch.features.hang.evidence_collector import PATIENCE, Collector
from tflaunch.features.hang.silence import (
    WINDOW,
    Limits,
    SilenceRecord,
    Stage,
    limits,
    read_silences,
    stage_of,
    write_silences,
)
from tflaunch.plan.model import TaskPlan
from tflaunch.runtime.watchers import Supervision
from tflaunch_worker.readable import duration_words, printable

_PERIOD = 10.0  # seconds between two questions for signs of life
_SHORTEST_PERIOD = 0.5
_SCALE = "TFLAUNCH_STALL_SCALE"  # the number by which a test shortens all limits
_LOOKS = 3  # that must agree before a job is ended
_LOOK_PATIENCE = 60.0  # seconds for its answers: the more crowded a host is, the longer it takes, and may compute
_PATIENCE = 2  # times the limit, after which hosts that do not answer delay the end no longer


class SilenceWatch:
    """Asks agents for signs of life, looks at a silent job, and ends one that hangs."""

    def __init__(self, supervision: Supervision, *, is_noticed: bool) -> None:
        """Watch a running job; ``is_noticed``: an earlier supervisor said that it hangs."""
        self._supervision = supervision
        self._mailbox = supervision.mailbox
        self._scale = float(os.environ.get(_SCALE, "1"))
        sessions, patience = supervision.sessions, max(_LOOK_PATIENCE / self._scale, PATIENCE)
        self._evidence = Collector(sessions, self._mailbox, "gather_evidence", patience)
        self._signs = Collector(sessions, self._mailbox, "find_signs")
        self._window = WINDOW / self._scale
        self._job = supervision.job
        self._plan = supervision.job.original
        self._record = SilenceRecord(read_silences(supervision.config.directory.path, self._plan), self._scale)
        self._is_noticed, self._is_held = is_noticed, False
        self._looks: list[looks.Look] = []
        self._look_at = 0.0
        self._restart(self._mailbox.now())
        fixed = self._plan.timeouts.stall or math.inf
        self._period = max(min(_PERIOD / self._scale, fixed / 4), _SHORTEST_PERIOD)
        self._mailbox.call_at(self._mailbox.now() + self._period, self._ask)

    def _begin(self, now: float) -> None:
        """Begin again: whatever was seen before says nothing about the present."""
        self._forget()
        self._restart(now)

    def _restart(self, now: float) -> None:
        self._record.restart(now)
        self._alive: dict[str, int] = {}
        self._spoke_at: dict[str, float] = {}
        self._is_looking = False

    def take(self, job: Job, now: float) -> None:
        """Take the job's state after a step."""
        before, self._job = self._job, job
        if job.attempt != before.attempt:
            self._is_noticed = False  # what was said is about the attempt before
            self._begin(now)
        elif self._is_noticed and not policy.can_hang(job):
            self._begin(now)

    # ---- signs of life

    def _ask(self) -> None:
        if self._job.phase is Phase.ENDED:
            return
        self._mailbox.call_at(self._mailbox.now() + self._period, self._ask)
        if policy.can_hang(self._job):
            self._signs.collect(self._take_signs)
        else:
            self._begin(self._mailbox.now())

    def _take_signs(self, signs: Mapping[str, Evidence], silent_hosts: tuple[str, ...]) -> None:
        job, now = self._job, self._mailbox.now()
        if not policy.can_hang(job):
            return
        alive = {task.task: job.tasks[task.task].attempt for task in _alive(job)}
        if alive != self._alive:  # one has ended, or started: they go on
            self._begin(now)
            self._alive = alive
        known = [signs[name] for name in _trainers(job) & signs.keys() if alive[name] == signs[name].attempt]
        self._spoke_at.update({each.task: now - each.silence for each in known if each.silence is not None})
        copied_at = 0.0 if job.checkpoint is None else job.checkpoint.at
        last = now - max([copied_at, *self._spoke_at.values()])
        stage = stage_of(job, [each.progress for each in known if each.progress is not None])
        stage, silence, has_news = self._record.note(stage, last, now)
        if has_news:
            write_silences(self._supervision.config.directory.path, self._plan, self._record.longest)
        if last < self._period:
            self._forget()
        else:
            self._judge(stage, silence, limits(stage, self._record.longest, self._scale), now)

    def _forget(self) -> None:
        """Note that the tasks go on, or that something else holds them up."""
        if self._is_noticed and self._job.phase is Phase.RUNNING:
            self._mailbox.put(HangNoticed(self._job.attempt, ""))
        self._is_noticed, self._is_held, self._looks, self._look_at = False, False, [], 0.0

    def _judge(self, stage: Stage, silence: float, limit: Limits, now: float) -> None:
        """Look at the tasks if a limit is near or over."""
        fixed = self._plan.timeouts.stall
        if self._is_held:
            is_due = True
        elif fixed:
            is_due = silence >= fixed
        else:
            is_near = fixed is None and silence >= limit.end - self._window
            is_due = is_near or (silence >= limit.notice and not self._is_noticed)
        if is_due and now >= self._look_at and not self._is_looking:
            self._is_looking = True
            self._look(stage, silence, limit, now)

    def _look(self, stage: Stage, silence: float, limit: Limits, began_at: float) -> None:
        attempt = self._job.attempt

        def take(evidence: Mapping[str, Evidence], silent_hosts: tuple[str, ...]) -> None:
            self._supervision.measured(lambda status: see(status, evidence))

        def see(status: Status, evidence: Mapping[str, Evidence]) -> None:
            if not self._is_looking or self._job.attempt != attempt:
                return
            self._is_looking = False
            now, trainers = self._mailbox.now(), [evidence[name] for name in _trainers(self._job) & evidence.keys()]
            have_spoken = any(each.silence is not None and each.silence < silence for each in trainers)
            if policy.can_hang(self._job) and not have_spoken:
                verdict = hang.verdict(status, evidence, is_over=True)
                self._see(looks.look(now, status, evidence), verdict, stage, silence + now - began_at, limit)

        self._evidence.collect(take)

    # ---- looks at tasks that are silent

    def _see(self, seen: looks.Look, verdict: hang.Verdict, stage: Stage, silence: float, limit: Limits) -> None:
        """Say that the tasks hang, or end them, as far as this and earlier looks agree."""
        fixed = self._plan.timeouts.stall
        if looks.is_held(seen):  # by a person, who may go on
            self._is_noticed = self._is_noticed and self._is_held
            self._notice(verdict)
            self._record.restart(seen.at)
            self._is_held, self._looks, self._look_at = True, [], seen.at + self._window / 2
        elif self._is_held:
            self._begin(seen.at)
        elif fixed:
            self._end(verdict, f"no output or progress for {duration_words(fixed)} (timeouts.stall)")
        elif self._looks and looks.moves(self._looks[-1], seen, may_compute=silence >= limit.spin):
            self._looks = [seen]
            self._look_at = seen.at + max(self._window / 2, silence / 10)
        else:
            self._looks.append(seen)
            self._look_at = seen.at + self._window / 2
            if verdict.culprits or looks.is_still(seen):
                self._notice(verdict)
            if self._have_agreed(stage, silence, limit):
                usual = self._record.longest.get(stage)
                known = f", and the longest healthy silence {stage.value} was {duration_words(usual)}" if usual else ""
                self._end(verdict, f"no output or progress for {duration_words(silence)}: nothing moves{known}")

    def _have_agreed(self, stage: Stage, silence: float, limit: Limits) -> bool:
        """Whether the last looks show that a job hangs, and does not wait for requests.

        All of them must have seen the same tasks: one that was seen only once may have moved.
        """
        last = self._looks[-_LOOKS:]
        seen = last[-1].evidence.keys()
        is_over = self._plan.timeouts.stall is None and silence >= limit.end
        if not is_over or len(last) < _LOOKS or not self._alive.keys() & seen:
            return False
        is_long = last[-1].at - last[0].at >= self._window
        awaited = {task.task for task in self._job.plan.tasks if self._job.tasks[task.task].is_alive}
        is_whole = awaited <= seen or silence >= _PATIENCE * limit.end
        is_training = policy.forms_cluster(self._plan) or stage is not Stage.FIRST_STEP
        may_hang = is_training or looks.wait_for_peers(last[-1])
        return is_long and is_whole and may_hang and all(each.evidence.keys() == seen for each in last)

    def _notice(self, verdict: hang.Verdict) -> None:
        if not self._is_noticed:
            self._is_noticed = True
            self._mailbox.put(HangNoticed(self._job.attempt, printable(verdict.sentence)))

    def _end(self, verdict: hang.Verdict, message: str) -> None:
        place = verdict.groups[0].place if verdict.groups else ""
        message = f"{message}; the stacks of the tasks are in their logs"
        self._mailbox.put(JobHung(self._job.attempt, printable(message), printable(place)))
        if verdict.culprits:
            self._mailbox.put(HangExplained(printable(verdict.sentence)))


def _trainers(job: Job) -> set[str]:
    """Return the living tasks that show progress: servers only if there are no others."""
    alive = {task.task for task in _alive(job)}
    return {task.task for task in policy.trainers(job.plan)} & alive or alive


def _alive(job: Job) -> list[TaskPlan]:
    return [task for task in policy.gang_tasks(job) if job.tasks[task.task].is_alive]
