"""The first program of ours that runs on a host at the end of a link: it brings the link to the agent.

It is sent as source and reads one request (a line of JSON) from its input:

    {"mode": "start" or "resume", "run", "host", "home": path or null, "inherits": whether TFLAUNCH_HOME of the
     environment counts without it, "agent": SHA-256, "size": bytes, "patience": seconds, "holds": whether what we
     start ends with us, so that we stay until the agent has ended,
     "names": [of the socket, the lock and the log in an agent's directory]}

It answers in lines of JSON, by their ``kind``: ``send`` (the agent's archive is not cached here: its
bytes are expected), ``ready`` (from now on the link is the agent's), ``gone`` (there is nothing to resume:
no process of the run lives here; ``words`` are the last of the agent's log), ``failed`` with a ``reason``.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import marshal
import os
import signal
import socket
import sys
import threading
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable

_CHUNK = 256 * 1024
_FOR_TASKS = ("/training/", "/examples/")  # what lies there in the archive is for programs of tasks
_END_PATIENCE = 5.0  # seconds for a guard to kill what an agent left


class Failure(Exception):
    """Why there will be no agent: one sentence."""


def main(source: BinaryIO) -> None:
    """Serve the request that comes from ``source``. Never returns."""
    try:
        request = json.loads(source.readline())
        wanted = request["home"] or _default_home(bool(request.get("inherits")))
        home = _private(os.path.abspath(os.path.expanduser(wanted)))
        place = _Place(home, request)
        archive = _Archive(home, request, source)
        connection: socket.socket | None
        if request["mode"] == "start":
            connection, guard = _start(request, place, archive)
        else:
            connection, guard = _resume(place, archive), None
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
        if guard is None:
            relay(connection)
        else:
            _stay(connection, guard)
        # The link ends with the guard: then nothing of the run is left here, even if the guard was killed.
        if place.is_free(_END_PATIENCE) and archive.is_here:
            place.kill_orphans(archive)
        os._exit(0)


def _answer(kind: str, **fields: Any) -> None:
    data = json.dumps({"kind": kind, **fields}).encode("ascii") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _fail(reason: str) -> None:
    _answer("failed", reason=reason)
    os._exit(1)


# ---- places


def _default_home(inherits: bool) -> str:
    if inherits and os.environ.get("TFLAUNCH_HOME"):
        return os.environ["TFLAUNCH_HOME"]
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "tflaunch")


def _private(path: str) -> str:
    """Make a directory that only this user can use; return its path.

    Raises:
        Failure: it belongs to somebody else, or others may write to it.
    """
    parent = os.path.dirname(path)
    if parent != path and not os.path.isdir(parent):
        _private(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.stat(path)
    if status.st_uid != os.getuid():
        raise Failure(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise Failure(f"{path} can be written to by others (mode {status.st_mode & 0o777:04o}; chmod 700 is enough)")
    return path


class _Place:
    """The directory of a run's agent on this host."""

    def __init__(self, home: str, request: dict[str, Any]) -> None:
        socket_name, lock_name, log_name = request["names"]
        self._home = home
        self._parts = ("runs", request["run"], "agents", request["host"])
        self.directory = os.path.join(home, *self._parts)
        self.socket_name = socket_name
        self._lock = os.path.join(self.directory, lock_name)
        self._log = os.path.join(self.directory, log_name)

    def make(self) -> None:
        """Make it, or see that it is there; only this user can use it, and what is above it up to our home.

        Raises:
            Failure: others can.
        """
        path = self._home
        for part in self._parts:
            path = _private(os.path.join(path, part))

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
            fcntl.flock(lock, fcntl.LOCK_SH)
            return True
        except TimeoutError:
            return False
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.close(lock)

    def kill_orphans(self, archive: _Archive) -> list[int]:
        """Kill what a guard has left that was killed; return what does not die. A guard that ends removes its lock."""
        if not os.path.exists(self._lock):
            return []
        archive.agent().install()
        from tflaunch_worker.orphans import sweep

        return sweep(self.directory)

    def last_words(self) -> str:
        """Return the last line of the agent's log: how a Python traceback ends."""
        try:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


# ---- starting


def _start(request: dict[str, Any], place: _Place, archive: _Archive) -> tuple[socket.socket, int | None]:
    """Start a guard and an agent, once nothing of an earlier one is left; what is returned is as of `_spawn`."""
    agent = archive.agent()
    place.make()
    if not place.is_free(request["patience"]):
        raise Failure("an earlier agent of this run has not ended there")
    return _spawn(agent, place.directory, bool(request.get("holds")))


