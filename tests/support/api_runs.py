"""Follow runs through the Python API."""

from collections.abc import Iterator

import tflaunch
from tflaunch.api.values import Event


def take_until(run: tflaunch.Run, kind: str, count: int) -> Iterator[Event]:
    """Yield events of a kind until there were as many as asked for."""
    for event in run.events():
        if event.kind == kind:
            yield event
            count -= 1
            if not count:
                return
