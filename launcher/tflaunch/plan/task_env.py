"""Compose the environments of processes, without what they must not inherit. Pure.

From the lowest layer to the highest: what the process inherits from its agent, with a PATH that has the right Python
first; what every process gets; what TensorFlow needs in this task, each with a reason; and the `env` of the spec, of
the host and of the role. A run adds its name and the attempt (`for_attempt`), and the agent what only the host knows
(`tflaunch_worker.agent.task_env`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.clusterspec.templates import quote
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.plan import gpu_shares
from tflaunch.plan.model import AUTO, Machine, is_made
from tflaunch.plan.tf_config import has_cluster, members

BY_AGENTS = ("TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", "TFLAUNCH_LEGACY_KERAS")
"""Variables to which the agent of a task gives their values."""
AT_START = ("TFLAUNCH_RUN", "TFLAUNCH_ATTEMPT", *BY_AGENTS)
"""Variables whose values are known when an attempt starts."""
OURS = (*AT_START, "TF_CONFIG", "TFLAUNCH_STRATEGY", "TFLAUNCH_TASK", "TFLAUNCH_PRELOAD", "TFLAUNCH_SET")
"""Variables that no spec may set."""

if TYPE_CHECKING:
    from tflaunch.clusterspec.model import Spec  # whoever starts a kept plan needs no model of specs
    from tflaunch.plan.model import Plan, TaskPlan


class Environment(NamedTuple):
    """How a process's environment differs from what it inherits, as in `TaskPlan`."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    reasons: Mapping[str, str] = {}


def for_attempt(env: Mapping[str, str], run: str, attempt: int) -> dict[str, str]:
    """Return the environment of a process in one attempt of a run."""
    return {**env, "TFLAUNCH_RUN": run, "TFLAUNCH_ATTEMPT": str(attempt)}


def program_of(
    plan: Plan, process: TaskPlan, run: str, attempt: int, secrets: Mapping[str, str | None]
) -> dict[str, object]:
    """Return a process's program for its agent, with its placeholders filled in."""
    return {
        "argv": process.argv,
        "env": for_attempt(process.env, run, attempt),
        "unset": process.unset,
        "workdir": process.workdir,
        "inherit": plan.host(process.host).inherits_environment,
        "secrets": dict(secrets),
        "setup": process.setup and process.setup.key,
    }


class Places:
    """Which machine each host of a spec is."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        self._spec = spec
        self._machine = machine

    def visible_gpus(self, host: str) -> list[str]:
        """Return the usable devices of a host, [] if nothing lists them."""
        settings = self._spec.host(host)
        here = self._machine.environ if self.is_local(host) else {}
        named = {**here, **self._spec.env, **settings.env}.get("CUDA_VISIBLE_DEVICES", "")
        return [device.strip() for device in named.split(",") if device.strip()]

    def machine_of(self, host: str) -> str:
        """Return the name of a host's machine, the same for all names of this machine."""
        return LOCALHOST if self.is_local(host) else host.lower()

    def is_local(self, host: str) -> bool:
        """Whether a host is this machine, and its agent is started here."""
        settings = self._spec.host(host)
        is_reached_otherwise = settings.docker is not None or settings.engine is not None
        return not is_reached_otherwise and (host == LOCALHOST or host in self._machine.local_names)

    def is_like_here(self, host: str) -> bool:
        """Return whether a host's tasks have this machine's environment and directories."""
        return self.is_local(host) or self._spec.host(host).inherits


