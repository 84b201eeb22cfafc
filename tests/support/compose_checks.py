"""Checks of a rendered Compose file, beyond its schema."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from support.schemas import violations_of_compose
from tflaunch.features.render.target_plan import devices, without_devices
from tflaunch.plan import tensorboard
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

_LONGER = re.compile(r"\$(?!\$)")


def found_in(text: str, plan: Plan) -> list[str]:
    """Return all problems of a file that was rendered from a plan."""
    content = yaml.safe_load(text)
    if broken := list(violations_of_compose(content)):
        return broken
    services: dict[str, Any] = content["services"]
    wanted = {process.task.replace(":", "-"): process for process in plan.processes()}
    if services.pop("job", None) is None:
        return ["no service tells how the job ends"]
    if services.keys() != wanted.keys():
        return [f"the services are {sorted(services)}, not {sorted(wanted)}"]
    found = [f"{name}: {problem}" for name, task in wanted.items() for problem in _service(services[name], task, plan)]
    shown = [device for service in services.values() for device in _shown(service)]
    if len(set(shown)) < len(shown):
        found.append(f"a GPU is shown to several: {shown}")
    return found + list(_networks(content, wanted))


def _service(service: dict[str, Any], task: TaskPlan, plan: Plan) -> Iterator[str]:
    env = dict(service["environment"])
    for name, value in env.items():
        if _LONGER.search(str(value).replace("$$", "")) and name not in plan.secrets:
            yield f"{name} is taken from the shell of whoever starts it"
    before, command = _through_env(service, env)
    shown = _shown(service)
    if len(shown) != len(devices(task) or []):
        yield f"it is shown the GPUs {shown}"
    for name, value in (without_devices(task) if shown else task).env.items():
        if env.get(name) is None or env[name].replace("$$", "$") != value:
            yield f"{name} is {env.get(name)!r}, not {value!r}"
    yield from (f"{name} is not empty" for name in task.unset if env.get(name) != "")
    if command != list(task.argv) or before[:2] != ["sh", "-c"] or before[3] != task.task.replace(":", "-"):
        yield f"the command is {service['command']}"
    if service.get("init") is not True:
        yield "nothing reaps what it leaves behind"
    if str(service.get("working_dir")).replace("$$", "$") != task.workdir:
        yield f"it works in {service.get('working_dir')}"
    stop = "TERM" if task.role == SIDECAR else plan.stop_signal
    ends = service.get("stop_signal", "SIGTERM"), service.get("stop_grace_period")
    if ends != (f"SIG{stop}", f"{plan.timeouts.grace:g}s"):
        yield f"signal and time of its stop are {ends}"


def _through_env(service: dict[str, Any], env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the shell before a command and the command; the variables that `env` sets between them go into ``env``."""
    before, command = service["command"][:4], [word.replace("$$", "$") for word in service["command"][4:]]
    if command[:2] == ["env", "--"]:
        words = command[2:]
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value.replace("$", "$$")
        command = words[3:] if words[:3] == ["sh", "-c", 'exec "$0" "$@"'] else words
    return before, command


def _shown(service: dict[str, Any]) -> list[str]:
    return [device for each in _devices(service) for device in each["device_ids"]]


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
        if not tensorboard.is_board(wanted[name]):  # TensorBoard is for users, and has its port published
            together.setdefault(wanted[name].host, set()).add(owner if colon else name)
    for host, owners in together.items():
        if len(owners) > 1:
            yield f"the tasks of {host} have several networks: {sorted(owners)}"
