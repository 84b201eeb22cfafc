"""A zygote that outlives its run and forks later runs' guards, agents and zygotes.

When a run with `warm` ends, its zygote (`server`) stays: it leaves the agent, listens on a socket of its own and waits.
A later run asks it for a guard (`warm_client`). The server forks; the fork becomes the guard, forks the agent, and that
forks a zygote of its own, which has the modules in memory. Guard and agent then execute their usual programs, so all
processes of the run have their usual parents, and the server is none of them.

In doubt the server refuses, and the run starts in the ordinary way: other traits of the process that asks, a change on
disk of anything that was imported (then the server ends, too), threads, devices.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time

from tflaunch_worker import linux, process_ends
from tflaunch_worker.features.preload import become, fingerprint, fork_checks, warm_client
from tflaunch_worker.features.preload.fingerprint import Fingerprint
from tflaunch_worker.socket_messages import Message, receive_message, send_message

_PATIENCE = 5.0  # seconds for a client to send its request, and to answer
_MOST_SERVERS = 4
_FAILED = 127


def stay(link: socket.socket, order: Message, modules: list[str], imported_at: int) -> socket.socket:
    """Become the warm server of an agent's order, unless a reason speaks against it.

    ``order`` has the ``path`` of the socket, after how many seconds an unused server ends (``idle``), and the ``key``
    of the tasks; ``imported_at``: when the first import began, in nanoseconds since the epoch.

    Returns the connection to a later run's agent, in a fork that is its zygote; or, if there is a reason, ``link``,
    over which the agent was answered "no" instead of "warm".
    """
    state = fingerprint.take_fingerprint()
    is_sound = not fingerprint.changed_since(state, imported_at) and not fork_checks.reason_in_process()
    listener = _listen(order["path"]) if is_sound else None
    if listener is None:
        send_message(link, {"kind": "no"})
        return link
    server = _Server(listener, order, modules, state)
    _leave_agent(modules)
    send_message(link, {"kind": "warm"})
    link.close()
    return server.serve()


def _listen(path: str) -> socket.socket | None:
    """Listen at a server's path; if another server lives there, touch it, return None."""
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with open(os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # no limit: it ends with the agent, which waits for a limited time
        other = warm_client.ask(path, {"kind": "touch"})
        if other is not None and "answers" not in other:
            return None
        warm_client.end_server(path)  # one that is stopped
        warm_client.end_oldest(directory, _MOST_SERVERS - 1)
        if os.path.lexists(path):
            os.unlink(path)
        listener = linux.bind_to(directory, name)
        listener.listen(16)
    return listener


def _leave_agent(modules: list[str]) -> None:
    """Outlive the agent, and keep nothing of its run."""
    linux.die_with_parent(0)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    env = {name: value for name, value in os.environ.items() if name != "TFLAUNCH_RUN"}
    become.set_process_title([warm_client.TITLE + ",".join(modules)], env)


class _Server:
    """A server of requests until it is idle for long, or its imports have changed."""

    def __init__(self, listener: socket.socket, order: Message, modules: list[str], state: Fingerprint) -> None:
        self._listener = listener
        self._path: str = order["path"]
        self._idle: float = order["idle"]
        self._key: str = order["key"]
        self._modules = modules
        self._state = state
        self._until = time.monotonic() + self._idle
        self._uses = 0
        self._owner = warm_client.open_owner(os.path.dirname(self._path))
        signal.signal(signal.SIGCHLD, lambda *_: process_ends.reap())  # guards

    def serve(self) -> socket.socket:
        """Serve; return only in a fork that is a run's zygote, with the link to its agent."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._owner is not None:
            poll.register(self._owner, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll(max(self._until - time.monotonic(), 0) * 1000)}
            if self._owner in ready or (not ready and time.monotonic() >= self._until):
                self._end()
            if self._listener.fileno() in ready:
                link = self._accept()
                if link is not None:
                    return link

    def _accept(self) -> socket.socket | None:
        client, _ = self._listener.accept()
        descriptors: list[int] = []
        with client:
            try:
                client.settimeout(_PATIENCE)
                if not linux.is_same_user(client):
                    return None
                request, descriptors = receive_message(client)
                return self._obey(client, request)
            except (OSError, EOFError, ValueError, LookupError, TypeError):
                return None  # the client has given up, or is not one
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _obey(self, client: socket.socket, request: Message) -> socket.socket | None:
        kind = request["kind"]
        if kind == "guard":
            return self._start_guard(client, request)
        if kind == "touch":
            self._until = time.monotonic() + self._idle
        send_message(client, self._status())
        if kind == "stop":
            self._end()
        return None

    def _status(self) -> Message:
        left = max(self._until - time.monotonic(), 0.0)
        known = {"python": sys.executable, "modules": self._modules, "uses": self._uses}
        return {"kind": "status", "pid": os.getpid(), "idle_left": left, **known}

    def _end(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            pass  # it was removed, with its directory
        os._exit(0)

    # ---- the start of a run

    def _start_guard(self, client: socket.socket, request: Message) -> socket.socket | None:
        """Fork a run's guard, agent and zygote; return only in the zygote."""
        reason = self._reason_against(request)
        if reason:
            send_message(client, {"kind": "no", "reason": reason})
            return None
        changed = fingerprint.difference(self._state, fingerprint.take_fingerprint())
        if changed:
            send_message(client, {"kind": "no", "reason": f"{changed} has changed since it was imported"})
            self._end()
        self._uses += 1
        self._until = time.monotonic() + self._idle
        if os.fork() != 0:
            return None
        try:
            return self._become_run(client, request)
        except BaseException:
            try:
                client.send(warm_client.FAILED)
            finally:  # also if the client has given up: this fork must not be a second server
                os._exit(_FAILED)

    def _reason_against(self, request: Message) -> str:
        traits = fingerprint.process_traits()
        names = sorted({*traits, *request["traits"]})
        different = [name for name in names if traits.get(name) != request["traits"].get(name)]
        if different:
            return f"it differs from this process in {', '.join(different)}"
        return fork_checks.reason_in_process()

    def _become_run(self, client: socket.socket, request: Message) -> socket.socket:
        """Become the guard; fork the agent, and from it the zygote, which alone returns."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        if self._owner is not None:
            os.close(self._owner)
        os.setsid()
        own = linux.open_pidfd(os.getpid())
        send_message(client, {"kind": "guard"}, [] if own is None else [own])
        _, (link,) = receive_message(client)  # or the client has given up, and has started a guard of its own
        os.umask(request["umask"])
        os.chdir(request["cwd"])
        words = [word.encode("latin-1") for word in request["python"]]
        place = [word.encode("latin-1") for word in (request["directory"], request["title"])]
        channel, theirs = socket.socketpair()
        guard = os.getpid()
        agent = os.fork()
        if agent != 0:
            theirs.close()
            env = receive_message(client)[0]  # only what executes another program may know secrets
            send_message(channel, env)
            channel.set_inheritable(True)
            code = _program(request["root"], "main_of_guard")
            numbers = [b"%d" % number for number in (channel.fileno(), agent)]
            os.execve(words[0], [*words, code, *numbers, *place], _encoded(env))
        linux.die_with_parent(signal.SIGTERM)
        if os.getppid() != guard:
            os._exit(_FAILED)
        client.close()
        channel.close()
        zygote_link, zygote_end = socket.socketpair()
        parent = os.getpid()
        zygote = os.fork()
        if zygote != 0:
            zygote_end.close()
            env = receive_message(theirs)[0]
            kept = [theirs.fileno(), link, zygote_link.fileno()]
            for descriptor in kept:
                os.set_inheritable(descriptor, True)
            code = _program(request["root"], "main_of_agent")
            numbers = [b"%d" % number for number in (*kept, zygote)]
            os.execve(words[0], [*words, code, *numbers, self._key.encode("ascii"), *place], _encoded(env))
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_FAILED)
        os.setsid()
        theirs.close()
        zygote_link.close()
        os.close(link)
        become.set_process_title([f"tflaunch-forkserver: {','.join(self._modules)}"], os.environ)
        return zygote_end


def _program(root: str, function: str) -> bytes:
    """Return the program that calls a function of `warm_start`, found in ``root``."""
    place = f"from {__package__} import warm_start; warm_start.{function}()"
    return f"import sys; sys.path.insert(0, {root!r}); {place}".encode("utf-8", "surrogateescape")


def _encoded(message: Message) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in message["env"].items()}
