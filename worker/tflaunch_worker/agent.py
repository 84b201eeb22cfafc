"""The agent: starts, watches and ends the tasks of one run on one host, as its supervisor says.

It is a daemon. Its supervisor is a client of its socket and may vanish: the agent's *lease* is how
long the tasks may then live (seconds). When it is over, the agent ends them with the stop ladder and
exits. A lease of 0 means that nobody will come back: the tasks are killed the moment the connection
is lost.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct

from tflaunch_worker import CODE_NAME, SOCKET_NAME, TASKS_NAME, aside, child, host_values, linux, wire
from tflaunch_worker.client import Client
from tflaunch_worker.lease import Lease
from tflaunch_worker.loop import Loop, Timer
from tflaunch_worker.port_watch import PortWatch
from tflaunch_worker.ports import Ports, PortTaken
from tflaunch_worker.stream import Stream
from tflaunch_worker.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tflaunch_worker.offer import Offer


# What a plan calls these places on hosts whose paths are not known beforehand.
_SERVER = "TFLAUNCH_SERVER"
_CODE = "TFLAUNCH_CODE"


class Agent:
    """All that this host does for one run."""

    def __init__(self, directory: str, connection: socket.socket, umask: int) -> None:
        self._directory = directory
        self._umask = umask
        self._environ = dict(os.environ)
        self._max_files = _raise_file_limit()
        self._loop = Loop()
        self._client = Client(self._loop, self._obey, self._client_lost)
        self._ports = Ports()
        self._port_watch = PortWatch(self._loop, self._port_opened)
        self._tasks: dict[str, Task] = {}
        self._lease = Lease()
        self._lease_timer: Timer | None = None
        self._grace = 0.0
        self._obeyed = 0
        self._offer: Offer | None = None
        self._is_leaving = False
        self._watch_lease()
        self._listen()
        self._watch_signals()
        self._client.connect(connection)

    def run(self) -> None:
        """Serve until the run ends or the lease is over."""
        self._loop.run()
        self._client.disconnect()

    # ---- what the supervisor says

    def _obey(self, message: dict[str, Any], body: bytes) -> None:
        order = self._ORDERS.get(message["kind"])
        try:
            if message["kind"] in ("offer_files", "file_part"):
                self._take_files(message, body)
            elif order is None:
                self._client.refuse(f"unknown order {message['kind']!r}")
            elif self._is_new(message):
                order(self, message)
        except (KeyError, TypeError, ValueError) as error:
            self._client.refuse(f"malformed order {message['kind']!r}: {error!r}")

    def _is_new(self, message: dict[str, Any]) -> bool:
        """Whether an order is obeyed for the first time: after a lost link it is sent again."""
        number = int(message.get("order", 0))
        if 0 < number <= self._obeyed:
            return False
        self._obeyed = max(number, self._obeyed)
        return True

    def _hello(self, message: dict[str, Any]) -> None:
        if message["protocol"] != wire.PROTOCOL:
            self._client.refuse(f"this agent speaks protocol {wire.PROTOCOL}, not {message['protocol']}")
            return
        self._lease.begin(float(message["lease"]), str(message["clock"]), float(message["sent"]))
        self._grace = float(message["grace"])
        self._watch_lease()
        about = {"protocol": wire.PROTOCOL, "pid": os.getpid(), "obeyed": self._obeyed, "is_leaving": self._is_leaving}
        self._client.greet(int(message["seen"]), **about)

    def _keep_alive(self, message: dict[str, Any]) -> None:
        """Being heard renews the lease; the answer tells the supervisor that the link works both ways."""
        self._lease.renew(float(message["sent"]))
        self._client.answer("alive", obeyed=self._obeyed)

    def _acknowledge(self, message: dict[str, Any]) -> None:
        self._client.forget_seen(int(message["seen"]))
        for task, attempt, offset, is_complete in message["streams"]:
            self._client.acknowledge(task, attempt, offset, is_complete)
        self._stop_when_done()

    def _hold_ports(self, message: dict[str, Any]) -> None:
        held, refused = {}, {}
        for task, port in message["ports"].items():
            try:
                held[task] = self._ports.hold(task, port)
            except PortTaken as taken:
                refused[task] = str(taken)
        if refused:
            self._client.say("ports_refused", refused=refused)
        else:
            self._client.say("ports_held", ports=held)

    def _look_up_names(self, message: dict[str, Any]) -> None:
        from tflaunch_worker import names  # a run on one host has none to look up

        wanted = [str(name) for name in message["names"]]

        def found(addresses: dict[str, str] | None) -> None:
            self._client.say("names_found", found=addresses or dict.fromkeys(wanted, ""))

        aside.do(self._loop, lambda: names.look_up(wanted), found)

    def _take_files(self, message: dict[str, Any], body: bytes) -> None:
        """The supervisor offers files for the tasks, or sends a part of one."""
        if self._offer is None:
            from tflaunch_worker.offer import Offer  # most runs have no files to bring

            self._offer = Offer(self._directory, self._loop, self._client)
        self._offer.obey(message, body)

    def _start_task(self, message: dict[str, Any]) -> None:
        name, attempt = str(message["task"]), int(message["attempt"])
        running = self._tasks.get(name)
        if running is not None and not running.is_gone:
            raise ValueError(f"{name} is still running attempt {running.attempt}")
        stream = Stream(name, attempt, self._directory)
        self._client.add(stream)
        try:
            command = self._command(name, message)
        except host_values.UnknownValue as unknown:
            about = {"task": name, "attempt": attempt}
            self._client.say("task_not_started", **about, code=child.NOT_EXECUTABLE, reason=str(unknown))
            self._client.say("task_gone", **about)
            stream.finish()
            self._client.has_output(stream)
            return
        task = Task(name, attempt, command, stream, self._loop, self)
        self._tasks[name] = task
        if message["port"]:
            self._port_watch.add(name, message["port"])
        task.start(self._umask, self._max_files)

    def _command(self, task: str, message: dict[str, Any]) -> child.Command:
        """What to execute, with this host's values in it.

        Raises:
            UnknownValue: the host has no such value.
        """
        known = {**self._environ, _SERVER: self._server_program(), _CODE: os.path.join(self._directory, CODE_NAME)}
        env = dict(self._environ) if message["inherit"] else host_values.bare_environment()
        env.update({variable: host_values.expand(value, known) for variable, value in message["env"].items()})
        for variable in message["unset"]:
            env.pop(variable, None)
        env["TFLAUNCH_TASK_DIR"] = self._task_directory(task)
        program, *arguments = message["argv"]
        argv = [host_values.expand_path(program, known), *(host_values.expand(word, known) for word in arguments)]
        return child.Command(argv, env, host_values.expand_path(message["workdir"], known))

    def _server_program(self) -> str:
        """The path of TensorFlow's standard server, which an agent from an archive has to write down first."""
        program = os.path.join(os.path.dirname(__file__), "training", "server.py")
        loader = globals().get("__loader__")
        if os.path.exists(program) or loader is None:
            return program
        copy = os.path.join(self._directory, TASKS_NAME, "server.py")
        os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        with open(copy, "wb") as file:
            file.write(loader.get_data(program))
        return copy

    def _task_directory(self, name: str) -> str:
        path = os.path.join(self._directory, TASKS_NAME, name.replace(":", "-"))
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def _stop_task(self, message: dict[str, Any]) -> None:
        task = self._tasks.get(message["task"])
        if task is not None and task.attempt == message["attempt"]:
            task.stop(float(message["grace"]))

    def _leave(self, message: dict[str, Any]) -> None:
        self._end_all(float(message["grace"]))

    # ---- what tasks tell (the listener of `Task`)

    def say(self, kind: str, **fields: object) -> None:
        """Tell the supervisor that something happened."""
        self._client.say(kind, **fields)

    def has_output(self, stream: Stream) -> None:
        """A stream has something to send."""
        self._client.has_output(stream)

    def has_gone(self, task: Task) -> None:
        """The last process of a task is dead."""
        self._port_watch.remove(task.name)
        self._stop_when_done()

    def _port_opened(self, name: str) -> None:
        self._client.say("port_opened", task=name, attempt=self._tasks[name].attempt)

    # ---- the end

    def _end_all(self, grace: float) -> None:
        self._is_leaving = True
        for task in list(self._tasks.values()):
            task.stop(grace)
        self._stop_when_done()

    def _stop_when_done(self) -> None:
        """Leave when no task lives and the supervisor, if there still is one, has heard everything."""
        has_told = not self._client.is_connected or self._client.has_heard_all
        if self._is_leaving and has_told and all(task.is_gone for task in self._tasks.values()):
            self._loop.stop()

    def _end_by_itself(self, reason: str) -> None:
        """End everything without having been told to: what becomes of the tasks now is not their fault."""
        if not self._is_leaving:
            self._client.say("host_leaving", reason=reason)
        self._end_all(self._grace)

    def _client_lost(self) -> None:
        if self._lease.seconds == 0 or not (self._tasks or self._offer):
            self._end_all(0)
        elif self._is_leaving:
            self._stop_when_done()

    def _watch_lease(self) -> None:
        """Look at the lease when it would be over; a lease of 0 is the connection itself."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self._lease.seconds > 0:
            self._lease_timer = self._loop.at(self._lease.ends_at, self._check_lease)

    def _check_lease(self) -> None:
        if not self._lease.is_over:
            self._watch_lease()
            return
        self._client.disconnect()
        self._end_by_itself(f"nothing was heard of the supervisor for the lease of {self._lease.seconds:g} s")

    # ---- other ways to reach the agent

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _ShortPath(self._directory) as directory:
            self._listener.bind(f"{directory}/{SOCKET_NAME}")
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if _is_same_user(connection):
            self._client.connect(connection)
        else:
            connection.close()

    def _watch_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _only_wake)
        if not linux.has_pidfd():
            signal.signal(signal.SIGCHLD, _only_wake)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._signals = reader
        self._loop.watch(reader, self._on_signal)

    def _on_signal(self) -> None:
        numbers = os.read(self._signals, 4096)
        if signal.SIGTERM in numbers:
            self._end_by_itself("its agent was terminated there")
        for task in list(self._tasks.values()):
            task.check_exit()

    _ORDERS = {  # noqa: RUF012 - ClassVar would need the import of typing
        "hello": _hello,
        "keep_alive": _keep_alive,
        "acknowledge": _acknowledge,
        "hold_ports": _hold_ports,
        "look_up_names": _look_up_names,
        "start_task": _start_task,
        "stop_task": _stop_task,
        "leave": _leave,
    }


def _only_wake(number: int, frame: object) -> None:
    """Signals are read from the wake-up pipe, in the loop."""


def _raise_file_limit() -> tuple[int, int]:
    """Allow this process as many open files as it may have; return what tasks shall get instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


class _ShortPath:
    """A name for a directory that fits into a socket address, however deep the directory is."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> str:
        self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        short = f"/proc/self/fd/{self._descriptor}"
        return short if os.path.isdir(short) else self._directory

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


def _is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this agent's user, or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory's mode already keeps others out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.getuid(), 0)
