"""What rooms do in an agent: their services are made when they are needed."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from support.played_agent import Answers, agent_parts
from tflaunch_worker import fields
from tflaunch_worker.agent.services import Service, Services
from tflaunch_worker.rooms import Room, load, rooms

pytestmark = pytest.mark.unit


class Counter(Service):
    """Serves calls, and counts them."""

    CALLS: ClassVar = {"count": {"by": fields.integer}}
    made: ClassVar[list[Counter]] = []

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.made.append(self)
        self.counted = 0

    def count(self, call: Any, message: dict[str, Any]) -> None:
        """Answer with the sum of all calls."""
        self.counted += message["by"]
        call.answer(counted=self.counted)


ROOMS = {"counter": Room(f"{__name__}:Counter", calls=("count",))}


@pytest.fixture
def services() -> Services:
    """Those of an agent that was asked for nothing yet."""
    Counter.made.clear()
    return Services(agent_parts(), ROOMS)


def test_a_service_is_made_for_its_first_call(services: Services) -> None:
    """And serves the later ones."""
    assert Counter.made == []
    answers = Answers()
    for expected in (2, 4):
        assert answers.ask(services.serve, kind="count", by=2)[0] == {"counted": expected}
    assert len(Counter.made) == 1


def test_the_fields_of_a_call_are_checked_as_its_room_says(services: Services) -> None:
    """Its number, too; a kind that no room serves is unknown."""
    checks = services.checks("count")
    assert checks is not None
    assert sorted(checks) == ["by", "call"]
    assert services.checks("examine") is None


@pytest.mark.parametrize("name", rooms())
def test_what_a_room_declares_is_there(name: str) -> None:
    """It serves the calls that it checks, and takes part in moments that there are."""
    room = rooms()[name]
    service = load(room.service)
    assert sorted(service.CALLS) == sorted(room.calls)
    assert all(callable(getattr(service, kind)) for kind in room.calls)
    assert all(callable(getattr(Service, moment)) for moment in room.moments)


def test_no_two_rooms_serve_the_same_calls() -> None:
    """One of them would never be called."""
    kinds = [kind for room in rooms().values() for kind in room.calls]
    assert len(kinds) == len(set(kinds))
