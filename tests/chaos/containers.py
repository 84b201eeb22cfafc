"""Hosts that are containers, reached through `docker exec`, and the faults of containers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.container_engine import IMAGE, Engine
from support.processes import Process, Table
from support.waiting import wait_until

_IDLE = ("sleep", "infinity")


class Containers:
    """Hosts 1 to N in a network of their own, on an engine of this machine, with a directory that all of them share."""

    def __init__(self, engine: Engine, mounts: list[str], hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._engine = engine
        self._mounts = mounts
        self._network = f"tfl{os.getpid()}-chaos"
        self._namespaces: dict[str, int] = {}

    @classmethod
    @contextmanager
    def started(cls, engine: Engine, directory: Path, program: Path, hosts: int = 3) -> Iterator[Containers]:
        """Start them on an engine with the project's image; remove them at the end.

        The directory is at the same place in all containers, and so is the program, which cannot be changed there.
        """
        made = cls(engine, [f"{directory}:{directory}", f"{program}:{program}:ro"], hosts)
        engine.docker("network", "create", made._network)
        try:
            for host in made.hosts:
                made._run(host)
            yield made
        finally:
            made._remove()

    def name(self, host: int) -> str:
        """Return the name of a container, which is that of the host for the others, too."""
        return f"{self._network}-h{host}"

    def of_spec(self) -> dict[str, dict[str, Any]]:
        """Return what a spec says about these hosts."""
        return {self.name(host): {"docker": self.name(host)} for host in self.hosts}

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables with which `docker` reaches the engine."""
        return {name: value for name, value in self._engine.env.items() if name == "DOCKER_HOST"}

    # Faults.

    def kill(self, host: int, seconds: float) -> None:
        """Kill all processes of a container, and start it again after some seconds."""
        self._engine.docker("kill", self.name(host))
        time.sleep(seconds)  # clock: the fault lasts so long
        self._engine.docker("start", self.name(host))
        self._note_namespace(host)

    def pause(self, host: int, seconds: float) -> None:
        """Freeze a container for some seconds."""
        self._engine.docker("pause", self.name(host))
        time.sleep(seconds)  # clock: the fault lasts so long
        self._engine.docker("unpause", self.name(host))

    def disconnect(self, host: int, seconds: float) -> None:
        """Take a container out of the network for some seconds; the way through the engine stays."""
        address = self._engine.address(self.name(host))
        self._engine.docker("network", "disconnect", self._network, self.name(host))
        time.sleep(seconds)  # clock: the fault lasts so long
        self._engine.docker("network", "connect", self._network, self.name(host))
        assert self._engine.address(self.name(host)) == address

    # Processes.

    def host_of(self, namespace: str) -> int | None:
        """Return the host with a PID namespace, None if it is that of no container."""
        return self._namespaces.get(namespace)

    def survivors(self) -> list[Process]:
        """Return all processes that do not belong to the containers themselves."""
        found = Table(self.host_of).read()
        return [one for one in found if one.cmdline != _IDLE and "docker-init" not in one.cmdline[0]]

    def wait_empty(self) -> list[Process]:
        """Wait until no such process is left; return those that are."""
        with suppress(AssertionError):
            wait_until(lambda: not self.survivors())
        return self.survivors()

    def _run(self, host: int) -> None:
        mounts = [word for mount in self._mounts for word in ("--volume", mount)]
        start = ["run", "--detach", "--init", "--user", "0", "--network", self._network, *mounts]
        self._engine.docker(*start, "--name", self.name(host), IMAGE, *_IDLE)
        self._note_namespace(host)

    def _note_namespace(self, host: int) -> None:
        pid = self._engine.docker("inspect", "--format", "{{.State.Pid}}", self.name(host))
        self._namespaces = {known: one for known, one in self._namespaces.items() if one != host}
        self._namespaces[os.readlink(f"/proc/{pid}/ns/pid")] = host

    def _remove(self) -> None:
        if there := [self.name(host) for host in self.hosts if self._engine.has("container", self.name(host))]:
            self._engine.docker("rm", "--force", *there)
        self._engine.docker("network", "rm", self._network)
