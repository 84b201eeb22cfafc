"""Find warm servers (`warm_server`), and ask them for a run's guard."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
from typing import Mapping, Sequence

from tflaunch_worker import linux, procfs
from tflaunch_worker.features.preload import fingerprint
from tflaunch_worker.socket_messages import Message, receive_message, send_message

DIRECTORY = "TFLAUNCH_WARM_DIR"
"""Variable with the directory of the servers' sockets; by default, it is in the home of tflaunch."""
OWNER_NAME = "owner"
"""File there with the pid of a process with which the servers end; without it, only the idle limit ends them."""
TITLE = "tflaunch-warm: "
"""What the title of a server begins with; the modules follow."""
FAILED = b"!"
"""What it answers if it cannot."""

ROOT = os.path.abspath(__file__ + "/../../../..")
"""Where this package is imported from."""

_DEFAULT_NAME = "warm"
_SUFFIX = ".sock"
# Seconds for a server to answer: not more than importing TensorFlow takes, which it saves. Its checks of TensorFlow's
# 3,000 files take 0.02 s, and longer on a busy machine.
_PATIENCE = 5.0
_END_PATIENCE = 5.0  # seconds for a server to end
_OWN_PREFIX = "TFLAUNCH_"
_NOISE = frozenset(
    (
        *("_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "WINDOWID", "PYTEST_CURRENT_TEST"),
        *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "XDG_SESSION_ID"),
    )
)
"""Variables that differ between runs and change nothing that a module does while it is imported."""


