"""Check a spec's fields against each other, by TensorFlow's rules.

A rule is a function from a spec to problems. An error means that the job cannot train; a warning means that the spec
probably does not do what its author intended. Here are the rules for the roles, addresses and strategy of a spec.
"""

from collections.abc import Iterator

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import ROLES, Address, is_loopback, nearest_name
from tflaunch.errors import Problem
from tflaunch.plan import placeholders, placement, setting_rules, task_rules

_LONGEST_VARIABLE = 128 * 1024 - 200  # MAX_ARG_STRLEN, less the text around the addresses
_BOARD = 'remove it, and write "tensorboard": "logs/" beside "cluster"'
_SIDECAR_LIKE = ("tensorboard", "dispatcher", "data_worker", "data_service")


def _known_roles(spec: Spec) -> Iterator[Problem]:
    """Check roles: multi_worker_util refuses others, even `master` of TensorFlow 1."""
    for role in spec.cluster:
        if role == "master":
            yield Problem.error("cluster.master", "TensorFlow 2 refuses a job named 'master'", "rename it to 'chief'")
        elif role.lower() in _SIDECAR_LIKE:
            remedy = _BOARD if role.lower() == "tensorboard" else 'move it to "sidecars"'
            yield Problem.error(f"cluster.{role}", f"{role!r} is not a role of TF_CONFIG", remedy)
        elif role not in ROLES:
            guess = nearest_name(role, list(ROLES))
            hint = f"did you mean {guess!r}?" if guess else "use chief, worker, ps or evaluator"
            yield Problem.error(f"cluster.{role}", f"unknown role {role!r}", hint)
    if not spec.cluster and not any(sidecar.required for sidecar in spec.sidecars.values()):
        hint = 'write for example {"worker": 2}, or "required": true into the sidecars that make up the job'
        yield Problem.error("cluster", "has no task", hint)


def _one_of_each(spec: Spec) -> Iterator[Problem]:
    for role in ("chief", "evaluator"):
        count = len(spec.cluster.get(role, ()))
        if count > 1:
            yield Problem.error(f"cluster.{role}", f"has {count} tasks, and TensorFlow allows one", f"keep one {role}")


def _roles_of_strategy(spec: Spec) -> Iterator[Problem]:
    strategy = spec.effective_strategy()
    if strategy == "multi_worker_mirrored":
        if "ps" in spec.cluster:
            message = "MultiWorkerMirroredStrategy would wait for a service on ps:0 that is never started"
            yield Problem.error("cluster.ps", message, 'remove ps, or set "strategy": "parameter_server"')
        if spec.cluster and "worker" not in spec.cluster:
            yield Problem.error("cluster", "has no worker, so nothing would train", 'add for example "worker": 2')
    elif strategy == "parameter_server" and spec.cluster:
        for role in ("chief", "worker", "ps"):
            if role not in spec.cluster:
                message = f"ParameterServerStrategy needs a {role}"
                yield Problem.error("cluster", message, f'add for example "{role}": 1')
    elif strategy in ("mirrored", "tpu"):
        count = sum(len(members) for members in spec.cluster.values())
        if count > 1:
            message = f"strategy {strategy!r} trains in one process, and the cluster has {count} tasks"
            yield Problem.error("cluster", message, 'keep one task, or set "strategy": "multi_worker_mirrored"')


def _workers_only(spec: Spec) -> Iterator[Problem]:
    for role in spec.cluster if spec.strategy == "jax" else ():
        if role in ROLES and role != "worker":
            message = "strategy 'jax' has processes of one kind, numbered from 0"
            yield Problem.error(f"cluster.{role}", message, "make it one more worker, or move it to sidecars")


def _strategy_of_sidecars(spec: Spec) -> Iterator[Problem]:
    """Check that a job without tasks has no strategy."""
    if not spec.cluster and spec.strategy not in (None, "none"):
        yield Problem.error("strategy", f"{spec.strategy} needs tasks, and the cluster has none", "remove it")


def _size_of_tf_config(spec: Spec) -> Iterator[Problem]:
    """Check the size of TF_CONFIG: the kernel limits a variable to 128 KiB."""
    size = sum(len(address.host) + len(',"":65535') for members in spec.cluster.values() for address in members)
    if size > _LONGEST_VARIABLE:
        message = f"TF_CONFIG would have {size} bytes, but Linux allows at most {_LONGEST_VARIABLE} in one variable"
        yield Problem.error("cluster", message, "use fewer tasks, or shorter names of hosts")


