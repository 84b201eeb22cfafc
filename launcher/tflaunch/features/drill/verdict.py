"""Judge from two trainings, one of which was struck, whether the training resumes. Pure."""

from __future__ import annotations

import math
import posixpath
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.explain.wording import counted
from tflaunch.features.drill.rehearsal import Fault, Rehearsal, is_evaluator
from tflaunch.features.drill.saved_files import SavedFiles, is_state
from tflaunch.features.drill.trail import SOURCES, Life, Point
from tflaunch_worker.readable import duration_words

PROVED, NOT_PROVED, UNKNOWN = "proved", "not proved", "unknown"

_TOLERANCE = 0.005  # of a loss; programs print a few digits only
_BEYOND = 3.0  # times the spread of undisturbed runs
_CLOCKS = 0.1  # seconds between the times of a line of output and of a file's event that say nothing
_FEWEST = 3  # losses that say something together


class Finding(NamedTuple):
    """One sentence about a drill.

    Args:
        kind: what it is, for programs.
        sentence: with figures.
        remedy: what helps, "" if nothing has to be done.
        is_fault: whether the training does not resume as it should because of it.
    """

    kind: str
    sentence: str
    remedy: str = ""
    is_fault: bool = True


class Verdict(NamedTuple):
    """What a drill has shown: `PROVED`, `NOT_PROVED` or `UNKNOWN`, and why."""

    fault: str
    verdict: str
    findings: tuple[Finding, ...]


class Return(NamedTuple):
    """How a task came back: its first step before the fault, that of its later life, and when that came."""

    task: str
    began: Point
    reached: float
    first: Point

    @property
    def resumed_at(self) -> float:
        """The number of steps that the later life did not do again."""
        return self.first.step - self.began.step


REMEDIES = {
    "began_again": "save while training, and restore the newest checkpoint at the start; without a shared disk, name "
    'its directory in "checkpoints" of the spec',
    "no_checkpoint": "save one while training: keras.callbacks.BackupAndRestore(directory) for fit, or a "
    "tf.train.CheckpointManager in a loop; where it saves every N steps, lower N",
    "none_before": "save more often: save_freq of BackupAndRestore or ModelCheckpoint, or every N steps of a loop",
    "never_read": "restore the newest one at the start: BackupAndRestore does both, as does "
    "checkpoint.restore(manager.latest_checkpoint)",
    "other_directory": "save to a path that is the same at each start, such as one without time and process number",
    "read_late": "restore before the first step, after the variables are made",
    "counter": "keep the step in the checkpoint (tf.train.Checkpoint(step=...)), and give fit its initial_epoch; "
    "BackupAndRestore restores the epoch itself",
    "not_used": "see what restore() matched: checkpoint.restore(path).assert_existing_objects_matched()",
    "tasks_differ": "restore in every task the newest checkpoint of one directory that all of them can read",
    "weights_only": "save the optimizer, too: tf.train.Checkpoint(model=model, optimizer=optimizer), or model.save() "
    "instead of save_weights()",
    "optimizer": "restore the optimizer with its iterations, on which the learning rate depends: "
    "tf.train.Checkpoint(model=model, optimizer=optimizer)",
    "rate": "let the learning rate follow from the restored step: optimizer.iterations, or initial_epoch of fit",
    "data": "keep the place in the data: save the iterator in the checkpoint, or skip what was seen: "
    "dataset.skip(step), with a shuffle of a fixed seed",
    "several_writers": "let each task but the chief save to a temporary path of its own: "
    "tflaunch_worker.training.save_path, or one directory per task",
    "in_place": "write to another name and rename it when it is whole, or keep two in turn (double_checkpoint=True of "
    "BackupAndRestore)",
    "term": "save at TERM: tf.distribute.experimental.PreemptionCheckpointHandler, or "
    "tflaunch_worker.training.preemption",
    "exits_0": "exit with another code than 0 after saving at TERM, such as 42: 0 says that the training is finished",
    "not_recovered": "its last lines say why: `tflaunch drill --keep` keeps the logs",
}


