"""Judge from two trainings, one of them struck, whether a training resumes. Pure."""

import itertools
import math
import posixpath
import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tflaunch.explain.wording import counted
from tflaunch.features.drill.findings import NOT_PROVED, PROVED, UNKNOWN, Finding, Verdict, finding_of
from tflaunch.features.drill.losses import Losses
from tflaunch.features.drill.records import BESTS, MOVED, Fault, Life, Point, Rehearsal, is_evaluator
from tflaunch.features.drill.saved_files import SavedFiles, is_state
from tflaunch_worker.readable import duration_words

_CLOCKS = 0.1  # seconds between the times of a line of output and of a file's event that say nothing


class Return(NamedTuple):
    """How a task came back.

    Args:
        task: its name.
        began: its first step in the undisturbed training.
        reached: the last one before the fault.
        first: the first one after it.
        gap: how many steps lie between two that it reports; the last one done before may be as many later.
        is_within: whether steps are epochs, and it tells of one several times, before that is done.
    """

    task: str
    began: Point
    reached: float
    first: Point
    gap: float
    is_within: bool

    @property
    def lowest(self) -> float:
        """The fewest steps that it can have had when it went on."""
        return max(self.first.step - self.gap + (self.began.step == 0), 0)

    @property
    def highest(self) -> float:
        """The most steps that it can have had when it went on."""
        return max(self.first.step - 1 + (self.began.step == 0 or self.is_within), 0)


def judge(calm: Rehearsal, struck: Rehearsal, fault: Fault, second: Rehearsal | None = None) -> Verdict:
    """Return the verdict on a training that was struck, beside one that was not.

    ``second``: another one that nothing was done to; it tells how far such runs differ.
    """
    if struck.struck_at is None:
        text = f"the training ended before step {fault.step:g}, so nothing was done to it"
        return Verdict(str(fault), UNKNOWN, (finding_of("not_struck", text),))
    findings = tuple(_Judgement(calm, struck, fault, second).findings())
    has_fault = any(finding.is_fault for finding in findings)
    is_seen = any(finding.kind == "resumed" for finding in findings)
    return Verdict(str(fault), NOT_PROVED if has_fault else PROVED if is_seen else UNKNOWN, findings)


