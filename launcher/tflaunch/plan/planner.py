"""Compile a spec into a plan: each process's defaults, overridden by the spec. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath, PurePosixPath
from typing import NamedTuple

from tflaunch.clusterspec.model import Role, Secret, Spec
from tflaunch.clusterspec.values import LOCALHOST, ROLES, Address
from tflaunch.plan import gpu_shares, placeholders, placement, pods, tensorboard
from tflaunch.plan.gpu_shares import Member
from tflaunch.plan.model import (
    AUTO,
    CODE_DIRECTORY,
    DEFAULT_LEASE,
    POD,
    PRIVATE,
    SERVER_PROGRAM,
    SIDECAR,
    CheckpointsPlan,
    ElasticPlan,
    HostPlan,
    HostVariant,
    Machine,
    NotifyPlan,
    Plan,
    RestartPlan,
    RetentionPlan,
    SecretSource,
    SyncPlan,
    TaskPlan,
    TimeoutsPlan,
    resolve,
)
from tflaunch.plan.tf_config import has_cluster, members

_PYTHONS = ("python", "python3")
_WARM_BY_DEFAULT = ("tensorflow",)


def make_plan(spec: Spec, directory: PurePath, machine: Machine) -> Plan:
    """Return the plan of a spec.

    Args:
        spec: a spec without errors.
        directory: the directory of the spec's file; working directories are relative to it.
        machine: the machine that tflaunch runs on.
    """
    strategy = spec.effective_strategy()
    maker = _Maker(spec, directory, machine)
    tasks = tuple(
        maker.task(role, index, address) for role in ROLES for index, address in enumerate(spec.cluster.get(role, ()))
    )
    sidecars = tuple(maker.sidecar(name) for name in spec.sidecars)
    if spec.tensorboard is not None:
        sidecars += (maker.board(_leader(tasks), spec.tensorboard),)
    hosts = tuple(maker.host(name) for name in maker.hosts)
    spares = placement.spare_hosts(spec)
    lease = spec.timeouts.lease
    if lease is None:
        lease = 0.0 if all(host.is_local for host in hosts) else DEFAULT_LEASE
    # A lost link must be noticed early enough to be restored before the lease expires.
    heartbeat = min(spec.timeouts.heartbeat, lease / 3) if lease else spec.timeouts.heartbeat
    unresolved = Plan(
        name=spec.name,
        strategy=strategy,
        success=spec.success or ("chief" if strategy == "parameter_server" else "all"),
        tasks=tasks,
        sidecars=sidecars,
        hosts=hosts,
        restart=RestartPlan(**dict(spec.restart)),
        timeouts=TimeoutsPlan(**{**dict(spec.timeouts), "heartbeat": heartbeat, "lease": lease}),
        sync=None if spec.sync is None else SyncPlan(str(directory), spec.sync.paths, spec.sync.exclude),
        elastic=None if spec.elastic is None else ElasticPlan(**dict(spec.elastic)),
        preload=spec.preload or (_WARM_BY_DEFAULT if spec.warm else ()),
        warm=spec.warm or None,
        retention=RetentionPlan(**dict(spec.retention)),
        network=spec.network,
        secrets={name: _secret_source(secret, directory) for name, secret in spec.secrets.items()},
        collect=spec.collect,
        notify=None if spec.notify is None else NotifyPlan(spec.notify.exec, spec.notify.on, str(directory)),
        kubernetes=pods.cluster_plan(spec, (*tasks, *sidecars), spec.timeouts.grace),
        checkpoints=None if spec.checkpoints is None else CheckpointsPlan(**dict(spec.checkpoints)),
        spares=spares,
        variants=_variants(spec, directory, machine, (*tasks, *sidecars)) if spares else (),
    )
    return resolve(unresolved, {})


def _variants(
    spec: Spec, directory: PurePath, machine: Machine, processes: Sequence[TaskPlan]
) -> tuple[HostVariant, ...]:
    """Return how the tasks look on hosts with other settings; hosts with the same settings share a variant."""
    maker = _Maker(spec, directory, machine)
    kinds: dict[str, list[str]] = {}
    for name in maker.hosts:
        kinds.setdefault(maker.kind_of(name), []).append(name)
    at_home: dict[str, list[TaskPlan]] = {}
    for process in processes:
        at_home.setdefault(process.host, []).append(process)
    variants = []
    for alike in kinds.values():
        moved: list[TaskPlan] = []
        for home, there in at_home.items():
            if home not in alike:
                moved += _Maker(spec, directory, machine, _Move(alike[0], tuple(there))).all_moved()
        if moved:
            variants.append(HostVariant(tuple(alike), tuple(moved)))
    return tuple(variants)


def _secret_source(secret: Secret, directory: PurePath) -> SecretSource:
    if secret.file is None or secret.file.startswith("~"):
        return SecretSource(secret.env, secret.file)
    return SecretSource(None, str(directory / secret.file))


def _leader(tasks: tuple[TaskPlan, ...]) -> TaskPlan:
    """Return the task whose event files users look at: the chief or else worker:0."""
    return next((task for task in tasks if task.role in ("chief", "worker")), tasks[0])


class _Move(NamedTuple):
    """The processes of one host, and the host that takes its place."""

    host: str
    processes: tuple[TaskPlan, ...]


class _Maker:
    """Builder of the processes and hosts of one plan; or, after a move, of the processes of one host."""

    def __init__(self, spec: Spec, directory: PurePath, machine: Machine, move: _Move | None = None) -> None:
        self._spec = spec
        self._strategy = spec.effective_strategy()
        self._directory = directory
        self._machine = machine
        self._move = move
        places = [] if move is not None else placement.named_hosts(spec)
        others = [*(sidecar.host for sidecar in spec.sidecars.values()), *placement.spare_hosts(spec)]
        self.hosts = [*dict.fromkeys([*places, *others])]
        """The hosts of tasks, of sidecars and without tasks, in this order; TensorBoard is on one of them."""
        members = self._members()
        self._tasks_on = Counter(member.machine for member in members)
        wanted = gpu_shares.gpus_wanted(spec, self._strategy, members)
        visible = {member.machine: self._visible_gpus(member.host) for member in members}
        self._sharing = Counter(
            member.machine
            for member in members
            if member.task not in wanted and gpu_shares.trains_on_gpu(self._strategy, member.role)
        )
        given = {member.machine for member in members if spec.host(member.host).inherits}
        self._gpus = dict(gpu_shares.gpu_slices(wanted, members, visible, given))

    def _members(self) -> list[Member]:
        if self._move is not None:
            host = self._move.host
            tasks = [process for process in self._move.processes if process.role != SIDECAR]
            return [Member(task.task, task.role, self._machine_of(host), host) for task in tasks]
        return [
            Member(f"{role}:{index}", role, self._machine_of(address.host), address.host)
            for role in ROLES
            for index, address in enumerate(self._spec.cluster.get(role, ()))
        ]

    def kind_of(self, host: str) -> str:
        """Return a text that is the same for hosts on which a task differs in host and address only."""
        settings = self._spec.host(host)
        fields = {name: getattr(settings, name) for name in ("python", "workdir", "gpus", "inherits")}
        reached = [self._is_local(host), settings.docker is None, (settings.engine or "").partition(":")[0]]
        return repr([fields, sorted(settings.env.items()), reached])

    def all_moved(self) -> Iterator[TaskPlan]:
        """Yield the plans of the processes of one host on the host that takes its place."""
        assert self._move is not None
        host = self._move.host
        for process in self._move.processes:
            if process.role != SIDECAR:
                address = Address(host, None if process.address is None else process.address.port)
                yield self.task(process.role, process.task_index, address)
            elif process.address is None:
                yield self.sidecar(process.task, host)
            else:
                leader = next((task for task in self._move.processes if task.role in ("chief", "worker")), None)
                leader = leader or self._move.processes[0]
                address = Address(host, None)
                moved = self.task(leader.role, leader.task_index, address)
                yield self.board(moved, self._spec.tensorboard or "")

    def task(self, role: str, index: int, address: Address) -> TaskPlan:
        """Return the plan of one task of the cluster."""
        settings = self._spec.roles.get(role) or Role()
        name = f"{role}:{index}"
        chosen = self._chosen(name, role, address.host)
        own = {**self._common(), **{variable: value for variable, (value, _) in chosen.items()}}
        env = self._layers(own, address.host, settings.env)
        if "CUDA_VISIBLE_DEVICES" in chosen and "CUDA_VISIBLE_DEVICES" not in settings.env:
            env["CUDA_VISIBLE_DEVICES"] = chosen["CUDA_VISIBLE_DEVICES"][0]  # a share of the host's own list
        reasons = {variable: why for variable, (value, why) in chosen.items() if env[variable] == value}
        env["TFLAUNCH_TASK"] = name
        env["TFLAUNCH_SET"] = ",".join(reasons)
        if self._leaves_keras_to_the_host(reasons):
            env["TFLAUNCH_LEGACY_KERAS"] = AUTO
        return TaskPlan(
            task=name,
            host=address.host,
            address=Address(self._address_of(address.host), address.port),
            argv=self._argv(settings, address.host),
            workdir=self._workdir(settings.workdir, address.host),
            env=env,
            unset=self._unset(env, has_tf_config=has_cluster(self._strategy)),
            required=role != "evaluator" or settings.required,
            reasons=reasons,
        )

    def sidecar(self, name: str, host: str | None = None) -> TaskPlan:
        """Return the plan of one process outside the cluster; ``host`` if it has moved there."""
        settings = self._spec.sidecars[name]
        host = host or settings.host
        env = self._layers(self._common(), host, settings.env)
        env["TFLAUNCH_TASK"] = name
        return TaskPlan(
            task=name,
            host=host,
            address=None,
            argv=self._on_host(settings.command, host),
            workdir=self._workdir(None, host),
            env=env,
            unset=self._unset(env, has_tf_config=False),
            required=settings.required,
        )

    def board(self, leader: TaskPlan, logdir: str) -> TaskPlan:
        """Return the plan of TensorBoard, with host, Python, directory and environment of the leading task."""
        settings = self._spec.roles.get(leader.role) or Role()
        env = self._layers(self._common(), leader.host, settings.env)
        env = {name: placeholders.as_the(leader, value) for name, value in env.items()}
        env["TFLAUNCH_TASK"] = tensorboard.NAME
        env["CUDA_VISIBLE_DEVICES"] = "-1"  # the GPUs are for training
        (python,) = self._on_host(("python3",), leader.host)
        return TaskPlan(
            task=tensorboard.NAME,
            host=leader.host,
            address=tensorboard.ADDRESS,
            argv=tensorboard.command(leader.argv[0], python, logdir),
            workdir=placeholders.as_the(leader, leader.workdir),
            env=env,
            unset=self._unset(env, has_tf_config=False),
            required=False,
        )

    def host(self, name: str) -> HostPlan:
        """Return the plan of one host."""
        return self._access(name)._replace(address=self._spec.host(name).address, devices=self._devices_of(name))

    def _access(self, name: str) -> HostPlan:
        settings = self._spec.host(name)
        if self._is_local(name):
            return HostPlan(name, is_local=True)
        home = settings.env.get("TFLAUNCH_HOME")
        if settings.engine is not None:
            home = home or (self._machine.environ.get("TFLAUNCH_HOME") if settings.inherits else None)
            python, engine, inherits = settings.python, settings.engine, settings.inherits
            return HostPlan(name, False, python=python, home=home, engine=engine, inherits=inherits)
        return HostPlan(name, False, settings.ssh, settings.identity_file, settings.python, home, settings.docker)

    def _devices_of(self, name: str) -> str | None:
        """Return the GPUs of a host, None if neither the environment nor the spec tells."""
        count = self._spec.host(name).gpus
        named = self._visible_gpus(name) or [str(number) for number in range(count or 0)]
        return ",".join(named) or None

    def _address_of(self, host: str) -> str:
        if self._spec.network == PRIVATE:  # nothing else resolves to an address of that network
            return LOCALHOST
        return self._spec.host(host).address or host

    def _common(self) -> dict[str, str]:
        """Return every process's variables: unbuffered output, stacks on a crash, values set at the start.

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
        """Return variables that TensorFlow needs or benefits from, with reasons; the spec overrides them."""
        chosen: dict[str, tuple[str, str]] = {}
        if has_cluster(self._strategy):
            chosen["TF_GRPC_REUSE_PORT"] = "true", "the port is held for the task until it listens"
        if role in members("parameter_server") and self._strategy == "parameter_server":
            chosen["GRPC_FAIL_FAST"] = "use_caller", "a call may wait for a server that is being started again"
        chosen |= self._own_cluster_variables()
        if self._wants_legacy_keras(host):
            chosen["TF_USE_LEGACY_KERAS"] = "1", self._why_legacy_keras()
        devices = self._gpus.get(task)
        if devices is not None:
            why = "its share of the host's GPUs" if devices != gpu_shares.HIDDEN else "it is to have no GPU"
            chosen["CUDA_VISIBLE_DEVICES"] = devices, why
            chosen[gpu_shares.GROWTH] = "true", "TensorFlow would take all the memory of a GPU at once"
        elif self._sharing[self._machine_of(host)] > 1 and gpu_shares.trains_on_gpu(self._strategy, role):
            why = "tasks share what GPUs the host has, and the first would take all their memory"
            chosen[gpu_shares.GROWTH] = "true", why
        neighbours = self._tasks_on[self._machine_of(host)]
        is_given = self._is_like_here(host) and "TF_NUM_INTRAOP_THREADS" in self._machine.environ
        if neighbours > 1 and not is_given:
            cores = max(1, self._machine.cores // neighbours) if self._is_local(host) else None
            threads = f"${{host:TFLAUNCH_CORES/{neighbours}}}" if cores is None else str(cores)
            why = f"{neighbours} tasks share the host's cores, and each would use all of them"
            chosen["TF_NUM_INTRAOP_THREADS"] = threads, why
        return chosen

    def _own_cluster_variables(self) -> dict[str, tuple[str, str]]:
        """Return the variables in which a framework reads its cluster instead of TF_CONFIG, with reasons.

        They are those of DTensor's ``config.py`` (TensorFlow 2.21) and of ``distribution_lib.py`` (Keras 3.15).
        """
        count = str(len(self._spec.cluster.get("worker", ())))
        if self._strategy == "dtensor":
            why = "DTensor reads its cluster from it"
            variables = {"JOBS": "{cluster.worker}", "NUM_CLIENTS": count, "CLIENT_ID": "{task.index}"}
            return {f"DTENSOR_{name}": (value, why) for name, value in variables.items()}
        if self._strategy == "jax":
            why = "keras.distribution.initialize() reads its cluster from it"
            variables = {"JOB_ADDRESSES": "{cluster.worker}", "NUM_PROCESSES": count, "PROCESS_ID": "{task.index}"}
            chosen = {f"KERAS_DISTRIBUTION_{name}": (value, why) for name, value in variables.items()}
            return {"KERAS_BACKEND": ("jax", "Keras is to train with JAX"), **chosen}
        return {}

    def _wants_legacy_keras(self, host: str) -> bool:
        if self._spec.legacy_keras == "auto":
            is_set = self._is_like_here(host) and "TF_USE_LEGACY_KERAS" in self._machine.environ
            return self._strategy in ("multi_worker_mirrored", "parameter_server") and not is_set
        return self._spec.legacy_keras is True

    def _why_legacy_keras(self) -> str:
        if self._spec.legacy_keras is True:
            return "the spec says so"
        return f"Keras 3 cannot `fit` under {self._strategy}; 0 where tf_keras is not installed beside TensorFlow"

    def _leaves_keras_to_the_host(self, reasons: Mapping[str, str]) -> bool:
        """Whether the agent must check for tf_keras first, without which TensorFlow would fail."""
        return self._spec.legacy_keras == "auto" and "TF_USE_LEGACY_KERAS" in reasons

    def _visible_gpus(self, host: str) -> list[str]:
        """Return the usable devices of a host, [] if neither the environment nor the spec lists them."""
        settings = self._spec.host(host)
        here = self._machine.environ if self._is_local(host) else {}
        named = {**here, **self._spec.env, **settings.env}.get("CUDA_VISIBLE_DEVICES", "")
        return [device.strip() for device in named.split(",") if device.strip()]

    def _layers(self, own: Mapping[str, str], host: str, specific: Mapping[str, str]) -> dict[str, str]:
        env = {**own, **self._spec.env, **self._spec.host(host).env, **specific}
        return {**self._inherited(host), **env}

    def _inherited(self, host: str) -> dict[str, str]:
        """Return changes to the environment that a process inherits: a PATH with the right Python first.

        Hosts with a login get none, because their agents compose the whole environment.
        """
        if self._is_like_here(host):
            directory = self._machine.python_directory
            path = f"{directory}:{self._machine.environ.get('PATH', '/usr/bin:/bin')}"
            return {} if directory is None else {"PATH": path}
        settings = self._spec.host(host)
        directory, slash, _ = (settings.python or "").rpartition("/")
        if (settings.docker is None and settings.engine != POD) or not slash:
            return {}
        if directory.startswith("~"):
            directory = "${host:HOME}" + directory[1:]
        return {"PATH": f"{directory}:${{host:PATH}}"}

    def _unset(self, env: Mapping[str, str], *, has_tf_config: bool) -> tuple[str, ...]:
        """Return variables not to inherit: another cluster's TF_CONFIG, an unwanted Keras, the sources of secrets."""
        names = [] if has_tf_config else ["TF_CONFIG"]
        names += [secret.env for secret in self._spec.secrets.values() if secret.env is not None]
        if self._spec.legacy_keras is False:
            names.append("TF_USE_LEGACY_KERAS")
        return tuple(dict.fromkeys(name for name in names if name not in env and name not in self._spec.secrets))

    def _argv(self, settings: Role, host: str) -> tuple[str, ...]:
        if settings.server:
            if self._is_like_here(host):
                return self._on_host(("python", self._machine.server_program), host)
            return (self._spec.host(host).python or "python3", SERVER_PROGRAM)
        return self._on_host(settings.command or self._spec.command or (), host)

    def _on_host(self, argv: tuple[str, ...], host: str) -> tuple[str, ...]:
        python = self._spec.host(host).python
        if python is not None and argv[0] in _PYTHONS:
            return (python, *argv[1:])
        return argv

    def _workdir(self, specific: str | None, host: str) -> str:
        chosen = specific or self._spec.host(host).workdir or self._spec.workdir or "."
        if chosen.startswith(("~", "${host:")):
            return chosen
        if self._spec.sync is not None and not self._is_like_here(host):
            return str(PurePosixPath(CODE_DIRECTORY) / chosen)
        return str(self._directory / chosen)

    def _machine_of(self, host: str) -> str:
        """Return the name of a host's machine, the same for all names of this machine."""
        return LOCALHOST if self._is_local(host) else host.lower()

    def _is_local(self, host: str) -> bool:
        settings = self._spec.host(host)
        is_reached_otherwise = settings.docker is not None or settings.engine is not None
        return not is_reached_otherwise and (host == LOCALHOST or host in self._machine.local_names)

    def _is_like_here(self, host: str) -> bool:
        """Whether tasks on a host have the same environment and directories as on this machine."""
        return self._is_local(host) or self._spec.host(host).inherits
