"""Connect a link to the agent: our first program on the host at its far end.

It is sent as source and reads one request (a line of JSON) from its input:

    {"mode": "start" or "resume", "run", "host", "home": path or null, "inherits": whether TFLAUNCH_HOME of the
     environment applies when "home" is null, "agent": SHA-256 of the agent's modules, "size": their bytes, "patience":
     seconds, "stays": why we stay until the agent has ended: it ends with us ("holds"), or we alone would reap it
     ("waits"), or "", "warm": the recipe of a process of an earlier run that may start the agent, or null, "names": [of
     the socket, the lock and the log in an agent's directory]}

It answers in lines of JSON, distinguished by ``kind``: ``send`` (the agent's modules are not in this host's cache,
send them), ``ready`` (from now on the link carries the agent's frames), ``gone`` (there is nothing to resume: no
process of the run lives here; ``words`` holds the last line of the agent's log), ``failed`` with a ``reason``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import signal
import socket
import sys
import threading
import time
from typing import Any, BinaryIO, Callable

_CHUNK = 256 * 1024
NO_PROC = "/proc is not mounted there, and without it no process can be watched; run: mount -t proc proc /proc"
"""Why no agent can be started, with the remedy."""
_END_PATIENCE = 5.0  # seconds for a guard to kill what an agent has left
_UNPACK_PATIENCE = 10.0  # seconds for another process to write the agent's modules
_LOCK_WAIT = 0.005  # seconds


class BootError(Exception):
    """Raised when no agent can be started or reached; its message is one sentence."""


def main(source: BinaryIO) -> None:
    """Serve the request read from ``source``. Never returns."""
    # As `process_state.set_own_state`: what runs us may have ignored or blocked the signals by which we wait.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(os.umask(0o077) & 0o077)
    try:
        request = json.loads(source.readline())
        require_processes()
        os.environ["HOME"] = os.environ.get("HOME") or _home_of(os.getuid())
        wanted = request["home"] or own_directory(bool(request.get("inherits")))
        home = _private(os.path.abspath(os.path.expanduser(wanted)))
        place = _Place(home, request)
        modules = _Modules(home, request, source)
        connection: socket.socket | None
        if request["mode"] == "start":
            connection, guard = _start(request, place, modules)
        else:
            connection, guard = _resume(place, modules), None
        if connection is None:
            _answer("gone", words=last_line(place.log))
            os._exit(0)
    except BootError as failure:
        _fail(str(failure))
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        _fail(f"{prefix}{error.strerror or error}")
    else:
        _answer("ready")
        if guard is None:
            relay(connection)
        else:
            _stay(connection, guard, request.get("stays") == "holds")
        # The link ends when the guard does: even if the guard was killed, nothing of the run may be left here.
        if place.is_free(_END_PATIENCE) and modules.are_here():
            place.kill_orphans(modules)
        os._exit(0)


def require_processes() -> None:
    """Raise `BootError` if the processes of tasks cannot be seen."""
    if not os.path.isdir("/proc/self/fd"):  # in a chroot, say
        raise BootError(NO_PROC)


def _answer(kind: str, **fields: Any) -> None:
    data = json.dumps({"kind": kind, **fields}).encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _fail(reason: str) -> None:
    _answer("failed", reason=reason)
    os._exit(1)


# ---- places


def own_directory(is_given: bool) -> str:
    """Return this user's tflaunch directory; ``is_given``: $TFLAUNCH_HOME counts."""
    if is_given and os.environ.get("TFLAUNCH_HOME"):
        return os.path.abspath(os.environ["TFLAUNCH_HOME"])
    base = os.environ.get("HOME") or _home_of(os.getuid())
    home, owner = _in_state(os.environ.get("XDG_STATE_HOME") or os.path.join(base, ".local", "state"))
    if os.getuid() == 0 and owner != 0 and not os.path.exists(home):  # `sudo -E`: files of root would be in the way
        home, owner = _in_state(os.path.join(_home_of(0), ".local", "state"))
    # The user of a container often has no home: Kubernetes gives it the image's, or "/". Where it has one that is full
    # or read-only, this is said. Of another user, the directory below /tmp is refused, as every home is.
    return f"/tmp/tflaunch-{os.getuid()}" if owner is None else home  # noqa: S108


