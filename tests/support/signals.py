"""Signals by what they do to a process that does nothing about them, as signal(7) says, not as our code does."""

import signal

from support.launch import LONG

_RT = (34, 64) if not LONG else tuple(range(34, 65))  # 32 and 33 are the C library's own
WARNINGS = tuple(
    signal.Signals[f"SIG{name}"] for name in ("ALRM", "IO", "PROF", "PWR", "USR1", "USR2", "VTALRM", "XCPU")
)
"""Those with a name that announce an end, or come from a timer; one of them may come again and again."""
ENDING = (signal.SIGTERM, signal.SIGQUIT, *WARNINGS, 16, *_RT)  # 16 is STKFLT, which Python names since 3.11
"""They end a process and say nothing against it."""
SOME_ENDING = ENDING if LONG else (signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU)
"""Our processes have one list of them all, which tests/cli/test_signals.py compares with this one."""
SURVIVED = tuple(signal.Signals[f"SIG{name}"] for name in ("CHLD", "CONT", "PIPE", "URG", "WINCH", "XFSZ"))
"""They do nothing, or Python ignores them."""
FAULTS = tuple(signal.Signals[f"SIG{name}"] for name in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP"))
"""The kernel sends them to a program that is broken."""
OTHERS = tuple(signal.Signals[f"SIG{name}"] for name in ("HUP", "INT", "KILL", "STOP", "TSTP", "TTIN", "TTOU"))
"""Those of terminals, and two that no process can do anything about."""
