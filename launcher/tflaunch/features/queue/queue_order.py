"""Decide which queued runs begin, with which GPUs, and why others wait. Pure.

The oldest begins first. A later one overtakes it only if they share no machine, so that runs that need little cannot
keep one that needs much waiting.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.clusterspec.values import LOCALHOST, split_address
from tflaunch.plan.gpu_shares import HIDDEN
from tflaunch.plan.model import SIDECAR, HostPlan, Plan, TaskPlan, is_made

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Share(NamedTuple):
    """What a run takes of one machine.

    Attributes:
        gpus: number of GPUs; 0 if its tasks see none, None if a task sees all of them.
        devices: those that it holds or, before it has begun, those from which it gets ``gpus``.
    """

    gpus: int | None
    devices: tuple[str, ...] = ()


Shares = Mapping[str, Share]
"""What a run needs or holds of each machine."""


def machine_of(host: HostPlan) -> str | None:
    """Return the name of a host's machine; None if a scheduler gives it."""
    if host.is_local:
        return LOCALHOST
    if host.engine is not None and (is_made(host.engine) or host.inherits):
        return None
    if host.ssh is not None:
        return split_address(host.ssh.rpartition("@")[2])[0].lower()
    return host.host.lower()


def held_shares(plan: Plan, gpus_here: int | None) -> dict[str, Share]:
    """Return the share that a running plan holds of each machine.

    ``gpus_here`` is the number of GPUs of this machine, None if unknown.
    """
    return {machine: _held(machine, tasks, gpus_here) for machine, tasks in _tasks_of_machines(plan).items()}


def wanted_shares(plan: Plan, gpus_here: int | None) -> dict[str, Share]:
    """Return the share that a plan that waits needs of each machine.

    The arguments are those of `held_shares`. GPUs that tflaunch has chosen can be others (see `with_devices`), if those
    of the machine are known.
    """
    devices = _devices_of_machines(plan, gpus_here)
    wanted = {}
    for machine, tasks in _tasks_of_machines(plan).items():
        share = _held(machine, tasks, gpus_here)
        if share.gpus and all(_is_chosen(task) or not _named(task) for task in tasks):
            there = devices.get(machine, ())
            share = Share(share.gpus, there) if share.gpus <= len(there) else Share(None)
        wanted[machine] = share
    return wanted


def with_devices(plan: Plan, devices: Mapping[str, Sequence[str]]) -> Plan:
    """Return the plan with these GPUs of each machine in place of those chosen."""
    machines = {host.host: machine_of(host) for host in plan.hosts}
    left = {machine: list(names) for machine, names in devices.items()}

    def placed(task: TaskPlan) -> TaskPlan:
        free = left.get(machines[task.host] or "")
        count = len(_named(task) or ())
        if not free or not count or not _is_chosen(task):
            return task
        taken, free[:count] = free[:count], []
        return task._replace(env={**task.env, _VISIBLE: ",".join(taken)})

    return plan._replace(tasks=tuple(map(placed, plan.tasks)))


def with_inherited_devices(plan: Plan, visible: str | None) -> Plan:
    """Return the plan whose tasks here name the GPUs that they would inherit."""
    if visible is None:
        return plan

    def named(task: TaskPlan) -> TaskPlan:
        is_told = _VISIBLE in task.env or _VISIBLE in task.unset or not plan.host(task.host).is_local
        return task if is_told else task._replace(env={**task.env, _VISIBLE: visible})

    return plan._replace(tasks=tuple(map(named, plan.tasks)))


def _tasks_of_machines(plan: Plan) -> dict[str, list[TaskPlan]]:
    """Return the tasks on each machine; sidecars do not train, so they take no GPU."""
    tasks: dict[str, list[TaskPlan]] = {}
    for host in plan.hosts:
        if (machine := machine_of(host)) is not None:
            tasks.setdefault(machine, []).extend(task for task in plan.on_host(host.host) if task.role != SIDECAR)
    return tasks


