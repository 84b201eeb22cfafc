"""Where a training was and when, read from the output of its tasks.

Steps are read from the bars of Keras and tqdm, and from lines such as ``epoch 2 step 120: loss 0.31, lr 0.001``, which
`tflaunch_worker.training.report` prints in a drill. If nothing names a step, epochs count.
"""

import itertools
import re
from collections.abc import Sequence

from tflaunch.features.drill.records import BESTS, SOURCES, Life, Point, most_detailed
from tflaunch.store.log_index import IndexReader
from tflaunch.store.log_writer import OURS, path_of, read_marks, times_of
from tflaunch.store.run_dir import RunDirectory
from tflaunch_worker.agent.last_output import Shown, read_bars

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?)"
_LOSS = re.compile(rf"\b(?:train(?:ing)?[ _/])?loss\b\W{{0,3}}{_NUMBER}", re.IGNORECASE)
_WITH_LOSS = re.compile(r"loss\b", re.IGNORECASE)
_RATE = re.compile(rf"\b(?:lr|learning[ _]rate)\b\W{{0,3}}{_NUMBER}", re.IGNORECASE)
_COUNT = r"(\d{1,3}(?:,\d{3})+|\d{1,9})\b"
_EPOCH = re.compile(rf"\bepoch\b\W{{0,3}}{_COUNT}", re.IGNORECASE)
_STEP = re.compile(rf"\b(?:global[ _])?(?:step|iter(?:ation)?|batch)\b\W{{0,3}}{_COUNT}", re.IGNORECASE)
_TQDM = re.compile(r"\| (\d{1,9})/(\d{1,9}) \[\d+:\d\d")
# Beside a loss, a step may stand anywhere; a line without one, such as "restored from step 100", must begin with it.
_BEGINS = re.compile(r"\s*(?:\[[^\]]*\]\s*|[\w:./-]+[:|]\s+)*(?:epoch|step|global[ _]step|iter)", re.IGNORECASE)
# What an evaluator calls its best metric, which is no step: "new best accuracy: 0.81", "best val_loss=0.3 at step 40".
_BEST = re.compile(rf"\bbest\b(?:(?!step|epoch|ckpt|checkpoint)[^\d+-]){{0,40}}(?<![\w.]){_NUMBER}", re.IGNORECASE)
_TOKEN = re.compile(rb"[\r\n\b][^\r\n\b]*(?=[\r\n\b])")
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")


