"""The shortest link: an agent on this machine, born with one end of a socket pair."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import tflaunch_worker
from tflaunch.hosts.link import LinkError

_BOOT = "import sys; sys.path.insert(0, {root!r}); from tflaunch_worker.guard import main; main()"
_LAST_WORDS = 300
_END_PATIENCE = 10.0


class LocalLink:
    """Starts the guard and the agent of a run on this machine."""

    def __init__(self, directory: Path, run: str) -> None:
        """Start them.

        Args:
            directory: an existing private directory for the agent's socket, spools and log.
            run: the run's name, shown in process lists.

        Raises:
            LinkError: the process could not be started.
        """
        self._directory = directory
        self._socket, theirs = socket.socketpair()
        root = str(Path(tflaunch_worker.__file__).parent.parent)
        # -I -S: nothing of the user's environment can change what the agent is or how fast it starts.
        argv = [sys.executable, "-I", "-S", "-c", _BOOT.format(root=root)]
        argv += [str(directory), str(theirs.fileno()), f"tflaunch-agent:{run}"]
        try:
            self._guard = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self._socket.close()
            raise LinkError(f"the agent cannot be started: {error}") from None
        finally:
            theirs.close()

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end."""
        return self._socket

    def close(self) -> str:
        """Hang up and wait for the guard, which outlives the agent and every task."""
        self._socket.close()
        if not self._has_guard_ended():
            return f"its guard (pid {self._guard.pid}) does not end"
        self._guard.wait()
        return self._last_words() or "it ended unexpectedly"

    def _has_guard_ended(self) -> bool:
        """Wait for the guard's end, within reason; `Popen.wait` with a timeout would poll."""
        descriptor = os.pidfd_open(self._guard.pid)
        try:
            return bool(select.select([descriptor], [], [], _END_PATIENCE)[0])
        finally:
            os.close(descriptor)

    def _last_words(self) -> str:
        """The last line of the agent's log: how a Python traceback ends."""
        try:
            lines = (self._directory / tflaunch_worker.LOG_NAME).read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip()[:_LAST_WORDS] for line in reversed(lines) if line.strip()), "")
