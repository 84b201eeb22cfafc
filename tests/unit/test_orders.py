"""Orders with a common text store it once, and the bytes sent are the same as without sharing."""

from __future__ import annotations

import json

import pytest

from tflaunch.agents.outbox import COMMON, CommandOutbox
from tflaunch_worker import wire

pytestmark = pytest.mark.unit

CLUSTER = json.dumps({"worker": [f'host{number}".ä:2222' for number in range(1000)]}, ensure_ascii=False)


def fields(number: int, common: str) -> dict[str, object]:
    """Return the fields of an order to start a task."""
    env = {"A": "b", "TF_CONFIG": f"{common}task {number}"}
    return {"task": f"worker:{number}", "attempt": 0, "env": env, "argv": ("python", "ä")}


@pytest.mark.parametrize("common", [CLUSTER, "", '{"worker":["a:1"]}'], ids=["long", "none", "short"])
def test_the_frame_is_that_of_the_whole_message(common: str) -> None:
    """Byte for byte."""
    orders = CommandOutbox(are_kept=True)
    for number in range(3):
        frame = orders.add("start_task", common, **fields(number, COMMON if common else ""))
        whole = {"kind": "start_task", "order": number + 1, **fields(number, common)}
        assert b"".join(frame) == wire.encode(whole)


def test_the_text_is_kept_once() -> None:
    """Each pending order stores only a little of its own: every one contains the addresses of all tasks."""
    orders = [CommandOutbox(are_kept=True) for _ in range(50)]
    for number, one in enumerate(orders):
        one.add("start_task", CLUSTER, **fields(number, COMMON))
    pieces = {id(piece): len(piece) for one in orders for frame in one.waiting() for piece in frame}
    assert sum(pieces.values()) < len(json.dumps(CLUSTER)) + 50 * 500


def test_a_message_that_is_too_large_is_none() -> None:
    """An agent would close the connection."""
    with pytest.raises(wire.WireError):
        CommandOutbox(are_kept=True).add("start_task", "x" * wire.MAX_MESSAGE, **fields(0, COMMON))
