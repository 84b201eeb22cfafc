"""Say what the losses of a training tell after a fault. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence

from tflaunch.features.drill.findings import Finding, finding_of
from tflaunch.features.drill.records import Life, Point, Rehearsal

_TOLERANCE = 0.005  # of a loss; programs print a few digits only
_BEYOND = 3.0  # times the spread of undisturbed runs
_FEWEST = 3  # losses that say something together
_EARLY = 10  # losses after a restart, in which a lost state shows


class Losses:
    """The losses of two trainings.

    Trainings that differ by themselves, as by sums of threads or another order of the data, do so more and more.
    """

    def __init__(
        self, calm: Rehearsal, struck: Rehearsal, second: Rehearsal | None, before: Mapping[str, Life], source: str
    ) -> None:
        """Compare what ``source`` tells; ``before``: the attempts up to the fault."""
        self._calm, self._struck, self._second = calm, struck, second
        self._before = before
        self._source = source

    def findings(self, lowest: Mapping[str, float], unit: str) -> Iterator[Finding]:
        """Compare them after the restart, from the ``lowest`` step of each task on."""
        compared = [(pairs, spread) for task in lowest if (pairs := self._pairs(task, lowest[task]))
                    if len(pairs) >= _FEWEST and (spread := self._spread(task)) is not None]  # fmt: skip
        if not compared:
            text = "too few losses were seen to compare, so the loss of the optimizer's state would not show"
            yield finding_of("not_compared", text)
        for pairs, spread in compared:
            shares = [_difference(*pair) for pair in pairs]
            beyond = [share > _limit(spread) for share in shares]
            early = beyond[: min(math.ceil(len(beyond) / 2), _EARLY)]  # what differs later may do so by itself
            needed = 1 if spread < _TOLERANCE else max(len(early) / 2, _FEWEST + 1)
            if sum(beyond) > len(beyond) / 2 and sum(early) >= needed:
                calm, struck = pairs[shares.index(max(shares))]
                where = f"at {unit} {calm.step:g} it is {struck.loss:.4g} instead of {calm.loss:.4g}"
                yield self._explain(pairs, beyond[0], where)
                return

    def are_apart(self, task: str, calm: Point, struck: Point) -> bool:
        """Return whether two losses differ by more than those of undisturbed trainings."""
        spread = self._spread(task)
        if spread is None or calm.loss is None or struck.loss is None:
            return False
        return _difference(calm, struck) > _limit(spread)

    def _pairs(self, task: str, lowest: float) -> list[tuple[Point, Point]]:
        """Return points at equal steps since the restart; means of whole epochs only."""
        calm = _by_step(self._calm.lives(task, self._source))
        lives = self._struck.lives(task, self._source)
        later = _by_step([life for life in lives if life.attempt > self._before[task].attempt])
        whole = [point for step, point in later.items() if step in calm and step - point.mean_of >= lowest]
        return [(calm[point.step], point) for point in whole]

    def _spread(self, task: str) -> float | None:
        """Return how far undisturbed losses differ, as a share; None if unknown."""
        calm = _by_step(self._calm.lives(task, self._source))
        others = [_by_step([self._before[task]])]
        if self._second is not None:
            others.append(_by_step(self._second.lives(task, self._source)))
        shares = [_difference(calm[step], other[step]) for other in others for step in other if step in calm]
        return max(shares) if len(shares) >= _FEWEST else None

    def _explain(self, pairs: Sequence[tuple[Point, Point]], is_first: bool, where: str) -> Finding:
        """Say which part of the state was lost, as far as the losses tell.

        The first loss after a restart is that of the restored weights, on the next data: only what comes later depends
        on the optimizer. Means of epochs do not tell a lost state from another order of the same data.
        """
        rates = [(a.rate, b.rate) for a, b in pairs if a.rate is not None and b.rate is not None]
        lost = "the optimizer's state was lost"
        if rates and sum(abs(a - b) > _TOLERANCE * abs(a) for a, b in rates) > len(rates) / 2:
            calm, struck = rates[0]
            return finding_of("rate", f"the learning rate began again: it is {struck:.4g} instead of {calm:.4g}")
        if self._struck.saved is not None and not self._struck.saved.has_optimizer:
            return finding_of("weights_only", f"{lost}: the checkpoint has weights only, and the loss differs: {where}")
        if pairs[0][0].mean_of:
            return finding_of("differs", f"{lost}, or the data came in another order: the loss differs: {where}")
        if not is_first:
            return finding_of("optimizer", f"{lost}: the first loss is right, and later ones differ: {where}")
        other = "other data came than without the fault (seen twice, or left out)"
        return finding_of("data", f"{other}: the loss differs: {where}")


def _by_step(lives: Sequence[Life]) -> dict[float, Point]:
    """Return points with a loss by step; of means, only those of whole epochs."""
    points = [point for life in lives for point in life.points if point.loss is not None]
    return {point.step: point for point in points if not point.mean_of or point.step % point.mean_of == 0}


def _difference(calm: Point, other: Point) -> float:
    """Return how far a loss is from the undisturbed one, as a share of that."""
    right = calm.loss or 0
    return abs((other.loss or 0) - right) / max(abs(right), 1e-6)


def _limit(spread: float) -> float:
    return max(_BEYOND * spread, _TOLERANCE)
