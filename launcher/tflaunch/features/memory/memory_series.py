"""A short history of one figure, such as a task's memory: fine only at its end."""

Points = list[tuple[float, float]]

MOST = 64
"""Maximum number of points."""

_COARSE = 40  # of them, whose distance grows


class MemorySeries:
    """At most `MOST` points (seconds, bytes): recent ones all, earlier ones sparsely."""

    def __init__(self) -> None:
        self._coarse: Points = []
        self._fine: Points = []
        self._between = 0.0

    def add(self, at: float, value: float) -> None:
        """Add a point; ``at`` is later than those before."""
        self._fine.append((at, value))
        if len(self._fine) <= MOST - _COARSE:
            return
        oldest = self._fine.pop(0)
        if not self._coarse or oldest[0] - self._coarse[-1][0] >= self._between:
            self._coarse.append(oldest)
        if len(self._coarse) > _COARSE:
            del self._coarse[1::2]
            self._between = 1.5 * (self._coarse[-1][0] - self._coarse[0][0]) / len(self._coarse) / 2

    def points(self) -> Points:
        """Return the points, oldest first."""
        return [*self._coarse, *self._fine]
