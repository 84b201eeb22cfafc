"""What is wrong with a rendered compose file, beyond its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from schemas import violations_of_compose
from tflaunch.plan import Plan, TaskPlan, board
from tflaunch.render.needs import devices, without_devices

_LONGER = re.compile(r"\$(?!\$)")


def found_in(text: str, plan: Plan) -> list[str]:
    """Return all that is wrong with a file that was rendered of a plan."""
    content = yaml.safe_load(text)
    if broken := list(violations_of_compose(content)):
        return broken
    services: dict[str, Any] = content["services"]
    wanted = {process.task.replace(":", "-"): process for process in plan.processes()}
    if services.keys() != wanted.keys():
        return [f"the services are {sorted(services)}, not {sorted(wanted)}"]
    found = [f"{name}: {problem}" for name, task in wanted.items() for problem in _service(services[name], task, plan)]
    return found + list(_networks(content, wanted)) + list(_volumes(content))


def _service(service: dict[str, Any], task: TaskPlan, plan: Plan) -> Iterator[str]:
    env = dict(service["environment"])
    for name, value in env.items():
        if _LONGER.search(str(value).replace("$$", "")):
            yield f"{name} is taken from the shell of whoever starts it"
    shown = [device for each in _devices(service) for device in each["device_ids"]]
    if shown != (devices(task) or []):
        yield f"it is shown the GPUs {shown}"
    for name, value in (without_devices(task) if shown else task).env.items():
        if env.get(name) is None or env[name].replace("$$", "$") != value:
            yield f"{name} is {env.get(name)!r}, not {value!r}"
    yield from (f"{name} is not empty" for name in task.unset if env.get(name) != "")
    if [word.replace("$$", "$") for word in service["command"]] != list(task.argv):
        yield f"the command is {service['command']}"
    if str(service.get("working_dir")).replace("$$", "$") != task.workdir:
        yield f"it works in {service.get('working_dir')}"
    if service.get("stop_grace_period") != f"{plan.timeouts.grace:g}s":
        yield f"the grace is {service.get('stop_grace_period')}"


def _devices(service: dict[str, Any]) -> list[dict[str, Any]]:
    reservations = service.get("deploy", {}).get("resources", {}).get("reservations", {})
    found: list[dict[str, Any]] = reservations.get("devices", [])
    return found


def _networks(content: dict[str, Any], wanted: dict[str, TaskPlan]) -> Iterator[str]:
    services, defined = content["services"], {"default", *content.get("networks", {})}
    together: dict[str, set[str]] = {}
    for name, service in services.items():
        networks = service.get("networks", [])
        yield from (f"{name}: the network {network} is not defined" for network in networks if network not in defined)
        _, colon, owner = service.get("network_mode", "").partition(":")
        if colon and owner not in services:
            yield f"{name}: there is no service {owner} whose network it could join"
        if not board.is_board(wanted[name]):  # that is for people, and has its port published
            together.setdefault(wanted[name].host, set()).add(owner if colon else name)
    for host, owners in together.items():
        if len(owners) > 1:
            yield f"the tasks of {host} have several networks: {sorted(owners)}"


def _volumes(content: dict[str, Any]) -> Iterator[str]:
    for name, service in content["services"].items():
        sources = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        undefined = [
            source for source in sources if not source.startswith("/") and source not in content.get("volumes", {})
        ]
        yield from (f"{name}: the volume {source} is not defined" for source in undefined)
