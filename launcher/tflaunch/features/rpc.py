"""Query an agent that was started only to answer requests."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tflaunch.agents import calls
from tflaunch.core import event_records
from tflaunch.plan.model import Plan
from tflaunch.transport.base import AgentConnector, AgentGoneError, Link, LinkError
from tflaunch.transport.connect import connectors_for
from tflaunch_worker import wire
from tflaunch_worker.readable import printable

_RECEIVE = 256 * 1024
_MOST_UNASKED = 1000  # messages received before a request asks for them
_ANSWERS = ("host_prepared", "host_refused")
_HOSTS_AT_ONCE = 16
_T = TypeVar("_T")


class AgentRpc:
    """Sends blocking requests, in turn. The agent exits when the link is closed."""

    def __init__(self, link: Link, run: str) -> None:
        """Greet an agent that was just started.

        Raises:
            LinkError: the agent does not answer.
        """
        self._link = link
        self._decoder = wire.Decoder()
        self._heard: list[dict[str, Any]] = []
        self._order = 0
        self._calls = calls.Calls(lambda frame: self._send(b"".join(frame)))
        terms = {"run": run, "lease": 0.0, "grace": 0.0, "fencing": 0, "seen": 0}
        link.socket.setblocking(True)
        self._say("hello", protocol=wire.PROTOCOL, clock=run, sent=time.monotonic(), **terms)
        self._wait_for(("greeted",), 10.0)
        self._calls.open()

    def call(self, kind: str, wait: float, **about: Any) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a call, which must come within ``wait`` seconds.

        Raises:
            LinkError: the agent does not answer in time or refuses, or the link is lost.
        """
        answer: Future[tuple[dict[str, Any], bytes]] = Future()
        waiter = calls.Waiter(lambda *found: answer.set_result(found), lambda why: answer.set_exception(LinkError(why)))
        self._calls.begin(kind, waiter, **about)
        until = time.monotonic() + wait
        while not answer.done():
            self._receive(until)
        return answer.result()  # no limit: it is there

    def order(self, kind: str, *events: str, wait: float, **about: Any) -> dict[str, Any]:
        """Send an order, and return the event of one of the kinds that follows.

        Raises:
            LinkError: there is none within ``wait`` seconds, or the link is lost.
        """
        self._order += 1
        self._say(kind, order=self._order, **about)
        return self._wait_for(events, wait)

    def send_code(self, code: calls.UserCode, wait: float) -> None:
        """Send the user's code to the host as a run does.

        The agent has ``wait`` seconds to acknowledge each part.

        Raises:
            LinkError: the host cannot store it, a file can no longer be read, or the agent does not answer.
        """
        problems: list[str] = []
        code.upload(self._calls.begin, problems.append)
        while not any(message["kind"] in _ANSWERS for message in self._heard) and not problems:
            self._receive(time.monotonic() + wait)
        if not problems:
            message = self._wait_for(_ANSWERS, wait)
            problems = [message["reason"]] if message["kind"] == "host_refused" else []
        if problems:
            raise LinkError(f"sync: {problems[0]}")

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def _say(self, kind: str, **fields: Any) -> None:
        self._send(wire.encode({"kind": kind, **fields}))

    def _send(self, frame: bytes) -> None:
        try:
            self._link.socket.sendall(frame)
        except OSError as error:
            raise LinkError(f"its agent hung up: {error}") from None

    def _wait_for(self, kinds: tuple[str, ...], patience: float) -> dict[str, Any]:
        until = time.monotonic() + patience
        while True:
            for message in self._heard:
                if message["kind"] in kinds:
                    self._heard.remove(message)
                    return _checked(message)
            self._receive(until)

    def _receive(self, until: float) -> None:
        self._link.socket.settimeout(max(until - time.monotonic(), 0.01))
        try:
            data = self._link.socket.recv(_RECEIVE)
            for message, body in self._decoder.feed(data):
                self._read(message, body)
        except TimeoutError:
            raise LinkError("its agent did not answer in time") from None
        except (OSError, wire.WireError) as error:
            raise LinkError(f"its agent hung up: {error}") from None
        except ValueError as error:
            raise LinkError(f"its agent broke the protocol: {error}") from None
        if not data:
            raise LinkError("its agent hung up")

    def _read(self, message: dict[str, Any], body: bytes) -> None:
        if message["kind"] in calls.KINDS:
            self._calls.take(message, body)
            return
        if message["kind"] == "refused":
            raise LinkError(f"its agent does not understand: {printable(str(message.get('reason')), 200)}")
        self._heard.append(message)
        if len(self._heard) > _MOST_UNASKED:
            raise ValueError("it sends more than it was asked for")


@contextmanager
def visiting(connector: AgentConnector, run: str) -> Iterator[AgentRpc]:
    """Start an agent that only answers requests, and dismiss it at the end.

    Raises:
        AgentGoneError, LinkError: it cannot be started.
    """
    agent = AgentRpc(connector.open(), run)
    try:
        yield agent
    finally:
        agent.close()
        connector.end()


def ask_hosts(
    plan: Plan, run: Path, hosts: Iterable[str], ask: Callable[[AgentRpc, str], _T]
) -> tuple[list[_T], list[str]]:
    """Ask new agents on hosts of a plan, many at once; return answers, and problems.

    ``run`` is the directory of the run that they are of. ``ask`` is called with the agent and the name of each host.
    """
    connectors = connectors_for(plan, run)

    def visit(host: str) -> _T:
        with visiting(connectors[host], run.name) as agent:
            return ask(agent, host)

    with ThreadPoolExecutor(_HOSTS_AT_ONCE, "visit") as pool:  # no limit: its threads have theirs
        visits = {host: pool.submit(visit, host) for host in hosts}
    answers, problems = [], []
    for host, made in visits.items():
        try:
            answers.append(made.result())  # no limit: it has ended
        except (LinkError, AgentGoneError, ValueError) as error:
            problems.append(f"{host}: {error}")
    return answers, problems


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return a reply; if it is an event, check it like the events of a run."""
    if message["kind"] not in event_records.FROM_AGENTS:
        return message
    try:
        return {**message, **event_records.from_agent("", message)._asdict()}
    except ValueError as error:
        raise LinkError(f"its agent broke the protocol: {error}") from None
