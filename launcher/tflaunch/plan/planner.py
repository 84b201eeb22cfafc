"""Compile a spec, which overrides each process's defaults, into a plan. Pure."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath, PurePosixPath

from tflaunch.clusterspec.model import Role, Secret, Spec
from tflaunch.clusterspec.templates import quote
from tflaunch.clusterspec.values import LOCALHOST, ROLES, Address
from tflaunch.plan import model, placeholders, placement, tensorboard
from tflaunch.plan.gpu_shares import Member
from tflaunch.plan.task_env import Environments, Places

_PYTHONS = ("python", "python3")
_WARM_BY_DEFAULT = ("tensorflow",)


def make_plan(spec: Spec, directory: PurePath, machine: model.Machine) -> model.Plan:
    """Return the plan of a spec without errors.

    Working directories are relative to ``directory``, that of the spec's file.
    """
    strategy = spec.effective_strategy()
    addressed = [(role, index, address) for role in ROLES for index, address in enumerate(spec.cluster.get(role, ()))]
    maker = _Maker(spec, directory, machine, [(role, index, address.host) for role, index, address in addressed])
    tasks = tuple(maker.task(*each) for each in addressed)
    sidecars = tuple(maker.sidecar(name) for name in spec.sidecars)
    if spec.tensorboard is not None:
        sidecars += (maker.board(_leader(tasks), spec.tensorboard),)
    hosts = tuple(maker.host(name) for name in placement.all_hosts(spec))
    spares = placement.spare_hosts(spec)
    lease = spec.timeouts.lease
    if lease is None:
        lease = 0.0 if all(host.is_local for host in hosts) else model.DEFAULT_LEASE
    # A lost link must be noticed early enough to be restored before the lease expires.
    heartbeat = min(spec.timeouts.heartbeat, lease / 3) if lease else spec.timeouts.heartbeat
    return model.Plan(
        name=spec.name,
        strategy=strategy,
        success=spec.success or ("chief" if strategy == "parameter_server" else "all"),
        tasks=tasks,
        sidecars=sidecars,
        hosts=hosts,
        restart=model.RestartPlan(**dict(spec.restart)),
        timeouts=model.TimeoutsPlan(**{**dict(spec.timeouts), "heartbeat": heartbeat, "lease": lease}),
        sync=None if spec.sync is None else model.SyncPlan(str(directory), spec.sync.paths, spec.sync.exclude),
        elastic=None if spec.elastic is None else model.ElasticPlan(**dict(spec.elastic)),
        preload=_WARM_BY_DEFAULT if spec.warm and spec.preload == (model.AUTO,) else spec.preload,
        warm=spec.warm or None,
        retention=model.RetentionPlan(**dict(spec.retention)),
        network=spec.network,
        stop_signal=spec.stop_signal,
        secrets={name: _secret_source(secret, directory) for name, secret in spec.secrets.items()},
        collect=spec.collect,
        notify=None if spec.notify is None else model.NotifyPlan(spec.notify.exec, spec.notify.on, str(directory)),
        checkpoints=None if spec.checkpoints is None else model.CheckpointsPlan(**dict(spec.checkpoints)),
        spares=spares,
        variants=_variants(spec, directory, machine, (*tasks, *sidecars)) if spares else (),
    )


def _variants(
    spec: Spec, directory: PurePath, machine: model.Machine, processes: Sequence[model.TaskPlan]
) -> tuple[model.HostVariant, ...]:
    """Return the tasks as they are on hosts with other settings, one variant for each."""
    maker = _Maker(spec, directory, machine, ())
    kinds: dict[str, list[str]] = {}
    for name in placement.all_hosts(spec):
        kinds.setdefault(maker.kind_of(name), []).append(name)
    at_home: dict[str, list[model.TaskPlan]] = {}
    for process in processes:
        at_home.setdefault(process.host, []).append(process)
    variants = []
    for alike in kinds.values():
        moved: list[model.TaskPlan] = []
        for home, there in at_home.items():
            if home not in alike:
                moved += _moved(spec, directory, machine, there, alike[0])
        if moved:
            variants.append(model.HostVariant(tuple(alike), tuple(moved)))
    return tuple(variants)


def _moved(
    spec: Spec, directory: PurePath, machine: model.Machine, processes: Sequence[model.TaskPlan], host: str
) -> Iterator[model.TaskPlan]:
    """Yield the plans of the processes of one host on the host that takes its place."""
    tasks = [(process.role, process.task_index, host) for process in processes if process.role != model.SIDECAR]
    maker = _Maker(spec, directory, machine, tasks)
    for process in processes:
        if process.role != model.SIDECAR:
            address = Address(host, None if process.address is None else process.address.port)
            yield maker.task(process.role, process.task_index, address)
        elif process.address is None:
            yield maker.sidecar(process.task, host)
        else:  # TensorBoard is where the leading task is
            leader = _leader(processes)
            leading = maker.task(leader.role, leader.task_index, Address(host, None))
            yield maker.board(leading, spec.tensorboard or "")


def _secret_source(secret: Secret, directory: PurePath) -> model.SecretSource:
    if secret.file is None or secret.file.startswith("~"):
        return model.SecretSource(secret.env, secret.file)
    return model.SecretSource(None, str(directory / secret.file))


def _leader(tasks: Sequence[model.TaskPlan]) -> model.TaskPlan:
    """Return the task whose event files users look at: the chief or else worker:0."""
    return next((task for task in tasks if task.role in ("chief", "worker")), tasks[0])


class _Maker:
    """Builder of the processes and hosts of one plan.

    ``tasks``: role, index and host of those that share machines.
    """

    def __init__(
        self, spec: Spec, directory: PurePath, machine: model.Machine, tasks: Sequence[tuple[str, int, str]]
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._machine = machine
        self._places = Places(spec, machine)
        machine_of = self._places.machine_of
        members = [Member(f"{role}:{index}", role, machine_of(host), host) for role, index, host in tasks]
        self._environments = Environments(spec, machine, self._places, members)

    def kind_of(self, host: str) -> str:
        """Return the same text for hosts on which a task differs in host and address only."""
        settings = self._spec.host(host)
        fields = {
            name: getattr(settings, name) for name in ("python", "workdir", "setup", "setup_files", "gpus", "inherits")
        }
        reached = [self._places.is_local(host), settings.docker is None, (settings.engine or "").partition(":")[0]]
        return repr([fields, sorted(settings.env.items()), reached])

    def task(self, role: str, index: int, address: Address) -> model.TaskPlan:
        settings = self._spec.roles.get(role) or Role()
        environment = self._environments.of_task(role, index, address.host)
        workdir = self._workdir(settings.workdir, address.host)
        return model.TaskPlan(
            task=f"{role}:{index}",
            host=address.host,
            address=Address(self._address_of(address.host), address.port),
            argv=self._argv(settings, address.host),
            workdir=workdir,
            required=role != "evaluator" or settings.required,
            setup=self._setup(settings, address.host, workdir),
            **environment._asdict(),
        )

    def sidecar(self, name: str, host: str | None = None) -> model.TaskPlan:
        """Return the plan of a process outside the cluster; ``host`` if it has moved."""
        settings = self._spec.sidecars[name]
        host = host or settings.host
        workdir = self._workdir(None, host)
        return model.TaskPlan(
            task=name,
            host=host,
            address=None,
            argv=self._on_host(settings.command, host),
            workdir=workdir,
            required=settings.required,
            setup=self._setup(Role(), host, workdir),
            **self._environments.of_other(name, host, settings.env)._asdict(),
        )

    def board(self, leader: model.TaskPlan, logdir: str) -> model.TaskPlan:
        """Return the plan of TensorBoard, which runs as the leading task does."""
        settings = self._spec.roles.get(leader.role) or Role()
        environment = self._environments.of_other(tensorboard.NAME, leader.host, settings.env)
        env = {name: placeholders.as_the(leader, value) for name, value in environment.env.items()}
        env["CUDA_VISIBLE_DEVICES"] = "-1"  # the GPUs are for training
        (python,) = self._on_host(("python3",), leader.host)
        return model.TaskPlan(
            task=tensorboard.NAME,
            host=leader.host,
            address=tensorboard.ADDRESS,
            argv=tensorboard.command(leader.argv[0], python, logdir),
            workdir=placeholders.as_the(leader, leader.workdir),
            required=False,
            setup=leader.setup,
            **environment._replace(env=env)._asdict(),
        )

    def host(self, name: str) -> model.HostPlan:
        return self._access(name)._replace(address=self._given_address(name), devices=self._devices_of(name))

    def _access(self, name: str) -> model.HostPlan:
        settings = self._spec.host(name)
        if self._places.is_local(name):
            return model.HostPlan(name, is_local=True)
        home = settings.env.get("TFLAUNCH_HOME")
        if settings.engine is not None:
            home = home or (self._machine.environ.get("TFLAUNCH_HOME") if settings.inherits else None)
            python, engine, inherits = settings.python, settings.engine, settings.inherits
            return model.HostPlan(name, False, python=python, home=home, engine=engine, inherits=inherits)
        return model.HostPlan(name, False, settings.ssh, settings.identity_file, settings.python, home, settings.docker)

    def _devices_of(self, name: str) -> str | None:
        """Return the GPUs of a host, None if neither the environment nor the spec tells."""
        count = self._spec.host(name).gpus
        named = self._places.visible_gpus(name) or [str(number) for number in range(count or 0)]
        return ",".join(named) or None

    def _address_of(self, host: str) -> str:
        if self._spec.network == model.PRIVATE:  # nothing else resolves to an address of that network
            return LOCALHOST
        return self._given_address(host) or host

    def _given_address(self, host: str) -> str | None:
        settings = self._spec.host(host)
        return settings.address or settings.docker  # on a network of their own, containers know each other's names

    def _argv(self, settings: Role, host: str) -> tuple[str, ...]:
        if settings.server:
            if self._places.is_like_here(host):
                return self._on_host(("python", quote(self._machine.server_program)), host)
            return (self._spec.host(host).python or "python3", model.SERVER_PROGRAM)
        return self._on_host(settings.command or self._spec.command or (), host)

    def _on_host(self, argv: tuple[str, ...], host: str) -> tuple[str, ...]:
        python = self._spec.host(host).python
        if python is not None and argv[0] in _PYTHONS:
            return (quote(python), *argv[1:])
        return argv

    def _setup(self, settings: Role, host: str, workdir: str) -> model.SetupPlan | None:
        """Return the setup of a host for a process with these settings and directory."""
        levels = (settings, self._spec.host(host), self._spec)
        commands = next((level.setup for level in levels if level.setup is not None), ())
        files = next((level.setup_files for level in levels if level.setup_files is not None), ())
        if self._spec.sync is not None:
            workdir = quote(str(self._directory)) if self._places.is_like_here(host) else model.CODE_DIRECTORY
        (python,) = self._on_host(("python3",), host)
        return model.SetupPlan(commands, files, workdir, python) if commands else None

    def _workdir(self, specific: str | None, host: str) -> str:
        chosen = specific or self._spec.host(host).workdir or self._spec.workdir or "."
        if chosen.startswith(("~", "${host:")):
            return chosen
        if self._spec.sync is not None and not self._places.is_like_here(host):
            return str(PurePosixPath(model.CODE_DIRECTORY) / chosen)
        return str(PurePath(quote(str(self._directory))) / chosen)