class Trail:
    """What is known of the steps of one task, from sources of different detail."""

    def __init__(self, task: str, run: RunDirectory, per_epoch: float = 0.0) -> None:
        """Begin to follow a task; ``per_epoch``: `steps_per_epoch` of another run."""
        self.per_epoch = per_epoch
        self._task = task
        self._log = path_of(run.logs, task)
        self._marks = run.marks
        self._index = IndexReader(times_of(run.times, task))
        self._offset = 0
        self._attempt = -1
        self._shown = Shown()
        self._heading: float | None = None  # the epoch of the last line that names one, and no loss
        self._lives: dict[str, dict[int, list[Point]]] = {source: {} for source in (*SOURCES, BESTS)}

    def source(self) -> str:
        """Return the source with most points, "" if there is none."""
        return most_detailed({name: self.lives(name) for name in SOURCES})

    def lives(self, source: str) -> tuple[Life, ...]:
        """Return the attempts as ``source`` shows them; steps count from the beginning.

        There are none if steps begin again within the first, in epochs without a number or in another `fit`.
        """
        if source == "epochs" and self._lives["bars"]:
            return ()  # it has the headings only
        lives = in_one_count([Life(attempt, tuple(points)) for attempt, points in sorted(self._lives[source].items())])
        self.per_epoch = self.per_epoch or steps_per_epoch(lives)
        first = 0.0 if any(point.epoch == 0 for life in lives for point in life.points) else 1.0
        placed_lives = tuple(placed(life, self.per_epoch, first) for life in lives)
        return () if any(map(begins_again, placed_lives[:1])) else placed_lives

    def read(self, *, is_over: bool = False) -> None:
        """Read the task's new output; ``is_over``: the last line may lack its end."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return  # it has written nothing yet
        data += b"\n" if is_over else b""
        marks = [mark for mark in read_marks(self._marks) if mark.task == self._task]
        clock = self._index.clock(self._offset)
        end = 0
        for token in _TOKEN.finditer(b"\n" + data):
            at = self._offset + token.start()  # where its text begins, after what delimits it
            end = token.end()  # of the token, in what follows the line break that we have put before it
            attempt = next((mark.attempt for mark in reversed(marks) if mark.at <= at), 0)
            if attempt != self._attempt:
                self._attempt, self._shown, self._heading = attempt, Shown(), None
            self._take(_COLORS.sub(b"", token[0]), clock.at(at))
        self._offset += max(end - 1, 0)

    def _take(self, token: bytes, time: float) -> None:
        before, self._shown = self._shown, read_bars(self._shown, token + b"\n")
        shown = self._shown
        if shown is not before and shown.done:  # a bar
            is_new = (shown.epoch, shown.done, shown.metrics) != (before.epoch, before.done, before.metrics)
            if is_new and shown.epochs is not None:  # else no epoch was named yet: it is that of an evaluation
                metrics = shown.metrics
                done = float((shown.epoch - 1) * shown.steps + shown.done)
                rate = metrics.get("learning_rate", metrics.get("lr"))
                of = shown.epochs * shown.steps
                self._add("bars", Point(time, done, None, metrics.get("loss"), rate, shown.steps, of))
            return
        text = token.decode("utf-8", "replace").strip("\r\n\b")
        if (best := _number(_BEST, text)) is not None:
            self._add(BESTS, Point(time, 0.0, None, best))
        loss, rate = _number(_LOSS, text), _number(_RATE, text)
        bar = _TQDM.search(text)
        if text.startswith(OURS) or not (bar or _WITH_LOSS.search(text) or _BEGINS.match(text)):
            return
        epoch, step = _number(_EPOCH, text), float(bar[1]) if bar else _number(_STEP, text)
        if step is not None:
            of = int(bar[2]) if bar else 0
            self._add("steps", Point(time, step, self._heading if epoch is None else epoch, loss, rate, of=of))
        elif epoch is not None:
            self._heading = epoch if loss is None else None
            self._add("epochs", Point(time, epoch, None, loss, rate))

    def _add(self, source: str, point: Point) -> None:
        self._lives[source].setdefault(self._attempt, []).append(point)


def in_one_count(lives: Sequence[Life]) -> list[Life]:
    """Return lives without the shorter bars, such as those of a validation.

    A bar of what was left to do, after a restart, counts on from what had been done.
    """
    counted: list[Life] = []
    of_first = 0
    for life in lives:
        of = max(point.of for point in life.points)
        of_first = of_first or of
        begins = next(point for point in life.points if point.of == of)
        done = max(of_first - of, 0) if of and begins.step <= begins.mean_of else 0
        points = (each._replace(step=each.step + done * (each.of > 0)) for each in life.points if each.of in (0, of))
        counted.append(life._replace(points=tuple(points)))
    return counted


def begins_again(life: Life) -> bool:
    """Return whether the steps of an attempt come back later to its first one."""
    steps = [point.step for point in life.points]
    return any(after < before and after <= steps[0] for before, after in itertools.pairwise(steps))


def steps_per_epoch(lives: Sequence[Life]) -> float:
    """Return how many steps an epoch has, if the steps of each begin again; else 0."""
    for life in lives:
        for before, after in itertools.pairwise(life.points):
            if before.epoch is not None and after.epoch is not None and after.epoch > before.epoch:
                if after.step <= before.step:
                    counted_from = min(point.step for point in life.points)
                    return max(point.step for point in life.points) + 1 - min(counted_from, 1)
                return 0.0
    return 0.0


def placed(life: Life, per_epoch: float, first_epoch: float) -> Life:
    """Return a life whose steps count from the beginning of the training."""
    if not per_epoch:
        return life
    before = (0 if point.epoch is None else (point.epoch - first_epoch) * per_epoch for point in life.points)
    moved = (
        point._replace(step=point.step + more, epoch=None) for point, more in zip(life.points, before, strict=True)
    )
    return life._replace(points=tuple(moved))


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1].replace(",", "")) if match else None
