"""The engines that a spec can be rendered for, and what each cannot express. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

from tflaunch.clusterspec import templates
from tflaunch.clusterspec.model import Role, Spec
from tflaunch.clusterspec.values import is_ip_address, is_loopback
from tflaunch.errors import Problem
from tflaunch.feature import features
from tflaunch.features.render import compose, sbatch_script
from tflaunch.features.render.target_plan import FIRST_PORT, HOST_VALUE, fixed
from tflaunch.features.requested_gpus import with_gpus
from tflaunch.plan import placeholders
from tflaunch.plan.gpu_shares import trains_on_gpu
from tflaunch.plan.model import Machine, Plan
from tflaunch.plan.task_rules import texts_of

Rule = Callable[[Spec], Iterator[Problem]]


def _texts_of_tflaunch(spec: Spec) -> Iterator[Problem]:
    """Reject texts that only tflaunch's agent or supervisor can fill in."""
    directories = dict(_directories(spec))
    if spec.tensorboard is not None:
        directories["tensorboard"] = spec.tensorboard
    for where, text in (dict(texts_of(spec)) | directories).items():
        if HOST_VALUE in text or (where in directories and text.startswith("~")):
            why = "is filled in by tflaunch's agent, and no other engine has one"
        elif templates.ATTEMPT in placeholders.names(text):
            why = "counts tflaunch's own restarts, and no other engine does"
        elif placeholders.matrix_values_in(text):
            why = "is filled in by `tflaunch up --matrix`"
        else:
            continue
        yield Problem.error(where, f"{text!r:.60} {why}", "write the value itself")


def _fields_of_tflaunch(spec: Spec) -> Iterator[Problem]:
    """Reject fields that only tflaunch's agents or supervisor serve."""
    share = "remove it, and write checkpoints to a disk that all tasks share"
    into_image = "remove it, and make an image that has what it makes"
    for field, is_set, what, who, remedy in (
        ("network", spec.network == "private", "private networks are made", "agent", "remove it"),
        ("checkpoints", spec.checkpoints is not None, "checkpoints are copied", "agents", share),
        ("setup", bool(spec.setup), "hosts are prepared", "agents", into_image),
        *(
            (f"roles.{name}.setup", bool(role.setup), "hosts are prepared", "agents", into_image)
            for name, role in spec.roles.items()
        ),
        ("spares", bool(spec.spares), "tasks are moved to spare hosts", "supervisor", "remove it"),
    ):
        if is_set:
            yield Problem.error(field, f"{what} by tflaunch's {who}, and no other engine has one", remedy)


def has_tasks(spec: Spec) -> Iterator[Problem]:
    """Require a cluster: its tasks are what other engines start and wait for."""
    if not spec.cluster:
        yield Problem.error("cluster", "has no task, and the engine runs tasks", "use `tflaunch up`")


def secrets_in_variables(spec: Spec) -> Iterator[Problem]:
    """Reject secrets in files: the engine cannot read variables from files."""
    for name, secret in spec.secrets.items():
        if secret.file is not None:
            message = "is read from a file, and Compose takes the values of variables only from variables"
            yield Problem.error(f"secrets.{name}", message, f'write {{"env": "{name}"}}, and export it from the file')


def alike_texts(spec: Spec) -> Iterator[Problem]:
    """Reject an index in a directory or next to a digit.

    One pod template per role cannot express it.
    """
    for where, text in _directories(spec):
        if {"task.index", "task.name"}.intersection(placeholders.names(text)):
            message = f"{text!r:.60} differs among the tasks of a role, and their pods are alike"
            yield Problem.error(where, message, "put {task.index} into the command or the environment")
    for where, text in texts_of(spec):
        if re.search(r"[0-9]\{task\.index\}|\{task\.(index|name)\}[0-9]", text):
            message = f"{text!r:.60} has a digit beside the index, which Kubernetes could not tell apart"
            yield Problem.error(where, message, "put another letter between them")


