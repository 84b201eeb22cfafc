"""The first frame of a connection to the relay of a private network: only those of the run lead to a task."""

from __future__ import annotations

import json
import random
from typing import Any

from fuzz.borders import Border
from fuzz.mutations import as_json, mutate, mutate_bytes
from tflaunch_worker.agent.relay_frames import HEADER_BYTES, Network, read_frame, read_length, why_refused

_HERE, _THERE = "127.90.0.1", "127.90.0.2"
ORDER: dict[str, Any] = {
    "run": "run",
    "attempt": 2,
    "own": _HERE,
    "port_of": "worker:0",
    "heartbeat": 5.0,
    "hosts": {_HERE: ["a", 2222], _THERE: ["b", 2223]},
    "tasks": {"worker:0": [_HERE, 2222], "worker:1": [_THERE, 2223]},
    "authority": "A",
    "certificate": "C",
    "key": "K",
}
"""An order that joins private networks."""

_FRAME = {"run": "run", "attempt": 2, "from": _THERE, "to": "worker:0"}
_NETWORK = Network(ORDER)


def generate(chance: random.Random) -> bytes:
    """Return what another process sends: mostly frames with a few changes."""
    frame: Any = dict(_FRAME)
    for _ in range(chance.choice((0, 1, 1, 2))):
        frame = mutate(frame, chance)
    text = as_json(frame)
    length = len(text) if chance.random() < 0.8 else chance.randrange(1 << 16)
    data = min(length, (1 << 16) - 1).to_bytes(HEADER_BYTES, "big") + text
    return mutate_bytes(data, chance) if chance.random() < 0.3 else data


def leads_to_task(case: bytes) -> bool:
    """Return whether a frame of the host that is not here leads to the task, now: not in the next attempt."""
    try:
        frame = read_frame(case[HEADER_BYTES:][: read_length(case[:HEADER_BYTES])])
    except ValueError:
        return False
    is_current = frame.attempt == _NETWORK.attempt
    return is_current and frame.target == "worker:0" and not why_refused(frame, _THERE, _NETWORK)


def check(case: bytes) -> None:
    """Raise AssertionError if a frame is admitted that the host with the certificate may not send."""
    try:
        length = read_length(case[:HEADER_BYTES])
        frame = read_frame(case[HEADER_BYTES:][:length])
    except ValueError:
        return  # it is refused
    for certified in (_HERE, _THERE, "127.90.0.3", ""):
        if not why_refused(frame, certified, _NETWORK):
            about = json.loads(case[HEADER_BYTES:][:length])
            assert (about["run"], about["from"]) == ("run", certified)
            assert about["attempt"] >= ORDER["attempt"]
            assert about["to"] in ("", "worker:0")
            assert certified in ORDER["hosts"]


BORDER = Border(generate, check)
