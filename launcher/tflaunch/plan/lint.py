"""Check a spec's fields against each other, as far as TensorFlow's rules can be checked beforehand.

Each rule is a function from a spec to problems. An error means that the job cannot train; a warning means
that the spec probably does not do what its author intended.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from tflaunch.clusterspec.model import Host, Role, Spec
from tflaunch.clusterspec.problems import nearest_name
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, ROLES
from tflaunch.errors import Problem
from tflaunch.plan import placeholders
from tflaunch.plan.gpu_shares import trains_on_gpu

_KERAS_SPELLINGS = ("1", "true", "True")  # the values that tensorflow/__init__.py compares with
_LONGEST_VARIABLE = 128 * 1024 - 200  # MAX_ARG_STRLEN, less the text around the addresses
_SIDECAR_LIKE = ("tensorboard", "dispatcher", "data_worker", "data_service")
_OWN_VARIABLES = (
    "TF_CONFIG",
    "TFLAUNCH_RUN",
    "TFLAUNCH_STRATEGY",
    "TFLAUNCH_TASK",
    "TFLAUNCH_ATTEMPT",
    "TFLAUNCH_TASK_DIR",
    "TFLAUNCH_PROGRESS",
    "TFLAUNCH_PRELOAD",
    "TFLAUNCH_SET",
    "TFLAUNCH_LEGACY_KERAS",
)
_SHORTEST_HEARTBEAT = 0.5
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(r"[0-9]?(>>?|<)(&[0-9])?|\|\|?|&&?|;")
_SHELL_VARIABLE = re.compile(r"\$([A-Za-z_]|\{[A-Za-z_][A-Za-z0-9_]*\}|\()")
_MOST_SHOWN = 100  # characters


def check_spec(spec: Spec) -> list[Problem]:
    """Return all problems of a spec, errors first."""
    problems = [problem for rule in _RULES for problem in rule(spec)]
    return sorted(problems, key=lambda problem: problem.severity)


def unused_image(spec: Spec, scheduler: str | None) -> list[Problem]:
    """Return the problem of a spec with an image, because `up` starts tasks outside of images.

    With a scheduler it is an error instead of a warning: the tasks would lack what the image contains.

    Args:
        spec: the spec.
        scheduler: the value of `--on`, None without it.
    """
    image = spec.container.image
    if image is None:
        return []
    if scheduler is None:
        message = "is not used: `up` starts tasks on the hosts themselves, not in an image"
        return [_warning("container.image", message, "leave it out, or use `tflaunch render` where it is needed")]
    message = f"tasks of `up --on {scheduler}` run on the nodes themselves, not in {image!r}"
    hint = (
        'start the container in "command", for example ["apptainer", "exec", IMAGE, …], and leave container.image out'
    )
    return [_error("container.image", message, hint)]


def _error(where: str, message: str, hint: str) -> Problem:
    return Problem("error", where, message, hint)


def _warning(where: str, message: str, hint: str) -> Problem:
    return Problem("warning", where, message, hint)


def _known_roles(spec: Spec) -> Iterator[Problem]:
    """Check role names: multi_worker_util refuses all others, including `master` of TensorFlow 1."""
    for role in spec.cluster:
        if role == "master":
            yield _error("cluster.master", "TensorFlow 2 refuses a job named 'master'", "rename it to 'chief'")
        elif role.lower() in _SIDECAR_LIKE:
            yield _error(f"cluster.{role}", f"{role!r} is not a role of TF_CONFIG", 'move it to "sidecars"')
        elif role not in ROLES:
            guess = nearest_name(role, list(ROLES))
            hint = f"did you mean {guess!r}?" if guess else "use chief, worker, ps or evaluator"
            yield _error(f"cluster.{role}", f"unknown role {role!r}", hint)
    if not spec.cluster and not any(sidecar.required for sidecar in spec.sidecars.values()):
        hint = 'write for example {"worker": 2}, or "required": true into the sidecars that make up the job'
        yield _error("cluster", "has no task", hint)


def _one_of_each(spec: Spec) -> Iterator[Problem]:
    for role in ("chief", "evaluator"):
        count = len(spec.cluster.get(role, ()))
        if count > 1:
            yield _error(f"cluster.{role}", f"has {count} tasks, and TensorFlow allows one", f"keep one {role}")


def _roles_of_strategy(spec: Spec) -> Iterator[Problem]:
    strategy = spec.effective_strategy()
    if strategy == "multi_worker_mirrored":
        if "ps" in spec.cluster:
            message = "MultiWorkerMirroredStrategy would wait for a service on ps:0 that is never started"
            yield _error("cluster.ps", message, 'remove ps, or set "strategy": "parameter_server"')
        if spec.cluster and "worker" not in spec.cluster:
            yield _error("cluster", "has no worker, so nothing would train", 'add for example "worker": 2')
    elif strategy == "parameter_server" and spec.cluster:
        for role in ("chief", "worker", "ps"):
            if role not in spec.cluster:
                message = f"ParameterServerStrategy needs a {role}"
                yield _error("cluster", message, f'add for example "{role}": 1')
    elif strategy in ("mirrored", "tpu"):
        count = sum(len(members) for members in spec.cluster.values())
        if count > 1:
            message = f"strategy {strategy!r} trains in one process, and the cluster has {count} tasks"
            yield _error("cluster", message, 'keep one task, or set "strategy": "multi_worker_mirrored"')


def _strategy_of_sidecars(spec: Spec) -> Iterator[Problem]:
    """Check that a job without tasks has no strategy."""
    if not spec.cluster and spec.strategy not in (None, "none"):
        yield _error("strategy", f"{spec.strategy} needs tasks, and the cluster has none", "remove it")


def _size_of_tf_config(spec: Spec) -> Iterator[Problem]:
    """Check the size of TF_CONFIG: it has all addresses, and the kernel limits a variable to 128 KiB."""
    size = sum(len(address.host) + len(',"":65535') for members in spec.cluster.values() for address in members)
    if size > _LONGEST_VARIABLE:
        message = f"TF_CONFIG would have {size} bytes, but Linux allows at most {_LONGEST_VARIABLE} in one variable"
        yield _error("cluster", message, "use fewer tasks, or shorter names of hosts")


def _distinct_addresses(spec: Spec) -> Iterator[Problem]:
    seen: dict[tuple[str, int], str] = {}
    for role, addresses in spec.cluster.items():
        for index, address in enumerate(addresses):
            if address.port is None:
                continue
            key = ("loopback" if _is_loopback(address.host) else address.host.lower(), address.port)
            where = f"cluster.{role}[{index}]"
            if key in seen:
                yield _error(where, f"{address} is the address of {seen[key]} too", "give each task its own port")
            seen.setdefault(key, where)


def _loopback_among_hosts(spec: Spec) -> Iterator[Problem]:
    """Check for `localhost` among several hosts, where it means a different machine on each."""
    places = [
        (f"cluster.{role}[{index}]", address.host)
        for role, addresses in spec.cluster.items()
        for index, address in enumerate(addresses)
    ]
    if all(_is_loopback(host) for _, host in places):
        return
    for where, host in places:
        if _is_loopback(host):
            message = f"{host!r} means a different machine on each host of this cluster"
            yield _error(where, message, "use the name or address by which the other hosts reach it")


def _wildcards(spec: Spec) -> Iterator[Problem]:
    """Check for 0.0.0.0: TensorFlow listens on every interface anyway; the address is for the others."""
    for role, addresses in spec.cluster.items():
        for index, address in enumerate(addresses):
            if address.host == "0.0.0.0":  # noqa: S104 - it is refused here
                message = f"{str(address)!r} is not an address at which a task can be reached"
                yield _error(f"cluster.{role}[{index}]", message, "use the name or address of the host")


def _is_loopback(host: str) -> bool:
    return host.lower() in (LOCALHOST, "localhost.localdomain") or host.startswith("127.")


def _commands(spec: Spec) -> Iterator[Problem]:
    for role in spec.cluster:
        settings = spec.roles.get(role)
        has_own = settings is not None and (settings.command is not None or settings.server)
        if spec.command is None and not has_own and role in ROLES:
            hint = 'add "command": ["python", "train.py"], or give it after --'
            yield _error("command", f"{role} has nothing to run", hint)


def _settings_of_roles(spec: Spec) -> Iterator[Problem]:
    for role, settings in spec.roles.items():
        if role not in spec.cluster:
            yield _error(f"roles.{role}", f"the cluster has no role {role!r}", "remove it, or add it to the cluster")
        if settings.server and (role not in ("worker", "ps") or spec.effective_strategy() != "parameter_server"):
            message = "only worker and ps of a parameter_server job can run TensorFlow's standard server"
            yield _error(f"roles.{role}.server", message, "remove it")
        if settings.server and settings.command is not None:
            yield _error(f"roles.{role}", "has both a command and server: true", "keep one of them")


def _names_of_sidecars(spec: Spec) -> Iterator[Problem]:
    """Check that sidecars, whose names are their logs and selectors, do not use those of tasks."""
    for name in spec.sidecars:
        role, _, index = name.partition("-")
        if role in ROLES and (not index or index.isdigit()):
            yield _error(f"sidecars.{name}", f"{name!r} is the name of a role or of a task's log", "rename it")


def _tensorboard(spec: Spec) -> Iterator[Problem]:
    if spec.tensorboard is None:
        return
    if not spec.cluster:
        yield _error("tensorboard", "needs a task of the cluster beside it, and there is none", "write it as a sidecar")
    if "tensorboard" in spec.sidecars:
        message = "'tensorboard' is the name of the sidecar that the field \"tensorboard\" creates"
        yield _error("sidecars.tensorboard", message, "rename it, or remove the field")
    name = spec.tensorboard.rstrip("/").rpartition("/")[2]
    if not spec.tensorboard.strip() or spec.tensorboard.startswith("-"):
        message = f"{spec.tensorboard!r} is not a directory"
        yield _error("tensorboard", message, 'name the directory of event files, for example "logs/"')
    elif ".tfevents." in name:
        yield _error("tensorboard", f"{name!r} is a file of events", "name the directory in which it is")


def _success_rule(spec: Spec) -> Iterator[Problem]:
    if spec.success == "all" and spec.effective_strategy() == "parameter_server":
        message = "worker and ps of a parameter_server job never end by themselves"
        yield _warning("success", message, "leave it out: the chief's end is the job's")


def _legacy_keras(spec: Spec) -> Iterator[Problem]:
    """Check legacy_keras: Keras 3 raises in `fit` under the strategies with several workers.

    These are MultiWorkerMirroredStrategy and ParameterServerStrategy.
    """
    strategy = spec.effective_strategy()
    if spec.legacy_keras is False and strategy in ("multi_worker_mirrored", "parameter_server"):
        message = f"Keras 3 cannot `fit` under {strategy}"
        yield _warning("legacy_keras", message, "remove it, unless the program has its own training loop")
    for where, env in _environments(spec):
        value = env.get("TF_USE_LEGACY_KERAS", "1")
        if value not in (*_KERAS_SPELLINGS, "0", "false", "False", ""):
            message = f"TensorFlow ignores TF_USE_LEGACY_KERAS={value}"
            yield _error(f"{where}.TF_USE_LEGACY_KERAS", message, 'write "1"')


def _own_variables(spec: Spec) -> Iterator[Problem]:
    for where, env in _environments(spec):
        for variable in _OWN_VARIABLES:
            if variable in env:
                yield _error(f"{where}.{variable}", "is set by tflaunch for every task", "remove it")


def _placeholders(spec: Spec) -> Iterator[Problem]:
    """Check placeholders: an unknown one would reach the program literally."""
    for where, text in _texts(spec):
        for name in placeholders.unknown(text):
            guess = nearest_name(name, list(placeholders.NAMES))
            hint = f"did you mean {{{guess}}}? Write {{{{{name}}}}} for literal braces"
            yield _error(where, f"{{{name}}} is not a known placeholder", hint)
        for role in placeholders.roles(text):
            if role not in spec.cluster and not spec.discover:
                yield _error(where, f"{{cluster.{role}}} is empty: the cluster has no {role}", "remove it")
        if placeholders.needs_leader(text) and not {"chief", "worker"} & (spec.cluster.keys() | spec.discover.keys()):
            yield _error(where, "{chief.host} is empty: the cluster has neither chief nor worker", "remove it")


def _texts(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the place and text of every value that may contain placeholders."""
    for where, command in _all_commands(spec):
        yield from ((f"{where}[{index}]", word) for index, word in enumerate(command))
    for where, env in _environments(spec):
        yield from ((f"{where}.{name}", value) for name, value in env.items())
    directories = {"workdir": spec.workdir}
    directories |= {f"roles.{name}.workdir": role.workdir for name, role in spec.roles.items()}
    directories |= {f"hosts.{name}.workdir": host.workdir for name, host in spec.hosts.items()}
    yield from ((where, text) for where, text in directories.items() if text is not None)


