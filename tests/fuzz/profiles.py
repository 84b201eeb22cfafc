"""Profiles that agents send, as the terminal and the drawing show them."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
import zlib

from fuzz.borders import Border
from fuzz.mutations import mutate_bytes
from fuzz.stages import check_sentence
from support.played_agent import PlayedAgent
from tflaunch.features.profile import flame_graph
from tflaunch.features.profile.profiler import profile
from tflaunch_worker import wire

_NAMES = (
    "main thread",
    "f (a.py:1)",
    "g\x1b]0;x\x07",
    "\u202eevil",
    "<script>",
    "\ud800",
    "",
    " 0",
    " 1e9",
    "a\rb",
    "\x85",
)
_COUNTS = ("1", "7", "0", "-1", "9" * 400, "1_0", "\u0663", "", "nan", "1 2")


def generate(chance: random.Random) -> bytes:
    """Return the body of an agent's message."""
    lines = [
        ";".join(chance.choices(_NAMES, k=chance.choice((1, 2, 3, 300)))) + " " + chance.choice((*_COUNTS, "3", "4"))
        for _ in range(chance.choice((0, 1, 1, 2, 5)))
    ]
    text = "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    packed = zlib.compress(mutate_bytes(text, chance) if chance.random() < 0.3 else text)
    return mutate_bytes(packed, chance) if chance.random() < 0.1 else packed


def check(case: bytes) -> None:
    """Take it, and draw it."""
    if len(case) > wire.MAX_BODY:
        return
    taken = list[str]()
    agent = PlayedAgent()
    profile(agent.calls, "worker:0", 0, 2.0, lambda problem, text: taken.append(problem or text))
    try:
        agent.answer(1, case, problem="")
        stacks = flame_graph.read_stacks(taken[0])
    except ValueError:
        return
    check_sentence(flame_graph.hottest(stacks))
    assert flame_graph.samples_of(stacks) > 0
    assert all(
        text is None or text.replace("\n", "").isprintable()
        for text in ET.fromstring(flame_graph.draw("t", stacks)).itertext()
    )


BORDER = Border(generate, check)
