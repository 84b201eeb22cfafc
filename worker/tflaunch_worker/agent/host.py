"""The host as its agent uses it: environment, commands, ports and processes."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable

from tflaunch_worker import TASKS_NAME, host_vars, linux, offload, process_state, spawn
from tflaunch_worker.agent import left_files
from tflaunch_worker.agent.checkpoint_progress import Finder
from tflaunch_worker.agent.network import listening_sockets, netlink
from tflaunch_worker.agent.network.fence import Fence
from tflaunch_worker.agent.network.peers import Listeners, look_up_names, probe_all
from tflaunch_worker.agent.network.ports import Ports, PortWatch
from tflaunch_worker.agent.progress import Progress
from tflaunch_worker.agent.task import Listener, Starter, Task
from tflaunch_worker.agent.task_env import TaskEnvironments
from tflaunch_worker.agent.task_output import LOG_VARIABLE, Spool, Stream, open_copy
from tflaunch_worker.agent.task_processes import Adopted, TaskProcesses
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.feature import features, load
from tflaunch_worker.inspect.usage import Measurer


class Host:
    """Facade of this machine for an agent with a ``directory`` of its own."""

    def __init__(self, directory: str, loop: Loop, umask: int) -> None:
        self.directory = directory
        self.adopted = Adopted()
        self._environments = TaskEnvironments(directory)
        self.fence = Fence(loop)
        self.ports = Ports(self.fence.leave)
        self._loop = loop
        self.gpus = linux.count_gpus()
        self.settings = process_state.TaskSettings(umask, process_state.raise_file_limit(), linux.be_punctual())
        self.measurer = Measurer(loop)
        self.listeners = Listeners(loop)
        self._checkpoints = Finder(loop, os.path.join(directory, TASKS_NAME))
        self._copy = open_copy(os.environ.get(LOG_VARIABLE, ""))
        self._namespaces: tuple[int, ...] = ()
        self.no_way_out = ""
        """Why tasks have no way out of the private network, or ""."""

    def watch_ports(self, opened: Callable[[str, int], None]) -> PortWatch:
        """Return a watch that calls ``opened(task, port)`` when a task listens."""
        return PortWatch(self._loop, opened, self.fence.inodes)

    def addresses(self) -> list[str]:
        """Return the addresses of this machine's network interfaces; [] if unknown."""
        return netlink.interface_addresses()

    def open_private_network(self) -> str:
        """Make the private network of the tasks; return why that is not possible, or ""."""
        places = [feature.network for feature in features().values() if feature.network]
        if places and not self._namespaces:
            try:
                self._namespaces, self.no_way_out = load(places[0])()
            except Exception as error:  # whatever it is, no task may start in another network
                return str(error)
        return "" if self._namespaces else "its agent lacks that feature"

    def fence_gap(self, task: str, port: int) -> str:
        """Return why connections can reach a task past the fence, or ""."""
        return self.fence.gap(task, listening_sockets.listeners(port, without=self.fence.inodes()))

    def stream(self, task: str, attempt: int) -> Stream:
        """Return the stream that keeps an attempt's output."""
        return Stream(task, attempt, Spool(self.directory), self._loop.now, self._copy)

    def task(self, command: spawn.Command, stream: Stream, progress: Progress | None, listener: Listener) -> Task:
        """Return a new attempt of a task, which reports its events to ``listener``."""
        processes = TaskProcesses(stream.task, stream.attempt, command.env, self.adopted)
        return Task(command, stream, processes, progress, self._loop, listener)

    def start(self, task: Task, starter: Starter | None) -> None:
        """Start a task, or have a feature start it."""
        task.start(self.settings, starter)

    def find_checkpoint(self, command: spawn.Command, since: float, found: Callable[[int], None]) -> None:
        """Call ``found`` with the highest number of a command's checkpoints."""
        self._checkpoints.find(command.argv, command.workdir, since, found)

    def find_left_file(self, task: str, name: str, most: int) -> left_files.LeftFile | None:
        """Return a file of at most ``most`` bytes that a task has left, or None."""
        return left_files.find_left_file(os.path.join(self.task_directory(task), name), most)

    def expand_path(self, path: str) -> str:
        """Return a path with this host's values; raise `UnknownValueError` without one."""
        return self._environments.expand_path(path)

    def forget_stale_files(self, task: str, names: Iterable[str]) -> None:
        """Remove the files of these names that an earlier attempt may have left."""
        for name in names:
            left_files.forget_stale(os.path.join(self.task_directory(task), name))

    def progress(self, came: Callable[[], None]) -> Progress | None:
        """Return a pipe for a task's progress reports, or None if none can be created."""
        try:
            return Progress(self._loop, came)
        except OSError:
            return None  # progress is then read from the output only

    def look_up(self, names: list[str], found: Callable[[dict[str, str]], None]) -> None:
        """Resolve names on this host; call ``found`` with the addresses by name."""

        def answered(addresses: dict[str, str] | None) -> None:
            found(addresses or dict.fromkeys(names, ""))

        offload.run_in_fork(self._loop, lambda: look_up_names(names), answered)

    def probe_peers(self, message: dict[str, Any], tried: Callable[[dict[str, str]], None]) -> None:
        """Connect to other hosts' tasks; call ``tried`` with why some are unreachable."""
        peers, run, secret, patience = (message[name] for name in ("peers", "run", "secret", "patience"))

        def answered(failed: dict[str, str] | None) -> None:
            tried(dict.fromkeys(peers, "it could not be tried") if failed is None else failed)

        offload.run_in_fork(self._loop, lambda: probe_all(peers, run, secret, patience), answered)

    def set_cluster(self, cluster: dict[str, list[str]]) -> None:
        """Set what goes into TF_CONFIG: role to the addresses of its tasks, on all hosts."""
        self._environments.cluster = cluster

    def command(self, task: str, message: dict[str, Any], progress: Progress | None) -> spawn.Command:
        """Return the command of a ``start_task`` order, with the values of this host.

        Raises:
            UnknownValueError: the command refers to a value that the host does not have, to an unknown secret, or to a
                private network, which the host does not allow.
        """
        pipe = "" if progress is None else progress.path
        command = self._environments.command(message, self.task_directory(task), pipe)
        if message.get("private"):
            reason = self.open_private_network()  # which is made for the first one
            if reason:
                remedy = 'allow it there, or use "fenced"'
                raise host_vars.UnknownValueError(f'"network": "private" is not possible: {reason}; {remedy}')
            command.namespaces = self._namespaces
            command.modules = ()  # a fork of another process cannot drop its privileges in the user namespace
        return command

    def task_directory(self, name: str) -> str:
        """Return the private directory of a task, created if missing."""
        path = os.path.join(self.directory, TASKS_NAME, name.replace(":", "-"))
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path
