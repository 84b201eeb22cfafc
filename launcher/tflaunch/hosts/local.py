"""The shortest link: an agent on this machine, born with one end of a socket pair."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import tflaunch_worker
from tflaunch.hosts.link import AgentGone, LinkError

_BOOT = "import sys; sys.path.insert(0, {root!r}); from tflaunch_worker.guard import main; main()"
_LAST_WORDS = 300
_END_PATIENCE = 10.0


class LocalWay:
    """Starts guard and agent of a run on this machine."""

    def __init__(self, directory: Path, run: str) -> None:
        """Prepare to start them.

        Args:
            directory: a private directory for the agent's socket, spools and log; made when it is missing.
            run: the run's name, shown in process lists.
        """
        self._directory = directory
        self._run = run
        self.guard: subprocess.Popen[bytes] | None = None

    def open(self) -> LocalLink:
        """Start them.

        Raises:
            LinkError: the process could not be started.
        """
        ours, theirs = socket.socketpair()
        root = str(Path(tflaunch_worker.__file__).parent.parent)
        # -I -S: nothing of the user's environment can change what the agent is or how fast it starts.
        argv = [sys.executable, "-I", "-S", "-c", _BOOT.format(root=root)]
        argv += [str(self._directory), str(theirs.fileno()), f"tflaunch-agent:{self._run}"]
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.guard = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            ours.close()
            raise LinkError(f"the agent cannot be started: {error}") from None
        finally:
            theirs.close()
        return LocalLink(ours)

    def resume(self) -> LocalLink:
        """Wait for the guard, which outlives the agent and every task: the link was lost with its agent.

        Raises:
            AgentGone: always, with the agent's last words.
            LinkError: the guard does not end.
        """
        self.end()
        assert self.guard is not None
        if self.guard.returncode is None:
            raise LinkError(f"its guard (pid {self.guard.pid}) does not end")
        raise AgentGone(self._last_words())

    def end(self) -> None:
        """Wait for the guard's end, within reason; `Popen.wait` with a timeout would poll."""
        assert self.guard is not None
        if self.guard.returncode is None and self._has_guard_ended():
            self.guard.wait()

    def _has_guard_ended(self) -> bool:
        assert self.guard is not None
        descriptor = os.pidfd_open(self.guard.pid)
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


class LocalLink:
    """The supervisor's end of a socket pair."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end."""
        return self._socket

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
