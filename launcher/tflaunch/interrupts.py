"""Have a signal end a process of ours as Ctrl-C does, without half a run."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time

from tflaunch_worker import signals

TYPE_CHECKING = False  # for the reason in `__init__.py`

if TYPE_CHECKING:
    from typing import Any

_PAUSE = 0.01  # seconds until an ignored interrupt is repeated


def repeat_ignored_interrupts() -> None:
    """Interrupt again if Python ignores Ctrl-C, as in callbacks of import locks."""
    sys.unraisablehook = _repeat_interrupt


def interrupt_at_end() -> list[int]:
    """Raise KeyboardInterrupt at the first ending signal; return the list with it.

    A second TERM or QUIT kills. A second warning does nothing: the kernel sends XCPU each second.
    """
    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        if came:
            return
        came.append(number)
        for insistent in signals.ENDING - signals.WARNINGS:
            signal.signal(insistent, signal.SIG_DFL)
        raise KeyboardInterrupt

    for number in signals.ending_here():
        signal.signal(number, interrupt)
    return came


def _repeat_interrupt(unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_soon, ())
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_soon() -> None:
    time.sleep(_PAUSE)  # the callback is over by then
    os.kill(os.getpid(), signal.SIGINT)
