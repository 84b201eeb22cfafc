"""The meaning of each signal to each process of ours: docs/supervision.md#signals.

`FAULTS` are the kernel's word that the program is broken. `ENDING` is every other signal whose default is to end a
process: TERM, QUIT and the `WARNINGS`, with which schedulers announce an end (`sbatch --signal`, `qsub -notify`) and
the kernel a limit. Each of our processes treats these as it treats TERM. INT and HUP come from terminals; Python
ignores PIPE and XFSZ, and raises an exception instead.
"""

from __future__ import annotations

import signal

FAULTS = frozenset(
    (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP)
)
OF_TERMINALS = frozenset((signal.SIGINT, signal.SIGHUP))
OF_PYTHON = frozenset((signal.SIGPIPE, signal.SIGXFSZ))
CATCHABLE = frozenset(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}  # their default is to do nothing
_STOPPING = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
ENDING = CATCHABLE - FAULTS - OF_TERMINALS - OF_PYTHON - _HARMLESS - _STOPPING
WARNINGS = ENDING - {signal.SIGTERM, signal.SIGQUIT}


def number_of(name: str) -> int | None:
    """Return the number of a signal named as INT or SIGINT; None for no such signal."""
    found = getattr(signal, f"SIG{name.upper().replace('SIG', '', 1)}", None)
    return int(found) if isinstance(found, signal.Signals) else None


def ending_here() -> list[int]:
    """Return `ENDING` and HUP, except those that this process ignores, as by `nohup`."""
    return [number for number in (*ENDING, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


def asks_more(number: int, came: list[int]) -> bool:
    """Add a signal; return whether it asks for more, as a second Ctrl-C does.

    Not so a warning, which the kernel sends once a second (XCPU), nor the TERM that a warning has announced.
    """
    if came and number in WARNINGS:
        return False
    if came and came[-1] in WARNINGS and number == signal.SIGTERM:
        came[-1] = number
        return False
    came.append(number)
    return True
