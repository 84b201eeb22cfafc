"""The warm servers of this user on this machine: list them, and end them."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.core.events import Count, Reason, Seconds
from tflaunch.explain import figures
from tflaunch.records import read_record
from tflaunch.store.run_dir import home
from tflaunch_worker import fields
from tflaunch_worker.features.preload import warm_client
from tflaunch_worker.readable import duration_words

_COLUMNS = ("HOST", "PYTHON", "MODULES", "MEMORY", "RUNS", "ENDS IN")


class WarmServer(NamedTuple):
    """A process that has imported modules and waits for runs.

    Attributes:
        host: its machine, as the spec calls it.
        pid: its process ID.
        python: its interpreter.
        modules: what it has imported.
        memory_bytes: its memory, with its part of each shared page.
        uses: how many runs it has started.
        idle_left: seconds until it ends unless it is used.
        answers: whether it does; otherwise it is stopped, and of no use.
    """

    host: str
    pid: Count
    python: Reason
    modules: tuple[Reason, ...]
    memory_bytes: Count
    uses: Count
    idle_left: Seconds
    answers: bool = True


WarmServers = list[WarmServer]


def living(host: str = LOCALHOST) -> WarmServers:
    """Return the warm servers below TFLAUNCH_HOME; ``host`` is what this machine is called.

    Raises:
        TflaunchError: another user could have put files there.
    """
    return [read_server(host, status) for status in warm_client.describe_servers(_directory())]


def stop(host: str = LOCALHOST) -> WarmServers:
    """End all warm servers that `living` returns, and return them once they are gone."""
    return [read_server(host, status) for status in warm_client.stop_servers(_directory())]


def read_server(host: str, status: Any) -> WarmServer:
    """Return a server as its own host describes it.

    Raises:
        ValueError: a field is missing, or has another type.
    """
    return read_record(WarmServer, {**fields.mapping({"server": status}, "server"), "host": host})


def _directory() -> str:
    return warm_client.servers_directory(str(home()), os.environ)


def table(servers: list[WarmServer]) -> str:
    """Format the servers as aligned text."""
    from tflaunch.client.run_list import aligned

    return aligned([_COLUMNS, *map(_row, servers)])


def _row(server: WarmServer) -> tuple[str, ...]:
    uses, left = str(server.uses), duration_words(server.idle_left) if server.answers else "stopped"
    return server.host, server.python, ",".join(server.modules), figures.memory(server.memory_bytes), uses, left