def _distinct_addresses(spec: Spec) -> Iterator[Problem]:
    seen: dict[tuple[str, int], str] = {}
    for where, address in _addresses(spec):
        if address.port is None:
            continue
        key = ("loopback" if is_loopback(address.host) else address.host.lower(), address.port)
        if key in seen:
            yield Problem.error(where, f"{address} is the address of {seen[key]} too", "give each task its own port")
        seen.setdefault(key, where)


def _loopback_among_hosts(spec: Spec) -> Iterator[Problem]:
    """Check for `localhost` among several hosts: it means another machine on each."""
    places = [(where, address.host) for where, address in _addresses(spec)]
    spares = placement.spare_hosts(spec)
    places += [(f"spares[{index}]" if spec.spares == spares else "spares", host) for index, host in enumerate(spares)]
    if all(is_loopback(host) for _, host in places):
        return
    for where, host in places:
        if is_loopback(host):
            message = f"{host!r} (or a number of tasks) means a different machine on each host of this cluster"
            yield Problem.error(where, message, 'list the names by which hosts reach each other, such as ["h1", "h2"]')


def _wildcards(spec: Spec) -> Iterator[Problem]:
    """Check for 0.0.0.0 and ::, because an address is for the other tasks."""
    for where, address in _addresses(spec):
        if address.host in ("0.0.0.0", "::"):  # noqa: S104 - it is refused here
            message = f"{str(address)!r} is not an address at which a task can be reached"
            yield Problem.error(where, message, "use the name or address of the host")


def _addresses(spec: Spec) -> Iterator[tuple[str, Address]]:
    """Yield each address of the cluster with its place in the spec."""
    for role, addresses in spec.cluster.items():
        yield from ((f"cluster.{role}[{index}]", address) for index, address in enumerate(addresses))


def _success_rule(spec: Spec) -> Iterator[Problem]:
    if spec.success == "all" and spec.effective_strategy() == "parameter_server":
        message = "worker and ps of a parameter_server job never end by themselves"
        yield Problem.warning("success", message, "leave it out: the chief's end is the job's")


def _elastic(spec: Spec) -> Iterator[Problem]:
    if spec.elastic is None:
        return
    strategy, workers = spec.effective_strategy(), len(spec.cluster.get("worker", ()))
    if strategy not in ("multi_worker_mirrored", "parameter_server"):
        message = f"strategy {strategy!r} has no workers that can leave and return"
        yield Problem.error("elastic", message, "leave it out")
    elif not 1 <= spec.elastic.min_workers <= workers:
        message = f"{spec.elastic.min_workers} is not between 1 and the {workers} workers of the cluster"
        yield Problem.error("elastic.min_workers", message, "use the least number with which the training makes sense")


_RULES = (
    _known_roles,
    _one_of_each,
    _roles_of_strategy,
    _workers_only,
    _strategy_of_sidecars,
    _size_of_tf_config,
    _distinct_addresses,
    _loopback_among_hosts,
    _wildcards,
    _success_rule,
    _elastic,
    *task_rules.RULES,
    *setting_rules.RULES,
)


def check_spec(spec: Spec) -> list[Problem]:
    """Return all problems of a spec, errors first."""
    problems = [problem for rule in _RULES for problem in rule(spec)]
    return sorted(problems, key=lambda problem: problem.severity)


def matrix_warnings(spec: Spec) -> list[Problem]:
    """Return warnings about placeholders that only `up --matrix` fills in."""
    return [
        Problem.warning(where, f"{{matrix.{name}}} gets its values from `up --matrix`", f"add --matrix {name}=V1,V2")
        for where, text in task_rules.texts_of(spec)
        for name in placeholders.matrix_values_in(text)
    ]


def unused_image(spec: Spec) -> list[Problem]:
    """Return the problem of a spec with an image, in which `up` starts no tasks."""
    if spec.container.image is None or spec.kubernetes is not None:
        return []
    message = "is not used: `up` starts tasks on the hosts themselves, not in an image"
    return [Problem.warning("container.image", message, "leave it out, or use `tflaunch render` where it is needed")]
