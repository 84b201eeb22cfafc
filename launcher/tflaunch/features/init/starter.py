"""Write a first spec that fits its program, with comments and optional fields."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tflaunch.cli.arguments.cluster import ClusterOptions
from tflaunch.clusterspec.schema import SCHEMA_URL
from tflaunch.clusterspec.values import bracketed, is_loopback, parse_address
from tflaunch.features.programs.program_reader import MIRRORED, MULTI_WORKER, PARAMETER_SERVER, Program, Use

WORKERS = 2
"""A usual number of workers on this machine."""

_IN_ONE_PROCESS = {
    MIRRORED: "mirrored",
    "TPUStrategy": "tpu",
    "CentralStorageStrategy": None,
    "OneDeviceStrategy": None,
}
"""Strategies that need one task, and their names in a spec."""

_ESTIMATOR = "tf.estimator"
_HEAD = """\
A cluster spec of tflaunch. `tflaunch check {path}` finds mistakes in it; `tflaunch plan {path}` shows
what it would start. A field directly after a # is optional: remove the # to use it.\
"""


def fit_roles(roles: ClusterOptions, program: Program | None) -> ClusterOptions:
    """Return the requested tasks, and those that the program's strategy needs."""
    name = _strategy(program)
    ps = roles.ps or int(name == PARAMETER_SERVER)
    usual = 1 if name in _IN_ONE_PROCESS else WORKERS
    workers = usual if roles.workers is None and roles.hosts is None else roles.workers
    is_asked = program is not None and program.asks_for_chief and not program.others and usual > 1
    return roles._replace(workers=workers, ps=ps, chief=roles.chief or ps > 0 or is_asked)


def starts_no_server(program: Program | None) -> bool:
    """Return whether the program starts no server for worker and ps."""
    return program is not None and not program.problem and not program.has_server


def first_steps(program: Program | None) -> list[str]:
    """Return the lines by which a program that trains alone trains in all workers."""
    if program is None or program.alone is None:
        return []
    return [
        f"for one model, add to {program.file.name} (documents: From a Keras script to a cluster):",
        "  strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first of all",
        "  with strategy.scope():                            # around model and compile",
        "  batch_size = 64 * strategy.num_replicas_in_sync   # the batch of all workers",
        "  model.save(path)   # in all workers; each but the first to a path of its own",
    ]


def describe_strategy(program: Program) -> str:
    """Return the program's strategy and its consequence, "" without one."""
    use, name = _made(program), program.file.name
    if program.problem:
        return f"{name} cannot be read ({program.problem}), so its strategy is not known"
    if _ESTIMATOR in program.others:
        return f"{name} uses {_ESTIMATOR}, which TensorFlow 2.16 has removed"
    if program.others:
        return f"{name} uses {', '.join(sorted(program.others))}, so its cluster may not be that of TF_CONFIG"
    if use is None:
        known = " and ".join(sorted(program.mentioned))
        return f"{name} knows {known}; for parameter servers, give --ps 1" if known else ""
    seen = f"{use.place(Path())} makes a {use.name}"
    if use.name == PARAMETER_SERVER:
        servers = ", whose server tflaunch runs, as the program starts none" * starts_no_server(program)
        return f"{seen}, so the workers get a chief and a ps beside them{servers}"
    if use.name != MULTI_WORKER:
        return f"{seen}, so one task is enough"
    roles = "a chief, for which it asks, and workers" if program.asks_for_chief else "workers only"
    return f"{seen}, so there are {roles}"


def _made(program: Program | None) -> Use | None:
    return None if program is None else program.only_strategy()


def _strategy(program: Program | None) -> str:
    use = _made(program)
    return "" if use is None else use.name


class _Field(NamedTuple):
    """A field of a spec and what it is for; ``is_on`` unless it is commented out."""

    name: str
    value: Any
    comment: str
    is_on: bool = False


def starter_spec(
    name: str, cluster: dict[str, Any], command: list[str], path: PurePath, program: Program | None = None
) -> str:
    """Return the text of a spec, in the format that the suffix of ``path`` names."""
    suffix = path.suffix.lower()
    fields = _fields(name, cluster, command, program)
    if suffix == ".json":
        data: dict[str, Any] = {"$schema": SCHEMA_URL}
        data.update({field.name: field.value for field in fields if field.is_on})
        return json.dumps(data, indent=2) + "\n"
    is_toml = suffix == ".toml"
    head = f"#:schema {SCHEMA_URL}" if is_toml else f"# yaml-language-server: $schema={SCHEMA_URL}"
    blocks = [f"{head}\n{_comment(_HEAD.format(path=shlex.quote(str(path))))}"]
    blocks += [_block(field, is_toml) for field in fields]
    return "\n\n".join(blocks) + "\n"


