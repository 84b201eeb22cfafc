"""Outsiders never reach real TensorFlow: not before it listens, not while it does, and not across restarts."""

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.fixed_ports import free_ports
from support.launch import LONG, Launch
from support.waiting import PATIENCE

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shared_import")]

PROGRAMS = Path(__file__).parent / "programs"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
OUTSIDER, INSIDER = "127.0.0.2", "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a gRPC client sends first; a server answers with its settings."""

RESTARTS = 3 if LONG else 1
CONNECTIONS = 10_000 if LONG else 300
PAUSE = 0.0005 if LONG else 0.02


def call(port: int, source: str) -> str:
    """Connect from an address of this machine; return ``refused``, ``reset`` or ``answered``."""
    with socket.socket() as caller:
        caller.settimeout(PATIENCE)
        caller.bind((source, 0))
        try:
            caller.connect((INSIDER, port))
            caller.sendall(PREFACE)
            return "answered" if caller.recv(100) else "reset"
        except ConnectionRefusedError:
            return "refused"
        except (ConnectionResetError, BrokenPipeError):
            return "reset"


@contextmanager
def calls(ports: Sequence[int], source: str) -> Iterator[Counter[str]]:
    """Connect to the ports in turn until the end of the block, at least `CONNECTIONS` times; yield what came of it."""
    found: Counter[str] = Counter()
    is_over = threading.Event()

    def call_all() -> None:
        while not is_over.is_set() or found.total() < CONNECTIONS:
            found[call(ports[found.total() % len(ports)], source)] += 1
            time.sleep(PAUSE)  # clock: so that the connections are spread over the run

    caller = threading.Thread(target=call_all)
    caller.start()
    try:
        yield found
    finally:
        is_over.set()
        caller.join()
    assert found.total() >= CONNECTIONS, found


def mirrored(launch: Launch, ports: Sequence[int], host: str = "localhost", **fields: Any) -> Path:
    """Write a spec of two mirrored workers; one of them fails in each attempt but the last."""
    fault = f"if task == 'worker:1' and step == 3 * (attempt + 1) and attempt < {RESTARTS}: os._exit(7)"
    return launch.spec(
        cluster={"worker": [f"{host}:{port}" for port in ports]},
        command=["python", str(PROGRAMS / "mirrored.py"), str(3 * RESTARTS + 5), fault],
        env=QUIET,
        restart={"max": RESTARTS, "backoff": [0, 0]},
        **fields,
    )


@pytest.mark.parametrize("host", ["localhost", pytest.param("[::1]", marks=pytest.mark.thorough)])
def test_outsiders_never_reach_mirrored_workers(launch: Launch, host: str) -> None:
    """Nor do their connections change the training. In an open network they do: tests/ssh/test_network.py."""
    ports = free_ports(2)
    with calls(ports, OUTSIDER) as found:
        ended = launch.up(mirrored(launch, ports, host))
    assert ended.returncode == 0, ended.stderr
    assert found["answered"] == 0, found
    assert found["reset"] > 0, found
    assert [r["attempt"] for r in launch.journal() if r["kind"] == "task_started" and r["task"] == "worker:0"] == [
        *range(RESTARTS + 1)
    ]
    told = f"refused a connection from {OUTSIDER} to worker:"
    assert ended.stderr.count(told) == 1, ended.stderr
    assert re.findall(r"weight (\d+)", launch.log("worker:0"))[-1] == str(2 * (3 * RESTARTS + 5))
    assert "warning: connections from everywhere" not in ended.stderr
