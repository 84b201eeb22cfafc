"""Checks of rendered manifests, beyond their schemas: what controllers or TensorFlow would reject."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from support.schemas import expanded, violations
from tflaunch.core import policy
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

REPLICAS = {"Chief": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}
COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
REPLICA_INDEX = "metadata.labels['training.kubeflow.org/replica-index']"


class Group(NamedTuple):
    """The pods that a manifest creates from one template; `{}` in ``host`` is the pod's index."""

    name: str
    size: int
    template: dict[str, Any]
    host: str
    index_field: str
    job: dict[str, Any]


def found_in(text: str, plan: Plan) -> list[str]:
    """Return all problems of manifests that were rendered from a plan."""
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    broken = [problem for document in documents for problem in violations(document)]
    if broken:
        return broken
    found: list[str] = []
    groups: list[Group] = []
    for document in documents:
        kind = document["kind"]
        if kind == "JobSet":
            found += _jobset(document, plan)
            groups += _groups_of_jobset(document)
        elif kind == "TFJob":
            found += _tfjob(document, plan)
            groups += _groups_of_tfjob(document)
        elif kind == "Job":
            groups.append(_group_of_job(document))
    names = Counter((document["kind"], document["metadata"]["name"]) for document in documents)
    found += [f"two documents are {kind} {name}" for (kind, name), count in names.items() if count > 1]
    found += _services(documents, groups)
    found += [problem for group in groups if group.job for problem in _job(group, plan)]
    return found + list(_pods(groups, plan))


def _groups_of_jobset(document: dict[str, Any]) -> Iterator[Group]:
    job = document["metadata"]["name"]
    network = document["spec"].get("network", {})
    subdomain = network.get("subdomain", job) if network.get("enableDNSHostnames") else "nowhere"
    for part in document["spec"]["replicatedJobs"]:
        spec = part["template"]["spec"]
        host = f"{job}-{part['name']}-0-{{}}.{subdomain}"
        yield Group(part["name"], spec.get("completions", 1), spec["template"], host, COMPLETION_INDEX, spec)


def _groups_of_tfjob(document: dict[str, Any]) -> Iterator[Group]:
    for kind, part in document["spec"]["tfReplicaSpecs"].items():
        role = kind.lower()
        host = f"{document['metadata']['name']}-{role}-{{}}"
        yield Group(role, part.get("replicas", 1), part["template"], host, REPLICA_INDEX, {})


def _group_of_job(document: dict[str, Any]) -> Group:
    name, spec = document["metadata"]["name"], document["spec"]
    subdomain = spec["template"]["spec"].get("subdomain", "nowhere")
    role = name.removeprefix(f"{document['metadata']['labels']['app.kubernetes.io/name']}-")
    return Group(role, spec.get("completions", 1), spec["template"], f"{name}-{{}}.{subdomain}", COMPLETION_INDEX, spec)


def _jobset(document: dict[str, Any], plan: Plan) -> Iterator[str]:
    spec = document["spec"]
    names = Counter(part["name"] for part in spec["replicatedJobs"])
    yield from (f"two replicatedJobs are called {name}" for name, count in names.items() if count > 1)
    if any(part.get("replicas", 1) != 1 for part in spec["replicatedJobs"]):
        yield "a role has more than one Job"
    if not spec["network"].get("enableDNSHostnames"):
        yield "pods have no names without enableDNSHostnames"
    if not spec["network"].get("publishNotReadyAddresses", True):
        yield "TensorFlow looks for its peers before they are ready"
    deciding = {plan.find(task).role for task in policy.success_tasks(plan)}
    success = spec.get("successPolicy", {"targetReplicatedJobs": names})
    if set(success["targetReplicatedJobs"]) != deciding or success["operator"] != "All":
        yield f"the job has succeeded with {deciding}, not with {success}"
    failure = spec.get("failurePolicy", {})
    if failure.get("maxRestarts", 0) != plan.restart.max:
        yield f"maxRestarts is not {plan.restart.max}"
    for rule in failure.get("rules", []):
        unknown = set(rule.get("targetReplicatedJobs", [])) - names.keys()
        reasons = set(rule.get("onJobFailureReasons", [])) - REASONS
        yield from (f"the rule {rule['name']} is for {reason}, and no Job fails so" for reason in reasons)
        yield from (f"the rule {rule['name']} is for {name}, which does not exist" for name in unknown)


def _tfjob(document: dict[str, Any], plan: Plan) -> Iterator[str]:
    spec = document["spec"]
    for kind, part in spec["tfReplicaSpecs"].items():
        if kind not in REPLICAS:
            yield f"the operator knows no replicas {kind}"
        if part.get("restartPolicy") != "ExitCode":
            yield f"restartPolicy of {kind} is not ExitCode"
    if spec["runPolicy"].get("cleanPodPolicy") not in ("Running", "All"):
        yield "cleanPodPolicy leaves ps and evaluator running, or is none"
    if spec["runPolicy"].get("backoffLimit") != plan.restart.max:
        yield f"backoffLimit is not {plan.restart.max}"
    wanted = "AllWorkers" if plan.success == "all" and "Worker" in spec["tfReplicaSpecs"] else ""
    if spec.get("successPolicy", "") != wanted:
        yield f"successPolicy is not {wanted!r}"


