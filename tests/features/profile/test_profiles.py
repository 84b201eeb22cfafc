"""Profiles on their way: the agent's answers, and the drawing of stacks."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
import zlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from support.played_agent import Answers, PlayedAgent, agent_parts
from tflaunch.agents.calls import Call
from tflaunch.features.profile import flame_graph, profiler
from tflaunch_worker import wire
from tflaunch_worker.features.profile import profiles
from tflaunch_worker.features.profile.profiles import HostProfiles


def begin() -> tuple[PlayedAgent, list[tuple[str, str]], Call]:
    agent, taken = PlayedAgent(), list[tuple[str, str]]()
    call = profiler.profile(agent.calls, "worker:0", 0, 2.0, lambda problem, text: taken.append((problem, text)))
    return agent, taken, call


def test_a_profile_ends_once() -> None:
    """With its text, the agent's problem, or a lost link; the caller who ends it hears nothing."""
    stacks = profiles.pack({("main thread", "f (a.py:1)"): 3})
    for problem, body, expected in (
        ("", stacks, ("", "main thread;f (a.py:1) 3\n")),
        ("no\x1b port", b"", ("no\\x1b port", "")),
    ):
        agent, taken, _ = begin()
        agent.answer(1, body, problem=problem)
        agent.calls.lose()
        assert taken == [expected]
    agent, taken, _ = begin()
    agent.calls.lose()
    assert taken == [("the link was lost", "")]
    agent, taken, call = begin()
    call.end()
    agent.answer(1, stacks, problem="")
    agent.calls.lose()
    assert taken == []
    assert [message["kind"] for message in agent.sent] == ["profile_task", "end_call"]


@pytest.mark.parametrize(
    ("problem", "body"),
    [(None, b""), ("", b""), ("", b"main thread 3\n"), ("", profiles.pack({("main thread",): 1})[:-1]), ("", None)],
    ids=["no-problem", "empty", "not-packed", "incomplete", "a-bomb"],
)
def test_what_agents_say_about_profiles_is_checked(problem: str | None, body: bytes | None) -> None:
    agent, taken, _ = begin()
    with pytest.raises(ValueError, match=r"must be|profile"):
        agent.answer(1, zlib.compress(bytes(1 << 28)) if body is None else body, problem=problem)
    assert taken == [("its agent broke the protocol", "")]


def test_of_too_many_stacks_the_rarest_are_left_out() -> None:
    noise = random.Random(1)
    rare: dict[tuple[str, ...], int] = {("main thread", f"{noise.getrandbits(4000):x}"): 1 for _ in range(3000)}
    packed = profiles.pack({("main thread", "f (a.py:1)"): 3, **rare})
    assert len(packed) <= wire.MAX_BODY
    stacks = flame_graph.read_stacks(profiles.unpack(packed))
    assert stacks["main thread", "f (a.py:1)"] == 3
    assert len(stacks) >= len(rare) / 4


@pytest.mark.parametrize("count", ["0", "-1", "", "1_0", "9" * 400, "\u0663", "1e9", "nan"])
def test_counts_that_nobody_has_counted_are_refused(count: str) -> None:
    with pytest.raises(ValueError, match="a stack has the count"):
        flame_graph.read_stacks(f"main thread;f (a.py:1) {count}\n")


class Sampler:
    """Samples nothing until it is told what it has sampled."""

    def __init__(self, made: list[Sampler], *about: Any) -> None:
        self.problem, self.result = "", b""
        self.is_cancelled = False
        self._done = about[-1]
        made.append(self)

    def finish(self, result: bytes, problem: str = "") -> None:
        self.result, self.problem = result, problem
        self._done(self)

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_profile_is_answered_once_and_ends_with_its_request_and_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers, answers = list[Sampler](), Answers()
    monkeypatch.setattr(profiles, "StackSampler", partial(Sampler, samplers))
    service = HostProfiles(agent_parts(tasks={"worker:0": SimpleNamespace(attempt=0, pid=7, is_gone=False)}))

    def begin(task: str = "worker:0") -> None:
        answers.begin(service.profile_task, task=task, attempt=0, seconds=1.0)

    begin()
    samplers[0].finish(b"stacks")
    begin("worker:1")
    begin()
    samplers[1].finish(b"", "it does not run Python")
    heard = [
        ({"kind": "answered", "call": 1, "problem": ""}, b"stacks"),
        ({"kind": "answered", "call": 2, "problem": "it does not run"}, b""),
        ({"kind": "answered", "call": 3, "problem": "it does not run Python"}, b""),
    ]
    assert answers.heard == heard
    for _ in range(3):
        begin()
    answers.calls.end({"call": 5})
    assert [sampler.is_cancelled for sampler in samplers[2:]] == [False, True, False]
    answers.calls.end_all()
    assert [sampler.is_cancelled for sampler in samplers[2:]] == [True, True, True]
    assert answers.heard == heard


def test_stacks_are_drawn() -> None:
    """As wide as they were often, with all that they name, as text: a name may hold any character."""
    label, shown = "f\x1b]0PWNED\x07\u202e<b>\x85\r (a.py:3)", r"f\x1b]0PWNED\x07\u202e<b>\x85\r (a.py:3)"
    module = "<module> (a.py:1)"
    counts = {("main thread", module, label): 30, ("main thread", module): 10, ("thread 7", "run"): 40}
    stacks = flame_graph.read_stacks(profiles.unpack(profiles.pack(counts)))
    assert flame_graph.samples_of(stacks) == 40
    assert flame_graph.hottest(stacks) == f"75% of the main thread in {shown}"
    drawing = ET.fromstring(flame_graph.draw("worker:1 & co", stacks))
    rectangles = {
        (group[0].text or "").rpartition(":")[0]: float(group[1].get("width", "0"))
        for group in drawing.iter("{http://www.w3.org/2000/svg}g")
    }
    whole = rectangles["all threads"]
    assert rectangles[shown] == pytest.approx(whole * 30 / 80)
    assert rectangles["thread 7"] == pytest.approx(whole / 2)
