"""Hosts at the end of an SSH connection: the agent is brought there, started, and found again."""

from __future__ import annotations

import select
import socket
import threading
import time

import paramiko

from tflaunch.plan.model import HostPlan
from tflaunch.transport import bootstrap, bundle
from tflaunch.transport.base import AgentGone, LinkError
from tflaunch.transport.ssh_config import SshConfig, Target
from tflaunch.transport.ssh_connect import Connector

_CHUNK = 256 * 1024


class SshWays:
    """Makes the ways to all SSH hosts of one run; they share connections to jump hosts, keys, and the agent."""

    def __init__(self, run: str, patience: float) -> None:
        """Prepare what they share.

        Args:
            run: the run's name.
            patience: seconds that reaching a host may take.
        """
        self.run = run
        self.patience = patience
        self.archive = bundle.make()
        self.connector = Connector()
        self._config: SshConfig | None = None
        self._lock = threading.Lock()

    def way(self, host: HostPlan) -> SshWay:
        """Return the way to a host."""
        return SshWay(self, host)

    def target(self, host: HostPlan) -> Target:
        """Return what the user's SSH configuration says of a host.

        Raises:
            LinkError: the configuration cannot be used.
        """
        with self._lock:  # only for the first: then many hosts are looked up at the same time
            if self._config is None:
                self._config = SshConfig()
        return self._config.resolve(host.host, host)


class SshWay:
    """How the agent of one host is reached."""

    def __init__(self, ways: SshWays, host: HostPlan) -> None:
        self._ways = ways
        self._host = host

    def open(self) -> SshLink:
        """Start an agent.

        Raises:
            LinkError: why that is impossible.
        """
        return self._reach("start")

    def resume(self) -> SshLink:
        """Find the agent again that was started before.

        Raises:
            AgentGone: it has ended.
            LinkError: why it cannot be reached, for now.
        """
        return self._reach("resume")

    def end(self) -> None:
        """Nothing is left to wait for: the other end hangs up when the agent's guard has ended."""

    def _reach(self, mode: str) -> SshLink:
        target = self._ways.target(self._host)  # before the clock runs: the configuration is no fault of the host
        end = time.monotonic() + self._ways.patience
        transport = self._ways.connector.connect(target, self._ways.patience)
        try:
            channel = transport.open_session(timeout=max(end - time.monotonic(), 0.1))
            ways = self._ways
            request = bootstrap.request(mode, ways.run, self._host, ways.archive, ways.patience)
            bootstrap.Boot(_Channel(channel), self._host, end).bring(request, ways.archive)
            return SshLink(transport, channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            transport.close()
            reason = str(error) or type(error).__name__
            raise LinkError(f"the SSH connection broke while the agent was being started: {reason}") from None
        except (LinkError, AgentGone):
            transport.close()
            raise


class _Channel:
    """A channel of an SSH connection, as `booting` uses it."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def execute(self, command: str) -> None:
        self._channel.exec_command(command)

    def send(self, data: bytes, patience: float) -> None:
        self._channel.settimeout(patience)
        self._channel.sendall(data)

    def receive(self, patience: float) -> bytes:
        self._channel.settimeout(patience)
        data: bytes = self._channel.recv(_CHUNK)
        return data

    def errors(self) -> bytes:
        self._channel.settimeout(0.2)
        try:
            data: bytes = self._channel.recv_stderr(_CHUNK)
        except TimeoutError:
            return b""
        return data

    def exit_code(self, patience: float) -> int:
        self._channel.status_event.wait(patience)
        return int(self._channel.exit_status)

    def failure(self, code: int, said: str) -> str:
        words = f", and said {said!r}" if said else ""
        return (
            f"the login shell there ended with code {code} before it ran our command{words}; try `ssh` with a command"
        )


class SshLink:
    """The byte stream to an agent, through a channel. One thread passes bytes to and from a socket pair."""

    def __init__(self, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        self._transport = transport
        self._channel = channel
        self._socket, self._inner = socket.socketpair()
        channel.settimeout(None)
        threading.Thread(target=self._pass_on, name="link", daemon=True).start()

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end."""
        return self._socket

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
        self._transport.close()

    def _pass_on(self) -> None:
        inner, outer = self._inner.fileno(), self._channel.fileno()
        poll = select.poll()  # select() cannot wait for a descriptor above 1023
        poll.register(inner, select.POLLIN)
        poll.register(outer, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if inner in ready:
                    data = self._inner.recv(_CHUNK)
                    if not data:
                        break
                    self._channel.sendall(data)
                if outer in ready:
                    self._drop_errors()
                    if self._channel.recv_ready() or self._channel.eof_received or self._channel.closed:
                        data = self._channel.recv(_CHUNK)
                        if not data:
                            break
                        self._inner.sendall(data)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the supervisor sees the end of its stream, and looks for the agent
        finally:
            self._inner.close()

    def _drop_errors(self) -> None:
        """Forget what a login printed on its other output: the same descriptor tells of both."""
        while self._channel.recv_stderr_ready():
            self._channel.recv_stderr(_CHUNK)