def _services(documents: list[dict[str, Any]], groups: list[Group]) -> Iterator[str]:
    services = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Service"}
    for name, spec in services.items():
        if spec.get("clusterIP") != "None":
            yield f"the Service {name} is not headless, so that pods have no names"
        if not spec.get("publishNotReadyAddresses"):
            yield "TensorFlow looks for its peers before they are ready"
    for group in groups:
        subdomain = group.template["spec"].get("subdomain")
        if subdomain is not None and subdomain not in services:
            yield f"{group.name} is in the subdomain {subdomain}, for which there is no Service"
        elif subdomain is not None:
            labels = group.template.get("metadata", {}).get("labels", {})
            if not services[subdomain]["selector"].items() <= labels.items():
                yield f"the Service does not select the pods of {group.name}"


def _job(group: Group, plan: Plan) -> Iterator[str]:
    job, restarts = group.job, group.template["spec"].get("restartPolicy")
    if job.get("completionMode") != "Indexed":
        yield f"{group.name}: pods have no index without completionMode Indexed"
    if job.get("parallelism") != job.get("completions"):
        yield f"{group.name}: not all pods run at once"
    if restarts not in ("Never", "OnFailure"):
        yield f"{group.name}: a Job cannot have restartPolicy {restarts}"
    if "podFailurePolicy" in job and restarts != "Never":
        yield f"{group.name}: podFailurePolicy needs restartPolicy Never"
    for rule in job.get("podFailurePolicy", {}).get("rules", []):
        container = rule.get("onExitCodes", {}).get("containerName", "tensorflow")
        if container not in [each["name"] for each in group.template["spec"]["containers"]]:
            yield f"{group.name}: podFailurePolicy names a container that is not there: {container}"
    tasks = _tasks(plan).get(group.name)
    if (
        tasks
        and policy.in_gang(tasks[0])
        and not policy.restarts_alone(plan, tasks[0])
        and job.get("backoffLimit") != 0
    ):
        yield f"{group.name}: a task that cannot rejoin its peers is started again"


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
    operated = _operators_cluster(groups) if any(group.index_field == REPLICA_INDEX for group in groups) else None
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
            own = operated if group.index_field == REPLICA_INDEX else None
            yield from (f"{where}: {problem}" for problem in _pod(group, containers[0], index, task, hosts, own))


def _operators_cluster(groups: list[Group]) -> dict[str, list[str]]:
    """Return what Kubeflow's operator writes into TF_CONFIG; nothing for a single task."""
    replicas = [group for group in groups if group.index_field == REPLICA_INDEX]
    if sum(group.size for group in replicas) == 1:
        return {}
    cluster = {}
    for group in replicas:
        ports = [port for each in group.template["spec"]["containers"] for port in each.get("ports", [])]
        number = next((port["containerPort"] for port in ports if port["name"] == "tfjob-port"), 2222)
        if group.name != "evaluator":
            cluster[group.name] = [f"{group.host.format(index)}:{number}" for index in range(group.size)]
    return cluster


def _volumes(group: Group, container: dict[str, Any]) -> Iterator[str]:
    defined = {volume["name"] for volume in group.template["spec"].get("volumes", [])}
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    yield from (f"{group.name}: volume {name} is mounted and not defined" for name in mounted - defined)


def _pod(
    group: Group,
    container: dict[str, Any],
    index: int,
    task: TaskPlan,
    hosts: set[str],
    operated: dict[str, Any] | None,
) -> Iterator[str]:
    env: dict[str, str] = {}
    for variable in (each for each in container.get("env", []) if "secretKeyRef" not in each.get("valueFrom", {})):
        if "value" in variable:
            env[variable["name"]] = expanded(variable["value"], env)
        elif variable["valueFrom"].get("fieldRef", {}).get("fieldPath") == group.index_field:
            env[variable["name"]] = str(index)
        else:
            yield f"{variable['name']} comes from a field that such a pod does not have"
    command = [expanded(word, env) for word in container["command"]]
    if operated:
        if "TF_CONFIG" in env:
            yield "TF_CONFIG is overwritten by the operator"
        config = {"cluster": operated, "task": {"type": group.name, "index": index}, "environment": "cloud"}
        env["TF_CONFIG"] = json.dumps(config)
    if command[0] == "env":
        name, _, value = command[1].partition("=")
        env[name] = value
        command = command[2:]
    if command != list(task.argv):
        yield f"the command is {command}"
    if group.template["spec"].get("terminationGracePeriodSeconds") is None:
        yield "the grace is missing"
    yield from _environment(container, env, task, operated)
    if "TF_CONFIG" in task.env:
        yield from _config(env.get("TF_CONFIG", ""), task, hosts)


def _environment(
    container: dict[str, Any], env: dict[str, str], task: TaskPlan, operated: dict[str, Any] | None
) -> Iterator[str]:
    for name, value in task.env.items():
        is_left = name == "TF_CONFIG" and operated and task.role != "evaluator"
        if not is_left and name != "CUDA_VISIBLE_DEVICES" and env.get(name) != value:
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