def _directories(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the directories of roles and of all; those of hosts go with the hosts."""
    return ((where, text) for where, text in texts_of(spec) if re.fullmatch(r"(roles\.[^.]+\.)?workdir", where))


def own_addresses(spec: Spec) -> Iterator[Problem]:
    """Reject the first fixed address: the engine assigns addresses at the start."""
    places = [
        (f"cluster.{role}[{index}]", address.host)
        for role, addresses in spec.cluster.items()
        for index, address in enumerate(addresses)
    ]
    places += [(f"sidecars.{name}.host", sidecar.host) for name, sidecar in spec.sidecars.items()]
    for where, host in places:
        if is_ip_address(host) and not is_loopback(host):
            message = f"{host} is an address, and the engine gives addresses of its own"
            yield Problem.error(where, message, "use names of hosts, or a number of tasks")
            return


def names_of_services(spec: Spec) -> Iterator[Problem]:
    """Require distinct names: tasks and sidecars are services of one file."""
    tasks = {f"{role}-{index}" for role, addresses in spec.cluster.items() for index in range(len(addresses))}
    for name in spec.sidecars:
        if name in tasks:
            yield Problem.error(f"sidecars.{name}", f"{name!r} is the name of a task's service, too", "rename it")


def one_gpu_task_per_node(spec: Spec) -> Iterator[Problem]:
    """Reject two GPU tasks on a node: overlapping steps see the same GPUs."""
    on_host = Counter(
        address.host
        for role, addresses in spec.cluster.items()
        for address in addresses
        if _wants_gpu(spec, role, address.host)
    )
    for host, count in on_host.items():
        if count > 1:
            message = f"{count} tasks on {host} want GPUs, and Slurm shows all steps of a node the same ones"
            yield Problem.error("cluster", message, "give each of these tasks a host of its own")


def _wants_gpu(spec: Spec, role: str, host: str) -> bool:
    gpus = (with_gpus(spec).roles.get(role) or Role()).gpus
    if gpus is None:
        gpus = spec.host(host).gpus if trains_on_gpu(spec.effective_strategy(), role) else 0
    return bool(gpus)


def image(spec: Spec) -> Iterator[Problem]:
    """Require an image, which pods are created from."""
    if spec.container.image is None:
        hint = 'add "container": {"image": "NAME"}, or --set container.image=NAME'
        yield Problem.error("container.image", "is missing, and pods are made of an image", hint)


def term_alone(spec: Spec) -> Iterator[Problem]:
    """Reject another stop signal than TERM."""
    if spec.stop_signal != "TERM":
        yield Problem.error(
            "stop_signal", "is not what the engine sends, which is TERM", "remove it, and save at SIGTERM"
        )


def directories_of_the_image(spec: Spec) -> Iterator[Problem]:
    """Reject relative directories: a pod does not have the spec's directory."""
    for where, directory in _directories(spec):
        if not directory.startswith("/"):
            message = f"{directory!r:.60} is relative to the spec's file, which no pod has"
            yield Problem.error(where, message, "give the path in the image, or leave it out for the image's own")


def alike_pods(spec: Spec) -> Iterator[Problem]:
    """Reject host settings by which tasks of a role differ: they share a template."""
    for role, addresses in spec.cluster.items():
        hosts = dict.fromkeys(address.host for address in addresses)
        environments = [spec.host(host).env for host in hosts]
        different = next((host for host, env in zip(hosts, environments, strict=True) if env != environments[0]), None)
        if different is not None:
            name = next(host for host in hosts if host in spec.hosts and spec.hosts[host].env)
            message = f"makes the tasks of {role} differ, and the pods of a role are alike"
            yield Problem.error(f"hosts.{name}.env", message, f"move it to roles.{role}.env")


def gpus_of_roles(spec: Spec) -> Iterator[Problem]:
    """Reject `gpus` of hosts: a pod requests GPUs, whatever its host has."""
    for name, host in spec.hosts.items():
        if host.gpus is not None and all(spec.resources(role).gpu is None for role in spec.cluster):
            message = "says what a host has, and pods ask for what they want"
            yield Problem.error(f"hosts.{name}.gpus", message, "set container.resources.gpu, or gpus in roles")


class Engine(NamedTuple):
    """How a spec is rendered for an engine.

    ``rules`` find what it cannot express; ``placed`` gives the tasks their addresses there; ``first_port``: the first
    port for tasks whose port the spec does not set.
    """

    write: Callable[[Plan, str, Spec], str]
    rules: tuple[Rule, ...]
    placed: Callable[[Spec], Spec] = lambda spec: spec
    first_port: int = FIRST_PORT


def _pods() -> dict[str, Engine]:
    """Return the engines with pods like a supervisor's; {} without `kubernetes`."""
    if "kubernetes" not in features():
        return {}
    from tflaunch.features.kubernetes import pods  # of another feature, which may be gone
    from tflaunch.features.render import jobset

    rules = (
        image,
        term_alone,
        alike_texts,
        directories_of_the_image,
        alike_pods,
        gpus_of_roles,
        jobset.names,
        pods.unlabelled_features,
        pods.short_grace,
    )
    return {
        "jobset": Engine(jobset.render, rules, jobset.placed),
        "trainjob": Engine(jobset.render_trainjob, (*rules, jobset.one_priority), jobset.placed),
    }


ENGINES: Mapping[str, Engine] = {
    "slurm": Engine(
        sbatch_script.render,
        (
            term_alone,
            one_gpu_task_per_node,
            sbatch_script.one_part,
            sbatch_script.without_lives,
            sbatch_script.without_image,
        ),
        sbatch_script.placed,
        first_port=sbatch_script.FIRST_PORT,
    ),
    **_pods(),
    "compose": Engine(compose.render, (names_of_services, secrets_in_variables)),
}


def find_problems(engine: str, spec: Spec) -> list[Problem]:
    """Return the problems of a spec with an engine."""
    rules = (has_tasks, own_addresses, _texts_of_tflaunch, _fields_of_tflaunch, *ENGINES[engine].rules)
    return [problem for rule in rules for problem in rule(spec)]


def plan_for_target(engine: str, spec: Spec, directory: PurePath, machine: Machine, server_text: str) -> Plan:
    """Return the plan for an engine; ``server_text``: the program of `server: true`."""
    chosen = ENGINES[engine]
    return fixed(chosen.placed(with_gpus(spec)), directory, machine, server_text, chosen.first_port)


def render_spec(engine: str, spec: Spec, directory: PurePath, machine: Machine, server_text: str) -> str:
    """Return the file with which an engine starts the tasks of a spec."""
    made = plan_for_target(engine, spec, directory, machine, server_text)
    return ENGINES[engine].write(made, str(directory), spec)
