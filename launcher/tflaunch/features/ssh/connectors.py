"""Reach hosts over SSH: upload the agent, start it, and reconnect to it."""

from __future__ import annotations

import select
import socket
import threading

import paramiko

from tflaunch.errors import describe_os_error
from tflaunch.features import bootstrap
from tflaunch.features.ssh.connections import Connector
from tflaunch.features.ssh.ssh_config import SshConfig, Target
from tflaunch.features.ssh.transport import Limit, Transport
from tflaunch.features.ssh.user_keys import is_forwarded
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import AgentGoneError, LinkError

_CHUNK = 256 * 1024


class SshConnectors(bootstrap.BootConnectors):
    """Connectors to a run's SSH hosts, which share jump hosts, keys, and the agent."""

    def __init__(self, run: str, patience: float) -> None:
        super().__init__(run, patience)
        self.connector = Connector()
        self._config: SshConfig | None = None
        self._lock = threading.Lock()

    def connector_to(self, host: HostPlan, warm: str | None) -> SshConnector:
        """Return the connector for a host; ``warm`` is as in `BootConnectors.bring`."""
        return SshConnector(self, host, warm)

    def target(self, host: HostPlan) -> Target:
        """Return how to connect to a host; raise `LinkError` for a wrong configuration."""
        with self._lock:  # held only to create the configuration: hosts are looked up in parallel
            if self._config is None:
                self._config = SshConfig()
        return self._config.resolve(host)


class SshConnector:
    """Reaches the agent of one host over SSH."""

    def __init__(self, connectors: SshConnectors, host: HostPlan, warm: str | None) -> None:
        self._connectors = connectors
        self._host = host
        self._warm = warm

    def open(self) -> SshLink:
        """Start an agent; see `AgentConnector`."""
        return self._reach("start")

    def resume(self) -> SshLink:
        """Reconnect to the agent that was started before; see `AgentConnector`."""
        return self._reach("resume")

    def login_warning(self) -> str:
        """Return why the user's logout here would cut off the host, or "" (`LoginBound`)."""
        try:
            target = self._connectors.target(self._host)
        except LinkError:
            return ""  # the connection will fail, and say so
        if not is_forwarded(target.agent) or self._connectors.connector.keys.has_file(target):
            return ""
        return (
            f"the keys for {self._host.host} are in an ssh-agent that is forwarded to this machine: once that login "
            "ends, a lost link cannot be restored; keep a key on this machine, or stay logged in"
        )

    def end(self) -> None:
        """Do nothing: the host closes the stream only when the agent's guard has exited."""

    def _reach(self, mode: str) -> SshLink:
        try:
            target = self._connectors.target(self._host)  # before the timeout starts: a slow lookup is not its fault
            limit = Limit.of(self._connectors.patience)
            transport = self._connectors.connector.connect(target, limit)
        except OSError as error:  # this machine lacks descriptors, processes or space
            raise LinkError(describe_os_error(error)) from None
        try:
            channel = _open_session(transport, target.user, max(limit.left(), 0.1))
            self._connectors.bring(_Channel(channel), mode, self._host, limit.end, warm=self._warm)
            return SshLink(transport, channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            transport.close()
            reason = str(error) or type(error).__name__
            raise LinkError(f"the SSH connection broke while the agent was being started: {reason}") from None
        except (LinkError, AgentGoneError):
            transport.close()
            raise


def _open_session(transport: Transport, user: str, patience: float) -> paramiko.Channel:
    """Return a channel for a command; raise a `LinkError` if the host refuses one."""
    try:
        return transport.open_session(timeout=patience)
    except paramiko.SSHException:
        refusal = transport.packets.refusal()
        if refusal is None:
            raise
    raise LinkError(
        f"its sshd lets user {user} in, but opens no session ({refusal[1]}); raise MaxSessions in its sshd_config"
    )


class _Channel:
    """A channel of an SSH connection as a `bootstrap.Stream`."""

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
    """Byte stream to an agent; a thread copies between its channel and ``socket``."""

    def __init__(self, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        self._transport = transport
        self._channel = channel
        self.socket, self._inner = socket.socketpair()
        channel.settimeout(None)
        threading.Thread(target=self._pass_on, name="link", daemon=True).start()

    def close(self) -> None:
        """Close the link."""
        self.socket.close()
        self._transport.close()

    def _pass_on(self) -> None:
        inner, outer = self._inner.fileno(), self._channel.fileno()
        poll = select.poll()  # select() cannot wait for descriptors above 1023
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
                    while self._channel.recv_stderr_ready():  # of the login, which share the descriptor
                        self._channel.recv_stderr(_CHUNK)
                    # Both outputs share the descriptor: after errors alone, recv() would block, and the link with it.
                    if self._channel.recv_ready() or self._channel.eof_received or self._channel.closed:
                        data = self._channel.recv(_CHUNK)
                        if not data:
                            break
                        self._inner.sendall(data)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the supervisor sees the end of its stream, and reconnects
        finally:
            self._inner.close()
