"""Checks of rendered manifests, beyond their schemas: what controllers or TensorFlow would reject."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from support.schemas import expanded, violations
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


class Group(NamedTuple):
    """The pods that a manifest creates from one template; `{}` in ``host`` is the pod's index."""

    name: str
    size: int
    template: dict[str, Any]
    host: str


def found_in(text: str, plan: Plan) -> list[str]:
    """Return all problems of manifests that were rendered from a plan."""
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    broken = [problem for document in documents for problem in violations(document)]
    if broken:
        return broken
    if documents[-1]["kind"] == "TrainJob":  # Trainer makes a JobSet of its name from the runtime
        runtime, job = documents
        if runtime["metadata"] != job["metadata"] or job["spec"]["runtimeRef"]["name"] != runtime["metadata"]["name"]:
            return ["the TrainJob and its runtime do not belong together"]
        documents = [{"metadata": job["metadata"], "spec": runtime["spec"]["template"]["spec"]}]
    groups = [group for document in documents for group in _groups_of_jobset(document)]
    return list(_pods(groups, plan))


def _groups_of_jobset(document: dict[str, Any]) -> Iterator[Group]:
    job = document["metadata"]["name"]
    network = document["spec"].get("network", {})
    subdomain = network.get("subdomain", job) if network.get("enableDNSHostnames") else "nowhere"
    for part in document["spec"]["replicatedJobs"]:
        spec = part["template"]["spec"]
        host = f"{job}-{part['name']}-0-{{}}.{subdomain}"
        yield Group(part["name"], spec.get("completions", 1), spec["template"], host)


def _tasks(plan: Plan) -> dict[str, list[TaskPlan]]:
    found: dict[str, list[TaskPlan]] = {}
    for process in plan.processes():
        found.setdefault(process.task if process.role == SIDECAR else process.role, []).append(process)
    return found


def _pods(groups: list[Group], plan: Plan) -> Iterator[str]:
    planned = _tasks(plan)
    if (is_there := sorted(group.name for group in groups)) != (should_be := sorted(planned)):
        yield f"there are {is_there}, not {should_be}"
        return
    hosts = {group.host.format(index) for group in groups for index in range(group.size)}
    for group in groups:
        tasks = planned[group.name]
        if group.size != len(tasks):
            yield f"{group.name} has {group.size} pods, not {len(tasks)}"
            continue
        containers = group.template["spec"]["containers"]
        if [container["name"] for container in containers] != ["tensorflow"]:
            yield f"{group.name}: the one container must be called tensorflow"
            continue
        yield from _volumes(group, containers[0])
        for index, task in enumerate(tasks):
            where = f"{group.name}[{index}]"
            yield from (f"{where}: {problem}" for problem in _pod(group, containers[0], index, task, hosts))


def _volumes(group: Group, container: dict[str, Any]) -> Iterator[str]:
    defined = {volume["name"] for volume in group.template["spec"].get("volumes", [])}
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    yield from (f"{group.name}: volume {name} is mounted and not defined" for name in mounted - defined)


def _pod(group: Group, container: dict[str, Any], index: int, task: TaskPlan, hosts: set[str]) -> Iterator[str]:
    env: dict[str, str] = {}
    for variable in (each for each in container.get("env", []) if "secretKeyRef" not in each.get("valueFrom", {})):
        if "value" in variable:
            env[variable["name"]] = expanded(variable["value"], env)
        elif variable["valueFrom"].get("fieldRef", {}).get("fieldPath") == COMPLETION_INDEX:
            env[variable["name"]] = str(index)
        else:
            yield f"{variable['name']} comes from a field that such a pod does not have"
    command = [expanded(word, env) for word in container["command"]]
    if command != list(task.argv):
        yield f"the command is {command}"
    if group.template["spec"].get("terminationGracePeriodSeconds") is None:
        yield "the grace is missing"
    yield from _environment(container, env, task)
    if "TF_CONFIG" in task.env:
        yield from _config(env.get("TF_CONFIG", ""), task, hosts)


def _environment(container: dict[str, Any], env: dict[str, str], task: TaskPlan) -> Iterator[str]:
    for name, value in task.env.items():
        if name != "CUDA_VISIBLE_DEVICES" and env.get(name) != value:
            yield f"{name} is {env.get(name)!r}, not {value!r}"
    ports = [port["containerPort"] for port in container.get("ports", [])]
    if task.address is not None and ports != [task.address.port]:
        yield f"the container has the ports {ports}, and TF_CONFIG says {task.address.port}"


def _config(text: str, task: TaskPlan, hosts: set[str]) -> Iterator[str]:
    try:
        config = json.loads(text)
    except ValueError:
        yield f"TF_CONFIG is not valid JSON: {text}"
        return
    planned = json.loads(task.env["TF_CONFIG"])
    if config["task"] != planned["task"] or type(config["task"]["index"]) is not int:
        yield f"TF_CONFIG is for {config['task']}"
    if config["cluster"] != planned["cluster"]:
        yield f"TF_CONFIG has the cluster {config['cluster']}"
    for addresses in config["cluster"].values():
        unknown = [address for address in addresses if address.rpartition(":")[0] not in hosts]
        yield from (f"TF_CONFIG has {address}, which no pod is called" for address in unknown)
