"""The calls to an agent that the test plays, and the calls that an agent answers without a link."""

from collections.abc import Callable
from typing import Any

from tflaunch.agents.calls import Calls, Frame
from tflaunch_worker import wire
from tflaunch_worker.agent.calls import Calls as AgentCalls
from tflaunch_worker.agent.services import AgentParts


class PlayedAgent:
    """An agent that is connected. ``sent``: what it was sent; ``calls``: the calls to it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.calls = Calls(self._send)
        self.calls.open()

    def _send(self, frame: Frame) -> None:
        self.sent += [{**message, "body": body} for message, body in wire.Decoder().feed(b"".join(frame))]

    def take_sent(self) -> list[dict[str, Any]]:
        sent, self.sent = self.sent, []
        return sent

    def find(self, kind: str) -> int:
        """Return the number of the last call of a kind."""
        return int([message["call"] for message in self.sent if message["kind"] == kind][-1])

    def answer(self, call: int, body: bytes = b"", **about: Any) -> None:
        self.calls.take({"kind": "answered", "call": call, **about}, body)

    def tell(self, call: int, body: bytes = b"", **about: Any) -> None:
        self.calls.take({"kind": "told", "call": call, **about}, body)


def agent_parts(**known: Any) -> AgentParts:
    """Return what a service may use of its agent: only these parts."""
    return AgentParts(**{**dict.fromkeys(AgentParts._fields), **known})


class Answers:
    """Serves calls as an agent does; keeps what it answers, and tells."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, Any], bytes]] = []
        link: Any = self
        self.calls = AgentCalls(link)
        self._last = 0

    def answer(self, kind: str, body: bytes = b"", /, **about: Any) -> None:
        self.heard.append(({"kind": kind, **about}, body))

    def begin(self, serve: Callable[..., None], body: bytes = b"", **about: Any) -> int:
        """Have a call served; return its number."""
        self._last += 1
        self.calls.served_by(serve)({"call": self._last, "body": body, **about})
        return self._last

    def ask(self, serve: Callable[..., None], body: bytes = b"", **about: Any) -> tuple[dict[str, Any], bytes]:
        """Return the fields of the answer to a call, and its body."""
        number = self.begin(serve, body, **about)
        message, found = self.heard.pop()
        assert (message.pop("kind"), message.pop("call")) == ("answered", number)
        return message, found
