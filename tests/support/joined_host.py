"""The session with an agent that a test plays, message by message."""

from typing import Any

from fuzz.stages import AgentConnector, FileStore, Line, OutputWriter, StillMailbox
from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.core.events import HostJoined, LinkLost
from tflaunch.mailbox import Mail
from tflaunch_worker import wire


class Host:
    """A session, and the agent that it talks to."""

    def __init__(self, links: int = 1) -> None:
        self.lines = [Line() for _ in range(links)]
        self.mailbox = StillMailbox(self.lines)
        self.words = OutputWriter()
        self.files = FileStore()
        terms = Terms("run", lease=30.0, grace=1.0, heartbeat=5.0)
        way, later = AgentConnector(self.lines[1:], self.lines[0]), self.mailbox.call
        self.session = Session("a", way, terms, self.mailbox, self.words, self.files, later)  # type: ignore[arg-type]
        self.events: list[Mail] = []
        self.session.join()
        self.wait(0)
        self.orders = 0

    def greets(self, *addresses: str) -> None:
        about = {"addresses": [*addresses], "obeyed": self.orders, "sent": 0.0, "time": 1.0}
        self.says(wire.encode({"kind": "greeted", "is_leaving": False, "streams": [], **about}))

    def says(self, *frames: bytes) -> None:
        """Let the agent send raw data over its current link."""
        for frame in frames:
            line = next(line for line in self.lines if not line.is_closed)
            line.arrive(frame)
            if line.serve is not None:
                line.serve()
        self.wait(0)

    def tells(self, kind: str, **fields: object) -> None:
        """Let the agent send a valid message."""
        self.says(wire.encode({"kind": kind, **fields}))

    def wait(self, seconds: float) -> None:
        until = self.mailbox.now() + seconds
        for _ in range(1000):
            event = self.mailbox.take(until)
            if event is not None:
                self.events.append(event)
            elif self.mailbox.now() >= until:
                break

    def starts(self, task: str = "worker:0", **fields: object) -> None:
        self.words.begin(task, 0)
        self.session.order("start_task", task=task, attempt=0, **fields)
        self.orders += 1

    def last(self) -> Any:
        return self.events[-1]

    def lost(self) -> str:
        """Return why the first link was lost; "" if it was not."""
        return next((event.reason for event in self.events if isinstance(event, LinkLost)), "")


def joined_host() -> Host:
    found = Host()
    found.greets()
    found.starts()
    assert found.events == [HostJoined("a")]
    return found
