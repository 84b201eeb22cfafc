"""Convert a plan to JSON and back, and a task to shell commands."""

from __future__ import annotations

import functools
import re
import shlex
import types
import typing
from collections.abc import Mapping
from typing import Any

from tflaunch.clusterspec.values import ROLES, STRATEGIES, Address
from tflaunch.plan import preloading
from tflaunch.plan.model import (
    OPEN,
    SIDECAR,
    CheckpointsPlan,
    ElasticPlan,
    HostPlan,
    HostVariant,
    KubernetesPlan,
    NotifyPlan,
    Plan,
    RestartPlan,
    RetentionPlan,
    SecretSource,
    SyncPlan,
    TaskPlan,
    TimeoutsPlan,
)
from tflaunch_worker.tf_config import NAME as TF_CONFIG

_LONGEST = 2.0**40  # seconds
_SHELL_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OF_SHELLS = (
    r"_|BASH.*|CDPATH|COMP_.*|COPROC|DIRSTACK|E?[UG]ID|ENV|EPOCH.*|ERRNO|FCEDIT|FIGNORE|FUNCNAME|FUNCNEST|GLOBIGNORE|GROUPS"
    r"|HIST.*|IFS|IGNOREEOF|KEYTIMEOUT|LINENO|MAIL.*|MAPFILE|(READ)?NULLCMD|OLDPWD|OPT(ARG|ERR|IND)|PIPESTATUS|POSIX.*|PPID"
    r"|PROMPT.*|PS[0-9]|PWD|RANDOM|READLINE_.*|REPLY|RPROMPT[0-9]?|RPS[0-9]|SECONDS|SHELLOPTS|SHLVL|SRANDOM|TIMEFORMAT|TMOUT"
    r"|TRY_BLOCK_.*|USERNAME|WATCH.*|ZDOTDIR|ZSH_.*|aliases|argv|cdpath|commands|fignore|fpath|functions|histchars|mailpath"
    r"|manpath|module_path|modules|options|parameters|path|pipestatus|prompt|psvar|signals|status|watch"
)
"""Variables that have a meaning for bash or zsh, or that they do not allow to be set."""


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON in its documented form; TF_CONFIGs are in it only if they are in the plan."""
    return {
        "name": plan.name,
        "strategy": plan.strategy,
        "success": plan.success,
        "tasks": [_task_as_json(plan, task) for task in plan.tasks],
        "sidecars": [_task_as_json(plan, task) for task in plan.sidecars],
        "hosts": [host._asdict() for host in plan.hosts],
        "restart": plan.restart._asdict(),
        "timeouts": plan.timeouts._replace(lease=plan.lease)._asdict(),
        "sync": None if plan.sync is None else plan.sync._asdict(),
        "elastic": None if plan.elastic is None else plan.elastic._asdict(),
        "preflight": plan.preflight,
        "preload": list(plan.preload),
        "warm": plan.warm,
        "retention": plan.retention._asdict(),
        "function": plan.function,
        "searched": list(plan.searched),
        "network": plan.network,
        "secrets": {name: source._asdict() for name, source in plan.secrets.items()},
        "collect": list(plan.collect),
        "notify": None if plan.notify is None else plan.notify._asdict(),
        "kubernetes": None if plan.kubernetes is None else plan.kubernetes._asdict(),
        "checkpoints": None if plan.checkpoints is None else plan.checkpoints._asdict(),
        "matrix": dict(plan.matrix),
        "spares": list(plan.spares),
        "variants": [
            {"hosts": list(variant.hosts), "tasks": [_task_as_json(plan, task) for task in variant.tasks]}
            for variant in plan.variants
        ],
    }


def _task_as_json(plan: Plan, task: TaskPlan) -> dict[str, Any]:
    return {
        "task": task.task,
        "host": task.host,
        "address": str(task.address) if task.address is not None else None,
        "argv": list(task.argv),
        "workdir": task.workdir,
        "env": dict(task.env),
        "unset": list(task.unset),
        "required": task.is_required,
        "preload": preloading.prospect(plan, task),
        "reasons": dict(task.reasons),
    }


def from_json(data: dict[str, Any]) -> Plan:
    """Return the plan in data of `as_json`, without its TF_CONFIGs: they follow from the rest.

    Raises:
        ValueError: the data is not a plan; names the wrong field.
    """
    try:
        plan = _from_json(data)
        _check(plan)
        return plan
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the plan is damaged: {type(error).__name__}: {error}") from None


def _from_json(data: dict[str, Any]) -> Plan:
    sync, elastic, restart, notify = data["sync"], data["elastic"], data["restart"], data.get("notify")
    kubernetes, checkpoints = data.get("kubernetes"), data.get("checkpoints")
    return Plan(
        name=data["name"],
        strategy=data["strategy"],
        success=data["success"],
        tasks=tuple(_task_from_json(task) for task in data["tasks"]),
        sidecars=tuple(_task_from_json(task) for task in data["sidecars"]),
        hosts=tuple(HostPlan(**host) for host in data["hosts"]),
        restart=RestartPlan(**{**restart, "backoff": tuple(restart["backoff"])}),
        timeouts=TimeoutsPlan(**data["timeouts"]),
        lease=data["timeouts"]["lease"],
        sync=None if sync is None else SyncPlan(sync["directory"], tuple(sync["paths"]), tuple(sync["exclude"])),
        elastic=None if elastic is None else ElasticPlan(**elastic),
        preflight=data["preflight"],
        preload=tuple(data.get("preload", ())),
        warm=data.get("warm"),
        retention=RetentionPlan(**data.get("retention", {})),
        function=data.get("function"),
        searched=tuple(data.get("searched", ())),
        network=data.get("network", OPEN),  # missing in runs of earlier versions
        secrets={name: SecretSource(**source) for name, source in data.get("secrets", {}).items()},
        collect=tuple(data.get("collect", ())),
        notify=None if notify is None else NotifyPlan(tuple(notify["exec"]), tuple(notify["on"]), notify["directory"]),
        kubernetes=None if kubernetes is None else KubernetesPlan(**kubernetes),
        checkpoints=None if checkpoints is None else CheckpointsPlan(**checkpoints),
        matrix=data.get("matrix", {}),
        spares=tuple(data.get("spares", ())),
        variants=tuple(
            HostVariant(tuple(variant["hosts"]), tuple(_task_from_json(task) for task in variant["tasks"]))
            for variant in data.get("variants", ())
        ),
    )


def _task_from_json(data: dict[str, Any]) -> TaskPlan:
    role, colon, index = data["task"].partition(":")
    return TaskPlan(
        task=data["task"],
        role=role if colon else SIDECAR,
        task_index=int(index or 0),
        host=data["host"],
        address=None if data["address"] is None else _address(data["address"]),
        argv=tuple(data["argv"]),
        workdir=data["workdir"],
        env={name: value for name, value in data["env"].items() if name != TF_CONFIG},
        unset=tuple(data["unset"]),
        is_required=data["required"],
        reasons=data.get("reasons", {}),  # missing in runs of earlier versions
    )


def _check(plan: Plan) -> None:
    """Check what the rest of the program relies on: types, and that all names refer to something.

    Raises:
        ValueError: a check failed.
    """
    _require_type(plan, Plan, "plan")
    processes, hosts = plan.processes(), {host.host for host in plan.hosts}
    names = {process.task for process in processes}
    ranks = [(ROLES.index(task.role), task.task_index) for task in plan.tasks]
    known = plan.strategy in STRATEGIES and all(process.host in hosts and process.argv for process in processes)
    unique = len(names) == len(processes) and len(hosts) == len(plan.hosts) and ranks == sorted(set(ranks))
    ports = [process.address.port for process in processes if process.address is not None]
    known = known and hosts.issuperset(plan.spares) and not {process.host for process in processes} & {*plan.spares}
    for variant in plan.variants:
        known = known and hosts.issuperset(variant.hosts) and names.issuperset(task.task for task in variant.tasks)
        known = known and all(task.host in hosts and task.argv for task in variant.tasks)
    if not (known and unique and all(port is None or 0 < port < 1 << 16 for port in ports)):
        raise ValueError("the tasks and hosts of the plan do not fit together")


def _require_type(value: Any, declared: Any, where: str) -> None:
    """Check a value and everything in it against the types that a named tuple declares."""
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if isinstance(declared, type) and hasattr(declared, "_fields") and isinstance(value, declared):
        for name, field in _types(declared).items():
            _require_type(getattr(value, name), field, f"{where}.{name}")
    elif origin is types.UnionType and any(_is_plain(value, kind) for kind in inner):
        return
    elif origin is types.UnionType and value is not None and type(None) in inner:
        _require_type(value, next(kind for kind in inner if kind is not type(None)), where)
    elif origin is tuple and isinstance(value, tuple) and (inner[-1] is ... or len(inner) == len(value)):
        for number, item in enumerate(value):
            _require_type(item, inner[0] if inner[-1] is ... else inner[number], f"{where}[{number}]")
    elif origin is Mapping and isinstance(value, Mapping):
        for name, item in value.items():
            _require_type(item, inner[1], f"{where}.{name}")
    elif not (isinstance(declared, type) and _is_plain(value, declared)):
        raise ValueError(f"{where} has a wrong type, {type(value).__name__}")


def _is_plain(value: Any, declared: Any) -> bool:
    """Whether a value has this plain type; a float must also be at most `_LONGEST`."""
    if declared is float:
        return type(value) in (int, float) and abs(value) <= _LONGEST
    return type(value) is declared and declared in (str, int, bool, type(None))


@functools.cache
def _types(declared: type) -> dict[str, Any]:
    return typing.get_type_hints(declared)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, None if port == "auto" else int(port))


def run_by_hand(plan: Plan) -> str:
    """Return the name of a run whose tasks are started by hand."""
    return f"{plan.name}-by-hand"


def shell_exports(plan: Plan, task: TaskPlan) -> str:
    """Return shell commands that prepare a shell for running the task's command by hand."""
    env = {**task.env, "TFLAUNCH_RUN": run_by_hand(plan), "TFLAUNCH_ATTEMPT": "0"}
    lines = [f"export {name}={secret_in_shell(source)}" for name, source in sorted(plan.secrets.items())]
    lines += [f"unset {name}" for name in task.unset]  # some of the secrets come from these
    for name in ("TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", "TFLAUNCH_LEGACY_KERAS"):  # filled in by the agent
        env.pop(name, None)
    for name, value in sorted(env.items()):
        if _is_plain_name(name):
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append('export TFLAUNCH_TASK_DIR="$(mktemp -d)"')
    lines.append(f"cd -- {shlex.quote(task.workdir)}")
    lines.append('[ ! -t 2 ] || echo "tflaunch: this shell is in $PWD now" >&2')  # for terminals, not scripts
    rest = [f"{name}={value}" for name, value in sorted(env.items()) if not _is_plain_name(name)]
    if rest:
        lines.append("# A shell cannot hold all variables of the task, so `env` sets the rest:")
    command = [*(("env", "--", *rest) if rest else ()), *task.argv]
    return "\n".join([*lines, *(f"# {line}" for line in shlex.join(command).split("\n"))])


def secret_in_shell(source: SecretSource) -> str:
    """Return the expression that a shell expands to a secret; it fails where a variable is missing."""
    if source.file is not None:
        return f'"$(cat -- {shlex.quote(source.file)})"'
    return f'"${{{source.env}:?a secret of the spec is read from it}}"'


def _is_plain_name(name: str) -> bool:
    """Whether a shell can export a variable that has no meaning for the shell itself."""
    return re.fullmatch(_SHELL_NAME, name) is not None and re.fullmatch(_OF_SHELLS, name) is None
