"""Start the process that begins the runs of the local queue (see `queue_dispatcher`), if there is none."""

from __future__ import annotations

import os
import subprocess

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.queue import run_queue
from tflaunch.own_process import own_process
from tflaunch.store.run_dir import home
from tflaunch_worker import linux

_PROGRAM = (
    "import os; os.fork() and os._exit(0); "
    "from tflaunch.features.queue import queue_dispatcher; queue_dispatcher.main()"
)
_LOG_NAME = "dispatcher.log"
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def ensure_dispatcher() -> None:
    """Start a dispatcher if runs wait and there is none; return at once.

    Raises:
        TflaunchError: it cannot be started.
    """
    if not run_queue.has_entries() or has_dispatcher():
        return
    try:
        log = os.open(run_queue.queue_directory() / _LOG_NAME, _LOG_FLAGS, 0o600)
        try:
            subprocess.run(  # ends at once: the dispatcher is its child, so that no process here has to wait for it
                own_process(_PROGRAM),
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
