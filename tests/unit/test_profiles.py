"""Profiles on their way: the agent's answers, and the drawing of stacks."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest

from tflaunch.agents.profile_link import ProfileLink, Receiver
from tflaunch.explain import flame_graph
from tflaunch_worker.agent.left_files import PART
from tflaunch_worker.agent.profiles import HostProfiles
from tflaunch_worker.inspect import stack_samples

pytestmark = pytest.mark.unit


class Taker(Receiver):
    """Notes what it takes."""

    def __init__(self, problem: str = "") -> None:
        self.data = b""
        self.ended: list[str] = []
        self.problem = problem

    def take(self, data: bytes) -> str:
        self.data += data
        return self.problem

    def end(self, problem: str) -> None:
        self.ended.append(problem)


class Agent:
    """The far end of a link: what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, kind: str, **about: object) -> bool:
        """Note a message."""
        self.asked.append((kind, about))
        return True


def begin(taker: Taker) -> tuple[ProfileLink, Agent, Callable[[], None]]:
    """Return a link over which a task is being profiled."""
    agent = Agent()
    link = ProfileLink(agent.ask)
    return link, agent, link.begin("worker:0", 0, 2.0, taker)


def test_a_profile_is_fetched_part_by_part() -> None:
    """And then released."""
    taker = Taker()
    link, agent, _ = begin(taker)
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": PART + 3}, b"")
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, bytes(PART))
    assert taker.ended == []
    link.take({"kind": "profile_read", "request": 1, "offset": PART}, b"end")
    assert (len(taker.data), taker.ended) == (PART + 3, [""])
    assert [kind for kind, _ in agent.asked] == ["profile_task", "read_profile", "read_profile", "end_profile"]
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, b"late")  # of no profile any more


def test_what_ends_a_profile_early_is_told_once() -> None:
    """The agent's problem, ours, a lost link; the caller who ends it hears nothing."""
    for message, body, problem in (
        ({"kind": "profiled", "problem": "no\x1b port", "size": 0}, b"", "no\\x1b port"),
        ({"kind": "profiled", "problem": "", "size": 0}, b"", "its profile is empty"),
    ):
        taker = Taker()
        link, _, _ = begin(taker)
        link.take({**message, "request": 1}, body)
        link.forget()
        assert taker.ended == [problem]
    full, lost, left = Taker("disk full"), Taker(), Taker()
    link, _, _ = begin(full)
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": 3}, b"")
    link.take({"kind": "profile_read", "request": 1, "offset": 0}, b"abc")
    begin(lost)[0].forget()
    link, agent, end = begin(left)
    end()
    link.forget()
    assert (full.ended, lost.ended, left.ended) == (["disk full"], ["the link to its host is lost"], [])
    assert agent.asked[-1] == ("end_profile", {"request": 1})


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ({"kind": "profiled", "request": 2, "problem": "", "size": 1}, b""),
        ({"kind": "profiled", "request": 1, "problem": "", "size": -1}, b""),
        ({"kind": "profiled", "request": 1, "problem": None, "size": 1}, b""),
        ({"kind": "profiled", "request": 1, "problem": "", "size": 5}, b""),
        ({"kind": "profile_read", "request": 1, "offset": 1}, b"ab"),
        ({"kind": "profile_read", "request": 1, "offset": 0}, b"abcd"),
        ({"kind": "profile_read", "request": 1}, b"abc"),
    ],
)
def test_what_agents_say_about_profiles_is_checked(message: dict[str, object], body: bytes) -> None:
    """Profiles that were not requested, twice the same, parts of another place or length."""
    link, _, _ = begin(Taker())
    link.take({"kind": "profiled", "request": 1, "problem": "", "size": 3}, b"")
    with pytest.raises(ValueError, match=r"must be|profile"):
        link.take(message, body)


