"""How tflaunch starts further Python processes of its own, and ends them.

They import from where this process does, and never from their working directory, in which a module of any name may lie:
another user's `json.py`, or one's own `queue.py`.
"""

import contextlib
import os
import subprocess
import sys

import tflaunch
import tflaunch_worker
from tflaunch.errors import EXIT_INTERNAL, TflaunchError

_END_PATIENCE = 2.0  # seconds
_COMMAND_LINE = "sys.argv[0] = 'tflaunch'; from tflaunch.__main__ import main; main()"


def own_command(*words: str) -> list[str]:
    """Return the command of tflaunch's command line; raises as `own_process`."""
    return own_process(_COMMAND_LINE, *words)


def own_process(program: str, *arguments: str) -> list[str]:
    """Return the command of a Python process.

    Args:
        program: statements of Python, which find `sys` imported.
        arguments: what it finds in ``sys.argv[1:]``.

    Raises:
        TflaunchError: this process does not know its interpreter.
    """
    if not sys.executable:
        raise TflaunchError("Python does not know its own path (sys.executable); use the command line", EXIT_INTERNAL)
    homes = [os.path.dirname(next(iter(package.__path__))) for package in (tflaunch, tflaunch_worker)]
    path = list(dict.fromkeys([*filter(None, sys.path), *homes]))
    # -I keeps out the working directory, and settings by which another program would be run; the rest is given.
    return [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path!a}; {program}", *arguments]


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a child process, with KILL if it does not act on TERM within two seconds."""
    process.terminate()
    try:
        process.wait(_END_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may wait in the kernel, for a dead disk
            process.wait(_END_PATIENCE)
