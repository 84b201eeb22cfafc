"""Connect a new byte stream on a host, of whatever transport, to the agent there.

The command line on the host holds only a small program and no value of the spec. The rest is sent through the
stream: the host's interpreter, our first program (`tflaunch_worker.boot`), its request and, if the host does not
have it yet, the agent. Environments follow as commands to the agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import tflaunch_worker
from tflaunch.plan.model import HostPlan, is_made
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch_worker import boot, fields, wire
from tflaunch_worker.readable import printable

_MOST_NOISE = 1024 * 1024  # bytes that a login shell may print before our program starts
_LONGEST_ANSWER = 64 * 1024
_MOST_VALUES = 100
_LINES_SHOWN = 6
_LINES_OF_END = 2  # some commands, such as srun, say why in the line before the last one
_TOO_OLD = 38  # our own exit code for a Python that cannot run the agent
_NO_PYTHON = 127

# Works in any login shell (sh, bash, zsh, fish, csh): one line, with neither a single quote nor an exclamation mark
# inside the single quotes. The marker is printed as two parts in the reverse of their order here, so that a shell
# that echoes its commands does not print it.
_COMMAND = (
    "exec /bin/sh -c '"
    'printf "%s%s\\n" {second} {first}; read -r p; '
    'case "$p" in "~/"*) p="$HOME/${{p#??}}";; "") p=python3; command -v python3 >/dev/null || p=python;; esac; '
    'command -v "$p" >/dev/null || exit {no_python}; '
    'exec "$p" -E -s -S -c "import sys;sys.path.pop(0);'
    "sys.version_info<(3,8)and(sys.stderr.write(sys.version),sys.exit({too_old}));"
    "exec(sys.stdin.buffer.read({size}))\" tflaunch-agent:{run}'"
)


class Stream(Protocol):
    """Runs one command on a host. Times are in seconds."""

    def execute(self, command: str) -> None:
        """Run a command line in the host's shell."""

    def send(self, data: bytes, patience: float) -> None:
        """Send to the command's standard input.

        Raises:
            TimeoutError: the command did not read it in time.
        """

    def receive(self, patience: float) -> bytes:
        """Return part of its standard output, b"" at the end.

        Raises:
            TimeoutError: nothing arrived in time.
        """

    def errors(self) -> bytes:
        """Return its standard error so far, without waiting long."""

    def exit_code(self, patience: float) -> int:
        """Return the command's exit code once it has exited, or -1 if it does not in time."""

    def failure(self, code: int, said: str) -> str:
        """Describe a command that exited before our program ran; ``said``: its message."""


def _shown(data: bytes) -> str:
    return printable(data[:60].decode("utf-8", "replace"))


