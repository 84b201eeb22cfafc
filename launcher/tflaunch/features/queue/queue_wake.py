"""Start the process that begins the runs of the local queue (see `queue_dispatcher`), if there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.queue import run_queue
from tflaunch.store.run_dir import home
from tflaunch_worker import linux

IMPORT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tflaunch.features.queue import queue_dispatcher; "
)
"""The beginning of a program whose first argument is where it searches modules."""
_PROGRAM = f"import os; os.fork() and os._exit(0); {IMPORT}queue_dispatcher.main()"
_LOG_NAME = "dispatcher.log"
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def ensure_dispatcher() -> None:
    """Start a dispatcher if runs wait and there is none; return at once.

    Raises:
        TflaunchError: it cannot be started.
    """
    if not run_queue.has_entries() or has_dispatcher():
        return
    if not sys.executable:
        raise TflaunchError("Python does not know its own path (sys.executable); use the command line", EXIT_INTERNAL)
    try:
        log = os.open(run_queue.queue_directory() / _LOG_NAME, _LOG_FLAGS, 0o600)
        try:
            subprocess.run(  # ends at once: the dispatcher is its child, so that no process here has to wait for it
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)],
                env={**os.environ, "TFLAUNCH_HOME": str(home())},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise TflaunchError(f"the queue's dispatcher cannot be started: {error}", EXIT_INTERNAL) from None


def has_dispatcher() -> bool:
    """Return whether a process begins the runs of the queue."""
    return linux.is_lock_free(str(run_queue.queue_directory() / run_queue.DISPATCHER_LOCK)) is False
