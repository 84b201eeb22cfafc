"""Connect a link to the agent: the first of our programs to run on a host at the far end of a link.

It is sent as source and reads one request (a line of JSON) from its input:

    {"mode": "start" or "resume", "run", "host", "home": path or null, "inherits": whether TFLAUNCH_HOME of the
     environment applies when "home" is null, "agent": SHA-256, "size": bytes, "patience": seconds, "holds": whether
     the processes we start end with us, so that we stay until the agent has ended,
     "names": [of the socket, the lock and the log in an agent's directory]}

It answers in lines of JSON, distinguished by ``kind``: ``send`` (the agent's archive is not cached here, send its
bytes), ``ready`` (from now on the link carries the agent's frames), ``gone`` (there is nothing to resume: no process
of the run lives here; ``words`` holds the last line of the agent's log), ``failed`` with a ``reason``.

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
_FOR_TASKS = ("/training/", "/examples/")  # these parts of the archive are for the tasks' programs
_END_PATIENCE = 5.0  # seconds for a guard to kill what an agent has left


class Failure(Exception):
    """Raised when no agent can be started or reached; its message is one sentence."""


def main(source: BinaryIO) -> None:
    """Serve the request read from ``source``. Never returns."""
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
        # The link ends when the guard does: even if the guard was killed, nothing of the run may be left here.
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
    """Create a directory that only this user can use, unless it exists; return its path.

    Raises:
        Failure: it belongs to another user, or others may write to it.
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
        """Create the directory and its parents up to our home, or check that only this user can use them.

        Raises:
            Failure: other users can.
        """
        path = self._home
        for part in self._parts:
            path = _private(os.path.join(path, part))

    def is_free(self, patience: float) -> bool:
        """Return whether no guard lives here, after waiting up to ``patience`` seconds for one to end."""

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
        """Kill what a killed guard has left, known by its lock file; return the pids that do not die."""
        if not os.path.exists(self._lock):
            return []
        archive.agent().install()
        from tflaunch_worker.orphans import sweep

        return sweep(self.directory)

    def last_words(self) -> str:
        """Return the last line of the agent's log, where a Python traceback names the exception."""
        try:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


# ---- starting


def _start(request: dict[str, Any], place: _Place, archive: _Archive) -> tuple[socket.socket, int | None]:
    """Start a guard and an agent once nothing of an earlier one is left; return as `_spawn` does."""
    agent = archive.agent()
    place.make()
    if not place.is_free(request["patience"]):
        raise Failure("an earlier agent of this run has not ended there")
    return _spawn(agent, place.directory, bool(request.get("holds")))


class _Archive:
    """The agent's archive, sent by the other end when it is not cached here."""

    def __init__(self, home: str, request: dict[str, Any], source: BinaryIO) -> None:
        self._directory = os.path.join(home, "agents")
        self._hash, self._size = request["agent"], request["size"]
        self._path = os.path.join(self._directory, f"{self._hash}.zip")
        self._source = source

    @property
    def is_here(self) -> bool:
        """Whether the archive is cached."""
        return _hash_of(self._path) == str(self._hash)

    def agent(self) -> _Agent:
        """Return the agent's modules.

        Raises:
            Failure: the archive is incomplete, or others can write to the cache directory.
        """
        _private(self._directory)
        if not self.is_here:
            _answer("send")
            _store(self._path, self._source.read(self._size), self._hash)
        return _Agent(self._path)


class _Agent:
    """Importer of the agent's modules, compiled once per Python version: Python caches none of archives."""

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._compiled = f"{archive}.{sys.implementation.cache_tag}"
        self._codes, self._data = self._read() or self._compile()

    def _read(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return what was compiled before, or None if it is missing or damaged."""
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
        """Make `import` find the modules."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module (importlib's finder protocol)."""
        code = self._codes.get(name)
        if code is None:
            return None
        is_package = os.path.basename(code.co_filename) == "__init__.py"
        spec = ModuleSpec(name, self, origin=code.co_filename, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: object) -> None:
        """Create modules as usual (importlib's loader protocol)."""

    def exec_module(self, module: Any) -> None:
        """Run a module's code (importlib's loader protocol)."""
        exec(self._codes[module.__name__], module.__dict__)  # noqa: S102 - this is what a loader does

    def get_data(self, path: str) -> bytes:
        """Return a file of the archive (importlib's loader protocol)."""
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
    """Write a file atomically."""
    temporary = f"{path}.{os.urandom(8).hex()}"  # pids are not unique: containers may share a volume and the same pids
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
    """Start the guard as a daemon in its own session: orphaned, or with ``holds`` as our child.

    A fork saves starting Python again. Returns a link to the agent, and the guard's pid if it is our child.
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
    """Connect to the agent that runs in a directory; return None if it and all its tasks have ended."""
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
            raise Failure("the agent there is ending") from None
        left = place.kill_orphans(archive)
        if left:
            raise Failure(f"processes of its tasks do not die: {', '.join(map(str, left))}") from None
        return None
    return connection


# ---- the link


def relay(connection: socket.socket) -> None:
    """Pass bytes between the link and a socket until the socket closes; exit when the link closes."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _pass_both_ways(connection, lambda: os._exit(0))


def _stay(connection: socket.socket, guard: int) -> None:
    """Pass bytes like `relay`, but whichever end closes, wait for the guard to end; forward TERM to it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(guard, signal.SIGTERM))
    _pass_both_ways(connection, lambda: connection.shutdown(socket.SHUT_RDWR))
    connection.close()
    os.waitpid(guard, 0)


def _pass_both_ways(connection: socket.socket, hung_up: Callable[[], None]) -> None:
    """Pass bytes until the other end of a socket closes; call ``hung_up`` when our input ends."""
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
