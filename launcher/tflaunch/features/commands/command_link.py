"""Reach hosts through a command such as `docker exec`: its streams are the link."""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from tflaunch.discovery import base
from tflaunch.discovery.base import NotFoundError
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features import bootstrap
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, LinkError

_CHUNK = 64 * 1024
_END_PATIENCE = 5.0  # seconds for a command to exit once its link is closed


class CommandAccess(NamedTuple):
    """How to run a command on one host.

    ``words``: the arguments before those of a shell there. ``holds``: all that was started ends with the command, which
    therefore stays until the agent has exited. ``adopts``: process 1 there waits for the agent's guard, and must be its
    parent; otherwise it may leave a zombie of each orphan. ``is_over``: returns whether nothing that was started there
    can still be alive; may block.
    """

    words: tuple[str, ...]
    holds: bool = False
    adopts: bool = False
    is_over: Callable[[], bool] = lambda: False


class CommandConnectors(bootstrap.BootConnectors):
    """Creates the connectors to all such hosts of one run."""

    def connector_to(self, host: HostPlan, warm: str | None) -> CommandConnector:
        """Return the connector to a host, where no server stays warm.

        Raises:
            TflaunchError: the host needs a discovery engine that is not installed here.
        """
        if host.docker is not None:
            return CommandConnector(self, host, CommandAccess(("docker", "exec", "--interactive", host.docker)))
        name, _, handle = (host.engine or "").partition(":")
        try:
            engine = base.find_engine(name)
            words = engine.words(host.host, handle) or ()
        except NotFoundError as error:
            raise TflaunchError(f"{host.host}: {error}; {error.hint}", EXIT_USAGE) from None
        access = CommandAccess(tuple(words), engine.holds, is_over=lambda: engine.is_over(handle))
        return CommandConnector(self, host, access)


class CommandConnector:
    """Reaches the agent of one host through a command."""

    def __init__(self, connectors: CommandConnectors, host: HostPlan, access: CommandAccess) -> None:
        self._connectors = connectors
        self._host = host
        self._access = access
        self._holding: subprocess.Popen[bytes] | None = None

    def open(self) -> CommandLink:
        """Start an agent; see `AgentConnector`."""
        link = self._reach("start")
        if self._access.holds:
            self._holding = link.keep()
        return link

    def resume(self) -> CommandLink:
        """Reconnect to the agent that was started before; see `AgentConnector`."""
        try:
            return self._reach("resume")
        except LinkError as error:
            if self._access.is_over():
                raise AgentGoneError(str(error)) from None
            raise

    def end(self) -> None:
        """Give the command that holds the agent 5 s to exit; others exit with the guard."""
        if self._holding is not None:
            try:
                self._holding.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                self._holding.terminate()

    def _reach(self, mode: str) -> CommandLink:
        connectors = self._connectors
        end = time.monotonic() + connectors.patience
        link = CommandLink(self._access.words)
        try:
            stays = "holds" if self._access.holds else "" if self._access.adopts else "waits"
            connectors.bring(link, mode, self._host, end, stays=stays)
        except BaseException:
            link.close()
            raise
        link.socket.settimeout(None)
        return link


class CommandLink:
    """A stream to an agent: a command's stdin and stdout; ``socket`` is our end."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self.socket, self._theirs = socket.socketpair()
        self._errors, self._errors_in = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_kept = False

    def execute(self, command: str) -> None:
        """Run a command line in a shell on the host.

        Raises:
            LinkError: the command is not installed here.
        """
        program = shutil.which(self._words[0])
        if program is None:
            raise LinkError(f"there is no command `{self._words[0]}` here; install it")
        # In its own session: Ctrl-C is for the supervisor, not for the client that carries its messages.
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
        """Return the command, and leave it running when this link is closed."""
        assert self._process is not None
        self._is_kept = True
        return self._process

    def send(self, data: bytes, patience: float) -> None:
        """Send to the command's standard input (see `bootstrap.Stream`)."""
        self.socket.settimeout(patience)
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the command's last output tells why

    def receive(self, patience: float) -> bytes:
        """Return part of its standard output (see `bootstrap.Stream`)."""
        self.socket.settimeout(patience)
        try:
            return self.socket.recv(_CHUNK)
        except ConnectionResetError:
            return b""

    def errors(self) -> bytes:
        """Return its standard error so far, after 0.2 s at most."""
        is_there = bool(select.select([self._errors], [], [], 0.2)[0])
        return os.read(self._errors, _CHUNK) if is_there else b""

    def exit_code(self, patience: float) -> int:
        """Return the command's exit code once it has exited, or -1 if it does not in time."""
        assert self._process is not None
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return -1

    def failure(self, code: int, said: str) -> str:
        """Describe a command that exited before our program started."""
        words = f", and said {said!r}" if said else ""
        command = re.sub(r"^env (-u \w+ )+", "", " ".join(self._words))
        name = " ".join(word for word in command.split()[:2] if not word.startswith("-"))
        return f"`{name}` ended with code {code}{words}; does `{command} true` work?"

    def close(self) -> None:
        """Close the link, and terminate the command unless it is kept."""
        self.socket.close()
        os.close(self._errors)
        if self._process is None:
            self._theirs.close()
            os.close(self._errors_in)
            return
        if not self._is_kept:
            self._process.terminate()
        self._process = None