def _threads(spec: Spec) -> Iterator[Problem]:
    """Check for a single inter-op thread: tf.distribute servers wait inside these threads and block."""
    for where, env in _environments(spec):
        if env.get("TF_NUM_INTEROP_THREADS") == "1" and "ps" in spec.cluster:
            message = "one inter-op thread can lock up worker and ps"
            yield _warning(f"{where}.TF_NUM_INTEROP_THREADS", message, "leave it out")


def _environments(spec: Spec) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "env", spec.env
    for name, role in spec.roles.items():
        yield f"roles.{name}.env", role.env
    for name, host in spec.hosts.items():
        yield f"hosts.{name}.env", host.env
    for name, sidecar in spec.sidecars.items():
        yield f"sidecars.{name}.env", sidecar.env


def _shell_syntax(spec: Spec) -> Iterator[Problem]:
    """Check commands for shell syntax: without a shell, it reaches the program literally."""
    for where, command in _all_commands(spec):
        found = _of_a_shell(command)
        if found is not None:
            message = f"{found!r} is shell syntax, but no shell runs: the program gets it literally"
            yield _warning(where, message, f"to run it in a shell, write {_through_a_shell(command)}")


def _all_commands(spec: Spec) -> Iterator[tuple[str, Sequence[str]]]:
    commands = {"command": spec.command}
    commands |= {f"roles.{name}.command": role.command for name, role in spec.roles.items()}
    commands |= {f"sidecars.{name}.command": sidecar.command for name, sidecar in spec.sidecars.items()}
    yield from ((where, command) for where, command in commands.items() if command)


