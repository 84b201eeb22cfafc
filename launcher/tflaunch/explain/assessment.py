"""Assess whether a run trains, since when, why, and which commands help. Pure."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tflaunch.explain.run_status import Status, TaskStatus, absence_words, missing_words, needed_hosts
from tflaunch.explain.wording import count, counted, listed
from tflaunch.plan.model import SIDECAR
from tflaunch_worker.readable import duration_words

YES, NO, UNKNOWN = "yes", "no", "unknown"

QUEUED, STARTING, FORMING, FIRST_STEP, TRAINING = "queued", "starting", "forming", "first step", "training"
EVALUATING, SAVING, WAITING, HANGING, ENDING = "evaluating", "saving", "waiting for hosts", "hanging", "ending"
ENDED = "ended"
"""The phases of a run, in all their words."""

_SPINE = frozenset(("logs", "up"))  # the verbs proposed here that do not come from features
_FRESH = 60.0  # seconds after which a step is no sign of life any more, unless steps take longer
_STEPS = 3  # as many may pass without a report

_LIVING = ("running", "starting", "stopping", "disconnected")  # states of tasks

_STANDING = {
    "joining": (STARTING, "its hosts are being reached"),
    "preparing": (STARTING, "its hosts are being prepared"),
    "backing_off": (STARTING, "the next attempt is due soon"),
    "saving": (SAVING, "a task was told to end, and the others may save with it"),
    "draining": (ENDING, "it has succeeded, and tasks that end by themselves get time to"),
    "stopping": (ENDING, "its tasks are being stopped"),
    "waiting_for_hosts": (WAITING, "the next attempt needs hosts that are lost"),
}
"""Phases of a job in which nothing trains: the run's phase, and why if nothing more is known."""


class Assessment(NamedTuple):
    """Whether a run trains: the fields of a status that bear these names."""

    phase: str
    trains: str
    because: str
    since: float | None = None
    next_commands: tuple[tuple[str, ...], ...] = ()  # none of their words needs quotes


def assessed(status: Status, now: float, verbs: Collection[str] = (), end: str = "") -> Status:
    """Return a status that says whether the run trains.

    ``now`` is in seconds since the epoch, ``verbs`` are the commands of features that can be proposed, ``end`` is the
    sentence about the end of an ended run, "" if it is not at hand.
    """
    return status._replace(**_Assessor(status, now, _SPINE.union(verbs), end).assess()._asdict())


def assess_end(run: str, state: str, exit_code: int | None, because: str, verbs: Collection[str]) -> Assessment:
    """Assess a run that has ended, without its status."""
    sentence = because or (f"it has ended with exit code {exit_code}" if exit_code is not None else state)
    return Assessment(ENDED, NO, sentence, next_commands=_after_end(run, state, None, _SPINE.union(verbs)))


def assess_waiting(run: str, state: str, exit_code: int | None, why: str, verbs: Collection[str]) -> Assessment:
    """Assess a run that has not begun, or could not; ``why`` is a sentence."""
    if exit_code is not None or state == "lost":
        return assess_end(run, state, exit_code, why, ())
    return Assessment(QUEUED, NO, why, next_commands=(("tflaunch", "queue"),) if "queue" in verbs else ())


def _after_end(run: str, state: str, task: str | None, verbs: Collection[str]) -> tuple[tuple[str, ...], ...]:
    if state != "failed":
        return ()
    why = (("tflaunch", "explain", run),) if "explain" in verbs else ()
    logs = (("tflaunch", "logs", run, *([task] if task is not None else [])),) if task is not None or not why else ()
    return (*why, *logs)


def _trains(task: TaskStatus) -> bool:
    return task.role not in (SIDECAR, "evaluator", "ps")


def _is_alive(task: TaskStatus) -> bool:
    return task.pid is not None or task.state in _LIVING


