"""The relay of a private network: connections of the run's hosts reach its tasks, and no others do."""

from __future__ import annotations

import os
import random
import ssl
from contextlib import suppress

import pytest

from fuzz import borders, relay
from support.agent_client import LocalAgent
from support.forks import in_fork
from support.relay_host import ELSEWHERE, HERE, PATIENCE, RUN, THERE, RelayHost, reset
from tflaunch.runtime.network_keys import NetworkKeys
from tflaunch_worker.agent.relay_frames import LONGEST_FRAME, REFUSED, Frame
from tflaunch_worker.agent.relay_tls import Channel, Contexts

pytestmark = pytest.mark.agent

NOBODY = 65534
CASES = borders.number_of_cases() // 10
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
CALL = """
import socket
with socket.create_connection(("{address}", 2222), 120) as connection:
    connection.sendall(b"question")
    print(connection.recv(100))
"""


def frame(host: RelayHost, **changes: object) -> bytes:
    """Return the first frame of a connection to the task, with some fields changed."""
    about = {"run": RUN, "attempt": host.attempt, "source": THERE, "target": "worker:0", **changes}
    return Frame(**about).encode()  # type: ignore[arg-type]


def test_tasks_of_other_hosts_are_reached(local: LocalAgent) -> None:
    """In both directions, with the virtual address of the other host as the source."""
    host = RelayHost(local)
    host.start_echo()
    assert host.call(frame(host)) == b"+hello"
    host.talk.wait_until(lambda: f"from {THERE} b'data'".encode() in host.talk.output["worker:0", 0])
    host.start(CALL.format(address=THERE), "caller")
    asked, channel = host.accept()
    assert (asked.run, asked.attempt, asked.source, asked.target) == (RUN, host.attempt, HERE, "worker:1")
    with channel:
        assert channel.receive(8) == b"question"
        channel.send(b"answer")
    assert host.talk.text("caller") == "b'answer'\n"
    assert host.refused() == 0


def test_what_is_not_of_the_run_is_refused_and_counted(local: LocalAgent) -> None:
    """Plain connections of any uid that knows TF_CONFIG, foreign certificates, other hosts, stale attempts."""
    host = RelayHost(local)
    host.start_echo()

    def plain() -> bool:
        with host.connect() as connection:
            connection.sendall(PREFACE)
            heard = b""
            try:
                while data := connection.recv(100):
                    heard += data
            except ConnectionResetError:
                pass
            return heard[:1] in (b"", b"\x15")  # at most an alert of TLS, and no frame of HTTP/2

    strangers = NetworkKeys()
    assert plain()
    if os.getuid() == 0:
        assert in_fork(plain, NOBODY)
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca|verify failed"):
        host.call(frame(host), strangers.issue(THERE))
    trusting = strangers.issue(THERE)._replace(authority=host.keys.issue(THERE).authority)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        host.call(frame(host), trusting)
    assert host.call(frame(host), host.keys.issue(ELSEWHERE)) == REFUSED
    assert host.call(frame(host, source=ELSEWHERE), host.keys.issue(ELSEWHERE)) == REFUSED
    assert host.call(frame(host, run="other")) == REFUSED
    assert host.call(frame(host, attempt=host.attempt - 1)) == REFUSED
    assert host.call(frame(host, target="worker:1")) == REFUSED
    assert host.call(b"\x00\x02[]") == REFUSED
    assert host.call(frame(host)) == b"+hello"
    assert host.wait_refused(8 + (os.getuid() == 0))  # all but the one who refused our certificate, and left
    (told,) = [message for message in host.talk.heard if message["kind"] == "outsider_refused"]
    assert (told["task"], told["source"]) == ("worker:0", "127.0.0.1")
    assert "it has no certificate of this run" in told["reason"]
    assert host.talk.output["worker:0", 0].count(b"from") == 1


def test_a_stale_attempt_ends_and_newer_keys_are_used(local: LocalAgent) -> None:
    """Connections of an earlier attempt end; keys of a supervisor that has taken over replace the old ones."""
    host = RelayHost(local)
    host.start(CALL.format(address=THERE), "caller")
    _, channel = host.accept()
    with channel:
        assert channel.receive(8) == b"question"
        host.join(host.attempt + 1)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            channel.receive(1)
    assert "ConnectionResetError" in host.talk.text("caller")
    host.start_echo()
    old = host.keys.issue(THERE)
    host.join(host.attempt, NetworkKeys())
    host.talk.wait_until(lambda: is_admitted(host))
    with pytest.raises(ssl.SSLError):
        host.call(frame(host), old)


def test_a_connection_made_while_the_attempt_changes_reaches_no_task(local: LocalAgent) -> None:
    """It was accepted before the change, and its frame of the earlier attempt comes after it."""
    host = RelayHost(local)
    host.start_echo()
    with Channel(host.connect(), Contexts(*host.keys.issue(THERE)).client, HERE) as channel:
        channel.shake_hands(PATIENCE)
        stale = frame(host)
        host.join(host.attempt + 1)
        host.talk.wait_until(lambda: is_admitted(host))
        channel.send(stale)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            channel.receive(1)
    host.talk.wait_until(lambda: host.talk.output["worker:0", 0].count(b"from"))
    assert host.talk.output["worker:0", 0].count(b"from") == 1


def test_fuzzed_frames_reach_no_task(local: LocalAgent) -> None:
    """Neither as they are nor inside TLS; the relay serves its hosts as before."""
    host = RelayHost(local, attempt=relay.ORDER["attempt"])
    host.start_echo()
    expected = 1
    for number in range(CASES):
        case = relay.generate(random.Random(f"relay {number}"))
        if number % 10 == 0:
            case += bytes(LONGEST_FRAME)
            is_right = relay.leads_to_task(case)
            expected += is_right
            with suppress(ConnectionError, TimeoutError):  # of the next attempt, or a link; or the task ended it first
                host.call(case, patience=PATIENCE if is_right else 3.0)
        else:
            connection = host.connect()
            connection.sendall(case)
            reset(connection)
    assert host.call(frame(host)) == b"+hello"
    host.talk.wait_until(lambda: host.talk.output["worker:0", 0].count(b"\nfrom ") >= expected)
    assert host.talk.output["worker:0", 0].count(b"\nfrom ") == expected
    print(f"{CASES} cases and a call, of which {expected} were right, and reached the task")


def is_admitted(host: RelayHost) -> bool:
    """Return whether the relay uses the newest order, after one more round with the agent."""
    host.refused()
    try:
        return host.call(frame(host)) == b"+hello"
    except (TimeoutError, ConnectionError, ssl.SSLError):
        return False
