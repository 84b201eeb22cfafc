"""The plan: command, environment, TF_CONFIG of tasks; `plan` prints, `up` runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tflaunch.clusterspec.values import Address
from tflaunch.errors import TRAINS_ALONE, Problem
from tflaunch.records import Range
from tflaunch_worker import function

AUTO = "auto"
"""Placeholder for a value that is known only at the start."""

SIDECAR = "sidecar"
"""The role of processes outside TF_CONFIG, which have names of their own."""

FENCED, FENCED_OR_FAIL, PRIVATE, OPEN = "fenced", "fenced-or-fail", "private", "open"
"""Who may reach the tasks' ports: the cluster's hosts; the same, or the job does not run; its tasks only; everybody."""

Seconds = Annotated[float, Range(-(2.0**40), 2.0**40)]
"""A duration."""

DEFAULT_LEASE = 30.0
SERVER_PROGRAM = "${host:TFLAUNCH_SERVER}"
"""Placeholder for the path of TensorFlow's standard server on a host that is not this machine."""

CODE_DIRECTORY = "${host:TFLAUNCH_CODE}"
"""Placeholder for the directory of the user's code on a host to which it is copied."""

FUNCTION_DIRECTORY = ".tflaunch-function"
"""Directory of the function that tasks call, inside the user's code on a host to which it is copied."""

FUNCTION_PROGRAM = f"{CODE_DIRECTORY}/{FUNCTION_DIRECTORY}/{function.PROGRAM}"
"""Placeholder for the path of the program that calls the function."""


class SetupPlan(NamedTuple):
    """What prepares a host before the first start of a process there.

    ``commands`` run in ``directory``, and depend on ``files`` there; ``python`` is the interpreter that `python` means.
    """

    commands: tuple[str, ...]
    files: tuple[str, ...]
    directory: str
    python: str

    @property
    def key(self) -> str:
        """A text that no other setup on the same host has."""
        return repr(tuple(self))


class TaskPlan(NamedTuple):
    """Plan of one process. ``unset`` are variables that it does not inherit.

    ``address`` is None for a sidecar, unless its program chooses a port when it starts (TensorBoard). ``required``: the
    job fails when it fails for good. ``reasons``: variable of ``env`` to why tflaunch set it.
    """

    task: str
    host: str
    address: Address | None
    argv: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    unset: tuple[str, ...]
    required: bool = True
    reasons: Mapping[str, str] = {}
    setup: SetupPlan | None = None

    @property
    def role(self) -> str:
        """The role in its name, `SIDECAR` outside TF_CONFIG."""
        return role_of(self.task)

    @property
    def task_index(self) -> int:
        """The index in its name, 0 outside TF_CONFIG."""
        return int(self.task.partition(":")[2] or 0)


class HostPlan(NamedTuple):
    """One host and how to reach it: this machine, over SSH, or in a container.

    ``ssh``, ``identity_file``, ``python`` and ``docker`` are as in the spec; ``home`` is where tflaunch keeps its
    files on that host, None for the default directory. ``engine`` reaches the host (see `engines`); with
    ``inherits``, tasks have the environment of their agent. ``address`` is where the other hosts reach it, None for
    its name. ``devices`` are its GPUs, as in CUDA_VISIBLE_DEVICES; None if neither spec nor environment tells.
    """

    host: str
    is_local: bool
    ssh: str | None = None
    identity_file: str | None = None
    python: str | None = None
    home: str | None = None
    docker: str | None = None
    engine: str | None = None
    inherits: bool = False
    address: str | None = None
    devices: str | None = None

    @property
    def kind(self) -> str:
        """Its kind of link, unless local (`Feature.connectors`): ``command`` or ``ssh``."""
        return "ssh" if self.docker is None and self.engine is None else "command"

    @property
    def outer_address(self) -> str:
        """The address or name by which other hosts reach it."""
        return self.address or self.host

    @property
    def is_like_here(self) -> bool:
        """Whether tasks there have this machine's environment and directories."""
        return self.is_local or self.inherits

    @property
    def inherits_environment(self) -> bool:
        """Whether tasks have their agent's environment, of a shell, job or container."""
        return self.is_like_here or self.docker is not None or is_made(self.engine)


def _json_object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"field {name!r} must be an object")  # noqa: TRY004 - what was stored is a value
    return value


def is_made(engine: str | None) -> bool:
    """Whether an engine makes hosts for the run, in containers: it has no handle."""
    return engine is not None and ":" not in engine