class Sampler:
    """Samples nothing until it is told what it has sampled."""

    def __init__(self, loop: object, pid: int, seconds: float, count: object, done: Callable[[Sampler], None]) -> None:
        self.problem, self.result = "", b""
        self.is_cancelled = False
        self._done = done

    def finish(self, result: bytes, problem: str = "") -> None:
        """End by itself."""
        self.result, self.problem = result, problem
        self._done(self)

    def cancel(self) -> None:
        """Note that it was ended."""
        self.is_cancelled = True


class HostAgent:
    """The profiles of a host on which worker:0 runs as process 7: what samples, and what is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samplers: list[Sampler] = []
        self.answers: list[tuple[str, dict[str, object]]] = []
        self.parts: list[bytes] = []
        monkeypatch.setattr(stack_samples, "StackSampler", self._sample)
        pids = {("worker:0", 0): 7}
        link: Any = self
        loop: Any = None
        self.profiles = HostProfiles(loop, link, lambda task, attempt: pids.get((task, attempt), 0))

    def _sample(self, *about: Any) -> Sampler:
        self.samplers.append(Sampler(*about))
        return self.samplers[-1]

    def answer(self, kind: str, **about: object) -> None:
        """Note an answer."""
        self.answers.append((kind, about))

    def answer_with(self, part: bytes, kind: str, **about: object) -> None:
        """Note a part of a profile."""
        self.parts.append(part)

    def begin(self, request: int, task: str = "worker:0") -> None:
        """Have a task profiled."""
        message = {"kind": "profile_task", "request": request, "task": task, "attempt": 0, "seconds": 1.0}
        self.profiles.obey(message)

    def read(self, request: int, offset: int) -> bytes:
        """Return a part of a profile."""
        self.profiles.obey({"kind": "read_profile", "request": request, "offset": offset})
        return self.parts[-1]


def test_an_agent_sends_a_profile_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is released; what cannot be profiled is refused with the reason."""
    host = HostAgent(monkeypatch)
    profile = bytes(range(256)) * (PART // 256) + b"end"
    host.begin(1)
    with pytest.raises(ValueError, match="profile 1 exists"):
        host.begin(1)
    host.samplers[0].finish(profile)
    assert host.read(1, 0) + host.read(1, PART) == profile
    host.profiles.obey({"kind": "end_profile", "request": 1})
    assert host.read(1, 0) == b""
    host.begin(2, "worker:1")
    host.begin(3)
    host.samplers[1].finish(b"", "it does not run Python")
    assert host.answers == [
        ("profiled", {"request": 1, "problem": "", "size": PART + 3}),
        ("profiled", {"request": 2, "problem": "it does not run", "size": 0}),
        ("profiled", {"request": 3, "problem": "it does not run Python", "size": 0}),
    ]


def test_a_profile_ends_with_its_request_and_with_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sampled for nobody."""
    host = HostAgent(monkeypatch)
    for request in (1, 2, 3):
        host.begin(request)
    host.profiles.obey({"kind": "end_profile", "request": 2})
    assert [sampler.is_cancelled for sampler in host.samplers] == [False, True, False]
    host.profiles.forget_all()
    assert [sampler.is_cancelled for sampler in host.samplers] == [True, True, True]
    assert host.answers == []


def test_stacks_are_drawn() -> None:
    """As wide as they were often, with all that they name; a name cannot become markup."""
    lines = (
        "main thread;<module> (a.py:1);f<script> (a.py:3) 30",
        "main thread;<module> (a.py:1) 10",
        "thread 7;run 40",
    )
    text = "\n".join(lines)
    stacks = flame_graph.read_stacks(text)
    assert flame_graph.samples_of(stacks) == 40
    assert flame_graph.hottest(stacks) == "75% of the main thread in f<script> (a.py:3)"
    drawing = ET.fromstring(flame_graph.draw("worker:1 & co", stacks))
    rectangles = {
        (group[0].text or "").rpartition(":")[0]: float(group[1].get("width", "0"))
        for group in drawing.iter("{http://www.w3.org/2000/svg}g")
    }
    whole = rectangles["all threads"]
    assert rectangles["f<script> (a.py:3)"] == pytest.approx(whole * 30 / 80)
    assert rectangles["thread 7"] == pytest.approx(whole / 2)
