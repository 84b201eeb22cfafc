"""Commands to agents: the cluster is sent once per agent, and commands with the same body share it."""

from __future__ import annotations

import pytest

from tflaunch.agents.outbox import CommandOutbox
from tflaunch_worker import wire

pytestmark = pytest.mark.unit

BODY = b"x" * 100_000


def test_a_frame_is_that_of_the_message() -> None:
    orders = CommandOutbox(are_kept=True)
    for number, body in enumerate((BODY, b"", b"short"), 1):
        frame = orders.add("set_cluster", body, more="ä")
        assert b"".join(frame) == wire.encode({"kind": "set_cluster", "order": number, "more": "ä"}, body)
    assert orders.last_bodies == {"set_cluster": b"short"}


def test_a_body_is_kept_once() -> None:
    """It contains the addresses of all tasks, and is sent to every host."""
    orders = [CommandOutbox(are_kept=True) for _ in range(50)]
    for one in orders:
        one.add("set_cluster", BODY)
    pieces = {id(piece): len(piece) for one in orders for frame in one.begin_link() for piece in frame}
    assert sum(pieces.values()) < len(BODY) + 50 * 500


def test_a_message_that_is_too_large_is_none() -> None:
    """An agent would close the connection."""
    for body, argv in ((b"x" * (wire.MAX_BODY + 1), ""), (b"", "x" * wire.MAX_MESSAGE)):
        with pytest.raises(wire.WireError):
            CommandOutbox(are_kept=True).add("start_task", body, task="worker:0", attempt=0, argv=argv)


def test_commands_are_kept_until_they_were_obeyed() -> None:
    orders = CommandOutbox(are_kept=True)
    frames = [orders.add("hold_ports", ports={"worker:0": number}) for number in range(4)]
    orders.forget(obeyed=2)
    assert orders.begin_link() == orders.begin_link() == frames[2:]
    orders.forget()
    assert orders.begin_link() == []


def test_commands_wait_for_the_first_link_of_an_agent() -> None:
    """Also without a lease: then the first link is the only one, and later commands are not kept."""
    orders = CommandOutbox(are_kept=False)
    frame = orders.add("hold_ports", ports={})
    assert orders.begin_link() == [frame]
    orders.add("hold_ports", ports={})
    assert orders.begin_link() == []