class MadeHosts(NamedTuple):
    """The hosts of a run that makes its own, in containers, one for each process.

    ``maker`` is the field of the spec that has chosen what makes them (see `find_host_maker`), and ``data`` the part of
    the plan that only this reads. ``limit``: how long a host may take to exist, in seconds. ``port_forward``: the
    command that forwards a port to this machine, without the names of host and port. ``by_another``: another
    supervisor makes them, and paths of the run's files are those on its machine.
    """

    maker: str
    data: Annotated[Mapping[str, Any], _json_object]
    limit: Seconds = 0.0
    port_forward: tuple[str, ...] = ()
    by_another: bool = False


class SyncPlan(NamedTuple):
    """Files that are copied to other hosts; ``paths`` are relative to ``directory``."""

    directory: str
    paths: tuple[str, ...]
    exclude: tuple[str, ...]


class SecretSource(NamedTuple):
    """`clusterspec.model.Secret` in a plan: a variable or a file; the other is None."""

    env: str | None = None
    file: str | None = None


class CheckpointsPlan(NamedTuple):
    """`clusterspec.model.Checkpoints` in a plan: which are copied, and how often."""

    dir: str
    copies: int
    keep: int


class RestartPlan(NamedTuple):
    """`clusterspec.model.Restart` in a plan: how often a failed job is restarted."""

    max: int
    window: Seconds
    backoff: tuple[Seconds, Seconds]


class ElasticPlan(NamedTuple):
    """`clusterspec.model.Elastic` in a plan: how small lost hosts may make a job."""

    min_workers: int
    retry: Seconds


class TimeoutsPlan(NamedTuple):
    """`clusterspec.model.Timeouts` in a plan: limits in seconds, None for no limit.

    ``stall`` is None if the limit is learned, and 0 for none.
    """

    connect: Seconds
    heartbeat: Seconds
    grace: Seconds
    lease: Seconds
    finish: Seconds | None = None
    stall: Seconds | None = None
    deadline: Seconds | None = None
    lost_host: Seconds = 0.0  # plans of earlier versions wait for no lost host
    setup: Seconds = 1800.0


class RetentionPlan(NamedTuple):
    """`clusterspec.model.Retention` in a plan: which runs of a job are kept."""

    keep: int = 10
    older_than: Seconds = 2592000.0


class NotifyPlan(NamedTuple):
    """`clusterspec.model.Notify` in a plan; the command runs in the spec's directory."""

    exec: tuple[str, ...]
    on: tuple[str, ...]
    directory: str


class HostVariant(NamedTuple):
    """How tasks look on hosts with other settings than those on which they start.

    ``tasks`` are on the first of the ``hosts``; on the others they differ in host and address only.
    """

    hosts: tuple[str, ...]
    tasks: tuple[TaskPlan, ...]


class _Fields(NamedTuple):
    name: str
    strategy: str
    success: str
    tasks: tuple[TaskPlan, ...]
    sidecars: tuple[TaskPlan, ...]
    hosts: tuple[HostPlan, ...]
    restart: RestartPlan
    timeouts: TimeoutsPlan
    sync: SyncPlan | None = None
    elastic: ElasticPlan | None = None
    preflight: bool = True
    preload: tuple[str, ...] = ()
    warm: Seconds | None = None
    retention: RetentionPlan = RetentionPlan()
    function: str | None = None
    searched: tuple[str, ...] = ()
    network: str = FENCED
    secrets: Mapping[str, SecretSource] = {}
    collect: tuple[str, ...] = ()
    notify: NotifyPlan | None = None
    made_hosts: MadeHosts | None = None
    checkpoints: CheckpointsPlan | None = None
    matrix: Mapping[str, str] = {}
    spares: tuple[str, ...] = ()
    variants: tuple[HostVariant, ...] = ()
    trains_alone: str = ""
    stop_signal: str = "TERM"