def _in_state(directory: str) -> tuple[str, int | None]:
    """Return tflaunch's path in a directory and its owner, None if not writable."""
    home = existing = os.path.abspath(os.path.join(directory, "tflaunch"))
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    owner = os.stat(existing).st_uid
    return home, owner if owner == os.getuid() or os.access(existing, os.W_OK) else None


def _home_of(user: int) -> str:
    """Return a user's home; "/", as in Docker, for one not in the user database."""
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return "/"


def _private(path: str) -> str:
    """Create a directory for this user alone, unless it exists; return its path."""
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _private(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.stat(path)
    if status.st_uid != os.getuid():
        raise BootError(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise BootError(f"{path} can be written to by others (mode {status.st_mode & 0o777:04o}; chmod 700 is enough)")
    return path


def last_line(path: str) -> str:
    """Return the last line of a file with text in it, "" if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


class _Place:
    """The directory of a run's agent on this host."""

    def __init__(self, home: str, request: dict[str, Any]) -> None:
        socket_name, lock_name, log_name = request["names"]
        self._home = home
        self._parts = ("runs", request["run"], "agents", request["host"])
        self.directory = os.path.join(home, *self._parts)
        self.socket_name = socket_name
        self._lock = os.path.join(self.directory, lock_name)
        self.log = os.path.join(self.directory, log_name)

    def make(self) -> None:
        """Create the directory and parents, or check that only this user can use them."""
        path = self._home
        for part in self._parts:
            path = _private(os.path.join(path, part))

    def is_free(self, patience: float) -> bool:
        """Return whether no guard lives here, after up to ``patience`` seconds of waiting."""
        try:
            lock = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            return _take_lock(lock, fcntl.LOCK_SH, patience)
        finally:
            os.close(lock)

    def kill_orphans(self, modules: _Modules) -> list[int]:
        """Kill what a killed guard (its lock file remains) left; return pids that survive."""
        if not os.path.exists(self._lock):
            return []
        modules.install()
        from tflaunch_worker.orphans import sweep

        return sweep(self.directory)


# ---- starting


def _start(request: dict[str, Any], place: _Place, modules: _Modules) -> tuple[socket.socket, int | None]:
    """Start guard and agent when nothing of an earlier one is left, as `_spawn` does."""
    modules.install()
    place.make()
    if not place.is_free(request["patience"]):
        raise BootError("an earlier agent of this run has not ended there")
    connection = _started_by_other(place.directory, request)
    return (connection, None) if connection is not None else _spawn(place.directory, bool(request.get("stays")))


def _started_by_other(directory: str, request: dict[str, Any]) -> socket.socket | None:
    """Have another process start guard and agent; return a link to the agent, or None."""
    if not request.get("warm"):
        return None
    from tflaunch_worker.feature import start_guard

    ours, theirs = socket.socketpair()
    with theirs:
        python = (sys.executable, "-E", "-s", "-S")  # as this process was started
        guard = start_guard(request["warm"], python, directory, f"tflaunch-agent:{request['run']}", theirs)
    if guard is None:
        ours.close()
        return None
    return ours


def _take_lock(lock: int, kind: int, patience: float) -> bool:
    """Take a lock of a kind of `flock`, or return False after ``patience`` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        time.sleep(_LOCK_WAIT)


class _Modules:
    """The agent's modules in this host's cache; the other end sends missing ones."""

    def __init__(self, home: str, request: dict[str, Any], source: BinaryIO) -> None:
        self._cache = os.path.join(home, "agents")
        self._hash, self._size = request["agent"], request["size"]
        self._directory = os.path.join(self._cache, self._hash)
        self._package = os.path.join(self._directory, "tflaunch_worker")
        self._source = source

    def are_here(self) -> bool:
        return hashlib.sha256(pack(self._package)).hexdigest() == str(self._hash)

    def install(self) -> None:
        """Make `import` find them, once they are here."""
        _private(self._cache)
        if not self.are_here():
            _answer("send")
            data = self._source.read(self._size)
            if hashlib.sha256(data).hexdigest() != self._hash:
                raise BootError("the agent's modules did not arrive whole")
            self._unpack(json.loads(data))
        sys.path.insert(0, self._directory)

    def _unpack(self, sources: dict[str, str]) -> None:
        """Replace what is cached, unless another process has just done so."""
        import shutil  # takes 4 ms, and modules arrive once

        new = f"{self._directory}.new"
        umask = os.umask(0o077)
        try:
            with open(os.path.join(self._cache, "lock"), "wb") as lock:
                if not _take_lock(lock.fileno(), fcntl.LOCK_EX, _UNPACK_PATIENCE):
                    raise BootError(f"the process that has locked {lock.name} there does not end")
                if self.are_here():
                    return
                shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
                for name, text in sources.items():
                    path = os.path.join(new, "tflaunch_worker", name)
                    # Here, Python's cache is private, too; it would be created with the user's umask.
                    os.makedirs(os.path.join(os.path.dirname(path), "__pycache__"), exist_ok=True)
                    with open(path, "w", encoding="utf-8", newline="") as file:
                        file.write(text)
                # Complete or not there: a process that is killed in between leaves a directory of another name.
                shutil.rmtree(self._directory, ignore_errors=True)
                os.rename(new, self._directory)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            error.filename = error.filename or new
            raise
        finally:
            os.umask(umask)


def pack(package: str) -> bytes:
    """Return a package's modules as JSON, path to source, the same on every machine.

    Without this module, which is sent before the others, and without what Python compiles.
    """
    sources = {}
    for directory, _, names in os.walk(package):
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith(".py") and name != "boot.py":
                with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                    sources[os.path.relpath(path, package)] = file.read()
    return json.dumps(sources, sort_keys=True).encode("ascii")


def _spawn(directory: str, stays: bool) -> tuple[socket.socket, int | None]:
    """Start the guard in its own session, orphaned or, with ``stays``, as our child.

    A fork saves starting Python again. Returns a link to the agent, and the guard's pid if it is our child.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            # In a session of its own, no terminal that closes sends it HUP. Forked twice, it becomes a child of init,
            # which reaps it: this process ends with the link, and a zombie of ours would look like a living guard.
            os.setsid()
            if stays or os.fork() == 0:
                ours.close()
                from tflaunch_worker.guard import guard

                guard(directory, theirs.detach())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    theirs.close()
    if not stays:
        os.waitpid(pid, 0)  # no limit: the fork exits at once
    return ours, pid if stays else None


# ---- resuming


def _resume(place: _Place, modules: _Modules) -> socket.socket | None:
    """Connect to a directory's agent; return None if it and its tasks have ended."""
    if not os.path.isdir(place.directory):
        return None
    place.make()
    os.chdir(place.directory)  # a socket address is limited to 108 bytes, and the directory may be deep
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place.socket_name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        if not place.is_free(_END_PATIENCE):
            raise BootError("the agent there is ending") from None
        left = place.kill_orphans(modules)
        if left:
            raise BootError(f"processes of its tasks do not die: {', '.join(map(str, left))}") from None
        return None
    return connection


# ---- the link


def relay(connection: socket.socket) -> None:
    """Pass bytes between link and socket until that closes; exit if the link does."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _pass_both_ways(connection, lambda: os._exit(0))


def _stay(connection: socket.socket, guard: int, holds: bool) -> None:
    """Pass bytes like `relay`; whichever end closes, wait for the guard to end.

    With ``holds``, a signal that asks us to end goes on to the guard, as TERM.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if holds:
        from tflaunch_worker.signals import ENDING, OF_TERMINALS

        for number in ENDING:
            signal.signal(number, lambda *_: os.kill(guard, signal.SIGTERM))
        for number in OF_TERMINALS:
            signal.signal(number, signal.SIG_IGN)
    _pass_both_ways(connection, lambda: connection.shutdown(socket.SHUT_RDWR))
    connection.close()
    os.waitpid(guard, 0)  # no limit: it waits as long as the guard lives


def _pass_both_ways(connection: socket.socket, hung_up: Callable[[], None]) -> None:
    """Pass bytes until a socket's peer closes; call ``hung_up`` when our input ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup(2)  # where one of the outputs is closed, containerd ends the input of a `kubectl exec`
    os.dup2(nothing, 2)

    def pass_in() -> None:
        try:
            while data := os.read(0, _CHUNK):
                connection.sendall(data)
        except OSError:
            pass
        hung_up()

    threading.Thread(target=pass_in, daemon=True).start()
    try:
        while data := connection.recv(_CHUNK):
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        pass