class _Boot:
    """The start of an agent through a stream."""

    def __init__(self, stream: Stream, host: HostPlan, end: float) -> None:
        self._stream = stream
        self._host = host
        self._end = end
        self._received = b""

    def bring(self, request: dict[str, object], agent: Archive) -> None:
        """Send the request, and wait until it is served: then the stream is the agent's."""
        program = agent.boot + b"\nmain(sys.stdin.buffer)\n"
        first, second = os.urandom(8).hex(), os.urandom(8).hex()
        command = _COMMAND.format(
            first=first, second=second, size=len(program), run=request["run"], no_python=_NO_PYTHON, too_old=_TOO_OLD
        )
        self._stream.execute(command)
        self._skip_noise(f"{second}{first}\n".encode())
        head = f"{self._host.python or ''}\n".encode() + program + json.dumps(request).encode() + b"\n"
        self._send(head)
        kind, text = self._answer()
        if kind == "send":
            self._send(agent.data)
            kind, text = self._answer()
        if kind == "gone":
            raise AgentGoneError(text)
        if kind == "failed":
            place = "*" if is_made(self._host.engine) else self._host.host  # the spec has no host of its own for a pod
            remedy = f"fix this on the host, or set TFLAUNCH_HOME in hosts.{place}.env to another directory"
            raise LinkError(text if text == boot.NO_PROC else f"{text}; {remedy}")
        if kind != "ready":
            raise LinkError(f"our program there answered {kind!r}, out of turn")

    def _skip_noise(self, marker: bytes) -> None:
        """Discard whatever the login shell prints before our marker."""
        while marker not in self._received:
            if len(self._received) > _MOST_NOISE:
                raise LinkError("its login prints without end; look at the shell's start-up files there")
            if not self._receive():
                said = self._last_line(self._received) or self._last_line(self._stream.errors(), _LINES_OF_END)
                raise LinkError(self._stream.failure(self._exit_code(), said))
        self._received = self._received.partition(marker)[2]

    def _answer(self) -> tuple[str, str]:
        """Return kind and text of a reply of `boot`: a reason, or a gone agent's log."""
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_ANSWER:
                raise LinkError(f"our program there answered without end: {_shown(self._received)}")
            if not self._receive():
                raise LinkError(self._python_failure())
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = fields.mapping({"answer": wire.parse(line, _MOST_VALUES)}, "answer")
            kind = fields.text(message, "kind", 20)
            text = {"failed": "reason", "gone": "words"}.get(kind)
            return kind, printable(fields.text(message, text)) if text else ""
        except ValueError as error:
            raise LinkError(f"our program there answered {_shown(line)}: {printable(str(error), 200)}") from None

    def _receive(self) -> bytes:
        try:
            data = self._stream.receive(self._left())
        except TimeoutError:
            raise LinkError(self._silence()) from None
        self._received += data
        return data

    def _send(self, data: bytes) -> None:
        try:
            self._stream.send(data, self._left())
        except TimeoutError:
            raise LinkError("it did not take our program in time; raise timeouts.connect?") from None

    def _silence(self) -> str:
        """Describe a shell that lives and prints no more: it may wait for an answer."""
        lines = (self._received or self._stream.errors()).decode("utf-8", "replace").split("\n")
        said = printable(" / ".join(line.strip() for line in lines[-_LINES_SHOWN:] if line.strip()), 300)
        printed = f", but printed {said!r}" if said else ""
        return (
            f"its shell did not start our program in time{printed}; its start-up files must neither ask anything nor "
            "start another shell where there is no terminal; or raise timeouts.connect"
        )

    def _python_failure(self) -> str:
        code, errors = self._exit_code(), self._stream.errors()
        python = self._host.python or "python3"
        remedy = f"set hosts.{self._host.host}.python to one of version 3.8 or later"
        if code == _NO_PYTHON:
            return f"there is no {python}; {remedy}"
        if code == _TOO_OLD:
            version = " ".join(errors.decode("utf-8", "replace").split()[:1])
            return f"{python} there is Python {printable(version, 20)}, too old for the agent; {remedy}"
        said = self._last_line(errors)
        return f"{python} there ended with code {code}{f': {said}' if said else ''}; {remedy}"

    def _left(self) -> float:
        return max(self._end - time.monotonic(), 0.01)

    def _exit_code(self) -> int:
        return self._stream.exit_code(max(min(self._left(), 2.0), 0.1))

    @staticmethod
    def _last_line(text: bytes, most: int = 1) -> str:
        lines = [line.strip() for line in text.decode("utf-8", "replace").split("\n") if line.strip()]
        return printable(" / ".join(lines[-most:]), 200 * most)


class BootConnectors:
    """The base of `Connectors` that start agents through a `Stream`."""

    def __init__(self, run: str, patience: float) -> None:
        """Prepare; ``patience`` is the timeout for reaching a host, in seconds."""
        self._run = run
        self.patience = patience
        self._archive = build_archive()

    def bring(
        self, stream: Stream, mode: str, host: HostPlan, end: float, *, stays: str = "", warm: str | None = None
    ) -> None:
        """Connect a stream to the run's agent on a host before ``end``; start or find it.

        ``stays``: our first program there outlives the link until the agent has ended, because that ends with it
        (``holds``), or to be its parent (``waits``). ``warm``: the recipe of a process of an earlier run that may start
        it (see `plan.task_starter`).

        Raises:
            AgentGoneError: the agent has exited.
            LinkError: the agent cannot be reached or started, and why.
        """
        request: dict[str, object] = {
            "mode": mode,
            "run": self._run,
            "host": host.host,
            "home": host.home,
            "inherits": host.inherits_environment,
            "agent": self._archive.sha256,
            "size": len(self._archive.data),
            "patience": self.patience / 2,
            "stays": stays,
            "warm": warm,
            "names": [tflaunch_worker.SOCKET_NAME, tflaunch_worker.LOCK_NAME, tflaunch_worker.LOG_NAME],
        }
        _Boot(stream, host, end).bring(request, self._archive)


class Archive(NamedTuple):
    """The agent's modules as JSON, their SHA-256, and the program that unpacks them."""

    data: bytes
    sha256: str
    boot: bytes


def build_archive() -> Archive:
    """Return the archive of this version's agent and library for training programs."""
    package = Path(tflaunch_worker.__file__).parent
    data = boot.pack(str(package))
    return Archive(data, hashlib.sha256(data).hexdigest(), (package / "boot.py").read_bytes())