class _Archive:
    """The agent's archive, which the other end sends when it is not cached here."""

    def __init__(self, home: str, request: dict[str, Any], source: BinaryIO) -> None:
        self._directory = os.path.join(home, "agents")
        self._hash, self._size = request["agent"], request["size"]
        self._path = os.path.join(self._directory, f"{self._hash}.zip")
        self._source = source

    @property
    def is_here(self) -> bool:
        """Whether it is cached."""
        return _hash_of(self._path) == str(self._hash)

    def agent(self) -> _Agent:
        """Return the modules in it.

        Raises:
            Failure: it does not arrive, or others can write to where it is cached.
        """
        _private(self._directory)
        if not self.is_here:
            _answer("send")
            _store(self._path, self._source.read(self._size), self._hash)
        return _Agent(self._path)


class _Agent:
    """The agent's modules. Compiled once per version of Python, as an archive's modules never are by Python."""

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._compiled = f"{archive}.{sys.implementation.cache_tag}"
        self._codes, self._data = self._read() or self._compile()

    def _read(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """What was compiled before, None if there is nothing or it is not whole."""
        try:
            with open(self._compiled, "rb") as file:
                digest, content = file.read(32), file.read()
        except FileNotFoundError:
            return None
        if hashlib.sha256(content).digest() != digest:
            return None
        codes, data = marshal.loads(content)  # noqa: S302 - a private file of our own
        return codes, data

    def _compile(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        import zipfile

        codes, data = {}, {}
        with zipfile.ZipFile(self._archive) as archive:
            for path in archive.namelist():
                content = archive.read(path)
                full = os.path.join(self._archive, path)
                if any(folder in path for folder in _FOR_TASKS):
                    data[full] = content
                else:
                    name = path[: -len(".py")].replace("/", ".")
                    name = name[: -len(".__init__")] if name.endswith(".__init__") else name
                    codes[name] = compile(content, full, "exec", dont_inherit=True)
        content = marshal.dumps((codes, data))
        _write(self._compiled, hashlib.sha256(content).digest() + content)
        return codes, data

    def install(self) -> None:
        """Have `import` find the modules."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Be a finder of modules."""
        code = self._codes.get(name)
        if code is None:
            return None
        is_package = os.path.basename(code.co_filename) == "__init__.py"
        spec = ModuleSpec(name, self, origin=code.co_filename, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: object) -> None:
        """Be a loader: modules are made as usual."""

    def exec_module(self, module: Any) -> None:
        """Be a loader: run a module's code."""
        exec(self._codes[module.__name__], module.__dict__)  # noqa: S102 - what a loader is for

    def get_data(self, path: str) -> bytes:
        """Be a loader: return a file of the archive."""
        return self._data[path]


def _hash_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return ""


def _store(path: str, data: bytes, expected: str) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        raise Failure("the agent's archive did not arrive whole")
    _write(path, data)


def _write(path: str, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = f"{path}.{os.urandom(8).hex()}"  # containers that share a volume share the numbers of processes, too
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


def _spawn(agent: _Agent, directory: str, holds: bool) -> tuple[socket.socket, int | None]:
    """Start the guard as a daemon: in a session of its own, as nobody's child, or with ``holds`` as ours.

    A fork is enough, and spares the host another start of Python. Returns a link to the agent, and the guard if it
    is our child.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if holds or os.fork() == 0:
                ours.close()
                agent.install()
                from tflaunch_worker.guard import guard

                guard(directory, theirs.detach())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    theirs.close()
    if holds:
        return ours, pid
    os.waitpid(pid, 0)
    return ours, None


# ---- resuming


def _resume(place: _Place, archive: _Archive) -> socket.socket | None:
    """Connect to the agent that runs in a place; None when it has ended, with all its tasks."""
    if not os.path.isdir(place.directory):
        return None
    place.make()
    os.chdir(place.directory)  # a socket's address is short, and the directory may be deep
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place.socket_name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        if not place.is_free(_END_PATIENCE):
            raise Failure("the agent there is ending") from None
        left = place.kill_orphans(archive)
        if left:
            raise Failure(f"processes of its tasks do not die: {', '.join(map(str, left))}") from None
        return None
    return connection


# ---- the link


def relay(connection: socket.socket) -> None:
    """Pass bytes between the link and a socket until that has hung up; exit when the link has."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _pass_both_ways(connection, lambda: os._exit(0))


def _stay(connection: socket.socket, guard: int) -> None:
    """Pass bytes as `relay`; whoever hangs up, wait for the guard's end, and pass on to it when we are to end."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(guard, signal.SIGTERM))
    _pass_both_ways(connection, lambda: connection.shutdown(socket.SHUT_RDWR))
    connection.close()
    os.waitpid(guard, 0)


def _pass_both_ways(connection: socket.socket, hung_up: Callable[[], None]) -> None:
    """Pass bytes until the other end of a socket has hung up; call ``hung_up`` when our input has."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)

    def pass_in() -> None:
        try:
            while True:
                data = os.read(0, _CHUNK)
                if not data:
                    break
                connection.sendall(data)
        except OSError:
            pass
        hung_up()

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
