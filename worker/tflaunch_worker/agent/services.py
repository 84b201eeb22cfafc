"""What rooms do in an agent: serve calls of the supervisor, and follow the tasks.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Mapping, NamedTuple, Protocol

from tflaunch_worker.agent import orders
from tflaunch_worker.rooms import load, rooms

if TYPE_CHECKING:
    from tflaunch_worker import spawn
    from tflaunch_worker.agent.calls import Call, Serve
    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.agent.left_files import LeftFiles
    from tflaunch_worker.agent.orders import Check
    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.agent.task import Task
    from tflaunch_worker.event_loop import Loop
    from tflaunch_worker.rooms import Room

    class Pending(Protocol):
        """A start that is under way."""

        def cancel(self) -> None:
            """Let no program run, and call nothing."""


class AgentParts(NamedTuple):
    """What a service may use of its agent.

    Args:
        loop: the agent's, whose thread calls services.
        host: this machine.
        link: the link to the supervisor.
        tasks: the latest attempts of the tasks, by name.
        progress_of: returns what is known of the progress of a task.
        left_files: what lets the launcher read files.
    """

    loop: Loop
    host: Host
    link: SupervisorLink
    tasks: Mapping[str, Task]
    progress_of: Callable[[Task], dict[str, object]]
    left_files: LeftFiles

    def pids(self) -> dict[str, int]:
        """Return the pids of the live tasks by name."""
        return {name: task.pid for name, task in self.tasks.items() if task.pid and not task.is_gone}

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

    def begin_task(self, task: Task, command: spawn.Command) -> None:
        """A task is about to start."""

    def start_task(
        self, command: spawn.Command, started: Callable[[spawn.Child], None], refused: Callable[[], None]
    ) -> Pending | None:
        """A task that names modules starts; call ``started`` with its process, or ``refused`` to have it executed.

        Returns what is to be cancelled if the task is stopped before, or None if one of them was called.
        """
        refused()
        return None

    def expect_task(self, command: spawn.Command) -> None:
        """A task that names modules may be started here later."""

    def stop_task(self, name: str) -> None:
        """A task is being stopped, and told so."""

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """A task hangs and will be ended; call ``looked`` once that may happen."""
        looked()

    def explain_kill(self) -> str:
        """A process was killed because memory was full; return what may explain it, or ""."""
        return ""

    def end_task(self, name: str) -> None:
        """The last process of a task is dead."""

    def leave(self) -> None:
        """The run has ended: its supervisor dismisses the agent."""

    def outlive_run(self) -> list[int]:
        """The dismissed agent ends; return the pids of its children that stay for later runs."""
        return []


class Services:
    """The services of one agent, each made when it is needed."""

    def __init__(self, agent: AgentParts) -> None:
        self.agent = agent
        self._made: dict[str, Service] = {}
        self._rooms = list(rooms().values())
        self._serving = {kind: room for room in self._rooms for kind in room.calls}

    def _find(self, room: Room) -> Service:
        if room.service not in self._made:
            self._made[room.service] = load(room.service)(self.agent)
        return self._made[room.service]

    def _at(self, moment: str) -> list[Service]:
        """Return the services that take part in a moment."""
        for room in self._rooms:
            if moment in room.moments:
                self._find(room)
        return list(self._made.values())

    @property
    def holds_agent(self) -> bool:
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

    def find_starter(self, command: spawn.Command) -> Service | None:
        """Return what may start a task in another way than by executing its command."""
        starters = (room for room in self._rooms if "start_task" in room.moments)
        return next(map(self._find, starters), None) if command.modules else None

    # ---- moments in the lives of tasks, as `Service` describes them

    def begin_task(self, task: Task, command: spawn.Command) -> None:
        """Tell all that a task is about to start."""
        for service in self._at("begin_task"):
            service.begin_task(task, command)

    def stop_task(self, name: str) -> None:
        """Tell all that a task is being stopped."""
        for service in self._at("stop_task"):
            service.stop_task(name)

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Let one after the other look at a task that hangs; then call ``looked``."""
        left = self._at("look_at_hang")

        def look_next() -> None:
            if left:
                left.pop().look_at_hang(task, look_next)
            else:
                looked()

        look_next()

    def explain_kill(self) -> list[str]:
        """Return what may explain that a process was killed because memory was full."""
        return [text for service in self._at("explain_kill") if (text := service.explain_kill())]

    def end_task(self, name: str) -> None:
        """Tell all that the last process of a task is dead."""
        for service in self._at("end_task"):
            service.end_task(name)

    def leave(self) -> None:
        """Tell all that the run has ended."""
        for service in self._at("leave"):
            service.leave()

    def outlive_run(self) -> list[int]:
        """Return the pids of all children of this process that stay for later runs."""
        return [pid for service in self._made.values() for pid in service.outlive_run()]
