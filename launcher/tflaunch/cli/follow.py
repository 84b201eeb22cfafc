"""Follow a run of another process as if it had been started in this terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tflaunch.cli.arguments.spec import say
from tflaunch.client import control_client
from tflaunch.client.follow import Follower, watch_to_end
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation
from tflaunch.errors import TflaunchError
from tflaunch.interruptible import handle_signals
from tflaunch.tui.screen import Screen
from tflaunch_worker import signals


def follow_run(location: RunLocation, is_verbose: bool, is_quiet: bool, is_folding: bool | None) -> int:
    """Show a run as `up` does, until it has ended; return its exit code.

    Ctrl-C stops it, or takes it out of its queue.
    """

    def watch(observer: Observer) -> int:
        screen = Screen(observer.tasks, is_verbose, is_quiet, is_folding)
        try:
            return Follower(observer, screen).run(None)
        finally:
            screen.close()

    with interrupts_stop([location.directory]) as interrupts:
        try:
            code = watch_to_end(location, say, watch)
        except TflaunchError as error:
            if not interrupts:
                raise
            say(str(error))
            code = error.exit_code
    return 128 + interrupts[0] if interrupts and code != 0 else code


@contextmanager
def interrupts_stop(directories: Sequence[Path]) -> Iterator[list[int]]:
    """Make Ctrl-C and `signals.ENDING` stop runs as in `up`; yield those that came.

    The last run is stopped first, so that none of them begins because another one has ended.
    """
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not signals.asks_more(number, seen):
            return
        for directory in reversed(directories):
            control_client.request_stop(directory, 0 if len(seen) > 1 else None, number)

    with handle_signals((signal.SIGINT, *signals.ENDING), stop):
        yield seen
