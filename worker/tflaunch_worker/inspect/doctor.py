"""Answer `tflaunch doctor` and `warm`: report facts of this host, and create, find and remove probe files.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import CHECKPOINTS_NAME, CODE_NAME, host_vars, offload, spawn
from tflaunch_worker.inspect import host_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.agent.supervisor_link import SupervisorLink
    from tflaunch_worker.event_loop import Loop


class DoctorService:
    """Handles the orders of commands that start no task; slow work runs in a fork."""

    def __init__(self, loop: Loop, host: Host, link: SupervisorLink) -> None:
        self._loop = loop
        self._host = host
        self._link = link

    def obey(self, message: Dict[str, Any]) -> None:
        """Carry out an order and answer it."""
        kind = message["kind"]
        if kind == "examine":
            self._examine(message)
        elif kind == "leave_marks":
            token = message["token"]
            places = {place: host_facts.mark(os.path.expanduser(place), token) for place in message["directories"]}
            self._link.answer("marks_left", places=places)
        elif kind == "look_for_marks":
            paths = message["paths"]
            offload.run_in_fork(self._loop, lambda: [path for path in paths if os.path.exists(path)], self._tell_seen)
        elif kind == "remove_code":
            offload.run_in_fork(self._loop, self._remove_copies, lambda _: self._link.answer("code_removed"))
        elif kind == "look_for_warm":
            self._look_for_warm(message["stop"])
        else:
            for path in message["paths"]:
                host_facts.unmark(path)
            self._link.answer("marks_removed")

    def _remove_copies(self) -> None:
        """Remove the copies of the user's code and of checkpoints."""
        for name in (CODE_NAME, CHECKPOINTS_NAME):
            host_facts.remove(os.path.join(self._host.directory, name))

    def _tell_seen(self, seen: List[str] | None) -> None:
        self._link.answer("marks_seen", seen=seen or [])

    def _look_for_warm(self, stop: bool) -> None:
        from tflaunch_worker.forkserver import warm_client  # the doctor does not need it

        directory = warm_client.servers_directory(warm_client.home_of(self._host.directory), os.environ)
        look = warm_client.stop_servers if stop else warm_client.describe_servers
        offload.run_in_fork(
            self._loop, lambda: look(directory), lambda found: self._link.answer("warm_servers", servers=found or [])
        )

    def _examine(self, message: Dict[str, Any]) -> None:
        commands: List[Tuple[spawn.Command, bool]] = []
        problems: Dict[int, str] = {}
        for number, program in enumerate(message["programs"]):
            try:
                commands.append((self._host.command("doctor", program, None), program["is_python"]))
            except host_vars.UnknownValue as unknown:
                problems[number] = str(unknown)
        probe, directory, files = message["probe"], self._host.directory, self._host.max_files

        def answered(facts: Dict[str, Any] | None) -> None:
            if facts is not None:
                for number, problem in sorted(problems.items()):
                    facts["programs"].insert(number, {"problem": problem})
                facts["unfenced"] = self._host.why_unfenced()
                if message.get("private"):
                    facts["not_private"] = self._host.open_private_network()
                    facts["no_way_out"] = self._host.no_way_out
            self._link.answer("examined", facts=facts)

        offload.run_in_fork(self._loop, lambda: host_facts.examine(directory, commands, files, probe), answered)