class Plan(_Fields):
    """Everything that `up` needs to run a job. Times are in seconds.

    ``preload``: modules that each host imports once for its tasks; only `AUTO`: what their programs import first.
    ``warm``: how long the processes that have imported them stay unused after the run; None if they end with it.
    ``function``: the directory on this machine with the function that the tasks call, None if they run commands.
    ``searched``: where the program that has sent it searches modules, and the tasks do as well. ``secrets``: variable
    of all processes to where this machine has its value, which is in no plan.
    ``collect``: patterns of the files that are fetched from the working directories when the job ends.
    ``matrix``: the values with which `--matrix` has made this run of a spec. ``spares``: hosts without tasks, which
    take the place of lost ones; ``variants``: what changes in tasks that move (`attempts`). ``trains_alone``: why each
    task would train a model of its own, with the remedy, if the text of its program makes that certain.
    ``stop_signal``: the name of what tasks get first when they are to end; sidecars get TERM.
    """

    @property
    def lease(self) -> float:
        """How many seconds tasks may go on without a supervisor; 0: they end with it."""
        return self.timeouts.lease

    @property
    def host_maker(self) -> str:
        """The field of the spec that has chosen what makes the hosts; "" if they exist."""
        return "" if self.made_hosts is None else self.made_hosts.maker

    @property
    def is_supervised_elsewhere(self) -> bool:
        """Whether paths of the run's files are those of another machine."""
        return self.made_hosts is not None and self.made_hosts.by_another

    @functools.cached_property
    def has_setups(self) -> bool:
        """Whether a host is to be prepared for one of the processes."""
        moved = (task for variant in self.variants for task in variant.tasks)
        return any(task.setup for task in (*self.processes(), *moved))

    def processes(self) -> tuple[TaskPlan, ...]:
        """Return tasks and sidecars together."""
        return self.tasks + self.sidecars

    def with_processes(self, change: Callable[[TaskPlan], TaskPlan]) -> Plan:
        """Return the plan with each of its tasks and sidecars changed."""
        return self._replace(tasks=tuple(map(change, self.tasks)), sidecars=tuple(map(change, self.sidecars)))

    def find(self, task: str) -> TaskPlan:
        """Return the plan of one task, or raise KeyError."""
        return self._processes_by_name[task]

    def on_host(self, host: str) -> tuple[TaskPlan, ...]:
        """Return the processes of one host."""
        return tuple(self._processes_by_host.get(host, ()))

    def host(self, name: str) -> HostPlan:
        """Return the plan of one host; raises as `find`."""
        return self._hosts_by_name[name]

    def calls_function(self, process: TaskPlan) -> bool:
        """Whether a process calls the function of the run."""
        return self.function is not None and process.role != SIDECAR

    def warned(self, problems: Iterable[Problem]) -> Plan:
        """Return the plan with what these warnings say of tasks that would train alone."""
        why = next((problem for problem in problems if problem.kind == TRAINS_ALONE), None)
        return self if why is None else self._replace(trains_alone=why.sentence())

    def with_function(self, directory: Path, searched: Sequence[str]) -> Plan:
        """Return the plan with the function in ``directory`` as the program of its tasks."""
        program = str(directory / function.PROGRAM)

        def completed(task: TaskPlan) -> TaskPlan:
            if not self.host(task.host).is_like_here:
                return task
            return task._replace(argv=tuple(program if word == FUNCTION_PROGRAM else word for word in task.argv))

        variants = tuple(each._replace(tasks=tuple(map(completed, each.tasks))) for each in self.variants)
        plan = self.with_processes(completed)._replace(variants=variants)
        return plan._replace(function=str(directory), searched=tuple(searched))

    # Indexes are built once, because a scan of all tasks for each task would be quadratic.

    @functools.cached_property
    def variants_by_host(self) -> dict[str, dict[str, TaskPlan]]:
        """Host to the tasks that look different there from where they start."""
        return {
            host: {task.task: task for task in variant.tasks} for variant in self.variants for host in variant.hosts
        }

    @functools.cached_property
    def _processes_by_name(self) -> dict[str, TaskPlan]:
        return {process.task: process for process in self.processes()}

    @functools.cached_property
    def _processes_by_host(self) -> dict[str, list[TaskPlan]]:
        processes: dict[str, list[TaskPlan]] = {}
        for process in self.processes():
            processes.setdefault(process.host, []).append(process)
        return processes

    @functools.cached_property
    def _hosts_by_name(self) -> dict[str, HostPlan]:
        return {host.host: host for host in self.hosts}


def role_of(task: str) -> str:
    """Return the role in a task's name."""
    role, colon, _ = task.partition(":")
    return role if colon else SIDECAR


class Machine(NamedTuple):
    """Facts of `local_machine.describe_machine`, which keep planning a pure function.

    ``cores`` is the number that this process may use; ``local_names`` are the hosts of a spec that are this
    machine; ``python_directory`` is put first on the PATH of local tasks, None to leave PATH unchanged;
    ``server_program`` is the path of the program that runs TensorFlow's standard server.
    """

    cores: int
    local_names: frozenset[str]
    environ: Mapping[str, str]
    python_directory: str | None
    server_program: str
