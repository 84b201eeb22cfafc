"""Rules for the hosts, sidecars and other settings of a spec."""

from collections import Counter
from collections.abc import Callable, Iterator

from tflaunch.clusterspec.model import Host, Role, Spec
from tflaunch.clusterspec.values import EVERY_HOST, ROLES
from tflaunch.errors import Problem
from tflaunch.plan import placement
from tflaunch.plan.gpu_shares import trains_on_gpu
from tflaunch_worker.readable import duration_words

_SHORTEST_HEARTBEAT = 0.5


def _names_of_sidecars(spec: Spec) -> Iterator[Problem]:
    """Check that the names of sidecars, which are those of logs, are no tasks'."""
    for name in spec.sidecars:
        role, _, index = name.partition("-")
        if role in ROLES and (not index or index.isdigit()):
            yield Problem.error(f"sidecars.{name}", f"{name!r} is the name of a role or of a task's log", "rename it")


def _tensorboard(spec: Spec) -> Iterator[Problem]:
    if spec.tensorboard is None:
        return
    if not spec.cluster:
        yield Problem.error(
            "tensorboard", "needs a task of the cluster beside it, and there is none", "write it as a sidecar"
        )
    if "tensorboard" in spec.sidecars:
        message = "'tensorboard' is the name of the sidecar that the field \"tensorboard\" creates"
        yield Problem.error("sidecars.tensorboard", message, "rename it, or remove the field")
    name = spec.tensorboard.rstrip("/").rpartition("/")[2]
    if not spec.tensorboard.strip() or spec.tensorboard.startswith("-"):
        message = f"{spec.tensorboard!r} is not a directory"
        yield Problem.error("tensorboard", message, 'name the directory of event files, for example "logs/"')
    elif ".tfevents." in name:
        yield Problem.error("tensorboard", f"{name!r} is a file of events", "name the directory in which it is")


def _gpus(spec: Spec) -> Iterator[Problem]:
    strategy, wanted = spec.effective_strategy(), _gpus_wanted(spec)
    sharing = Counter(
        address.host
        for role, addresses in spec.cluster.items()
        if (spec.roles.get(role) or Role()).gpus is None and trains_on_gpu(strategy, role)
        for address in addresses
    )
    for name in dict.fromkeys([*spec.hosts, *wanted]):
        gpus = spec.host(name).gpus
        if gpus is not None and wanted[name] > gpus:
            message = f"its tasks ask for {wanted[name]} GPUs, and it has {gpus}"
            yield Problem.error(f"hosts.{name}.gpus", message, "ask for fewer in roles, or move tasks to another host")
        elif gpus:
            yield from _gpus_to_share(name, sharing[name], gpus - wanted[name])


def _gpus_to_share(host: str, sharing: int, left: int) -> Iterator[Problem]:
    """Check shared GPUs: no two tasks on one (NCCL fails), and equal numbers for all."""
    if sharing > left:
        message = f"{sharing} tasks would share {left} GPUs, and no two can use one together"
        yield Problem.error(f"hosts.{host}.gpus", message, "run fewer tasks there, or set gpus of a role to 0")
    elif sharing and left % sharing:
        message = f"{sharing} tasks share {left} GPUs evenly, so {left % sharing} of them are not used"
        yield Problem.warning(
            f"hosts.{host}.gpus", message, "run another number of tasks there, or set gpus of the roles"
        )


def _two_ways(spec: Spec) -> Iterator[Problem]:
    for name, host in spec.hosts.items():
        if host.docker is not None and (host.ssh or host.identity_file):
            message = "is reached through docker or over SSH, not both"
            yield Problem.error(f"hosts.{name}", message, "remove docker, or ssh and identity_file")


def _every_host(spec: Spec) -> Iterator[Problem]:
    """Check for settings that cannot be the same for every host."""
    common = spec.hosts.get(EVERY_HOST) or Host()
    for field in ("ssh", "address", "docker"):
        if getattr(common, field) is not None:
            message = "would be the same for every host"
            hint = "write it for each host; what holds for all of them over SSH goes into ~/.ssh/config"
            yield Problem.error(f"hosts.{EVERY_HOST}.{field}", message, hint)


