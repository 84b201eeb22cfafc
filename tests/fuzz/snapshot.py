"""An agent's read-only response: `tflaunch ps` of a run without a supervisor."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from fuzz.borders import Border
from fuzz.mutations import as_json, mutate, mutate_bytes
from fuzz.stages import AgentConnector, Line, check_sentence
from tflaunch.agents import snapshot
from tflaunch_worker import wire

_SEEN = {"kind": "seen", "tasks": {"worker:0": {"attempt": 0, "pid": 7}}, "lease_left": 3.5, "is_leaving": False}


def generate(chance: random.Random) -> bytes:
    """Return the bytes of a response."""
    said: Any = _SEEN
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        said = mutate(said, chance)
    head = as_json(said)
    data = struct.pack("!II", len(head), 0) + head
    return mutate_bytes(data, chance) if chance.random() < 0.3 else data


def check(case: bytes) -> None:
    """Query an agent that sends this response."""
    line = Line()
    for start in range(0, len(case), 997):
        line.arrive(case[start : start + 997])
    line.arrive(b"")
    (seen,) = snapshot.look_at({"a": AgentConnector([line])}).values()
    check_sentence(seen.reason)
    wire.parse(json.dumps(seen, allow_nan=False))
    assert line.is_closed


BORDER = Border(generate, check)
