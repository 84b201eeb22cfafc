"""The plan: one command, one environment, one TF_CONFIG per task. What `plan` prints, `up` performs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import PurePath, PurePosixPath
from typing import NamedTuple

from tflaunch.errors import Problem
from tflaunch.machine import Machine
from tflaunch.spec import LOCALHOST, ROLES, Address, Elastic, Host, Restart, Role, Spec, Timeouts
from tflaunch.tf_config import compile_tf_config, has_cluster, members

AUTO = "auto"
"""Stands for a value that is known only at the start."""

SIDECAR = "sidecar"
DEFAULT_LEASE = 30.0
SERVER_PROGRAM = "${host:TFLAUNCH_SERVER}"
"""Stands for the path of TensorFlow's standard server on a host that is not this machine."""

CODE_DIRECTORY = "${host:TFLAUNCH_CODE}"
"""Stands for the place of the user's code on a host to which it is brought."""

_REMOTE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTHONS = ("python", "python3")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


class TaskPlan(NamedTuple):
    """One process. ``address`` is None for a sidecar; ``unset`` are variables that it does not inherit.

    ``is_required``: the job fails when it fails for good.
    """

    task: str
    role: str
    task_index: int
    host: str
    address: Address | None
    argv: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    unset: tuple[str, ...]
    is_required: bool = True


class HostPlan(NamedTuple):
    """One host, and how it is reached: this machine has its agent at hand, others over SSH or in a container.

    ``ssh``, ``identity_file``, ``python`` and ``docker`` are as in the spec; ``home`` is where tflaunch keeps its
    files on that host, None for the default place.
    """

    host: str
    is_local: bool
    ssh: str | None = None
    identity_file: str | None = None
    python: str | None = None
    home: str | None = None
    docker: str | None = None


class SyncPlan(NamedTuple):
    """The user's files that are brought to other hosts; ``paths`` are relative to ``directory``."""

    directory: str
    paths: tuple[str, ...]
    exclude: tuple[str, ...]


class Plan(NamedTuple):
    """Everything that `up` needs to know. Times are in seconds."""

    name: str
    strategy: str
    success: str
    tasks: tuple[TaskPlan, ...]
    sidecars: tuple[TaskPlan, ...]
    hosts: tuple[HostPlan, ...]
    restart: Restart
    timeouts: Timeouts
    lease: float
    sync: SyncPlan | None = None
    elastic: Elastic | None = None
    preflight: bool = True

    def processes(self) -> tuple[TaskPlan, ...]:
        """Return tasks and sidecars together."""
        return self.tasks + self.sidecars

    def find(self, task: str) -> TaskPlan:
        """Return the plan of one task.

        Raises:
            KeyError: there is no such task.
        """
        for candidate in self.processes():
            if candidate.task == task:
                return candidate
        raise KeyError(task)

    def on_host(self, host: str) -> tuple[TaskPlan, ...]:
        """Return the processes of one host."""
        return tuple(process for process in self.processes() if process.host == host)

    def is_local(self, host: str) -> bool:
        """Whether a host of the plan is the machine on which tflaunch runs."""
        return any(known.host == host and known.is_local for known in self.hosts)


def make(spec: Spec, directory: PurePath, machine: Machine) -> Plan:
    """Return the plan of a spec.

    Args:
        spec: a spec without errors.
        directory: where the spec's file is; relative working directories start there.
        machine: the machine on which tflaunch runs.
    """
    strategy = spec.effective_strategy()
    maker = _Maker(spec, directory, machine)
    tasks = tuple(
        maker.task(role, index, address) for role in ROLES for index, address in enumerate(spec.cluster.get(role, ()))
    )
    sidecars = tuple(maker.sidecar(name) for name in spec.sidecars)
    hosts = tuple(maker.host(name) for name in dict.fromkeys(process.host for process in tasks + sidecars))
    lease = spec.timeouts.lease
    if lease is None:
        lease = 0.0 if all(host.is_local for host in hosts) else DEFAULT_LEASE
    # A lost link must be noticed early enough to be restored while the lease runs.
    heartbeat = min(spec.timeouts.heartbeat, lease / 3) if lease else spec.timeouts.heartbeat
    unresolved = Plan(
        name=spec.name,
        strategy=strategy,
        success=spec.success or ("chief" if strategy == "parameter_server" else "all"),
        tasks=tasks,
        sidecars=sidecars,
        hosts=hosts,
        restart=spec.restart,
        timeouts=spec.timeouts._replace(heartbeat=heartbeat, lease=lease),
        lease=lease,
        sync=None if spec.sync is None else SyncPlan(str(directory), spec.sync.paths, spec.sync.exclude),
        elastic=spec.elastic,
    )
    return resolve(unresolved, {})