def _unused_hosts(spec: Spec) -> Iterator[Problem]:
    used = {address.host for addresses in spec.cluster.values() for address in addresses}
    used |= {sidecar.host for sidecar in spec.sidecars.values()}
    used |= set(placement.spare_hosts(spec))
    for name in spec.hosts:
        is_default = any(place.startswith(f"hosts.{name}.") for place in spec.origins)
        if name not in used and name != EVERY_HOST and not is_default:
            yield Problem.warning(f"hosts.{name}", "no task runs on this host", "remove it, or use it in the cluster")


def _spares(spec: Spec) -> Iterator[Problem]:
    """Check that spare hosts exist, have no tasks, and have enough GPUs."""
    if not spec.spares:
        return
    used, spares = placement.hosts_with_tasks(spec), placement.spare_hosts(spec)
    if isinstance(spec.spares, int) and (len(spares) < spec.spares or used.intersection(spares)):
        busy = next((host for host in reversed(spares) if host in used), None)
        count = len(spares)
        message = f'means the last {spec.spares} of "hosts", '
        message += f"which lists {count}" if busy is None else f"and a task runs on {busy}, which is one of them"
        yield Problem.error("spares", message, 'name the spare hosts, for example ["h4"]')
        return
    for index, name in enumerate(spares):
        where = f"spares[{index}]"
        if name in used:
            yield Problem.error(where, f"a task runs on {name!r} from the start", "remove it here, or the task there")
        elif name in spares[:index]:
            yield Problem.error(where, f"{name!r} is listed twice", "remove one of them")
        elif name == EVERY_HOST:
            yield Problem.error(where, f"{name!r} means all hosts", "name the spare hosts")
    if spec.restart.max == 0:
        message = "has no effect: a task that moves is restarted, and restart.max is 0"
        yield Problem.warning("spares", message, "allow restarts, or remove it")
    yield from _gpus_of_spares(spec, [name for name in spares if name not in used])


def _gpus_of_spares(spec: Spec, spares: list[str]) -> Iterator[Problem]:
    """Check that each spare host has the GPUs of each host whose place it may take."""
    wanted = {host: max(gpus, spec.host(host).gpus or 0) for host, gpus in _gpus_wanted(spec).items()}
    for name in spares:
        gpus = spec.host(name).gpus
        for host, needed in wanted.items():
            if gpus is not None and gpus < needed:
                some = f"{needed} GPU" if needed == 1 else f"{needed} GPUs"
                message = f"the tasks of {host} have {some}, and the spare host {name} has {gpus}"
                hint = "use a spare host with as many, or give these tasks fewer"
                yield Problem.error(f"hosts.{name}.gpus", message, hint)
                break


def _gpus_wanted(spec: Spec) -> Counter[str]:
    """Return the number of GPUs that the roles of each host's tasks ask for."""
    wanted: Counter[str] = Counter()
    for role, addresses in spec.cluster.items():
        for address in addresses:
            wanted[address.host] += (spec.roles.get(role) or Role()).gpus or 0
    return wanted


def _backoff_order(spec: Spec) -> Iterator[Problem]:
    first, longest = spec.restart.backoff
    if first > longest:
        yield Problem.error(
            "restart.backoff", "the first delay is longer than the longest", 'write for example ["1s", "1m"]'
        )


def _heartbeat(spec: Spec) -> Iterator[Problem]:
    if spec.timeouts.heartbeat < _SHORTEST_HEARTBEAT:
        message = f"{duration_words(spec.timeouts.heartbeat)} is shorter than the pauses of a healthy link"
        yield Problem.error("timeouts.heartbeat", message, f"use at least {duration_words(_SHORTEST_HEARTBEAT)}")


def _required(spec: Spec) -> Iterator[Problem]:
    for role, settings in spec.roles.items():
        if settings.required and role != "evaluator":
            message = f"has no effect: a {role} is always required"
            yield Problem.error(f"roles.{role}.required", message, "remove it; it is for evaluators and sidecars")


RULES: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _names_of_sidecars,
    _tensorboard,
    _gpus,
    _two_ways,
    _every_host,
    _unused_hosts,
    _spares,
    _backoff_order,
    _heartbeat,
    _required,
)
