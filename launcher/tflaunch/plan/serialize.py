"""Convert a plan to JSON and back, and a task to shell commands."""

from __future__ import annotations

import re
import shlex
from typing import Any

from tflaunch import records
from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.plan import task_env, tensorboard
from tflaunch.plan.model import SIDECAR, Plan, SecretSource, TaskPlan
from tflaunch_worker.tf_config import NAME as TF_CONFIG

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
    data: dict[str, Any] = records.as_json(plan)
    return data


def from_json(data: object) -> Plan:
    """Return the plan in data of `as_json`, without its TF_CONFIGs: they follow from the rest.

    Raises:
        ValueError: the data is not a plan; names the wrong field.
    """
    try:
        plan = records.read_record(Plan, data)
        bare = plan._replace(tasks=tuple(map(_without_tf_config, plan.tasks)))
        _check(bare)
        return _with_own_ports(bare)
    except ValueError as error:
        raise ValueError(f"the plan is damaged: {error}") from None


def _with_own_ports(plan: Plan) -> Plan:
    variants = (each._replace(tasks=tuple(map(tensorboard.with_own_port, each.tasks))) for each in plan.variants)
    return plan._replace(sidecars=tuple(map(tensorboard.with_own_port, plan.sidecars)), variants=tuple(variants))


def _without_tf_config(task: TaskPlan) -> TaskPlan:
    return task._replace(env={name: value for name, value in task.env.items() if name != TF_CONFIG})


def _check(plan: Plan) -> None:
    """Check what the rest of the program relies on: that all names refer to something.

    Raises:
        ValueError: a check failed.
    """
    processes, hosts = plan.processes(), {host.host for host in plan.hosts}
    names = {process.task for process in processes}
    for task in plan.tasks:
        role, _, index = task.task.partition(":")
        if role not in ROLES or not (index.isdecimal() and len(index) < 10):
            raise ValueError(f"{task.task[:60]!r} is not a task")
    if any(process.own_port and (process.role != SIDECAR or process.address is None) for process in processes):
        raise ValueError("own_port is for a sidecar with an address")
    ranks = [(ROLES.index(task.role), task.task_index) for task in plan.tasks]
    known = plan.strategy in STRATEGIES and all(process.host in hosts and process.argv for process in processes)
    unique = len(names) == len(processes) and len(hosts) == len(plan.hosts) and ranks == sorted(set(ranks))
    known = known and hosts.issuperset(plan.spares) and not {process.host for process in processes} & {*plan.spares}
    for variant in plan.variants:
        known = known and hosts.issuperset(variant.hosts) and names.issuperset(task.task for task in variant.tasks)
        known = known and all(task.host in hosts and task.argv for task in variant.tasks)
    if not (known and unique):
        raise ValueError("its tasks and hosts do not fit together")


def run_by_hand(plan: Plan) -> str:
    """Return the name of a run whose tasks are started by hand."""
    return f"{plan.name}-by-hand"


def shell_exports(plan: Plan, task: TaskPlan) -> str:
    """Return shell commands that prepare a shell for running the task's command by hand."""
    env = task_env.for_attempt(task.env, run_by_hand(plan), 0)
    lines = [f"export {name}={secret_in_shell(source)}" for name, source in sorted(plan.secrets.items())]
    lines += [f"unset {name}" for name in task.unset]  # some of the secrets come from these
    for name in task_env.BY_AGENTS:
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
