"""Calls and orders to an agent: each is answered once or lost with its link; orders are kept until obeyed."""

from typing import Any
from unittest.mock import Mock

import pytest

from support.played_agent import Answers, PlayedAgent
from tflaunch.agents.calls import Waiter
from tflaunch.agents.replies import CommandOutbox
from tflaunch.features.uploads import Piece, Upload
from tflaunch_worker import wire
from tflaunch_worker.agent.calls import Call


class Heard:
    """What waits for an answer, and what it has got."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.waiter = Waiter(
            lambda message, body: self.got.append((message["value"], body)),
            self.got.append,
            lambda message, _: self.got.append(message["part"]),
        )


def test_an_answer_comes_once() -> None:
    agent, heard = PlayedAgent(), Heard()
    agent.calls.begin("measure", heard.waiter, b"body", of="all")
    assert agent.take_sent() == [{"kind": "measure", "call": 1, "of": "all", "body": b"body"}]
    agent.tell(1, part=1)
    agent.answer(1, b"x", value=2)
    assert heard.got == [1, (2, b"x")]
    for call in (1, 2, 0):
        with pytest.raises(ValueError, match=r"it answers what it was not asked|must be"):
            agent.answer(call, value=3)
    agent.calls.lose()
    assert heard.got == [1, (2, b"x")]


def test_a_call_without_a_link_is_lost_at_once() -> None:
    """And one that waits, with its link; over the next link it is not answered."""
    agent, heard = PlayedAgent(), Heard()
    agent.calls.begin("measure", heard.waiter)
    agent.calls.lose()
    call = agent.calls.begin("measure", heard.waiter)
    assert heard.got == ["the link was lost", "there is no link"]
    call.tell(what="line")
    call.end()
    agent.calls.open()
    with pytest.raises(ValueError, match="not asked"):
        agent.answer(1, value=1)
    assert len(agent.sent) == 1


def test_who_ends_a_call_hears_nothing_any_more() -> None:
    """The answer may be on its way; it is accepted once."""
    agent, heard = PlayedAgent(), Heard()
    call = agent.calls.begin("measure", heard.waiter)
    call.tell(what="line")
    for _ in range(2):
        call.end()
    agent.tell(1, part=1)
    agent.answer(1, value=2)
    assert (heard.got, [message["kind"] for message in agent.sent]) == ([], ["measure", "tell_call", "end_call"])
    with pytest.raises(ValueError, match="not asked"):
        agent.answer(1, value=2)


def test_a_malformed_answer_is_a_lost_one_and_so_is_a_refusal() -> None:
    """With its reason; the link stays, and who takes refusals gets it instead."""
    agent, broken = PlayedAgent(), list[str]()
    agent.calls.begin("measure", Waiter(Mock(side_effect=ValueError("malformed")), broken.append))
    with pytest.raises(ValueError, match="malformed"):
        agent.answer(1)
    assert broken == ["its agent broke the protocol"]
    agent.calls.begin("measure", Waiter())
    with pytest.raises(ValueError, match="has only one"):
        agent.tell(2)
    agent, heard, refused = PlayedAgent(), Heard(), list[str]()
    for waiter in (heard.waiter, heard.waiter._replace(refused=refused.append)):
        agent.calls.begin("measure", waiter)
    for call in (1, 2):
        agent.answer(call, refused="unknown")
    assert heard.got == refused == ["its agent refused: unknown"]


def test_a_standing_call_is_made_over_each_link() -> None:
    """From the next one on, or over the link that there is."""
    agent, heard = PlayedAgent(), Heard()
    agent.calls.keep("watch_memory", heard.waiter)
    agent.tell(1, part=1)
    agent.calls.lose()
    agent.calls.open()
    agent.tell(2, part=2)
    assert heard.got == [1, "the link was lost", 2]
    assert [message["call"] for message in agent.sent] == [1, 2]


def test_an_upload_is_over_when_all_is_answered_or_a_piece_is_not_taken() -> None:
    """Nothing follows a problem, which is printable."""
    agent, done = PlayedAgent(), list[tuple[object, str]]()

    def upload() -> None:
        pieces = iter([Piece({"number": number}, b"x") for number in range(10)])
        note = lambda answer, problem: done.append((answer.get("n"), problem))  # noqa: E731
        Upload(agent.calls.begin, "write", pieces, note).send()

    upload()
    for number in range(1, 11):
        assert len(agent.sent) == min(number + 7, 10)
        agent.answer(number, n=number)
    assert done == [(10, "")]
    upload()
    agent.answer(11, n=11, problem="no\x1broom")
    agent.answer(12, n=12)
    assert done[1:] == [(11, "no\\x1broom")]
    assert len(agent.sent) == 18


def test_an_agent_answers_only_who_still_waits() -> None:
    """Not a call that has ended, nor one of an earlier link; what a call holds is released."""
    answers, served, ended = Answers(), list[Call](), list[int]()

    def serve(call: Call, message: dict[str, Any]) -> None:
        call.when_ended = lambda: ended.append(message["call"])
        call.when_told = lambda told: call.tell(what=told["what"])
        served.append(call)

    for _ in range(3):
        answers.begin(serve)
    with pytest.raises(ValueError, match="call 1 is open"):  # the answers could not be told apart
        answers.calls.served_by(serve)({"call": 1})
    answers.calls.tell({"call": 1, "what": "line"})
    answers.calls.end({"call": 2})
    served[0].answer(b"x", value=1)
    for call in served:
        call.answer(value=2) if call is not served[2] else None
    answers.calls.tell({"call": 1, "what": "line"})
    answers.calls.end_all()
    served[2].answer(value=3)
    assert answers.heard == [
        ({"kind": "told", "call": 1, "what": "line"}, b""),
        ({"kind": "answered", "call": 1, "value": 1}, b"x"),
    ]
    assert ended == [2, 3]


BODY = b"x" * 100_000


def test_a_frame_is_that_of_the_message() -> None:
    orders = CommandOutbox(are_kept=True)
    for number, body in enumerate((BODY, b"", b"short"), 1):
        frame = orders.add("set_cluster", body, more="ä")
        assert b"".join(frame) == wire.encode({"kind": "set_cluster", "order": number, "more": "ä"}, body)
    assert orders.last_bodies == {"set_cluster": b"short"}
    for body, argv in ((b"x" * (wire.MAX_BODY + 1), ""), (b"", "x" * wire.MAX_MESSAGE)):
        with pytest.raises(wire.WireError):  # an agent would close the connection
            orders.add("start_task", body, task="worker:0", attempt=0, argv=argv)


def test_a_body_is_kept_once() -> None:
    """It contains the addresses of all tasks, and is sent to every host."""
    orders = [CommandOutbox(are_kept=True) for _ in range(50)]
    for one in orders:
        one.add("set_cluster", BODY)
    pieces = {id(piece): len(piece) for one in orders for frame in one.begin_link() for piece in frame}
    assert sum(pieces.values()) < len(BODY) + 50 * 500


def test_commands_are_kept_until_they_were_obeyed() -> None:
    """Without a lease, the first link of an agent is the only one: later commands are not kept."""
    orders = CommandOutbox(are_kept=True)
    frames = [orders.add("hold_ports", ports={"worker:0": number}) for number in range(4)]
    orders.forget(obeyed=2)
    assert orders.begin_link() == orders.begin_link() == frames[2:]
    orders.forget()
    assert orders.begin_link() == []
    of_one_link = CommandOutbox(are_kept=False)  # without a lease
    frame = of_one_link.add("hold_ports", ports={})
    assert of_one_link.begin_link() == [frame]
    of_one_link.add("hold_ports", ports={})
    assert of_one_link.begin_link() == []
