"""Start the process that begins the runs of the local queue (see `queue_dispatcher`), if there is none."""

from __future__ import annotations

import os
import signal
import subprocess

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.queue import run_queue
from tflaunch.own_process import own_process
from tflaunch.store.run_dir import home
from tflaunch_worker import linux, procfs
from tflaunch_worker.printable import printable

_PROGRAM = (
    "import os; os.fork() and os._exit(0); "
    "from tflaunch.features.queue import queue_dispatcher; queue_dispatcher.main()"
)
_STARTS_WITHIN = 60.0  # seconds
_LOG_NAME = "dispatcher.log"
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def ensure_dispatcher() -> bool:
    """Start a dispatcher if runs wait and there is none, and return whether; do not wait for it.

    Raises:
        TflaunchError: it cannot be started.
    """
    if not run_queue.has_entries():
        return False
    if has_dispatcher():
        _end_stopped_dispatcher()
        return False
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
                timeout=_STARTS_WITHIN,
            )
        finally:
            os.close(log)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TflaunchError(f"the queue's dispatcher cannot be started: {error}", EXIT_INTERNAL) from None
    return True


def describe_failure() -> str:
    """Return that dispatchers end at their start, with the last line that they have written."""
    path = run_queue.queue_directory() / _LOG_NAME
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    said = printable(next((line.strip() for line in reversed(lines) if line.strip()), "nothing"), 300)
    return f"the queue's dispatcher ends as soon as it starts, and says in {path}: {said}"


def has_dispatcher() -> bool:
    """Return whether a process begins the runs of the queue."""
    return linux.is_lock_free(str(run_queue.queue_directory() / run_queue.DISPATCHER_LOCK)) is False


def _end_stopped_dispatcher() -> None:
    """Kill a dispatcher that a signal has stopped; the next look starts another, and no run is lost."""
    pid = int(procfs.read(str(run_queue.queue_directory() / run_queue.DISPATCHER_LOCK)) or 0)
    if procfs.is_stopped(pid) and "queue_dispatcher" in (procfs.read(f"/proc/{pid}/cmdline") or ""):
        os.kill(pid, signal.SIGKILL)