def _held(machine: str, tasks: Sequence[TaskPlan], gpus_here: int | None) -> Share:
    held: dict[str, None] = {}
    for task in tasks:
        devices = _named(task)
        if devices is None:
            return Share(0 if machine == LOCALHOST and gpus_here == 0 else None)
        held.update(dict.fromkeys(devices))
    return Share(len(held), tuple(held))


def _named(task: TaskPlan) -> tuple[str, ...] | None:
    """Return the GPUs that a task sees; None for all, or if only its host knows."""
    text = task.env.get(_VISIBLE)
    return None if text is None or "${" in text else _names_in(text)


def _names_in(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip() not in ("", HIDDEN))


def _is_chosen(task: TaskPlan) -> bool:
    """Return whether tflaunch has chosen the GPUs of a task, and may choose others."""
    return _VISIBLE in task.reasons


def _devices_of_machines(plan: Plan, gpus_here: int | None) -> dict[str, tuple[str, ...]]:
    devices: dict[str, tuple[str, ...]] = {}
    for host in plan.hosts:
        machine = machine_of(host)
        if machine is not None and host.devices is not None:
            devices.setdefault(machine, _names_in(host.devices))
        elif host.is_local and gpus_here:
            devices.setdefault(LOCALHOST, tuple(map(str, range(gpus_here))))
    return devices


class Obstacle(NamedTuple):
    """Runs that hold a machine, or with `is_ahead` wait for it, too, and longer."""

    machine: str
    runs: tuple[str, ...]
    is_ahead: bool


class Verdict(NamedTuple):
    """The GPUs of each machine with which a run begins, or its obstacles."""

    devices: Mapping[str, tuple[str, ...]]
    obstacles: tuple[Obstacle, ...]


def decide(waiting: Mapping[str, Shares], holders: Mapping[str, Shares | None], slots: int) -> Iterator[Verdict]:
    """Yield what happens to each run that waits.

    ``waiting``: what they need, the oldest first; ``holders``: what other runs hold, None if that is not known yet;
    ``slots``: how many runs may be on a machine at once, apart from those that have GPUs of their own there.
    """
    unknown = tuple(run for run, shares in holders.items() if shares is None)
    on_machine: dict[str, list[tuple[str, Share]]] = {}
    for run, shares in holders.items():
        _occupy(on_machine, run, shares or {})
    last_waiting: dict[str, str] = {}
    for run, needs in waiting.items():
        obstacles, devices = [], {}
        for machine, share in needs.items():
            if machine in last_waiting:
                obstacles.append(Obstacle(machine, (last_waiting[machine],), True))
                continue
            runs, devices[machine] = _room(share, on_machine.get(machine, ()), slots)
            if runs or unknown:
                obstacles.append(Obstacle(machine, runs or unknown, False))
        if obstacles:
            last_waiting.update(dict.fromkeys(needs, run))
        else:
            taken = {machine: share._replace(devices=devices[machine]) for machine, share in needs.items()}
            _occupy(on_machine, run, taken)
        yield Verdict({} if obstacles else devices, tuple(obstacles))


def _occupy(on_machine: dict[str, list[tuple[str, Share]]], run: str, shares: Shares) -> None:
    for machine, share in shares.items():
        on_machine.setdefault(machine, []).append((run, share))


def _room(share: Share, there: Sequence[tuple[str, Share]], slots: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runs that leave too little for a share, otherwise its GPUs."""
    if share.gpus:
        held = {device for _, other in there for device in other.devices}
        free = tuple(device for device in share.devices if device not in held)[: share.gpus]
        greedy = tuple(run for run, other in there if other.gpus is None)
        if not greedy and len(free) == share.gpus:
            return (), free
        return greedy or tuple(run for run, other in there if set(other.devices) & set(share.devices)), ()
    with_gpus = tuple(run for run, other in there if other.gpus)
    others = tuple(run for run, other in there if not other.gpus)
    found = others if len(others) >= slots else ()
    return (with_gpus + found if share.gpus is None else found), ()