class _Assessor:
    """Assesses one status."""

    def __init__(self, status: Status, now: float, verbs: Collection[str], end: str) -> None:
        self._status = status
        self._now = now
        self._verbs = verbs
        self._end = end
        self._trainers = [task for task in status.tasks if _trains(task)]
        self._living = [task for task in self._trainers if _is_alive(task)]

    def assess(self) -> Assessment:
        """Return the assessment of the first rule that applies."""
        rules: tuple[Callable[[], Assessment | None], ...] = (
            self._ended, self._lost, self._standing, self._away, self._at_breakpoint, self._hanging, self._forming,
            self._evaluating, self._starting, self._alone, self._before_first_step,
        )  # fmt: skip
        return next((found for rule in rules if (found := rule()) is not None), None) or self._stepping()

    # ---- runs that do not go on

    def _ended(self) -> Assessment | None:
        status = self._status
        if status.exit_code is None:
            return None
        reason, culprit = (status.reason or "").strip(), status.culprit or ""
        why = reason if culprit in reason or culprit == "tflaunch" else f"{culprit}: {reason}".removesuffix(": ")
        if status.supervisor != "dead" and any(task.state in _LIVING for task in status.tasks):
            return Assessment(ENDING, NO, why or "its tasks are being stopped", self._latest(status.tasks))
        task = culprit if culprit in {task.task for task in status.tasks} else None
        because = self._end or why or f"it has ended with exit code {status.exit_code}"
        since = self._latest([task for task in status.tasks if task.role != SIDECAR])
        return Assessment(ENDED, NO, because, since, _after_end(status.run, status.state, task, self._verbs))

    def _lost(self) -> Assessment | None:
        """Assess a run whose supervisor was killed: tasks live until the lease expires."""
        status = self._status
        if status.supervisor != "dead":
            return None
        then = (("tflaunch", "up", "-d", "--resume", status.run),) if "up" in self._verbs else ()
        if not any(_is_alive(task) for task in status.tasks):
            return Assessment(ENDED, NO, "its supervisor was killed, and its tasks have ended", next_commands=then)
        left = max((host.lease_left for host in status.hosts if host.lease_left is not None), default=None)
        rest = "may live on" if left is None else f"live on for {duration_words(left)}"
        return Assessment(ENDING, UNKNOWN, f"its supervisor was killed; its tasks {rest}", next_commands=then)

    def _standing(self) -> Assessment | None:
        status = self._status
        if status.state not in _STANDING:
            return None
        phase, words = _STANDING[status.state]
        if status.state == "draining" and (found := self._evaluating()) is not None:
            return found
        since = self._latest(status.tasks)
        if phase is STARTING and status.state != "backing_off":
            since = status.started if since is None else since
            return Assessment(phase, NO, missing_words(status) or words + self._restarted(), since)
        since = self._away_since() if phase is WAITING else since
        why = self._absences() or (status.reason or "").strip() or (status.last_failure or "").strip()
        return Assessment(phase, NO, why or words, since)

    def _away(self) -> Assessment | None:
        words = self._absences()
        return Assessment(WAITING, UNKNOWN, words, self._away_since()) if words else None

    def _at_breakpoint(self) -> Assessment | None:
        held = [task for task in self._status.tasks if task.breakpoint is not None]
        if not held:
            return None
        because = "; ".join(f"{task.task} waits at a breakpoint in {task.breakpoint}" for task in held)
        phase = TRAINING if self._stepped() else FIRST_STEP  # a person holds it up, and no hang
        return Assessment(phase, NO, because, next_commands=self._if_there("debug", held[0].task))

    def _hanging(self) -> Assessment | None:
        hang = self._status.hang
        if hang is None:
            return None
        because = f"hangs for {duration_words(self._now - hang.since)}: {hang.sentence}"
        return Assessment(HANGING, NO, because, hang.since, self._if_there("stacks"))

    # ---- runs that may train

    def _forming(self) -> Assessment | None:
        forming = self._status.forming
        if forming is not None:
            waited = duration_words(self._now - forming.since)
            because = f"cluster not formed: waiting {waited} for {listed(forming.missing)}"
            logs = ("tflaunch", "logs", self._status.run, *forming.missing)
            return Assessment(FORMING, NO, because, forming.since, (*self._if_there("stacks"), logs))
        closed = [task.task for task in self._status.tasks if task.listening is False]
        if not closed or self._stepped() or self._unstarted():
            return None
        has = "has not opened its port" if len(closed) == 1 else "have not opened their ports"
        because = f"{listed(closed)} {has} of TF_CONFIG yet"
        return Assessment(FORMING, NO, because + self._restarted(), self._latest(self._living))

    def _evaluating(self) -> Assessment | None:
        evaluators = [task for task in self._status.tasks if task.role == "evaluator" and _is_alive(task)]
        if not evaluators or self._living or not self._trainers:
            return None
        because = f"the training has ended, and {listed([task.task for task in evaluators])} still runs"
        return Assessment(EVALUATING, NO, because, self._latest(self._trainers))

    def _starting(self) -> Assessment | None:
        awaited = self._unstarted()
        if not (awaited or self._living):
            return Assessment(ENDING, NO, "its tasks have ended", self._latest(self._trainers))
        if not awaited or self._stepped():
            return None
        verb = "is" if len(awaited) == 1 else "are"
        return Assessment(STARTING, NO, f"{listed(awaited)} {verb} being started{self._restarted()}")

    def _alone(self) -> Assessment | None:
        """Assess a program that trains without the cluster that it was given."""
        asked = [task for task in self._trainers if task.listening is not None]
        if len(asked) < 2 or any(task.listening for task in asked) or not self._stepped():
            return None
        because = "no task has opened its port of TF_CONFIG: each trains by itself"
        return Assessment(TRAINING, UNKNOWN, because, self._latest(self._living), self._if_there("stacks"))

    def _before_first_step(self) -> Assessment | None:
        if self._stepped():
            return None
        since = self._latest(self._living)
        waited = 0.0 if since is None else self._now - since
        because = f"no step was reported yet, after {duration_words(waited)}{self._restarted()}"
        return Assessment(FIRST_STEP, UNKNOWN, because, since, self._if_there("stacks") if waited > _FRESH else ())

    def _stepping(self) -> Assessment:
        stepped, since = self._stepped(), self._latest(self._living)
        newest = min(stepped, key=lambda task: task.progress_age or 0.0)
        age, total = newest.progress_age or 0.0, newest.total_steps
        at = f"epoch {count(newest.epoch or 0)}" if not newest.step else f"step {count(newest.step)}"
        at += f" of {count(total)}" if newest.step and total else ""
        limit = max(_FRESH, _STEPS / newest.steps_per_second if newest.steps_per_second else 0.0)
        because = f"{at}, reported {duration_words(age)} ago{self._restarted()}"
        if age > limit:
            return Assessment(TRAINING, UNKNOWN, because, since, self._if_there("stacks"))
        return Assessment(TRAINING, YES, because, since)

    # ---- what the rules ask

    def _stepped(self) -> list[TaskStatus]:
        """Return the living tasks on linked hosts that have reported a step or an epoch."""
        return [task for task in self._living if (task.step or task.epoch) and task.state != "disconnected"]

    def _unstarted(self) -> list[str]:
        awaited = (task for task in self._trainers if task.pid is None or task.state == "starting")
        return [task.task for task in awaited if task.state in ("waiting", "starting", "restarting")]

    def _restarted(self) -> str:
        status = self._status
        again = f", after {counted(status.restarts, 'restart')}" if status.restarts else ""
        return again + (f"; the last attempt failed: {status.last_failure.strip()}" if status.last_failure else "")

    def _absences(self) -> str:
        return "; ".join(filter(None, (absence_words(host, self._now) for host in needed_hosts(self._status))))

    def _away_since(self) -> float | None:
        hosts = needed_hosts(self._status)
        return min((host.since for host in hosts if host.since is not None), default=None)

    def _latest(self, tasks: Sequence[TaskStatus]) -> float | None:
        return max((task.since for task in tasks if task.since is not None), default=None)

    def _if_there(self, verb: str, *arguments: str) -> tuple[tuple[str, ...], ...]:
        return (("tflaunch", verb, self._status.run, *arguments),) if verb in self._verbs else ()