class _Judgement:
    """The comparison of two trainings."""

    def __init__(self, calm: Rehearsal, struck: Rehearsal, fault: Fault, second: Rehearsal | None) -> None:
        assert struck.struck_at is not None
        self._calm, self._struck, self._fault, self._second = calm, struck, fault, second
        self._at = struck.struck_at
        self._source = calm.source()
        self._unit = "epoch" if self._source == "epochs" else "step"
        self._before = _lives_until(struck, self._source, self._at)
        self._returns = [each for task in self._before if (each := self._return_of(task)) is not None]
        self._losses = Losses(calm, struck, second, self._before, self._source)
        self._back_at = min((each.first.time for each in self._returns), default=math.inf)
        self._files = SavedFiles(struck.files or (), self._at, self._back_at)

    def findings(self) -> Iterator[Finding]:
        """Yield what is to be said, the main thing first."""
        exits = [(code, at) for task, code, at in self._struck.exits if task in self._fault.tasks and at >= self._at]
        code, at = exits[0] if exits else (None, self._at)
        far = (self._fault.step + self._calm.range()[1]) / 2  # who saves at TERM and goes on exits with 0 at the end
        if self._fault.kind == "term" and code == 0 and self._struck.step_at(self._source, at) < far:
            who = self._fault.tasks[0]
            yield finding_of("exits_0", f"{who} exited with 0 at TERM, so it was not started again")
            return
        if self._struck.is_late:
            text = "the job did not end: it was stopped after several times as long as the undisturbed one took"
            yield finding_of("not_recovered", text)
        elif self._struck.exit_code != 0 and not self._struck.is_stopped:
            read = self._files.read_after()
            after = f", after it had read {read[-1]}" if read else ""
            why = self._struck.summary.partition("\n")[0]
            yield finding_of("not_recovered", f"the job did not recover{after}: {why}")
        yield from self._places()
        yield from self._scheduled()
        yield from self._writing()
        yield from self._evaluators()
        yield from self._ends()

    # ---- where it went on

    def _return_of(self, task: str) -> Return | None:
        lives = self._struck.lives(task, self._source)
        before = self._before[task]
        later = [life for life in lives if life.attempt > before.attempt]
        began = self._calm.lives(task, self._source)
        if not later or not began:
            return None
        reached = max(point.step for point in before.points)
        repeats = any(one.step == other.step for one, other in itertools.pairwise(began[0].points))
        is_within = repeats and self._source == "epochs"
        return Return(task, began[0].points[0], reached, later[0].points[0], self._gap(task), is_within)

    def _gap(self, task: str) -> float:
        """Return how many steps lie between two that a task reports."""
        points = next((life.points for life in self._calm.lives(task, self._source)), ())
        if points and points[0].mean_of:
            return points[0].step  # Keras' bar always shows the first one that it can show
        gaps = [after.step - before.step for before, after in itertools.pairwise(points)]
        middle = statistics.median(gaps) if gaps else 1.0
        return max(gaps) if middle > 1 else 1.0

    def _places(self) -> Iterator[Finding]:
        if not self._returns:
            yield from self._without_return()
            return
        first = min(self._returns, key=lambda each: each.lowest)
        reached = max(each.reached for each in self._returns)
        are_in_step = reached - min(each.reached for each in self._returns) <= first.gap
        if are_in_step and max(each.lowest for each in self._returns) - first.lowest > first.gap:
            text = ", ".join(f"{each.task} at {self._unit} {each.lowest:g}" for each in self._returns)
            yield finding_of("tasks_differ", f"the tasks resumed at different places: {text}")
            return
        took = duration_words(max(self._back_at - self._at, 0))
        if reached <= self._returns[0].began.step:
            yield finding_of("not_seen", f"too few {self._unit}s were seen before the fault to tell where it went on")
        elif first.first.step > first.began.step:
            yield self._resumed(first, reached, took)
            yield from self._losses.findings({each.task: each.lowest for each in self._returns}, self._unit)
        elif first.highest > first.lowest and not self._is_before_what_was_read(first):
            where = f"before {self._unit} {first.first.step:g}"
            yield finding_of("not_seen", f"it went on {where}, or began again: it tells of no earlier one")
        elif self._was_done(first):
            yield finding_of(
                "not_struck", f"all {self._unit}s were done when {self._fault}: nothing was left to resume"
            )
        else:
            kind, why = self._why_again()
            yield finding_of(kind, f"it began again from the start after {took}: {why}")

    def _resumed(self, back: Return, reached: float, took: str) -> Finding:
        """Say at which step it went on, by the name of what was read if that counts steps."""
        read = self._files.read_after()
        low, high, source = back.lowest, back.highest, f" from {read[-1]}" if read else ""
        named = self._files.step_in_name() if high > low else None
        if named is not None and low <= named <= high:
            low, high, source = named, named, f", as the name of {read[-1]} says"
        place = f"at {self._unit} {low:g}" if low == high else f"between {self._unit} {low:g} and {high:g}"
        lost = ("at most " if back.gap > 1 else "") + self._counted(max(reached + back.gap - 1 - low, 0))
        return finding_of("resumed", f"resumed {place}{source}; {lost} lost, and it took {took}")

    def _is_before_what_was_read(self, back: Return) -> bool:
        """Whether it went on before the steps of what it read, or has read nothing."""
        times = map(self._files.write_time, self._files.states_read())
        saved = max((self._struck.step_at(self._source, time) for time in times), default=math.inf)
        return self._struck.files is not None and saved > back.highest

    def _counted(self, steps: float) -> str:
        return counted(int(steps), self._unit)

    def _without_return(self) -> Iterator[Finding]:
        """Judge a training in which no task that reports steps was started again."""
        if self._struck.exit_code != 0 and not self._struck.is_stopped:
            return  # which is said already
        on = [
            (life.points[-1].step - before.points[-1].step, task)
            for task, before in self._before.items()
            for life in self._struck.lives(task, self._source)
            if life.attempt == before.attempt
        ]
        further, who = max(on, default=(0, ""))
        if further > 0:
            yield finding_of("resumed", f"{who} went on without a restart, {self._counted(further)} further")
        else:
            yield finding_of("not_seen", f"no {self._unit} was seen after the fault, so where it went on is unknown")

    def _was_done(self, back: Return) -> bool:
        """Whether the struck attempt was done before its fault, as a short training is."""
        attempt = self._before[back.task].attempt
        lives = [life for life in self._struck.lives(back.task, self._source) if life.attempt == attempt]
        return not back.is_within and lives[0].points[-1].step >= self._calm.range()[1]

    def _why_again(self) -> tuple[str, str]:
        """Return why a training began from the start: the kind of finding, and the reason."""
        if self._struck.files is None:
            return "began_again", "which checkpoints were written and read on other hosts is unknown"
        written, read = self._files.states_before(), self._files.states_read()
        if not written:
            later = [event.time for event in self._calm.files or () if is_state(event.path)]
            if later and (step := self._calm.step_at(self._source, min(later))):
                begins = f"the first one comes at {self._unit} {step:g}"
                return "none_before", f"no checkpoint was written before the fault, {begins}"
            steps = self._counted(max(each.reached for each in self._returns))
            return "no_checkpoint", f"no checkpoint was written in its directory in {steps}"
        if not read:
            other = self._files.states_written(self._at)
            first, then = posixpath.dirname(written[-1]), posixpath.dirname(other[0]) if other else ""
            if other and first != then and not {posixpath.dirname(path) for path in written} & {then}:
                return "other_directory", f"it saved to {first or '.'} before the fault, and to {then or '.'} after it"
            return "never_read", f"no checkpoint was read, though {written[-1]} had been written"
        if self._files.first_read() > self._back_at + _CLOCKS:
            return "read_late", f"{read[0]} was read only after the first {self._unit}"
        is_trained = self._is_trained()
        if is_trained:
            return "counter", f"the weights of {read[-1]} were used, but not the count of {self._unit}s"
        what = "was not used" if is_trained is False else "may have been used: no loss tells it"
        return "not_used", f"{read[-1]} was read, but what was read {what}"

    def _is_trained(self) -> bool | None:
        """Whether the first loss after the restart is a trained model's, if it tells."""
        for each in self._returns:
            new = each.began.loss
            old = next((p.loss for p in reversed(self._before[each.task].points) if p.loss is not None), None)
            if new is not None and old is not None and each.first.loss is not None and new != old:
                return abs(each.first.loss - old) < abs(each.first.loss - new)
        return None

    # ---- how it saves, and how it ended

    def _writing(self) -> Iterator[Finding]:
        for path, tasks in self._files.shared(self._is_rewritten):
            who = f" ({', '.join(sorted(tasks))})" if len(tasks) > 1 else ""
            yield finding_of("several_writers", f"several tasks write {path}{who}")
            break
        read = [path for path in self._files.states_read() if self._files.is_written_in_place(path)]
        if read:
            yield finding_of("in_place", f"{read[0]} is written in place: a kill while it is written leaves half of it")
        if self._fault.kind == "term" and self._struck.files is not None:
            back = self._back_at if self._returns else self._at + 10
            if not self._files.states_written(self._at, back):
                yield finding_of("term", "TERM was not used to save: no checkpoint was written after it")

    def _is_rewritten(self, path: str) -> bool:
        """Whether a file is moved into its place at several steps without a fault."""
        events = [(self._calm, each) for each in self._calm.files or ()]
        events += [(self._struck, each) for each in self._struck.files or () if each.time < self._at]
        moves = [(of, each.time) for of, each in events if each.kind == MOVED and each.path == path]
        return len({of.step_at(self._source, time) for of, time in moves}) > 1

    def _scheduled(self) -> Iterator[Finding]:
        """Say whether a checkpoint counts steps that parameter servers had not done yet.

        Elsewhere, an optimizer may have skipped some. It may also apply the sum of several.
        """
        saved = self._struck.saved
        if saved is None or not self._returns or not any(task.startswith("ps:") for task, _, _ in self._struck.exits):
            return
        place = min(each.lowest for each in self._returns)
        if not saved.iterations or saved.path not in self._files.states_read() or self._source == "epochs":
            text = f"whether all steps that {saved.path} counts had been done is unknown: it tells no iterations"
            yield finding_of("not_joined_unknown", text)
        elif saved.iterations < place and place % saved.iterations:
            text = f"{saved.path} has the state after {saved.iterations} steps, though it went on after {place:g}"
            yield finding_of("not_joined", f"{text}: scheduled steps were counted as done")

    def _evaluators(self) -> Iterator[Finding]:
        """Compare the best metrics that evaluators told before and after a restart."""
        for task in filter(is_evaluator, self._struck.trails):
            ends = [at for name, _, at in self._struck.exits if name == task and at >= self._at]
            lives = self._struck.lives(task, BESTS)
            if len(ends) < 2:  # its only end is that of the job
                continue
            told = [[point.loss or 0 for point in life.points] for life in lives]
            undisturbed = [point.loss or 0 for life in self._calm.lives(task, BESTS) for point in life.points]
            grows = sorted(undisturbed)
            is_best = undisturbed in (grows, grows[::-1])  # others are called best, too, such as the best of a round
            better = undisturbed[-1] - undisturbed[0] if undisturbed and is_best else 0
            if len(told) < 2 or len(told[0]) < 2 or not better or (told[-1][0] - told[0][-1]) * better > 0:
                text = f"whether {task} keeps its best metric is unknown: it told too few, or a better one at once"
                yield finding_of("best_unknown", text)
            elif (told[-1][0] - told[0][-2]) * better < 0:  # the last one before may have been too late to be saved
                yield finding_of("best", f"{task} began its best metric again: {told[-1][0]:g} after {told[0][-1]:g}")

    def _ends(self) -> Iterator[Finding]:
        """Compare where both trainings ended, if both went to their end."""
        if self._struck.is_stopped or self._struck.exit_code or self._calm.is_stopped:
            return
        for task in self._before:
            both = self._calm, self._struck
            ends = [each.lives(task, self._source)[-1].points[-1] for each in both if each.lives(task, self._source)]
            if len(ends) < 2 or any(each.was_stopped(task) for each in both):
                continue
            calm, struck = ends
            if abs(calm.step - struck.step) > self._gap(task):
                yield finding_of("other_end", f"{task} ended at {self._unit} {struck.step:g} instead of {calm.step:g}")
                return
            if self._second is not None and self._losses.are_apart(task, calm, struck):
                text = f"the end differs by more than two undisturbed runs do: a loss of {struck.loss:.4g} instead of"
                yield finding_of("end", f"{text} {calm.loss:.4g}")
                return


def _lives_until(rehearsal: Rehearsal, source: str, at: float) -> Mapping[str, Life]:
    """Return the attempt of each task that ran when it was struck, up to that moment."""
    found = {}
    for task, trail in rehearsal.trails.items():
        lives = [life for life in trail.get(source, ()) if life.points[0].time <= at]
        if lives and not is_evaluator(task):
            points = tuple(point for point in lives[-1].points if point.time <= at)
            found[task] = lives[-1]._replace(points=points)
    return found
