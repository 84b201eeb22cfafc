"""Hosts at the end of an SSH connection: the agent is brought there, started, and found again.

Nothing but a small program without any value of the spec stands on the command line there. The rest
travels through the channel: the host's interpreter, our first program (`tflaunch_worker.boot`), its
request and, if the host does not have it yet, the agent. Environments follow as orders to the agent.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from typing import Any

import paramiko

import tflaunch_worker
from tflaunch.hosts import archive
from tflaunch.hosts.archive import Archive
from tflaunch.hosts.link import AgentGone, LinkError
from tflaunch.hosts.ssh_config import SshConfig, Target
from tflaunch.hosts.ssh_connect import Connector
from tflaunch.plan import HostPlan
from tflaunch.spec import Host

_CHUNK = 256 * 1024
_MOST_NOISE = 1024 * 1024  # bytes that a login may print before our program speaks
_LONGEST_ANSWER = 64 * 1024
_TOO_OLD = 38  # exit code of our own, for a Python that cannot run the agent
_NO_PYTHON = 127

# For whatever shell the user has there (sh, bash, zsh, fish, csh): one line, and inside the single quotes
# neither a single quote nor an exclamation mark. The marker is printed in two parts in another order than
# they stand here, so that a shell which shows its commands does not print it.
_COMMAND = (
    "exec /bin/sh -c '"
    'printf "%s%s\\n" {second} {first}; read -r p; '
    'case "$p" in "~/"*) p="$HOME/${{p#??}}";; "") p=python3; command -v python3 >/dev/null || p=python;; esac; '
    'command -v "$p" >/dev/null || exit {no_python}; '
    'exec "$p" -E -s -S -c "import sys;sys.path.pop(0);'
    "sys.version_info<(3,8)and(sys.stderr.write(sys.version),sys.exit({too_old}));"
    "exec(sys.stdin.buffer.read({size}))\" tflaunch-agent:{run}'"
)


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
        self.archive = archive.make()
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
        with self._lock:
            if self._config is None:
                self._config = SshConfig()
        return self._config.resolve(host.host, Host(ssh=host.ssh, identity_file=host.identity_file))


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
        end = time.monotonic() + self._ways.patience
        transport = self._ways.connector.connect(self._ways.target(self._host), self._ways.patience)
        try:
            channel = transport.open_session(timeout=max(end - time.monotonic(), 0.1))
            _Boot(channel, self._host, end).bring(self._request(mode), self._ways.archive)
            return SshLink(transport, channel)
        except (paramiko.SSHException, EOFError, OSError) as error:
            transport.close()
            reason = str(error) or type(error).__name__
            raise LinkError(f"the SSH connection broke while the agent was being started: {reason}") from None
        except (LinkError, AgentGone):
            transport.close()
            raise

    def _request(self, mode: str) -> dict[str, object]:
        return {
            "mode": mode,
            "run": self._ways.run,
            "host": self._host.host,
            "home": self._host.home,
            "agent": self._ways.archive.sha256,
            "size": len(self._ways.archive.data),
            "patience": self._ways.patience / 2,
            "names": [tflaunch_worker.SOCKET_NAME, tflaunch_worker.LOCK_NAME, tflaunch_worker.LOG_NAME],
        }


class _Boot:
    """Brings a channel to the agent."""

    def __init__(self, channel: paramiko.Channel, host: HostPlan, end: float) -> None:
        self._channel = channel
        self._host = host
        self._end = end
        self._received = b""

    def bring(self, request: dict[str, object], agent: Archive) -> None:
        """Have the request served; afterwards the channel is the agent's.

        Raises:
            AgentGone: there is no agent any more.
            LinkError: there will be none, and why.
        """
        boot = agent.boot + b"\nmain(sys.stdin.buffer)\n"
        first, second = os.urandom(8).hex(), os.urandom(8).hex()
        command = _COMMAND.format(
            first=first, second=second, size=len(boot), run=request["run"], no_python=_NO_PYTHON, too_old=_TOO_OLD
        )
        self._channel.exec_command(command)
        self._skip_noise(f"{second}{first}\n".encode())
        head = f"{self._host.python or ''}\n".encode() + boot + json.dumps(request).encode() + b"\n"
        self._send(head)
        answer = self._answer()
        if answer["kind"] == "send":
            self._send(agent.data)
            answer = self._answer()
        if answer["kind"] == "gone":
            raise AgentGone(str(answer["words"]))
        if answer["kind"] != "ready":
            raise LinkError(f"{answer['reason']}; {self._remedy()}")

    def _remedy(self) -> str:
        return f"see to it there, or set TFLAUNCH_HOME in hosts.{self._host.host}.env to another directory"

    def _skip_noise(self, marker: bytes) -> None:
        """Read past whatever the login prints, up to our marker."""
        while marker not in self._received:
            if len(self._received) > _MOST_NOISE:
                raise LinkError("its login prints without end; look at the shell's start-up files there")
            if not self._receive():
                raise LinkError(self._login_failure())
        self._received = self._received.partition(marker)[2]

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_ANSWER or not self._receive():
                raise LinkError(self._python_failure())
        line, _, self._received = self._received.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            raise LinkError(f"our program there answered {line[:60]!r}") from None
        if not isinstance(answer, dict) or "kind" not in answer:
            raise LinkError(f"our program there answered {line[:60]!r}")
        return answer

    def _receive(self) -> bytes:
        self._channel.settimeout(max(self._end - time.monotonic(), 0.01))
        try:
            data: bytes = self._channel.recv(_CHUNK)
        except TimeoutError:
            raise LinkError("its shell did not start our program in time; raise timeouts.connect?") from None
        self._received += data
        return data

    def _send(self, data: bytes) -> None:
        self._channel.settimeout(max(self._end - time.monotonic(), 0.01))
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise LinkError("it did not take our program in time; raise timeouts.connect?") from None

    def _login_failure(self) -> str:
        said = self._last_line(self._received) or self._last_line(self._errors())
        code = self._exit_code()
        words = f", and said {said!r}" if said else ""
        return (
            f"the login shell there ended with code {code} before it ran our command{words}; try `ssh` with a command"
        )

    def _python_failure(self) -> str:
        code, errors = self._exit_code(), self._errors()
        python = self._host.python or "python3"
        remedy = f"set hosts.{self._host.host}.python to one of version 3.8 or later"
        if code == _NO_PYTHON:
            return f"there is no {python}; {remedy}"
        if code == _TOO_OLD:
            version = errors.decode("utf-8", "replace").split()[:1]
            return f"{python} there is Python {' '.join(version)}, too old for the agent; {remedy}"
        said = self._last_line(errors)
        return f"{python} there ended with code {code}{f': {said}' if said else ''}; {remedy}"

    def _exit_code(self) -> int:
        self._channel.status_event.wait(max(min(self._end - time.monotonic(), 2.0), 0.1))
        return int(self._channel.exit_status)

    def _errors(self) -> bytes:
        self._channel.settimeout(0.2)
        try:
            data: bytes = self._channel.recv_stderr(_CHUNK)
        except TimeoutError:
            return b""
        return data

    @staticmethod
    def _last_line(text: bytes) -> str:
        lines = text.decode("utf-8", "replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


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
