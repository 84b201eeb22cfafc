"""The warm servers of this user on this machine: list them, and end them."""

from __future__ import annotations

import os
import select
from typing import NamedTuple

from tflaunch.explain.wording import counted
from tflaunch.store.run_dir import home
from tflaunch.tui import formatting
from tflaunch_worker import linux
from tflaunch_worker.forkserver import warm_client

_COLUMNS = ("PYTHON", "MODULES", "MEMORY", "RUNS", "ENDS IN")
_PATIENCE = 5.0  # seconds for a server to end


class WarmServer(NamedTuple):
    """A process that has imported modules and waits for runs.

    Attributes:
        pid: its process ID.
        python: its interpreter.
        modules: what it has imported.
        memory_bytes: its memory, with its part of each shared page.
        uses: how many runs it has started.
        idle_left: seconds until it ends unless it is used.
    """

    pid: int
    python: str
    modules: tuple[str, ...]
    memory_bytes: int
    uses: int
    idle_left: float


def living() -> list[WarmServer]:
    """Return the warm servers below TFLAUNCH_HOME.

    Raises:
        TflaunchError: another user could have put files there.
    """
    return [
        WarmServer(
            pid=status["pid"],
            python=status["python"],
            modules=tuple(status["modules"]),
            memory_bytes=linux.proportional_memory(status["pid"]),
            uses=status["uses"],
            idle_left=status["idle_left"],
        )
        for status in warm_client.living_servers(_directory()).values()
    ]


def stop_all() -> int:
    """End all warm servers and wait until they are gone; return how many there were.

    Raises:
        TflaunchError: another user could have put files there.
    """
    return stop_in(_directory())


def stop_in(directory: str) -> int:
    """End the warm servers whose sockets are in a directory, and wait until they are gone."""
    found = warm_client.living_servers(directory)
    for path, status in found.items():
        end = linux.open_pidfd(status["pid"])
        warm_client.ask(path, {"kind": "stop"})
        if end is not None:
            select.select([end], [], [], _PATIENCE)
            os.close(end)
    return len(found)


def _directory() -> str:
    return warm_client.servers_directory(str(home()), os.environ)


def in_one_line(servers: list[WarmServer]) -> str:
    """Return what the servers cost, or "" without any."""
    if not servers:
        return ""
    total = formatting.memory(sum(server.memory_bytes for server in servers))
    verb = "uses" if len(servers) == 1 else "use"
    return f"{counted(len(servers), 'warm server')} {verb} {total} (`tflaunch warm` lists, `tflaunch warm --stop` ends)"


def table(servers: list[WarmServer]) -> str:
    """Format the servers as aligned text."""
    rows = [_COLUMNS, *map(_row, servers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _row(server: WarmServer) -> tuple[str, ...]:
    left = formatting.duration(server.idle_left)
    return (server.python, ",".join(server.modules), formatting.memory(server.memory_bytes), str(server.uses), left)
