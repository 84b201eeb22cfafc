"""Make the setups of this host's tasks, each in a fork, for the tasks to find."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar, Dict

from tflaunch_worker import host_vars, linux, offload, orphans, process_ends, schema
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.features import background
from tflaunch_worker.features.setup import kept_setup
from tflaunch_worker.features.setup.setup_maker import Order, make

_TASK = ".setup"  # never the name of a task
_MOST_ROUNDS, _DIES_WITHIN = 5, 0.1  # seconds
_NOTHING_MADE: Dict[str, Any] = {"problem": "its processes were killed", "lines": [], "log": "", "first": {}, "key": ""}


class Setups(Service):
    """Makes setups, and puts what they have made before the rest of a task's PATH.

    A setup that is being made goes on while there is no supervisor, and the next call for it waits for the same.
    """

    CALLS: ClassVar = {
        "set_up": {**orders.COMMAND, "setup": schema.text(), "files": orders.words, "limit": orders.seconds}
    }

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._making: dict[str, list[Call]] = {}
        self._made: dict[str, tuple[str, dict[str, list[str]]]] = {}
        self._used: dict[str, int] = {}

    def set_up(self, call: Call, message: dict[str, Any]) -> None:
        """Make a setup, unless it is there; ``argv``: the interpreter and the commands.

        It is answered with the problem, or "", the last lines of output, and the file with all of it.
        """
        try:
            command = self.agent.host.command(_TASK, message, None)
        except host_vars.UnknownValueError as unknown:
            call.answer(problem=str(unknown), lines=[], log="")
            return
        calls = self._making.setdefault(message["setup"], [])
        calls.append(call)
        if len(calls) == 1:
            order = Order(command, tuple(message["files"]), message["limit"])
            self._make(order, message["setup"], message["argv"][0])

    def _make(self, order: Order, setup: str, python: str) -> None:
        home = os.path.normpath(os.path.join(self.agent.host.directory, *[os.pardir] * 4))
        settings, started = self.agent.host.settings, self.agent.host.adopted.started
        agent = os.getpid()

        def work() -> dict[str, Any]:
            result = make(order, home, settings)
            if os.getppid() != agent:
                os._exit(0)  # it is not awaited
            return result

        def done(result: dict[str, Any] | None) -> None:
            started.discard(keeper)
            if result is None:
                self._kill_left()
            result = result or _NOTHING_MADE
            if result["key"] and not self._use(os.path.join(home, kept_setup.PLACE, result["key"]), result["build"]):
                self._make(order, setup, python)  # it has just been removed, or `prune` looks whether it can be
                return
            self._made[setup] = python, result["first"]
            for call in self._making.pop(setup):
                call.answer(problem=result["problem"], lines=result["lines"], log=result["log"])

        keeper, _ = offload.run_in_fork(self.agent.loop, work, done, background.be_keeper)
        started.add(keeper)

    def _use(self, place: str, build: str) -> bool:
        """Keep a setup while this agent lives; return False if it is gone."""
        if place not in self._used:
            lock = kept_setup.use(place, build)
            if lock is None:
                return False
            self._used[place] = lock
        return True

    def _kill_left(self) -> None:
        """Kill what a killed keeper has left: it harms no setup, but it uses the host."""
        for _ in range(_MOST_ROUNDS):
            left = [pid for pid in self.agent.host.adopted.below() if orphans.task_of(pid) == _TASK]
            for pid in left:
                linux.kill(pid, None, signal.SIGKILL)
            if not left:
                return
            process_ends.wait_for_death(left, _DIES_WITHIN)

    def read_order(self, message: dict[str, Any]) -> None:
        """Have a task find what was made for it, which its `python` is then, too."""
        python, first = self._made.get(message.get("setup") or "", ("", {}))
        message["first"] = first
        program = message["argv"][0]
        if program == python and any(
            os.access(os.path.join(place, "python"), os.X_OK) for place in first.get("PATH", ())
        ):
            message["argv"] = ["python", *message["argv"][1:]]