def _of_a_shell(command: Sequence[str]) -> str | None:
    """Return the first word with shell syntax, except for a script after `-c`; None if there is none."""
    program, *arguments = command
    if _ASSIGNMENT.match(program):
        return program
    for before, word in zip(command, arguments, strict=False):
        if before == "-c":
            continue
        if _OPERATOR.fullmatch(word) or _SHELL_VARIABLE.search(word) or word == "~" or word.startswith("~/"):
            return word
    return None


def _through_a_shell(command: Sequence[str]) -> str:
    script = " ".join(word if word == _of_a_shell([".", word]) else shlex.quote(word) for word in command)
    return _as_words(["sh", "-c", script])


def _as_words(words: Sequence[str]) -> str:
    """Return the words as a list for a spec, abbreviated if it is long."""
    text = json.dumps(words, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else '["sh", "-c", "…"]'


def _gpus(spec: Spec) -> Iterator[Problem]:
    strategy = spec.effective_strategy()
    wanted: dict[str, int] = defaultdict(int)
    sharing: dict[str, int] = defaultdict(int)
    for role, addresses in spec.cluster.items():
        gpus = (spec.roles.get(role) or Role()).gpus
        for address in addresses:
            wanted[address.host] += gpus or 0
            sharing[address.host] += gpus is None and trains_on_gpu(strategy, role)
    for name in dict.fromkeys([*spec.hosts, *wanted]):
        gpus = spec.host(name).gpus
        if gpus is not None and wanted[name] > gpus:
            message = f"its tasks ask for {wanted[name]} GPUs, and it has {gpus}"
            yield _error(f"hosts.{name}.gpus", message, "ask for fewer in roles, or move tasks to another host")
        elif gpus:
            yield from _gpus_to_share(name, sharing[name], gpus - wanted[name])


def _gpus_to_share(host: str, sharing: int, left: int) -> Iterator[Problem]:
    """Check shared GPUs: NCCL fails with two tasks on one GPU, and all workers need the same number."""
    if sharing > left:
        message = f"{sharing} tasks would share {left} GPUs, and no two can use one together"
        yield _error(f"hosts.{host}.gpus", message, "run fewer tasks there, or set gpus of a role to 0")
    elif sharing and left % sharing:
        message = f"{sharing} tasks share {left} GPUs evenly, so {left % sharing} of them are not used"
        yield _warning(f"hosts.{host}.gpus", message, "run another number of tasks there, or set gpus of the roles")


def _two_ways(spec: Spec) -> Iterator[Problem]:
    for name, host in spec.hosts.items():
        if host.docker is not None and (host.ssh or host.identity_file):
            message = "is reached through docker or over SSH, not both"
            yield _error(f"hosts.{name}", message, "remove docker, or ssh and identity_file")


def _every_host(spec: Spec) -> Iterator[Problem]:
    """Check for settings that cannot be the same for every host."""
    common = spec.hosts.get(EVERY_HOST) or Host()
    for field in ("ssh", "address", "docker"):
        if getattr(common, field) is not None:
            message = "would be the same for every host"
            hint = "write it for each host; what holds for all of them over SSH goes into ~/.ssh/config"
            yield _error(f"hosts.{EVERY_HOST}.{field}", message, hint)


def _unused_hosts(spec: Spec) -> Iterator[Problem]:
    used = {address.host for addresses in spec.cluster.values() for address in addresses}
    used |= {sidecar.host for sidecar in spec.sidecars.values()}
    for name in spec.hosts:
        is_default = any(place.startswith(f"hosts.{name}.") for place in spec.origins)
        if name not in used and name != EVERY_HOST and not is_default:
            yield _warning(f"hosts.{name}", "no task runs on this host", "remove it, or use it in the cluster")


def _backoff_order(spec: Spec) -> Iterator[Problem]:
    first, longest = spec.restart.backoff
    if first > longest:
        yield _error("restart.backoff", "the first delay is longer than the longest", 'write for example ["1s", "1m"]')


def _heartbeat(spec: Spec) -> Iterator[Problem]:
    if spec.timeouts.heartbeat < _SHORTEST_HEARTBEAT:
        message = f"{spec.timeouts.heartbeat:g} s is shorter than the pauses of a healthy link"
        yield _error("timeouts.heartbeat", message, f"use at least {_SHORTEST_HEARTBEAT:g} s")


def _sync(spec: Spec) -> Iterator[Problem]:
    for index, path in enumerate(spec.sync.paths if spec.sync is not None else ()):
        parts = path.split("/")
        if path.startswith(("/", "~")) or ".." in parts:
            message = f"{path!r} is not below the spec's directory"
            yield _error(f"sync.paths[{index}]", message, "move the spec up, or give a path relative to it")


def _elastic(spec: Spec) -> Iterator[Problem]:
    if spec.elastic is None:
        return
    strategy, workers = spec.effective_strategy(), len(spec.cluster.get("worker", ()))
    if strategy not in ("multi_worker_mirrored", "parameter_server"):
        message = f"strategy {strategy!r} has no workers that can leave and return"
        yield _error("elastic", message, "leave it out")
    elif not 1 <= spec.elastic.min_workers <= workers:
        message = f"{spec.elastic.min_workers} is not between 1 and the {workers} workers of the cluster"
        yield _error("elastic.min_workers", message, "use the least number with which the training makes sense")


def _required(spec: Spec) -> Iterator[Problem]:
    for role, settings in spec.roles.items():
        if settings.required and role != "evaluator":
            message = f"has no effect: a {role} is always required"
            yield _error(f"roles.{role}.required", message, "remove it; it is for evaluators and sidecars")


def _preload(spec: Spec) -> Iterator[Problem]:
    for index, module in enumerate(spec.preload):
        if not all(part.isidentifier() for part in module.split(".")):
            message = f"{module!r} is not a valid module name"
            yield _error(f"preload[{index}]", message, 'write for example "tensorflow"')
    if not (spec.preload or spec.warm):
        return
    from tflaunch_worker.forkserver import program_source  # slow to import, and few specs need it

    commands = {f"roles.{name}.command": role.command for name, role in spec.roles.items()}
    for where, command in {"command": spec.command, **commands}.items():
        if command and (reason := program_source.check_command(list(command))):
            message = f"does nothing for {where!r}: {reason}"
            yield _warning("preload" if spec.preload else "warm", message, "remove it, or run Python directly")


_RULES: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _known_roles,
    _one_of_each,
    _roles_of_strategy,
    _strategy_of_sidecars,
    _size_of_tf_config,
    _distinct_addresses,
    _loopback_among_hosts,
    _wildcards,
    _commands,
    _shell_syntax,
    _settings_of_roles,
    _names_of_sidecars,
    _tensorboard,
    _success_rule,
    _legacy_keras,
    _own_variables,
    _placeholders,
    _threads,
    _gpus,
    _two_ways,
    _every_host,
    _unused_hosts,
    _backoff_order,
    _heartbeat,
    _sync,
    _elastic,
    _required,
    _preload,
)