def judge(calm: Rehearsal, struck: Rehearsal, fault: Fault, second: Rehearsal | None = None) -> Verdict:
    """Return what a training that was struck shows beside one that was not.

    Args:
        calm: the training that nothing was done to.
        struck: the one with the fault.
        fault: what was done.
        second: another one that nothing was done to; it tells how far such runs differ.
    """
    if struck.struck_at is None:
        text = f"the training ended before step {fault.step:g}, so nothing was done to it"
        return Verdict(
            str(fault), UNKNOWN, (Finding("not_struck", text, "choose an earlier step with --at, or train longer"),)
        )
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
        self._source = source_of(calm)
        self._unit = "epoch" if self._source == "epochs" else "step"
        self._before = _lives_until(struck, self._source, self._at)
        self._returns = [each for task in self._before if (each := self._return_of(task)) is not None]
        first_step = min((each.first.time for each in self._returns), default=math.inf)
        self._files = SavedFiles(struck.files or (), self._at, first_step)

    def findings(self) -> Iterator[Finding]:
        """Yield what is to be said, the main thing first."""
        exits = [code for task, code, at in self._struck.exits if task in self._fault.tasks and at >= self._at]
        if self._fault.kind == "term" and exits[:1] == [0]:
            who = self._fault.tasks[0]
            yield Finding("exits_0", f"{who} exited with 0 at TERM, so it was not started again", REMEDIES["exits_0"])
            return
        if self._struck.is_late:
            text = "the job did not end: it was stopped after several times as long as the undisturbed one took"
            yield Finding("not_recovered", text, REMEDIES["not_recovered"])
        elif self._struck.result.exit_code != 0 and not self._struck.is_stopped:
            read = self._files.read_after()
            after = f", after it had read {read[-1]}" if read else ""
            why = self._struck.result.summary.partition("\n")[0]
            yield Finding("not_recovered", f"the job did not recover{after}: {why}", REMEDIES["not_recovered"])
        yield from self._places()
        yield from self._writing()
        yield from self._ends()

    # ---- where it went on

    def _return_of(self, task: str) -> Return | None:
        lives = self._struck.trails[task].get(self._source, ())
        before = self._before[task]
        later = [life for life in lives if life.attempt > before.attempt and life.points]
        began = self._calm.trails[task].get(self._source, ())
        if not later or not before.points or not began or not began[0].points:
            return None
        reached = max(point.step for point in before.points)
        return Return(task, began[0].points[0], reached, later[0].points[0])

    def _places(self) -> Iterator[Finding]:
        if not self._returns:
            yield from self._without_return()
            return
        places = {each.task: each.resumed_at for each in self._returns}
        reached = max(each.reached for each in self._returns)
        lowest, highest = min(places.values()), max(places.values())
        if highest - lowest > self._coarseness():
            text = ", ".join(f"{task} at {self._unit} {max(place, 0):g}" for task, place in places.items())
            yield Finding("tasks_differ", f"the tasks resumed at different places: {text}", REMEDIES["tasks_differ"])
            return
        took = duration_words(max(min(each.first.time for each in self._returns) - self._at, 0))
        if reached <= self._returns[0].began.step:
            text = f"too few {self._unit}s were seen before the fault to tell where it went on"
            yield Finding("not_seen", text, "print or report every step, or train longer", is_fault=False)
            return
        if lowest <= 0:
            yield self._began_again(took)
            return
        read = self._files.read_after()
        source = f" from {read[-1]}" if read else ""
        lost = max(reached - lowest, 0)
        text = f"resumed at {self._unit} {lowest:g}{source}; {self._counted(lost)} lost, and it took {took}"
        yield Finding("resumed", text, is_fault=False)
        yield from self._losses()

    def _counted(self, steps: float) -> str:
        return counted(int(steps), self._unit)

    def _coarseness(self) -> float:
        """Return how far apart the steps are that a task tells of."""
        life = next(iter(self._before.values()))
        gaps = [after.step - before.step for before, after in zip(life.points, life.points[1:], strict=False)]
        coarse = statistics.median(gaps) if gaps else 1.0
        return max(coarse, 1.0) * (3 if self._source == "reports" else 1)

    def _without_return(self) -> Iterator[Finding]:
        """Judge a training of which no task that tells steps was started again."""
        on = [
            (task, life.points[-1].step - before.points[-1].step)
            for task, before in self._before.items()
            for life in self._struck.trails[task].get(self._source, ())
            if before.points and life.attempt == before.attempt and life.points
        ]
        further = max((steps for _, steps in on), default=0)
        if further > 0 and (self._struck.result.exit_code == 0 or self._struck.is_stopped):
            who = next(task for task, steps in on if steps == further)
            text = f"{who} went on without a restart, {self._counted(further)} further"
            yield Finding("resumed", text, is_fault=False)
        elif self._struck.result.exit_code == 0 or self._struck.is_stopped:
            text = f"no {self._unit} was seen after the fault, so where it went on is unknown"
            yield Finding("not_seen", text, is_fault=False)

    def _began_again(self, took: str) -> Finding:
        """Say why a training began from the start."""
        again = f"it began again from the start after {took}"
        if self._struck.files is None:
            text = f"{again}; which checkpoints were written and read on other hosts is unknown"
            return Finding("began_again", text, REMEDIES["began_again"])
        written, read = self._files.states_before(), self._files.states_read()
        if not written:
            later = [event.time for event in self._calm.files or () if is_state(event.path)]
            if later and (step := _step_at(self._calm, self._source, min(later))):
                text = (
                    f"{again}: no checkpoint was written before the fault, the first one comes at {self._unit} {step:g}"
                )
                return Finding("none_before", text, REMEDIES["none_before"])
            steps = self._counted(max(each.reached for each in self._returns))
            text = f"{again}: no checkpoint was written in its directory in {steps}"
            return Finding("no_checkpoint", text, REMEDIES["no_checkpoint"])
        if not read:
            other = self._files.states_after()
            first, then = posixpath.dirname(written[-1]), posixpath.dirname(other[0]) if other else ""
            if other and first != then and not {posixpath.dirname(path) for path in written} & {then}:
                text = f"{again}: it saved to {first or '.'} before the fault, and to {then or '.'} after it"
                return Finding("other_directory", text, REMEDIES["other_directory"])
            text = f"{again}: no checkpoint was read, though {written[-1]} had been written"
            return Finding("never_read", text, REMEDIES["never_read"])
        first_step = min(each.first.time for each in self._returns)
        if min(self._files.read_times(read)) > first_step + _CLOCKS:
            text = f"{again}: {read[0]} was read only after the first {self._unit}"
            return Finding("read_late", text, REMEDIES["read_late"])
        if self._is_trained():
            text = f"the count of {self._unit}s began again though {read[-1]} was read and its weights were used"
            return Finding("counter", text, REMEDIES["counter"])
        text = f"{again}, though {read[-1]} was read: what was read was not used"
        return Finding("not_used", text, REMEDIES["not_used"])

    def _is_trained(self) -> bool:
        """Whether the first losses after the restart are those of a trained model rather than of a new one."""
        for each in self._returns:
            new = each.began.loss
            old = next((p.loss for p in reversed(self._before[each.task].points) if p.loss is not None), None)
            if new is not None and old is not None and each.first.loss is not None and new != old:
                return abs(each.first.loss - old) < abs(each.first.loss - new)
        return True  # it says no loss

    # ---- what it computes

    def _losses(self) -> Iterator[Finding]:
        """Compare the losses after the restart with those of the training that nothing was done to."""
        compared = [(pairs, spread) for each in self._returns if (pairs := self._pairs(each))
                    if len(pairs) >= _FEWEST and (spread := self._spread(each.task)) is not None]  # fmt: skip
        if not compared:
            text = "too few losses were seen to compare, so the loss of the optimizer's state would not show"
            yield Finding("not_compared", text, "print the loss of each step, or train longer", is_fault=False)
        for pairs, spread in compared:
            limits = [max(_BEYOND * spread, _TOLERANCE) * max(abs(calm.loss or 0), 1e-6) for calm, _ in pairs]
            gaps = [abs((struck.loss or 0) - (calm.loss or 0)) for calm, struck in pairs]
            beyond = [gap > limit for gap, limit in zip(gaps, limits, strict=True)]
            if sum(beyond) <= len(beyond) / 2:
                continue
            worst = max(range(len(gaps)), key=lambda index: gaps[index] / limits[index])
            calm, struck = pairs[worst]
            where = f"at {self._unit} {calm.step:g} it is {struck.loss:.4g} instead of {calm.loss:.4g}"
            yield from self._explain_losses(pairs, beyond[0], where)
            return

    def _pairs(self, back: Return) -> list[tuple[Point, Point]]:
        """Return the points of both trainings at equal steps, from the restart on; means of whole epochs only."""
        calm = _by_step(self._calm.trails[back.task].get(self._source, ()))
        lives = self._struck.trails[back.task].get(self._source, ())
        later = _by_step([life for life in lives if life.attempt > self._before[back.task].attempt])
        whole = [point for step, point in later.items() if step in calm and step - point.mean_of >= back.resumed_at]
        return [(calm[point.step], point) for point in whole]

    def _spread(self, task: str) -> float | None:
        """Return how far losses of equal steps differ where nothing was done, as a share; None if unknown."""
        calm = _by_step(self._calm.trails[task].get(self._source, ()))
        others = [_by_step([self._before[task]])]
        if self._second is not None:
            others.append(_by_step(self._second.trails[task].get(self._source, ())))
        shares = [
            abs((point.loss or 0) - (calm[step].loss or 0)) / max(abs(calm[step].loss or 0), 1e-6)
            for other in others
            for step, point in other.items()
            if step in calm
        ]
        return max(shares) if len(shares) >= _FEWEST else None

    def _explain_losses(self, pairs: Sequence[tuple[Point, Point]], is_first: bool, where: str) -> Iterator[Finding]:
        """Say which part of the state was lost, as far as the losses tell.

        The first loss after a restart is that of the restored weights, on the next data: only what comes later depends
        on the optimizer. Means of epochs do not tell a lost state from another order of the same data.
        """
        rates = [(a.rate, b.rate) for a, b in pairs if a.rate is not None and b.rate is not None]
        if rates and sum(abs(a - b) > _TOLERANCE * abs(a) for a, b in rates) > len(rates) / 2:
            text = f"the learning rate began again: it is {rates[0][1]:.4g} instead of {rates[0][0]:.4g}"
            yield Finding("rate", text, REMEDIES["rate"])
        elif self._struck.saves_optimizer is False:
            text = f"the optimizer's state was lost: the checkpoint has weights only, and the loss differs: {where}"
            yield Finding("weights_only", text, REMEDIES["weights_only"])
        elif pairs[0][0].mean_of:
            text = f"the optimizer's state was lost, or the data came in another order: the loss differs: {where}"
            yield Finding("differs", text, REMEDIES["optimizer"], is_fault=False)
        elif not is_first:
            text = f"the optimizer's state was lost: the first loss is right, and later ones differ: {where}"
            yield Finding("optimizer", text, REMEDIES["optimizer"])
        else:
            text = f"other data came than without the fault (seen twice, or left out): the loss differs: {where}"
            yield Finding("data", text, REMEDIES["data"])

    # ---- how it saves, and how it ended

    def _writing(self) -> Iterator[Finding]:
        for path, tasks in self._files.shared():
            who = f" ({', '.join(sorted(tasks))})" if len(tasks) > 1 else ""
            text = f"several tasks write {path}{who}"
            yield Finding("several_writers", text, REMEDIES["several_writers"])
            break
        read = [path for path in self._files.states_read() if self._files.is_written_in_place(path)]
        if read:
            text = f"{read[0]} is written in place: a kill while it is written leaves half of it"
            yield Finding("in_place", text, REMEDIES["in_place"], is_fault=False)
        if self._fault.kind == "term" and self._struck.files is not None:
            back = min((each.first.time for each in self._returns), default=self._at + 10)
            if not any(self._at <= time < back for time in self._files.write_times()):
                text = "TERM was not used to save: no checkpoint was written after it"
                yield Finding("term", text, REMEDIES["term"], is_fault=False)

    def _ends(self) -> Iterator[Finding]:
        """Compare where both trainings ended, if both went to their end."""
        if self._struck.is_stopped or self._struck.result.exit_code or self._calm.is_stopped:
            return
        for task in self._before:
            calm, struck = (_last(each.trails[task].get(self._source, ())) for each in (self._calm, self._struck))
            if calm is None or struck is None:
                continue
            if abs(calm.step - struck.step) > self._coarseness():
                text = f"{task} ended at {self._unit} {struck.step:g} instead of {calm.step:g}"
                yield Finding("other_end", text, REMEDIES["counter"])
                return
            spread = self._spread(task)
            if spread is None or calm.loss is None or struck.loss is None or self._second is None:
                continue
            if abs(calm.loss - struck.loss) > max(_BEYOND * spread, _TOLERANCE) * abs(calm.loss):
                text = f"the end differs by more than two undisturbed runs do: a loss of {struck.loss:.4g} instead of"
                yield Finding("end", f"{text} {calm.loss:.4g}", REMEDIES["data"])
                return


