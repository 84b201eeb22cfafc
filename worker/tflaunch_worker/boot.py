"""The first program of ours that runs on a host at the end of a link: it brings the link to the agent.

It is sent as source and reads one request (a line of JSON) from its input:

    {"mode": "start" or "resume", "run", "host", "home": path or null, "agent": SHA-256, "size": bytes,
     "patience": seconds, "names": [of the socket, the lock and the log in an agent's directory]}

It answers in lines of JSON, by their ``kind``: ``send`` (the agent's archive is not cached here: its
bytes are expected), ``ready`` (from now on the link is the agent's), ``gone`` (there is nothing to resume:
no process of the run lives here; ``words`` are the last of the agent's log), ``failed`` with a ``reason``.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

_CHUNK = 256 * 1024
_END_PATIENCE = 5.0  # seconds for a guard to kill what an agent left


class Failure(Exception):
    """Why there will be no agent: one sentence."""


def main(source: BinaryIO) -> None:
    """Serve the request that comes from ``source``. Never returns."""
    try:
        request = json.loads(source.readline())
        home = _private(os.path.expanduser(request["home"] or _default_home()))
        place = _Place(os.path.join(home, "runs", request["run"], "agents", request["host"]), *request["names"])
        connection = _start(request, home, place, source) if request["mode"] == "start" else _resume(place)
        if connection is None:
            _answer("gone", words=place.last_words())
            os._exit(0)
    except Failure as failure:
        _fail(str(failure))
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        _fail(f"{prefix}{error.strerror or error}")
    else:
        _answer("ready")
        _relay(connection)


def _answer(kind: str, **fields: Any) -> None:
    data = json.dumps({"kind": kind, **fields}).encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _fail(reason: str) -> None:
    _answer("failed", reason=reason)
    os._exit(1)


# ---- places


def _default_home() -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "tflaunch")


def _private(path: str) -> str:
    """Make a directory that only this user can use; return its path.

    Raises:
        Failure: it belongs to somebody else, or others may write to it.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.stat(path)
    if status.st_uid != os.getuid():
        raise Failure(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise Failure(f"{path} can be written to by others")
    return path


class _Place:
    """The directory of a run's agent on this host."""

    def __init__(self, directory: str, socket_name: str, lock_name: str, log_name: str) -> None:
        self.directory = directory
        self.socket_name = socket_name
        self._lock = os.path.join(directory, lock_name)
        self._log = os.path.join(directory, log_name)

    def is_free(self, patience: float) -> bool:
        """Whether no guard lives here; wait for its end for up to ``patience`` seconds."""

        def give_up(*_: object) -> None:
            raise TimeoutError

        try:
            lock = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return True
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, patience)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return True
        except TimeoutError:
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.close(lock)

    def last_words(self) -> str:
        """Return the last line of the agent's log: how a Python traceback ends."""
        try:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


# ---- starting


def _start(request: dict[str, Any], home: str, place: _Place, source: BinaryIO) -> socket.socket:
    """Start a guard and an agent, once nothing of an earlier one is left."""
    archive = os.path.join(_private(os.path.join(home, "agents")), f"{request['agent']}.pyz")
    if _hash_of(archive) != request["agent"]:
        _answer("send")
        _store(archive, source.read(request["size"]), request["agent"])
    os.makedirs(place.directory, mode=0o700, exist_ok=True)
    if not place.is_free(request["patience"]):
        raise Failure("an earlier agent of this run has not ended there")
    return _spawn(archive, place.directory, request["run"])


def _hash_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return ""


def _store(path: str, data: bytes, expected: str) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        raise Failure("the agent's archive did not arrive whole")
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        error.filename = error.filename or path
        raise


def _spawn(archive: str, directory: str, run: str) -> socket.socket:
    """Start the guard as a daemon: in a session of its own, as nobody's child."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                theirs.set_inheritable(True)
                # -E -s -S: nothing of the user's environment can change what the agent is.
                argv = [sys.executable, "-E", "-s", "-S", archive, directory, str(theirs.fileno())]
                os.execv(sys.executable, [*argv, f"tflaunch-agent:{run}"])
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    theirs.close()
    return ours


# ---- resuming


def _resume(place: _Place) -> socket.socket | None:
    """Connect to the agent that runs in a place; None when it has ended, with all its tasks."""
    if not os.path.isdir(place.directory):
        return None
    os.chdir(place.directory)  # a socket's address is short, and the directory may be deep
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place.socket_name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        if place.is_free(_END_PATIENCE):
            return None
        raise Failure("the agent there is ending") from None
    return connection


# ---- the link


def _relay(connection: socket.socket) -> None:
    """Pass bytes between the link and the agent until either has ended. Never returns."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def pass_in() -> None:
        try:
            while True:
                data = os.read(0, _CHUNK)
                if not data:
                    break
                connection.sendall(data)
        except OSError:
            pass
        os._exit(0)

    threading.Thread(target=pass_in, daemon=True).start()
    try:
        while True:
            data = connection.recv(_CHUNK)
            if not data:
                break
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        pass
    os._exit(0)
