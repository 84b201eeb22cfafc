"""Which tasks wait for which in collectives, from connections recorded with TensorFlow 2.21 at 20 samples per second.

In each recording, steps took 0.15 to 0.3 s, on a busy machine with two cores; one task was slowed by half, or none.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tflaunch_worker.agent.collective_watch import CollectiveWatch, RequestWatch, WaitCounts
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.inspect import tcp_info
from tflaunch_worker.inspect.tcp_info import TcpInfo

pytestmark = pytest.mark.unit

RECORDED = json.loads((Path(__file__).parent / "recorded_collectives.json").read_text())
"""Per training, task and connection: milliseconds since data was sent and received, and how many bytes since then."""


def waits_in(training: str) -> dict[str, WaitCounts]:
    """Return what the watch sees in a recording."""
    found = {}
    for task, connections in RECORDED[training].items():
        found[task] = WaitCounts()
        watches, sizes = [RequestWatch() for _ in connections], [[0, 0] for _ in connections]
        for moment in zip(*connections, strict=True):
            ages = []
            for watch, size, (sent_ago, received_ago, sent, received) in zip(watches, sizes, moment, strict=True):
                size[0] += sent
                size[1] += received
                ages.append(
                    watch.age(TcpInfo(sent_ago=sent_ago, received_ago=received_ago, sent=size[0], received=size[1]))
                )
            found[task].note(max((age for age in ages if age is not None), default=None))
    return found


@pytest.mark.parametrize(
    ("training", "late"),
    [("worker:0 sleeps", "worker:0"), ("worker:1 sleeps", "worker:1"), ("worker:1 computes longer", "worker:1")],
)
def test_the_others_wait_for_the_late_task(training: str, late: str) -> None:
    """Twice as often as for any other, also for the one that coordinates the others over the same connections."""
    found = waits_in(training)
    shares = {task: waits.pending / waits.samples for task, waits in found.items()}
    assert shares[late] > 0.1
    assert all(shares[late] > 2 * share for task, share in shares.items() if task != late)


def test_in_a_balanced_training_nobody_waits_for_long() -> None:
    """A request waits for a moment now and then, whoever gets it."""
    assert all(waits.pending / waits.samples < 0.06 for waits in waits_in("balanced").values())


def test_each_wait_is_counted_once() -> None:
    """With its last known age; a younger request is another wait."""
    waits = WaitCounts()
    for age in (None, 10, 60, 110, None, None, 20, 70, 15, None):
        waits.note(age)
    assert (waits.samples, waits.pending) == (10, 6)
    assert waits.take_waits() == [110, 70, 15]
    assert waits.take_waits() == []


def test_a_request_that_never_gets_an_answer_is_no_wait() -> None:
    """TensorFlow's coordination service answers some requests at the end only."""
    assert RequestWatch().age(TcpInfo(sent_ago=200_000, received_ago=100_000, received=500)) is None


def test_connections_are_found_and_measured() -> None:
    """In the kernel of this machine; one that is gone is not answered for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        caller = socket.create_connection(server.getsockname())
        called, _ = server.accept()
        caller.sendall(b"x" * 1000)
        called.sendall(b"y" * 300)
        caller.recv(300)
        reader = tcp_info.TcpReader()
        (connection,) = tcp_info.connections([port])[port]
        known = reader.read(connection)
        assert known is not None
        assert (known.sent, known.received) == (300, 1000)
        assert known.sent_ago <= 1000
        for each in (called, caller):
            each.close()
        assert reader.read(connection) is None
        reader.close()


def test_a_task_without_connections_is_never_seen() -> None:
    """So that nothing is concluded about it."""
    loop = Loop()
    watch = CollectiveWatch(loop)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch.add("worker:0", server.getsockname()[1])
        caller = socket.create_connection(server.getsockname())
        watch.add("worker:1", 1)
        while not (known := watch.known("worker:0")) or not known.samples:
            loop.serve_ready(None)
            loop.call_due()
        caller.close()
    other = watch.known("worker:1")
    assert other is not None
    assert other.samples == 0
    assert watch.links("worker:1") is None
    watch.remove("worker:0")
    assert watch.known("worker:0") is None
