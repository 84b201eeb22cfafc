"""Which connections a relay lets through: certificate, run, attempt and task must fit together."""

from __future__ import annotations

import pytest

from tflaunch_worker.agent.relay_frames import LINK, Frame, Network, why_refused

pytestmark = pytest.mark.unit

US, PEER, STRANGER = "10.96.0.1", "10.96.0.2", "10.96.0.9"
NETWORK = Network(
    {
        "run": "night",
        "attempt": 2,
        "own": US,
        "port_of": "worker:0",
        "heartbeat": 5.0,
        "hosts": {US: ["a", 2222], PEER: ["b", 2222]},
        "tasks": {"worker:0": [US, 2222], "worker:1": [PEER, 2222]},
        "authority": "",
        "certificate": "",
        "key": "",
    }
)


@pytest.mark.parametrize("target", ["worker:0", LINK])
@pytest.mark.parametrize("attempt", [2, 3])
def test_a_host_of_the_run_is_let_through(attempt: int, target: str) -> None:
    """To a task here, or to keep a link; also with the next attempt, which this host does not know yet."""
    assert why_refused(Frame("night", attempt, PEER, target), PEER, NETWORK) == ""


@pytest.mark.parametrize(
    ("frame", "certified", "reason"),
    [
        (Frame("night", 2, US, "worker:0"), PEER, "its certificate is for another host"),
        (Frame("night", 2, STRANGER, "worker:0"), STRANGER, "its certificate is for another host"),
        (Frame("day", 2, PEER, "worker:0"), PEER, "it belongs to another run"),
        (Frame("night", 1, PEER, "worker:0"), PEER, "it belongs to attempt 1, and this is attempt 2"),
        (Frame("night", 2, PEER, "worker:1"), PEER, "it is for a task of another host"),
        (Frame("night", 2, PEER, "worker:7"), PEER, "it is for a task of another host"),
    ],
)
def test_all_others_are_refused(frame: Frame, certified: str, reason: str) -> None:
    """With the reason."""
    assert why_refused(frame, certified, NETWORK).startswith(reason)