def problems(plan: Plan) -> list[Problem]:
    """Return what is wrong with a plan that could not be seen in the spec alone."""
    others = [host.host for host in plan.hosts if not host.is_local]
    if plan.lease == 0 and others:
        message = f"0 would end the tasks on {others[0]} at the first hiccup of the network"
        return [Problem("error", "timeouts.lease", message, "leave it out, or give the time that a cut may last")]
    return []


def resolve(plan: Plan, ports: Mapping[str, int]) -> Plan:
    """Return the plan with these ports in its addresses and TF_CONFIGs.

    Args:
        plan: a plan, resolved or not.
        ports: task to its port; tasks that are not in it keep what they have.
    """
    placed = [
        task._replace(address=Address(task.address.host, ports[task.task]))
        if task.address is not None and task.task in ports
        else task
        for task in plan.tasks
    ]
    addresses: dict[str, list[str]] = {}
    for task in placed:
        addresses.setdefault(task.role, []).append(str(task.address))
    resolved = []
    for task in placed:
        tf_config = compile_tf_config(plan.strategy, addresses, task.role, task.task_index)
        env = task.env if tf_config is None else {**task.env, "TF_CONFIG": tf_config}
        resolved.append(task._replace(env=env))
    return plan._replace(tasks=tuple(resolved))


def without(plan: Plan, hosts: Collection[str]) -> Plan:
    """Return the plan without the workers on these hosts; those left are numbered anew, as TensorFlow wants it."""
    kept = [task for task in plan.tasks if task.role != "worker" or task.host not in hosts]
    numbers = itertools.count()
    return plan._replace(
        tasks=tuple(_renumbered(task, next(numbers)) if task.role == "worker" else task for task in kept)
    )


def _renumbered(task: TaskPlan, index: int) -> TaskPlan:
    name = f"{task.role}:{index}"
    return task._replace(task=name, task_index=index, env={**task.env, "TFLAUNCH_TASK": name})


def wanted_ports(plan: Plan) -> dict[str, int]:
    """Return task to the port that an unresolved plan asks for, 0 where it is to be chosen."""
    return {task.task: task.address.port or 0 for task in plan.tasks if task.address is not None}


