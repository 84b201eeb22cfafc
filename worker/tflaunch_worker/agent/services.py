"""What features do in an agent: serve calls, and follow the tasks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, ClassVar, Iterator, Mapping, NamedTuple

from tflaunch_worker import spawn
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call, Calls, Serve
from tflaunch_worker.agent.host import Host
from tflaunch_worker.agent.supervisor_link import SupervisorLink
from tflaunch_worker.agent.task import Pending, Task
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.feature import FEATURES, RAISE_FAULTS, broken, describe_error, features, load, name_of_raiser
from tflaunch_worker.schema import Schema


class AgentParts(NamedTuple):
    """What a service may use of its agent; ``tasks``: the latest attempts, by name."""

    loop: Loop
    host: Host
    link: SupervisorLink
    tasks: Mapping[str, Task]

    def pids(self) -> dict[str, int]:
        """Return the pids of the live tasks by name."""
        return {name: task.pid for name, task in self.tasks.items() if task.pid and not task.is_gone}


class Service:
    """The base of what a feature does in an agent: does nothing.

    Each kind of call is served by the method of its name, which takes the `Call` and the checked message.
    """

    CALLS: ClassVar[Mapping[str, Schema]] = {}
    """The kinds of calls, each with the checks of its fields."""

    def __init__(self, agent: AgentParts) -> None:
        self.agent = agent

    def read_order(self, message: dict[str, Any]) -> None:
        """A task's order has come; change its fields before its command is composed."""

    def begin_task(self, task: Task, command: spawn.Command) -> None:
        """A task is about to start."""

    def start_task(
        self, command: spawn.Command, started: Callable[[spawn.Child], None], refused: Callable[[], None]
    ) -> Pending | None:
        """A task that names modules starts; call ``started`` or ``refused``.

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

    def explain_kill(self, pid: int) -> str:
        """A task's leading process was killed, not by us; return why, or ""."""
        return ""

    def end_task(self, name: str) -> None:
        """The last process of a task is dead."""

    def leave(self) -> None:
        """The run has ended: its supervisor dismisses the agent."""

    def outlive_run(self) -> list[int]:
        """The dismissed agent ends; return the pids that stay for later runs."""
        return []


class _Start:
    """A start that a feature has under way; ``refused`` has the program executed."""

    def __init__(self, feature: str, refused: Callable[[], None]) -> None:
        self.feature = feature
        self.refused = refused
        self.pending: Pending | None = None


class Services:
    """The services of one agent, each made when it is needed.

    One that raises an error is left out from then on: its calls are refused, and the host goes on without it.
    """

    def __init__(self, agent: AgentParts, calls: Calls) -> None:
        self.agent = agent
        self._calls = calls
        self._made: dict[str, Service] = {}
        self._features = dict(features())
        self._serving = {kind: name for name, feature in self._features.items() for kind in feature.calls}
        self._left_out = dict(broken)
        self._watching: list[Call] = []
        self._starts: list[_Start] = []

    # ---- faults of features

    @contextmanager
    def _isolated(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._leave_out(name, error)

    def excuse(self, error: Exception) -> bool:
        """Return whether a feature has raised this; it is left out then."""
        name = name_of_raiser(error, {FEATURES: ""})
        if name:
            self._leave_out(name, error)
        return bool(name)

    def _leave_out(self, name: str, error: Exception) -> None:
        if os.environ.get(RAISE_FAULTS):
            raise error
        if name not in self._left_out:
            self._left_out[name] = reason = describe_error(error)
            self._made.pop(name, None)
            feature = self._features.pop(name)
            self._calls.refuse_all(feature.calls, reason)
            for call in self._watching:
                call.tell(feature=name, reason=reason)
            for start in [start for start in self._starts if start.feature == name]:
                self._starts.remove(start)
                with self._isolated(name):
                    if start.pending is not None:
                        start.pending.cancel()
                start.refused()

    def watch_faults(self, call: Call, message: dict[str, Any]) -> None:
        """Tell which features have failed, and which will."""
        self._watching = [watching for watching in self._watching if watching.is_open] + [call]
        for name, reason in self._left_out.items():
            call.tell(feature=name, reason=reason)

    # ---- calls

    def _find(self, name: str) -> Service | None:
        if name not in self._made and name in self._features:
            with self._isolated(name):
                self._made[name] = load(self._features[name].service)(self.agent)
        return self._made.get(name)

    def checks(self, kind: str) -> Schema:
        """Return the checks of a call's fields; raise `ValueError` if nothing serves it."""
        name = self._serving.get(kind)
        if name is None:
            raise ValueError("it is unknown here")
        service = self._find(name)
        if service is not None:
            with self._isolated(name):
                return {**service.CALLS[kind], **orders.CALL}
        raise ValueError(f"the feature {name} has failed here: {self._left_out[name]}")

    def serve(self, call: Call, message: dict[str, Any]) -> None:
        """Let a feature serve a call; raise `ValueError` if that is malformed."""
        kind = message["kind"]
        name = self._serving[kind]
        try:
            serve: Serve = getattr(self._find(name), kind)
            serve(call, message)
        except ValueError:
            raise
        except Exception as error:
            self._leave_out(name, error)

    # ---- starts of tasks by a feature

    def find_starter(self, command: spawn.Command) -> str:
        """Return the feature that may start a task by other means than exec, or ""."""
        starters = (name for name, feature in self._features.items() if "start_task" in feature.moments)
        return next(starters, "") if command.modules else ""

    def start_task(
        self, command: spawn.Command, started: Callable[[spawn.Child], None], refused: Callable[[], None]
    ) -> Pending | None:
        """Start a task by a feature; if that fails before, its program is executed."""
        name = self.find_starter(command)
        service = self._find(name)
        if service is None:
            refused()
            return None
        start = _Start(name, refused)
        self._starts.append(start)

        def end(child: spawn.Child | None) -> None:
            self._starts.remove(start)
            if child is None:
                refused()
            else:
                started(child)

        with self._isolated(name):
            start.pending = service.start_task(command, end, lambda: end(None))
        return start.pending

    def expect_task(self, command: spawn.Command) -> None:
        """Let a feature prepare for a task that may be started here later."""
        name = self.find_starter(command)
        service = self._find(name)
        if service is not None:
            with self._isolated(name):
                service.expect_task(command)

    # ---- moments in the lives of tasks, as `Service` describes them

    def at(self, moment: str, *about: Any) -> list[Any]:
        """Call a method of all services that take part in a moment; return their answers."""
        for name, feature in list(self._features.items()):
            if moment in feature.moments:
                self._find(name)
        answers = []
        for name, service in list(self._made.items()):
            with self._isolated(name):
                answers.append(getattr(service, moment)(*about))
        return answers

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Let all services look at a hanging task; then call ``looked``."""
        done, awaited = 0, -1

        def has_looked() -> None:
            nonlocal done
            done += 1
            if done == awaited:
                looked()

        awaited = 1 + len(self.at("look_at_hang", task, has_looked))
        has_looked()
