"""Answer `tflaunch doctor`: facts of this host, and probe files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch_worker import host_vars, offload, spawn
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.network.fence import why_unavailable
from tflaunch_worker.agent.services import Service
from tflaunch_worker.features.doctor import host_facts
from tflaunch_worker.schema import check_fields, flag, list_of, optional, refuse, text

if TYPE_CHECKING:
    from tflaunch_worker.agent.calls import Call


def _program(name: str, value: Any) -> dict[str, Any]:
    """Check a command, which may be that of a Python."""
    if type(value) is not dict:
        raise refuse(name, "an object", value)
    return check_fields(value, {**orders.COMMAND, "is_python": flag})


class HostDoctor(Service):
    """Examines this host."""

    CALLS: ClassVar = {
        "examine": {"programs": list_of(_program), "probe": text(), "private": optional(flag)},
        "leave_marks": {"token": orders.word, "directories": orders.words},
        "look_for_marks": {"paths": orders.words},
        "remove_marks": {"paths": orders.words},
    }

    def leave_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Create a file in each directory, and answer with its path or null."""
        token = message["token"]
        places = {place: host_facts.mark(os.path.expanduser(place), token) for place in message["directories"]}
        call.answer(places=places)

    def look_for_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the paths that exist."""
        paths = message["paths"]
        look = lambda: [path for path in paths if os.path.exists(path)]  # noqa: E731
        offload.run_in_fork(self.agent.loop, look, lambda seen: call.answer(seen=seen or []))

    def remove_marks(self, call: Call, message: dict[str, Any]) -> None:
        """Remove files that `leave_marks` has created."""
        for path in message["paths"]:
            host_facts.unmark(path)
        call.answer()

    def examine(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with facts of this host, and of the interpreters of programs."""
        host = self.agent.host
        commands: list[tuple[spawn.Command, bool]] = []
        problems: dict[int, str] = {}
        for number, program in enumerate(message["programs"]):
            try:
                commands.append((host.command("doctor", program, None), program["is_python"]))
            except host_vars.UnknownValueError as unknown:
                problems[number] = str(unknown)
        probe, directory, files = message["probe"], host.directory, host.max_files

        def answered(facts: dict[str, Any] | None) -> None:
            if facts is not None:
                for number, problem in sorted(problems.items()):
                    facts["programs"].insert(number, {"problem": problem})
                facts["unfenced"] = why_unavailable()
                if message.get("private"):
                    facts["not_private"] = host.open_private_network()
                    facts["no_way_out"] = host.no_way_out
            call.answer(facts=facts)

        offload.run_in_fork(self.agent.loop, lambda: host_facts.examine(directory, commands, files, probe), answered)