class _Maker:
    """Builds the processes of one spec."""

    def __init__(self, spec: Spec, directory: PurePath, machine: Machine) -> None:
        self._spec = spec
        self._strategy = spec.effective_strategy()
        self._directory = directory
        self._machine = machine
        self._tasks_on_host = Counter(
            self._machine_of(address.host) for addresses in spec.cluster.values() for address in addresses
        )
        self._gpus_given: Counter[str] = Counter()

    def task(self, role: str, index: int, address: Address) -> TaskPlan:
        """Plan one task of the cluster."""
        settings = self._spec.roles.get(role) or Role()
        name = f"{role}:{index}"
        own = {**self._defaults(role, address), **self._gpu_slice(settings, address.host)}
        env = self._layers(own, address.host, settings.env)
        env["TFLAUNCH_TASK"] = name
        return TaskPlan(
            task=name,
            role=role,
            task_index=index,
            host=address.host,
            address=Address(self._address_of(address.host), address.port),
            argv=self._argv(settings, address.host),
            workdir=self._workdir(settings.workdir, address.host),
            env=env,
            unset=self._unset(env, has_tf_config=has_cluster(self._strategy)),
            is_required=role != "evaluator" or settings.required,
        )

    def sidecar(self, name: str) -> TaskPlan:
        """Plan one process outside the cluster."""
        settings = self._spec.sidecars[name]
        env = self._layers(self._common(), settings.host, settings.env)
        env["TFLAUNCH_TASK"] = name
        return TaskPlan(
            task=name,
            role=SIDECAR,
            task_index=0,
            host=settings.host,
            address=None,
            argv=self._on_host(settings.command, settings.host),
            workdir=self._workdir(None, settings.host),
            env=env,
            unset=self._unset(env, has_tf_config=False),
            is_required=settings.required,
        )

    def host(self, name: str) -> HostPlan:
        """Plan how a host is reached."""
        if self._is_local(name):
            return HostPlan(name, is_local=True)
        settings = self._spec.hosts.get(name) or Host()
        home = settings.env.get("TFLAUNCH_HOME")
        return HostPlan(name, False, settings.ssh, settings.identity_file, settings.python, home, settings.docker)

    def _address_of(self, host: str) -> str:
        settings = self._spec.hosts.get(host)
        return settings.address if settings is not None and settings.address is not None else host

    def _common(self) -> dict[str, str]:
        """What every process gets: words in order, stacks on a crash, values that the start fills in."""
        return {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TFLAUNCH_RUN": AUTO,
            "TFLAUNCH_ATTEMPT": "0",
            "TFLAUNCH_TASK_DIR": AUTO,
            "TFLAUNCH_PROGRESS": AUTO,
        }

    def _defaults(self, role: str, address: Address) -> dict[str, str]:
        """What TensorFlow needs or is better off with; the spec's env overrides it."""
        env = self._common()
        if has_cluster(self._strategy):
            env["TF_GRPC_REUSE_PORT"] = "true"  # the port is held by a socket of the agent
        if role in members("parameter_server") and self._strategy == "parameter_server":
            env["GRPC_FAIL_FAST"] = "use_caller"
        if self._wants_legacy_keras(address.host):
            env["TF_USE_LEGACY_KERAS"] = "1"
        neighbours = self._tasks_on_host[self._machine_of(address.host)]
        if neighbours > 1 and self._is_local(address.host) and "TF_NUM_INTRAOP_THREADS" not in self._machine.environ:
            # By default each process starts a thread per core of the whole machine.
            env["TF_NUM_INTRAOP_THREADS"] = str(max(1, self._machine.cores // neighbours))
        return env

    def _wants_legacy_keras(self, host: str) -> bool:
        if self._spec.legacy_keras == "auto":
            is_set = self._is_local(host) and "TF_USE_LEGACY_KERAS" in self._machine.environ
            return self._strategy in ("multi_worker_mirrored", "parameter_server") and not is_set
        return self._spec.legacy_keras is True

    def _gpu_slice(self, settings: Role, host: str) -> dict[str, str]:
        """The next ``gpus`` devices of the host; -1 hides all of them."""
        if settings.gpus is None:
            return {}
        first = self._gpus_given[self._machine_of(host)]
        self._gpus_given[self._machine_of(host)] += settings.gpus
        devices = ",".join(str(first + number) for number in range(settings.gpus))
        return {"CUDA_VISIBLE_DEVICES": devices or "-1", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}

    def _layers(self, own: Mapping[str, str], host: str, specific: Mapping[str, str]) -> dict[str, str]:
        settings = self._spec.hosts.get(host)
        env = {**own, **self._spec.env, **(settings.env if settings else {}), **specific}
        return {**self._inherited(host), **env}

    def _inherited(self, host: str) -> dict[str, str]:
        """What a process has besides: here the user's own environment, elsewhere nothing of a login."""
        if self._is_local(host):
            directory = self._machine.python_directory
            path = f"{directory}:{self._machine.environ.get('PATH', '/usr/bin:/bin')}"
            return {} if directory is None else {"PATH": path}
        settings = self._spec.hosts.get(host)
        directory, slash, _ = (settings.python or "").rpartition("/") if settings is not None else ("", "", "")
        if directory.startswith("~"):
            directory = "${host:HOME}" + directory[1:]
        return {"PATH": f"{directory}:{_REMOTE_PATH}" if slash else _REMOTE_PATH, "LANG": "C.UTF-8"}

    def _unset(self, env: Mapping[str, str], *, has_tf_config: bool) -> tuple[str, ...]:
        """Proxies (gRPC obeys them even between the tasks) and a TF_CONFIG of somebody else."""
        names = [variant for proxy in _PROXIES for variant in (proxy, proxy.upper())]
        if not has_tf_config:
            names.append("TF_CONFIG")
        if self._spec.legacy_keras is False:
            names.append("TF_USE_LEGACY_KERAS")
        return tuple(name for name in names if name not in env)

    def _argv(self, settings: Role, host: str) -> tuple[str, ...]:
        if settings.server:
            if self._is_local(host):
                return self._on_host(("python", self._machine.server_program), host)
            settings_of_host = self._spec.hosts.get(host)
            python = settings_of_host.python if settings_of_host is not None else None
            return (python or "python3", SERVER_PROGRAM)
        return self._on_host(settings.command or self._spec.command or (), host)

    def _on_host(self, argv: tuple[str, ...], host: str) -> tuple[str, ...]:
        settings = self._spec.hosts.get(host)
        if settings is not None and settings.python is not None and argv[0] in _PYTHONS:
            return (settings.python, *argv[1:])
        return argv

    def _workdir(self, specific: str | None, host: str) -> str:
        settings = self._spec.hosts.get(host)
        chosen = specific or (settings.workdir if settings else None) or self._spec.workdir or "."
        if chosen.startswith(("~", "${host:")):
            return chosen
        if self._spec.sync is not None and not self._is_local(host):
            return str(PurePosixPath(CODE_DIRECTORY) / chosen)
        return str(self._directory / chosen)

    def _machine_of(self, host: str) -> str:
        """One name for this machine, whichever of its names the spec uses."""
        return LOCALHOST if self._is_local(host) else host.lower()

    def _is_local(self, host: str) -> bool:
        settings = self._spec.hosts.get(host)
        is_container = settings is not None and settings.docker is not None
        return not is_container and (host == LOCALHOST or host in self._machine.local_names)
