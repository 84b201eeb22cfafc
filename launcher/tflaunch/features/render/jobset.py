"""Render a plan as a Kubernetes JobSet with one Job per role.

The pods of a role share one template and know their index: Kubernetes replaces `$(JOB_COMPLETION_INDEX)` in a
value or a command's argument with the value of that variable, which must be declared first.
"""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from tflaunch.clusterspec.model import Kubernetes, Spec
from tflaunch.clusterspec.values import Address
from tflaunch.core import policy
from tflaunch.errors import Problem
from tflaunch.features.kubernetes.kubectl import POD_CONTAINER, KubernetesPlan
from tflaunch.features.kubernetes.pods import label, labels, parts_by_place, pod_spec
from tflaunch.features.render import yaml_text
from tflaunch.features.render.target_plan import FIRST_PORT, devices, without_devices
from tflaunch.features.secret_names import secret_in_shell
from tflaunch.plan import tensorboard
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

_HEAD = """\
Made by `tflaunch render` for {target}: {kubectl} apply -f FILE
Pods reach each other as {example}.
"""
_NO_LIMIT = 2**31 - 1  # a backoffLimit that is never reached
_SAVED = [42, 143]  # exit codes of a preempted task that has saved its state
_NUMBERS = re.compile(r"([0-9]+)")
_LONGEST = 63  # characters of a DNS label
_LONGEST_ENDING = "-evaluator-0-9999"
_INDEX = "JOB_COMPLETION_INDEX"
_INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def render(plan: Plan, directory: str, spec: Spec) -> str:
    """Return the JobSet manifest for the plan of a `placed` spec with fixed ports."""
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about(plan, spec),
        "spec": jobset_spec(plan, directory, spec),
    }
    return yaml_text.written(head("jobset", plan, spec), manifest)


def render_trainjob(plan: Plan, directory: str, spec: Spec) -> str:
    """Return the manifests of a TrainJob and of its runtime; arguments as in `render`.

    The runtime has the JobSet's template, without a policy for machine learning, so that Trainer changes nothing in it.
    """
    api, metadata = "trainer.kubeflow.org", about(plan, spec)
    template = {
        "metadata": {name: metadata[name] for name in ("labels", "annotations") if name in metadata},
        "spec": jobset_spec(plan, directory, spec),
    }
    version = {"apiVersion": f"{api}/v1alpha1"}
    runtime = {**version, "kind": "TrainingRuntime", "metadata": metadata, "spec": {"template": template}}
    reference = {"apiGroup": api, "kind": "TrainingRuntime", "name": plan.name}
    job = {**version, "kind": "TrainJob", "metadata": metadata, "spec": {"runtimeRef": reference}}
    return yaml_text.written(head("trainjob", plan, spec), runtime, job)


def head(target: str, plan: Plan, spec: Spec) -> str:
    """Return the first lines of a file: how it is used."""
    given = spec.kubernetes or Kubernetes()
    kubectl = shlex.join(KubernetesPlan("", "", 0.0, given.context, given.namespace).command())
    text = _HEAD.format(target=target, kubectl=kubectl, example=plan.tasks[0].host)
    if plan.secrets:
        secrets = sorted(plan.secrets.items())
        values = " ".join(f"--from-file={name}=<(printf %s {secret_in_shell(source)})" for name, source in secrets)
        text += f"Before, in bash: {kubectl} create secret generic {plan.name} {values}\n"
    return text


def about(plan: Plan, spec: Spec) -> dict[str, Any]:
    """Return the metadata of an object with the name of the job."""
    given = spec.kubernetes or Kubernetes()
    namespace = {} if given.namespace is None else {"namespace": given.namespace}
    return {"name": plan.name, **namespace, **_marks(plan, spec)}


def _marks(plan: Plan, spec: Spec) -> dict[str, Any]:
    """Return the labels and annotations of objects and pods."""
    given = spec.kubernetes or Kubernetes()
    annotations = {"annotations": dict(given.annotations)} if given.annotations else {}
    return {"labels": {**given.labels, **labels(plan.name)}, **annotations}