class Environments:
    """The environments of the processes of one plan."""

    def __init__(self, spec: Spec, machine: Machine, places: Places, tasks: Sequence[gpu_shares.Member]) -> None:
        """Prepare for the cluster's ``tasks``, which share machines and GPUs."""
        self._spec = spec
        self._strategy = spec.effective_strategy()
        self._machine = machine
        self._places = places
        self._tasks_on = Counter(task.machine for task in tasks)
        wanted = gpu_shares.gpus_wanted(spec, self._strategy, tasks)
        visible = {task.machine: places.visible_gpus(task.host) for task in tasks}
        self._sharing = Counter(
            task.machine
            for task in tasks
            if task.task not in wanted and gpu_shares.trains_on_gpu(self._strategy, task.role)
        )
        given = {task.machine for task in tasks if spec.host(task.host).inherits}
        self._gpus = dict(gpu_shares.gpu_slices(wanted, tasks, visible, given))

    def of_task(self, role: str, index: int, host: str) -> Environment:
        """Return the environment of a task of the cluster on a host."""
        name, settings = f"{role}:{index}", self._spec.roles.get(role)
        specific = {} if settings is None else settings.env
        chosen = self._chosen(name, role, host)
        own = {**self._common(), **{variable: value for variable, (value, _) in chosen.items()}}
        env = self._layers(own, host, specific)
        if "CUDA_VISIBLE_DEVICES" in chosen and "CUDA_VISIBLE_DEVICES" not in specific:
            env["CUDA_VISIBLE_DEVICES"] = chosen["CUDA_VISIBLE_DEVICES"][0]  # a share of the host's own list
        reasons = {variable: why for variable, (value, why) in chosen.items() if env[variable] == value}
        env["TFLAUNCH_TASK"] = name
        env["TFLAUNCH_SET"] = ",".join(reasons)
        if self._spec.legacy_keras == "auto" and "TF_USE_LEGACY_KERAS" in reasons:
            env["TFLAUNCH_LEGACY_KERAS"] = AUTO  # the agent looks for tf_keras first, without which TensorFlow fails
        return Environment(env, self._unset(env, has_tf_config=has_cluster(self._strategy)), reasons)

    def of_other(self, name: str, host: str, specific: Mapping[str, str]) -> Environment:
        """Return the environment of a process outside the cluster."""
        env = {**self._layers(self._common(), host, specific), "TFLAUNCH_TASK": name}
        return Environment(env, self._unset(env, has_tf_config=False))

    def _common(self) -> dict[str, str]:
        """Return the variables of every process.

        An empty grpc_proxy keeps gRPC from sending the cluster's own traffic to http_proxy, which other code may need
        (gRPC core, http_proxy_mapper.cc; measured with TensorFlow 2.21). Agents drop it where there is no proxy.
        """
        return {
            "grpc_proxy": "",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TFLAUNCH_RUN": AUTO,
            "TFLAUNCH_STRATEGY": self._strategy,
            "TFLAUNCH_ATTEMPT": "0",
            "TFLAUNCH_TASK_DIR": AUTO,
            "TFLAUNCH_PROGRESS": AUTO,
        }

    def _chosen(self, task: str, role: str, host: str) -> dict[str, tuple[str, str]]:
        """Return variables that TensorFlow needs, with reasons; the spec overrides them."""
        chosen: dict[str, tuple[str, str]] = {}
        if has_cluster(self._strategy):
            chosen["TF_GRPC_REUSE_PORT"] = "true", "the port is held for the task until it listens"
        if role in members("parameter_server") and self._strategy == "parameter_server":
            chosen["GRPC_FAIL_FAST"] = "use_caller", "a call may wait for a server that is being started again"
        chosen |= self._variables_of_jax()
        if why := self._why_legacy_keras(host):
            chosen["TF_USE_LEGACY_KERAS"] = "1", why
        devices = self._gpus.get(task)
        if devices is not None:
            why = "its share of the host's GPUs" if devices != gpu_shares.HIDDEN else "it is to have no GPU"
            chosen["CUDA_VISIBLE_DEVICES"] = devices, why
            chosen[gpu_shares.GROWTH] = "true", "TensorFlow would take all the memory of a GPU at once"
        elif self._sharing[self._places.machine_of(host)] > 1 and gpu_shares.trains_on_gpu(self._strategy, role):
            why = "tasks share what GPUs the host has, and the first would take all their memory"
            chosen[gpu_shares.GROWTH] = "true", why
        neighbours = self._tasks_on[self._places.machine_of(host)]
        is_given = self._places.is_like_here(host) and "TF_NUM_INTRAOP_THREADS" in self._machine.environ
        if neighbours > 1 and not is_given:
            cores = max(1, self._machine.cores // neighbours) if self._places.is_local(host) else None
            threads = f"${{host:TFLAUNCH_CORES/{neighbours}}}" if cores is None else str(cores)
            why = f"{neighbours} tasks share the host's cores, and each would use all of them"
            chosen["TF_NUM_INTRAOP_THREADS"] = threads, why
        return chosen

    def _variables_of_jax(self) -> dict[str, tuple[str, str]]:
        """Return the variables in which Keras with JAX reads its cluster, with reasons.

        They are those of ``distribution_lib.py`` (Keras 3.15).
        """
        if self._strategy != "jax":
            return {}
        why = "keras.distribution.initialize() reads its cluster from it"
        count = str(len(self._spec.cluster.get("worker", ())))
        variables = {"JOB_ADDRESSES": "{cluster.worker}", "NUM_PROCESSES": count, "PROCESS_ID": "{task.index}"}
        chosen = {f"KERAS_DISTRIBUTION_{name}": (value, why) for name, value in variables.items()}
        return {"KERAS_BACKEND": ("jax", "Keras is to train with JAX"), **chosen}

    def _why_legacy_keras(self, host: str) -> str:
        """Return why tasks on a host use tf_keras, "" if they do not have to."""
        if self._spec.legacy_keras is True:
            return "the spec says so"
        is_set = self._places.is_like_here(host) and "TF_USE_LEGACY_KERAS" in self._machine.environ
        has_fit = self._strategy in ("multi_worker_mirrored", "parameter_server")
        if self._spec.legacy_keras is False or is_set or not has_fit:
            return ""
        return f"Keras 3 cannot `fit` under {self._strategy}; 0 where tf_keras is not installed beside TensorFlow"

    def _layers(self, own: Mapping[str, str], host: str, specific: Mapping[str, str]) -> dict[str, str]:
        env = {**own, **self._spec.env, **self._spec.host(host).env, **specific}
        return {**self._inherited(host), **env}

    def _inherited(self, host: str) -> dict[str, str]:
        """Return changes to the inherited environment: a PATH with the right Python first.

        Hosts with a login get none, because their agents compose the whole environment.
        """
        if self._places.is_like_here(host):
            directory = self._machine.python_directory
            path = f"{directory}:{self._machine.environ.get('PATH', '/usr/bin:/bin')}"
            return {} if directory is None else {"PATH": quote(path)}
        settings = self._spec.host(host)
        directory, slash, _ = (settings.python or "").rpartition("/")
        if (settings.docker is None and not is_made(settings.engine)) or not slash:
            return {}
        directory = quote(directory)
        if directory.startswith("~"):
            directory = "${host:HOME}" + directory[1:]
        return {"PATH": f"{directory}:${{host:PATH}}"}

    def _unset(self, env: Mapping[str, str], *, has_tf_config: bool) -> tuple[str, ...]:
        """Return variables not to inherit, such as those from which secrets are read."""
        names = [] if has_tf_config else ["TF_CONFIG"]
        names += [secret.env for secret in self._spec.secrets.values() if secret.env is not None]
        if self._spec.legacy_keras is False:
            names.append("TF_USE_LEGACY_KERAS")
        return tuple(dict.fromkeys(name for name in names if name not in env and name not in self._spec.secrets))
