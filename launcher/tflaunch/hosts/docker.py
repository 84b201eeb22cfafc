"""Hosts that are containers: the agent is reached through `docker exec`, and no sshd is needed in them."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time

from tflaunch.hosts import archive, booting
from tflaunch.hosts.archive import Archive
from tflaunch.hosts.link import LinkError
from tflaunch.plan import HostPlan

_CHUNK = 64 * 1024
_END_PATIENCE = 5.0  # seconds for `docker exec` to end once nobody speaks with it


class DockerWays:
    """Makes the ways to all containers of one run."""

    def __init__(self, run: str, patience: float) -> None:
        """Prepare what they share.

        Args:
            run: the run's name.
            patience: seconds that reaching a container may take.
        """
        self.run = run
        self.patience = patience
        self.archive: Archive = archive.make()

    def way(self, host: HostPlan) -> DockerWay:
        """Return the way to a container."""
        return DockerWay(self, host)


class DockerWay:
    """How the agent in one container is reached."""

    def __init__(self, ways: DockerWays, host: HostPlan) -> None:
        self._ways = ways
        self._host = host

    def open(self) -> DockerLink:
        """Start an agent.

        Raises:
            LinkError: why that is impossible.
        """
        return self._reach("start")

    def resume(self) -> DockerLink:
        """Find the agent again that was started before.

        Raises:
            AgentGone: it has ended.
            LinkError: why it cannot be reached, for now.
        """
        return self._reach("resume")

    def end(self) -> None:
        """Nothing is left to wait for: the other end hangs up when the agent's guard has ended."""

    def _reach(self, mode: str) -> DockerLink:
        ways = self._ways
        end = time.monotonic() + ways.patience
        link = DockerLink(self._host.docker or self._host.host)
        try:
            request = booting.request(mode, ways.run, self._host, ways.archive, ways.patience)
            booting.Boot(link, self._host, end).bring(request, ways.archive)
        except BaseException:
            link.close()
            raise
        link.socket.settimeout(None)
        return link


class DockerLink:
    """The byte stream to an agent: input and output of a `docker exec` (also the `booting.Stream` before that)."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._ours, self._theirs = socket.socketpair()
        self._errors, self._errors_in = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end."""
        return self._ours

    def execute(self, command: str) -> None:
        """Have a shell in the container execute a line.

        Raises:
            LinkError: there is no docker here.
        """
        docker = shutil.which("docker")
        if docker is None:
            raise LinkError("there is no command `docker` here; install Docker's client, or use SSH")
        argv = [docker, "exec", "--interactive", self._container, "/bin/sh", "-c", command]
        # In a session of its own: Ctrl-C is the supervisor's, and not for the client that carries its words.
        self._process = subprocess.Popen(
            argv,
            stdin=self._theirs.fileno(),
            stdout=self._theirs.fileno(),
            stderr=self._errors_in,
            start_new_session=True,
        )
        self._theirs.close()
        os.close(self._errors_in)
        self._errors_in = -1

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
        """Return a sentence about a `docker exec` that came to nothing."""
        words = f", and said {said!r}" if said else ""
        return f"`docker exec` ended with code {code}{words}; does `docker exec {self._container} true` work?"

    def close(self) -> None:
        """Hang up. `docker exec` ends by itself when its input does, or is ended."""
        self._ours.close()
        os.close(self._errors)
        if self._process is None:
            self._theirs.close()
            os.close(self._errors_in)
            return
        self._process.terminate()
        self._process = None