def without_noise(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that imports may depend on."""
    return {name: value for name, value in environ.items() if name not in _NOISE and not name.startswith(_OWN_PREFIX)}


def servers_directory(home: str, environ: Mapping[str, str]) -> str:
    """Return the directory of the servers' sockets, which only this user can enter."""
    return environ.get(DIRECTORY) or os.path.join(home, _DEFAULT_NAME)


def socket_path(agent_directory: str, recipe: str, environ: Mapping[str, str]) -> str:
    """Return the path of the server for tasks with a recipe.

    Args:
        agent_directory: the directory of an agent, HOME/runs/RUN/agents/HOST.
        recipe: a hash of everything in the plan that decides what is imported, and how; then ``=NAME`` for each
            variable of ``environ`` with a secret, which must not decide about the name.
        environ: the environment of the agent.
    """
    secrets = recipe.split("=")[1:]
    env = {variable: value for variable, value in without_noise(environ).items() if variable not in secrets}
    known = [recipe, ROOT, sorted(env.items()), _own_version()]
    name = hashlib.sha256(json.dumps(known).encode("ascii")).hexdigest()[:16]
    return os.path.join(servers_directory(home_of(agent_directory), environ), name + _SUFFIX)


def home_of(agent_directory: str) -> str:
    """Return tflaunch's home, given an agent's directory, HOME/runs/RUN/agents/HOST."""
    for _ in range(4):
        agent_directory = os.path.dirname(agent_directory)
    return agent_directory


def _own_version() -> list[list[object]]:
    """Return this package's version on disk: a server keeps the modules of its start."""
    found = []
    for directory in (os.path.join(ROOT, __name__.partition(".")[0]), os.path.dirname(__file__)):
        for entry in os.scandir(directory):
            if entry.name.endswith(".py"):
                status = entry.stat()
                found.append([entry.name, status.st_size, status.st_mtime_ns, status.st_ino])
    return sorted(found)


def request_guard(recipe: str, python: Sequence[str], directory: str, title: str, link: socket.socket) -> int | None:
    """Have a server start a run's guard and agent, as in `feature.start_guard`."""
    server = _connect(socket_path(directory, recipe, os.environ))
    if server is None:
        return None
    descriptors: list[int] = []
    with server:
        if procfs.is_stopped(linux.peer_of(server)[0]):
            return None
        try:
            send_message(server, _guard_request(python, directory, title))
            answer, descriptors = receive_message(server)
            if answer["kind"] != "guard" or len(descriptors) != 1:
                return None
            # Not before the answer: in the queue of a process that is stopped, a copy of the agent's end of the link
            # would stay open after the agent's death, which the other end would never notice.
            send_message(server, {"kind": "go"}, [link.fileno()])
            send_message(server, {"kind": "env", "env": _environment()})
            if server.recv(1) == b"":  # the connection closes when the guard's program is executed
                return descriptors[0]
        except (OSError, EOFError, ValueError, LookupError):
            pass  # it was killed, or does not answer
    for guard in descriptors:  # it may be stopped with the link in its queue
        linux.kill(0, guard, signal.SIGKILL)
        os.close(guard)
    return None


def _guard_request(python: Sequence[str], directory: str, title: str) -> Message:
    """Return a request for a guard like one that this process would start."""
    status = procfs.read("/proc/self/status") or ""  # the system call that tells the umask would change it
    return {
        "kind": "guard",
        "python": [_text(os.fsencode(word)) for word in (*python, "-c")],
        "root": ROOT,
        "directory": _text(os.fsencode(directory)),
        "title": _text(os.fsencode(title)),
        "cwd": os.getcwd(),
        "umask": int(status.partition("\nUmask:")[2].split(None, 1)[0], 8),
        "traits": fingerprint.process_traits(),
    }


def _environment() -> dict[str, str]:
    return {_text(name): _text(value) for name, value in os.environb.items()}


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _connect(path: str) -> socket.socket | None:
    """Connect to a server of this user; return None without one."""
    try:
        connection = linux.connect_to(*os.path.split(path), patience=_PATIENCE)
    except OSError:
        return None
    if linux.is_same_user(connection):
        return connection
    connection.close()
    return None


def ask(path: str, request: Message) -> Message | None:
    """Return a server's answer, or what /proc shows of a silent one; None without one."""
    connection = _connect(path)
    if connection is None:
        return None
    with connection:
        pid, _ = linux.peer_of(connection)
        try:
            if not procfs.is_stopped(pid):
                send_message(connection, request)
                return receive_message(connection)[0]
        except (OSError, EOFError, ValueError):
            pass  # it has ended, or does not answer
    title = (procfs.read(f"/proc/{pid}/cmdline") or "").rstrip("\0")
    if not title.startswith(TITLE):
        return None
    try:
        python = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None
    modules = title[len(TITLE) :].split(",")
    return {"pid": pid, "idle_left": 0.0, "python": python, "modules": modules, "uses": 0, "answers": False}


def end_server(path: str) -> None:
    """End a server, and wait until it is gone; kill it if it does not answer."""
    status = ask(path, {"kind": "stop"})
    if status is None:
        return
    end = linux.open_pidfd(status["pid"])
    if end is None:
        return
    if "answers" in status or not select.select([end], [], [], _END_PATIENCE)[0]:
        linux.kill(status["pid"], end, signal.SIGKILL)
        select.select([end], [], [], _END_PATIENCE)
    os.close(end)


def living_servers(directory: str) -> dict[str, Message]:
    """Return the status of the servers with sockets in a directory, by their paths."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    except OSError:
        return {}
    paths = [os.path.join(directory, name) for name in names]
    answers = ((path, ask(path, {"kind": "status"})) for path in paths)
    return {path: answer for path, answer in answers if answer is not None}


def describe_servers(directory: str) -> list[Message]:
    """Return `living_servers` with ``memory_bytes``: with a share of shared pages."""
    found = living_servers(directory).values()
    return [{**status, "memory_bytes": procfs.proportional_memory(status["pid"])} for status in found]


def stop_servers(directory: str) -> list[Message]:
    """End the servers of a directory; return their last status once they are gone."""
    found = living_servers(directory)
    for path in found:
        end_server(path)
    return [{**status, "memory_bytes": 0} for status in found.values()]


def end_oldest(directory: str, most: int) -> None:
    """End the longest unused servers, until at most ``most`` are left."""
    found = sorted(living_servers(directory).items(), key=lambda item: float(item[1]["idle_left"]))
    for path, _ in found[: max(len(found) - most, 0)]:
        end_server(path)


def open_owner(directory: str) -> int | None:
    """Return the pidfd of the owner of a directory's servers, None without its file.

    Raises:
        ProcessLookupError: that process has ended.
    """
    text = procfs.read(os.path.join(directory, OWNER_NAME))
    if text is None:
        return None
    owner = linux.open_pidfd(int(text))
    if owner is None:
        raise ProcessLookupError
    return owner
