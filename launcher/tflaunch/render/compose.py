"""A docker-compose file for a plan: one service per task, with the TF_CONFIG of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tflaunch.job import policy
from tflaunch.plan import SIDECAR, Plan, TaskPlan, board
from tflaunch.render import documents
from tflaunch.render.fixed import SERVER_PROGRAM
from tflaunch.render.needs import devices, without_devices
from tflaunch.spec import Container, Resources

_HEAD = """\
Made by `tflaunch render --to compose`. It starts the tasks of {name} as containers, without restarts:
  {variable}docker-compose -f FILE up --exit-code-from {decider}
The image needs the training program's own packages; the directory of the spec is mounted into it.
"""
_IMAGE = "${IMAGE:?set IMAGE to an image with Python and TensorFlow}"
_BARE = Container()


def render(plan: Plan, directory: str, server_program: str, container: Container = _BARE) -> str:
    """Return the text of a compose file, for Compose v2 and docker-compose 1.29.

    Tasks on one host share its network: its first task's service owns the name, the others join it.

    Args:
        plan: with fixed ports.
        directory: the spec's, which is mounted at the same path.
        server_program: the path of the program for `server: true` on this machine.
        container: the image, by default left to the variable IMAGE, and what the tasks are given.
    """
    owners: dict[str, str] = {}
    services = {}
    for process in plan.processes():
        owner = owners.setdefault(process.host, service_of(process))
        volumes = [f"{_escaped(directory)}:{_escaped(directory)}"]
        volumes += [f"{_escaped(source)}:{_escaped(path)}" for path, source in container.volumes.items()]
        if SERVER_PROGRAM in process.argv:
            volumes.append(f"{_escaped(server_program)}:{SERVER_PROGRAM}:ro")
        services[service_of(process)] = {
            "image": container.image or _IMAGE,
            "command": [_escaped(word) for word in process.argv],
            "working_dir": _escaped(process.workdir),
            "environment": _environment(process),
            "volumes": volumes,
            "stop_grace_period": f"{plan.timeouts.grace:g}s",
            **_resources(container.resources, devices(process)),
            **(_publishing() if board.is_board(process) else _network(process, owner)),
        }
    head = _HEAD.format(
        name=plan.name,
        variable="" if container.image else "IMAGE=… ",
        decider=policy.deciders(plan)[0].replace(":", "-"),
    )
    named = [source for source in container.volumes.values() if not source.startswith("/")]
    content = {"services": services, **({"volumes": {name: {} for name in named}} if named else {})}
    return documents.written(head, content)


def _resources(resources: Resources, gpus: list[str] | None) -> dict[str, Any]:
    """What a container is limited to, and the GPUs that it is shown."""
    fields: dict[str, Any] = {}
    if resources.cpu is not None:
        fields["cpus"] = float(resources.cpu)
    if resources.memory is not None:
        fields["mem_limit"] = resources.memory[:-1].lower()
    if gpus:
        device = {"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}
        fields["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return fields


def service_of(process: TaskPlan) -> str:
    """Return the service of a task: ``worker-1`` for ``worker:1``."""
    return process.task.replace(":", "-")


def _network(process: TaskPlan, owner: str) -> Mapping[str, Any]:
    if service_of(process) != owner:
        return {"network_mode": f"service:{owner}"}
    name = process.host if process.address is None else process.address.host
    is_named = name != "localhost" and not name.replace(".", "").isdigit() and process.role != SIDECAR
    return {"networks": {"default": {"aliases": [name]}}} if is_named else {}


def _publishing() -> Mapping[str, Any]:
    """TensorBoard has a network address of its own; its port is published on the loopback address alone."""
    return {"ports": [f"127.0.0.1:{board.USUAL_PORT}:{board.USUAL_PORT}"]}


def _environment(process: TaskPlan) -> dict[str, str | None]:
    # An empty proxy is none to gRPC; a variable that is only named would be taken from the user's shell.
    unset = dict.fromkeys(process.unset, "")
    env = without_devices(process).env if devices(process) else process.env
    return {**unset, **{name: _escaped(value) for name, value in env.items()}}


def _escaped(text: str) -> str:
    """Keep compose from taking a dollar sign for a variable of its own."""
    return text.replace("$", "$$")