def source_of(rehearsal: Rehearsal) -> str:
    """Return the most detailed source that tells of a training's steps; "" if none does."""
    trails = [trail for task, trail in rehearsal.trails.items() if not is_evaluator(task)]
    return next((name for name in SOURCES if any(life.points for trail in trails for life in trail.get(name, ()))), "")


def steps_of(rehearsal: Rehearsal) -> tuple[float, float]:
    """Return the first and the last step of a training; 0 for both if none was seen."""
    trails = [trail.get(source_of(rehearsal), ()) for trail in rehearsal.trails.values()]
    steps = [point.step for lives in trails for life in lives for point in life.points]
    return min(steps, default=0.0), max(steps, default=0.0)


def _lives_until(rehearsal: Rehearsal, source: str, at: float) -> Mapping[str, Life]:
    """Return the attempt of each task that ran when it was struck, up to that moment."""
    found = {}
    for task, trail in rehearsal.trails.items():
        lives = [life for life in trail.get(source, ()) if life.points and life.points[0].time <= at]
        if lives and not is_evaluator(task):
            points = tuple(point for point in lives[-1].points if point.time <= at)
            found[task] = lives[-1]._replace(points=points)
    return found


def _by_step(lives: Sequence[Life]) -> dict[float, Point]:
    """Return the points with a loss by their steps; of means within an epoch, only those of whole epochs."""
    points = [point for life in lives for point in life.points if point.loss is not None]
    return {point.step: point for point in points if not point.mean_of or point.step % point.mean_of == 0}


def _last(lives: Sequence[Life]) -> Point | None:
    return lives[-1].points[-1] if lives and lives[-1].points else None


def _step_at(rehearsal: Rehearsal, source: str, time: float) -> float:
    """Return the step that a training had reached at a time."""
    points = [point for trail in rehearsal.trails.values() for life in trail.get(source, ()) for point in life.points]
    return max((point.step for point in points if point.time <= time), default=0.0)
