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

    from tflaunch_worker.agent.calls import Call
    from tflaunch_worker.agent.host import Host
    from tflaunch_worker.event_loop import Loop


def leave_marks(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Create a file in each directory, and answer with its path, null where that is not possible."""
    token = message["token"]
    places = {place: host_facts.mark(os.path.expanduser(place), token) for place in message["directories"]}
    call.answer(places=places)


def look_for_marks(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Answer with the paths that exist."""
    paths = message["paths"]
    look = lambda: [path for path in paths if os.path.exists(path)]  # noqa: E731
    offload.run_in_fork(loop, look, lambda seen: call.answer(seen=seen or []))


def remove_marks(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Remove files that `leave_marks` has created."""
    for path in message["paths"]:
        host_facts.unmark(path)
    call.answer()


def remove_code(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Remove the copies of the user's code and of checkpoints."""

    def remove() -> None:
        for name in (CODE_NAME, CHECKPOINTS_NAME):
            host_facts.remove(os.path.join(host.directory, name))

    offload.run_in_fork(loop, remove, lambda _: call.answer())


def look_for_warm(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Answer with the warm servers of this host, which ``stop`` ends."""
    from tflaunch_worker.forkserver import warm_client  # the doctor does not need it

    directory = warm_client.servers_directory(warm_client.home_of(host.directory), os.environ)
    look = warm_client.stop_servers if message["stop"] else warm_client.describe_servers
    offload.run_in_fork(loop, lambda: look(directory), lambda found: call.answer(servers=found or []))


def examine(loop: Loop, host: Host, call: Call, message: Dict[str, Any]) -> None:
    """Answer with facts of this host, and of the interpreters of programs."""
    commands: List[Tuple[spawn.Command, bool]] = []
    problems: Dict[int, str] = {}
    for number, program in enumerate(message["programs"]):
        try:
            commands.append((host.command("doctor", program, None), program["is_python"]))
        except host_vars.UnknownValue as unknown:
            problems[number] = str(unknown)
    probe, directory, files = message["probe"], host.directory, host.max_files

    def answered(facts: Dict[str, Any] | None) -> None:
        if facts is not None:
            for number, problem in sorted(problems.items()):
                facts["programs"].insert(number, {"problem": problem})
            facts["unfenced"] = host.why_unfenced()
            if message.get("private"):
                facts["not_private"] = host.open_private_network()
                facts["no_way_out"] = host.no_way_out
        call.answer(facts=facts)

    offload.run_in_fork(loop, lambda: host_facts.examine(directory, commands, files, probe), answered)


SERVED = {
    "examine": examine,
    "leave_marks": leave_marks,
    "look_for_marks": look_for_marks,
    "look_for_warm": look_for_warm,
    "remove_code": remove_code,
    "remove_marks": remove_marks,
}
"""The calls by kind."""
