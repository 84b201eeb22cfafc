"""What rooms do in an agent: serve calls of the supervisor, and follow the tasks.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from typing import NamedTuple

from tflaunch_worker.agent import orders
from tflaunch_worker.rooms import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Mapping

    from tflaunch_worker.agent.calls import Call, Serve
    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.agent.orders import Check
    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.rooms import Room


class AgentParts(NamedTuple):
    """What a service may use of its agent.

    Args:
        loop: the agent's, whose thread calls services.
        host: this machine.
        link: the link to the supervisor.
        tasks: the latest attempts of the tasks, by name.
    """

    loop: Loop
    host: Host
    link: SupervisorLink
    tasks: Mapping[str, Task]

    def find_pid(self, name: str, attempt: int) -> int:
        """Return the leading process of a task's attempt, 0 if it does not run."""
        task = self.tasks.get(name)
        return 0 if task is None or task.attempt != attempt or task.is_gone else task.pid


class Service:
    """The base of what a room does in an agent: does nothing.

    Each kind of call is served by the method of its name, which takes the `Call` and the checked message.
    """

    CALLS: ClassVar[Mapping[str, Mapping[str, Check]]] = {}
    """The kinds of calls, each with the checks of its fields."""

    def __init__(self, agent: AgentParts) -> None:
        self.agent = agent
        self.holds_agent = False
        """Whether an agent without tasks keeps waiting for another supervisor."""


class Services:
    """The services of one agent, each made when it is needed."""

    def __init__(self, agent: AgentParts, rooms: Mapping[str, Room]) -> None:
        self._agent = agent
        self._made: dict[str, Service] = {}
        self._serving = {kind: room for room in rooms.values() for kind in room.calls}

    def _find(self, room: Room) -> Service:
        if room.service not in self._made:
            self._made[room.service] = load(room.service)(self._agent)
        return self._made[room.service]

    @property
    def hold_agent(self) -> bool:
        """Whether a service keeps an agent without tasks."""
        return any(service.holds_agent for service in self._made.values())

    def checks(self, kind: str) -> Mapping[str, Check] | None:
        """Return the checks of a call's fields, None if no room serves its kind."""
        room = self._serving.get(kind)
        return None if room is None else {**self._find(room).CALLS[kind], **orders.CALL}

    def serve(self, call: Call, message: dict[str, Any]) -> None:
        """Let the room serve a call to which its kind belongs."""
        kind = message["kind"]
        serve: Serve = getattr(self._find(self._serving[kind]), kind)
        serve(call, message)