def jobset_spec(plan: Plan, directory: str, spec: Spec) -> dict[str, Any]:
    """Return the spec of a JobSet."""
    pods = groups(plan)
    deciding = list(dict.fromkeys(plan.find(task).role for task in policy.success_tasks(plan)))
    replicated = [
        {"name": name, "replicas": 1, "template": {"spec": _job(plan, tasks, directory, spec)}}
        for name, tasks in pods.items()
    ]
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": plan.name},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": deciding},
        "failurePolicy": {"maxRestarts": plan.restart.max, **_rules(plan)},
        "replicatedJobs": replicated,
    }


def _rules(plan: Plan) -> dict[str, Any]:
    """Return the rules for ends that are not charged to the restarts."""
    needed = {name: tasks[0] for name, tasks in groups(plan).items() if _is_needed(tasks[0])}
    alone = [name for name, task in needed.items() if policy.restarts_alone(plan, task)]
    rules: list[dict[str, Any]] = []
    if plan.timeouts.deadline is not None:
        rules.append({"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]})
    if plan.restart.max > 0:
        free = {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
        together = [name for name in needed if name not in alone]
        rules.append({"name": "startedAgainForFree", **free, "targetReplicatedJobs": together})
    if alone:
        rules.append({"name": "startedAgainTooOften", "action": "FailJobSet", "targetReplicatedJobs": alone})
    return {"rules": rules} if rules else {}


def _job(plan: Plan, tasks: Sequence[TaskPlan], directory: str, spec: Spec) -> dict[str, Any]:
    pod = template(plan, tasks, directory, spec)
    needed = _is_needed(tasks[0])
    pod["spec"] = {"restartPolicy": "Never" if needed else "OnFailure", **pod["spec"]}
    alone = policy.restarts_alone(plan, tasks[0])
    fields: dict[str, Any] = {"completionMode": "Indexed", "completions": len(tasks), "parallelism": len(tasks)}
    fields["backoffLimit"] = _NO_LIMIT if not needed else plan.restart.max if alone else 0
    if plan.timeouts.deadline is not None:
        fields["activeDeadlineSeconds"] = max(1, round(plan.timeouts.deadline))
    if needed and plan.restart.max > 0:
        fields["podFailurePolicy"] = _free_ends("Ignore" if alone else "FailJob")
    return {**fields, "template": pod}


def _is_needed(task: TaskPlan) -> bool:
    """Whether the job fails with this task; other tasks end and restart on their own."""
    return policy.in_gang(task) or task.required


def _free_ends(action: str) -> dict[str, Any]:
    saved = {"containerName": POD_CONTAINER, "operator": "In", "values": _SAVED}
    return {
        "rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": action, "onExitCodes": saved},
        ]
    }


def one_priority(spec: Spec) -> Iterator[Problem]:
    """Reject priorities of pods: Trainer takes them from its own runtimes alone."""
    for place, part in parts_by_place(spec).items():
        if "priorityClassName" in part.pod:
            message = "is refused by Kubeflow Trainer for jobs other than its own runtimes'"
            yield Problem.error(f"{place}.pod.priorityClassName", message, "remove it, or render --to jobset")


def names(spec: Spec) -> Iterator[Problem]:
    """Find names that are too long, or no longer distinct, as DNS labels."""
    if len(label(spec.name) + _LONGEST_ENDING) > _LONGEST:
        message = f"{spec.name!r} is too long for the names of pods, which begin with it"
        yield Problem("error", "name", message, f"use at most {_LONGEST - len(_LONGEST_ENDING)} letters")
    seen = {name: name for name in (*spec.cluster, *([tensorboard.NAME] if spec.tensorboard is not None else []))}
    for name in spec.sidecars:
        other = seen.setdefault(label(name), name)
        if other != name or len(f"{label(spec.name)}-{label(name)}-0-0") > _LONGEST:
            message = f"{name!r} is too long for a pod, or {label(name)!r} there like {other!r}"
            yield Problem("error", f"sidecars.{name}", message, "rename it")


def placed(spec: Spec) -> Spec:
    """Return the spec with a pod of a JobSet for every task and sidecar."""
    job = label(spec.name)
    old = [
        (_pod(job, role, index), spec.host(address.host))
        for role, addresses in spec.cluster.items()
        for index, address in enumerate(addresses)
    ]
    cluster = {
        role: tuple(Address(_pod(job, role, index), FIRST_PORT) for index in range(len(addresses)))
        for role, addresses in spec.cluster.items()
    }
    sidecars = {
        label(name): sidecar.model_copy(update={"host": _pod(job, label(name), 0)})
        for name, sidecar in spec.sidecars.items()
    }
    hosts = {name: host.only("env") for name, host in old}
    return spec.model_copy(update={"name": job, "cluster": cluster, "sidecars": sidecars, "hosts": hosts})


def _pod(job: str, role: str, index: int) -> str:
    """Return the address of a pod; the 0 is the number of its replica."""
    return f"{job}-{role}-0-{index}.{job}"


def groups(plan: Plan) -> dict[str, list[TaskPlan]]:
    """Return the tasks of each group of pods: those of a role, or a sidecar."""
    found: dict[str, list[TaskPlan]] = {}
    for process in plan.processes():
        found.setdefault(process.task if process.role == SIDECAR else process.role, []).append(process)
    return found


def template(plan: Plan, tasks: Sequence[TaskPlan], directory: str, spec: Spec) -> dict[str, Any]:
    """Return the pod template of a role, whose tasks are in the order of their index.

    Tasks that would start in the spec's ``directory`` start in the image's working directory.
    """
    first = tasks[0]
    container: dict[str, Any] = {
        "command": [indexed(words) for words in zip(*(task.argv for task in tasks), strict=True)],
        **({} if first.workdir == directory else {"workingDir": first.workdir}),
    }
    if first.address is not None:
        container["ports"] = [
            {
                "name": tensorboard.NAME if tensorboard.is_board(first) else POD_CONTAINER,
                "containerPort": first.address.port,
            }
        ]
    fields = {"terminationGracePeriodSeconds": math.ceil(plan.timeouts.grace)}
    of_secret = {name: {"secretKeyRef": {"name": plan.name, "key": name}} for name in sorted(plan.secrets)}
    env = [*_environment(tasks), *({"name": name, "valueFrom": source} for name, source in of_secret.items())]
    pod = pod_spec(spec, first.role, len(devices(first) or ()), fields, container, env)
    return {"metadata": _marks(plan, spec), "spec": pod}


def escaped(text: str) -> str:
    """Escape dollar signs that Kubernetes would take for a variable reference."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def indexed(texts: Sequence[str]) -> str:
    """Return one text for all pods of a role, with references to the index.

    The texts of the tasks, in the order of their index, may differ only in numbers that equal it.
    """
    pieces = zip(*(_NUMBERS.split(text) for text in texts), strict=True)
    return "".join(_piece(variants) for variants in pieces)


def _piece(variants: Sequence[str]) -> str:
    """Return a common piece of all tasks' texts, or a reference to the index."""
    if len(set(variants)) == 1:
        return escaped(variants[0])
    assert list(variants) == [str(number) for number in range(len(variants))], variants
    return f"$({_INDEX})"


def _environment(tasks: Sequence[TaskPlan]) -> list[dict[str, Any]]:
    environments = [(without_devices(task) if devices(task) else task).env for task in tasks]
    values = {name: indexed([env[name] for env in environments]) for name in environments[0]}
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    if len(tasks) > 1:
        field = {"fieldRef": {"fieldPath": _INDEX_FIELD}}
        env.insert(0, {"name": _INDEX, "valueFrom": field})  # before the variables that use it
    return env
