"""Hosts on which a command runs a shell for us, such as `docker exec` or `srun`: its input and output are the link."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from tflaunch.plan.model import HostPlan
from tflaunch.transport import bootstrap, bundle
from tflaunch.transport.base import AgentGone, LinkError
from tflaunch.transport.bundle import Archive

_CHUNK = 64 * 1024
_END_PATIENCE = 5.0  # seconds for a command to end once nobody speaks with it


class CommandAccess(NamedTuple):
    """How a command is run on one host.

    ``words`` stand before those of a shell there. ``holds``: what was started ends with the command, which therefore
    stays until the agent has ended. ``is_over``: whether nothing that was started there can live; it may wait.
    """

    words: tuple[str, ...]
    holds: bool = False
    is_over: Callable[[], bool] = lambda: False


class CommandWays:
    """Makes the ways to all such hosts of one run."""

    def __init__(self, run: str, patience: float) -> None:
        """Prepare what they share.

        Args:
            run: the run's name.
            patience: seconds that reaching a host may take.
        """
        self.run = run
        self.patience = patience
        self.archive: Archive = bundle.make()

    def way(self, host: HostPlan, access: CommandAccess) -> CommandConnector:
        """Return the way to a host."""
        return CommandConnector(self, host, access)


class CommandConnector:
    """How the agent on one host is reached."""

    def __init__(self, ways: CommandWays, host: HostPlan, access: CommandAccess) -> None:
        self._ways = ways
        self._host = host
        self._access = access
        self._holding: subprocess.Popen[bytes] | None = None

    def open(self) -> CommandLink:
        """Start an agent.

        Raises:
            LinkError: why that is impossible.
        """
        link = self._reach("start")
        if self._access.holds:
            self._holding = link.keep()
        return link

    def resume(self) -> CommandLink:
        """Find the agent again that was started before.

        Raises:
            AgentGone: it has ended.
            LinkError: why it cannot be reached, for now.
        """
        try:
            return self._reach("resume")
        except LinkError as error:
            if self._access.is_over():
                raise AgentGone(str(error)) from None
            raise

    def end(self) -> None:
        """Wait, within reason, for the command that holds the agent; others end when the agent's guard has."""
        if self._holding is not None:
            try:
                self._holding.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                self._holding.terminate()

    def _reach(self, mode: str) -> CommandLink:
        ways = self._ways
        end = time.monotonic() + ways.patience
        link = CommandLink(self._access.words)
        try:
            request = bootstrap.request(mode, ways.run, self._host, ways.archive, ways.patience, self._access.holds)
            bootstrap.Boot(link, self._host, end).bring(request, ways.archive)
        except BaseException:
            link.close()
            raise
        link.socket.settimeout(None)
        return link


class CommandLink:
    """The byte stream to an agent: input and output of a command (also the `booting.Stream` before that)."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._ours, self._theirs = socket.socketpair()
        self._errors, self._errors_in = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_kept = False

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end."""
        return self._ours

    def execute(self, command: str) -> None:
        """Have a shell there execute a line.

        Raises:
            LinkError: there is no such command here.
        """
        program = shutil.which(self._words[0])
        if program is None:
            raise LinkError(f"there is no command `{self._words[0]}` here; install it")
        # In a session of its own: Ctrl-C is the supervisor's, and not for the client that carries its words.
        self._process = subprocess.Popen(
            [program, *self._words[1:], "/bin/sh", "-c", command],
            stdin=self._theirs.fileno(),
            stdout=self._theirs.fileno(),
            stderr=self._errors_in,
            start_new_session=True,
        )
        self._theirs.close()
        os.close(self._errors_in)
        self._errors_in = -1

    def keep(self) -> subprocess.Popen[bytes]:
        """Leave the command running when this link is closed, and return it."""
        assert self._process is not None
        self._is_kept = True
        return self._process

    def send(self, data: bytes, patience: float) -> None:
        """Send to the command's input.

        Raises:
            TimeoutError: it did not take it in time.
        """
        self._ours.settimeout(patience)
        try:
            self._ours.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it says before its end tells why

    def receive(self, patience: float) -> bytes:
        """Return some of its output, b"" at the end.

        Raises:
            TimeoutError: nothing came in time.
        """
        self._ours.settimeout(patience)
        try:
            return self._ours.recv(_CHUNK)
        except ConnectionResetError:
            return b""

    def errors(self) -> bytes:
        """Return what there is of its other output."""
        is_there = bool(select.select([self._errors], [], [], 0.2)[0])
        return os.read(self._errors, _CHUNK) if is_there else b""

    def exit_code(self, patience: float) -> int:
        """Return the command's exit code, once it has ended; -1 if it does not in time."""
        assert self._process is not None
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return -1

    def failure(self, code: int, said: str) -> str:
        """Return a sentence about a command that came to nothing."""
        words = f", and said {said!r}" if said else ""
        name = " ".join(word for word in self._words[:2] if not word.startswith("-"))
        return f"`{name}` ended with code {code}{words}; does `{' '.join(self._words)} true` work?"

    def close(self) -> None:
        """Hang up. The command ends by itself when its input does, or is ended, unless it is kept."""
        self._ours.close()
        os.close(self._errors)
        if self._process is None:
            self._theirs.close()
            os.close(self._errors_in)
            return
        if not self._is_kept:
            self._process.terminate()
        self._process = None