def _fields(name: str, cluster: dict[str, Any], command: list[str], program: Program | None) -> Iterator[_Field]:
    hosts = _remote_hosts(cluster)
    where = "How many tasks of each role run on this machine. A list of hosts instead of a number runs them there."
    if hosts:
        where = "The tasks of each role, by the hosts on which they run. Write host:port to choose a port yourself."
    yield _Field("name", name, f"The name of the job; its runs are called {name}-DATE-TIME-NUMBER.", is_on=True)
    yield _Field("cluster", cluster, f"{where}\nEvery task gets its TF_CONFIG, and a port.", is_on=True)
    comment = "What every task runs: a program and its arguments. No shell is involved."
    yield _Field("command", command, f"{comment}\n{{task.index}}, {{task.role}} and {{run}} are filled in.", is_on=True)
    if "ps" in cluster:
        comment = "Run TensorFlow's server as worker and ps; not needed if the program starts a tf.distribute.Server."
        roles = {role: {"server": True} for role in ("worker", "ps")}
        yield _Field("roles", roles, comment, is_on=starts_no_server(program))
    tasks = sum(each if isinstance(each, int) else len(each) for each in cluster.values())
    strategy = _IN_ONE_PROCESS.get(_strategy(program)) if tasks == 1 else None
    implied = "parameter_server" if "ps" in cluster else "multi_worker_mirrored"
    comment = "The strategy of the program; without this line, the one that the roles imply."
    yield _Field("strategy", strategy or implied, comment, is_on=strategy is not None)
    if hosts:
        reached = {"ssh": f"user@{bracketed(hosts[0])}:22", "python": "~/venv/bin/python"}
        comment = "How a host is reached (as user@address:port; by default as your ~/.ssh/config says),"
        yield _Field("hosts", {hosts[0]: reached}, f"{comment}\nand which interpreter `python` is there.")
        copied = {"paths": ["."], "exclude": [".git", ".venv", "__pycache__", "data"]}
        comment = "Copy the directory of this file to the hosts; without this line, your program must be there already."
        yield _Field("sync", copied, comment)
    if len(hosts) > 1 and len(cluster["worker"]) > 1:
        comment = "Continue with fewer workers, but at least this many, when hosts are lost."
        yield _Field("elastic", {"min_workers": len(cluster["worker"]) - 1}, comment)
    yield _Field("env", {"TF_CPP_MIN_LOG_LEVEL": "1"}, "Environment variables of every task.")
    comment = "The directory of the program's event files; TensorBoard shows it while the job runs."
    yield _Field("tensorboard", "logs", comment)
    comment = "How often a failed job is restarted within a time (here: the defaults). A max of 0 disables restarts."
    yield _Field("restart", {"max": 3, "window": "10m"}, comment)
    grace = "The time that tasks have to save when they are stopped (default: 10s)."
    yield _Field("timeouts", {"grace": "30s"}, grace)


def _remote_hosts(cluster: dict[str, Any]) -> list[str]:
    addresses = [address for tasks in cluster.values() if isinstance(tasks, list) for address in tasks]
    hosts = dict.fromkeys(parse_address(address).host for address in addresses)
    return [host for host in hosts if not is_loopback(host)]


def _block(field: _Field, is_toml: bool) -> str:
    """Return a field below its comment; one that is off is a single line."""
    separator = " = " if is_toml else ": "
    lines = [f"{field.name}{separator}{_value(field.value, separator)}"]
    if field.is_on and isinstance(field.value, dict):
        members = [f"{key}{separator}{_value(item, separator)}" for key, item in field.value.items()]
        # A table of TOML would swallow the fields that follow it.
        in_toml = [f"{field.name}.{line}" for line in members]
        lines = in_toml if is_toml else [f"{field.name}:", *(f"  {line}" for line in members)]
    text = "\n".join(lines)
    return f"{_comment(field.comment)}\n{text if field.is_on else f'#{text}'}"


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in text.splitlines())


def _value(value: Any, separator: str) -> str:
    """Return a flow value of YAML or an inline value of TOML."""
    if isinstance(value, dict):
        members = (f"{_key(key)}{separator}{_value(item, separator)}" for key, item in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_value(item, separator) for item in value)}]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _key(text: str) -> str:
    return text if text.replace("_", "").isalpha() and text.isascii() else _quoted(text)


def _quoted(text: str) -> str:
    """Return a text in quotes, with escapes that both formats read."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in quoted)
