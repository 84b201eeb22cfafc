"""The forms of a plan outside the program: JSON, there and back, and shell commands for one task."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from tflaunch.plan import SIDECAR, HostPlan, Plan, SyncPlan, TaskPlan, preloading, resolve
from tflaunch.plan.tf_config import NAME as TF_CONFIG
from tflaunch.plan.tf_config import without_tf_config
from tflaunch.spec import Address, Elastic, Restart, Timeouts

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_SHELLS = re.compile(
    r"_|BASH.*|CDPATH|COMP_.*|COPROC|DIRSTACK|E?[UG]ID|ENV|EPOCH.*|ERRNO|FCEDIT|FIGNORE|FUNCNAME|FUNCNEST|GLOBIGNORE|GROUPS"
    r"|HIST.*|IFS|IGNOREEOF|KEYTIMEOUT|LINENO|MAIL.*|MAPFILE|(READ)?NULLCMD|OLDPWD|OPT(ARG|ERR|IND)|PIPESTATUS|POSIX.*|PPID"
    r"|PROMPT.*|PS[0-9]|PWD|RANDOM|READLINE_.*|REPLY|RPROMPT[0-9]?|RPS[0-9]|SECONDS|SHELLOPTS|SHLVL|SRANDOM|TIMEFORMAT|TMOUT"
    r"|TRY_BLOCK_.*|USERNAME|WATCH.*|ZDOTDIR|ZSH_.*|aliases|argv|cdpath|commands|fignore|fpath|functions|histchars|mailpath"
    r"|manpath|module_path|modules|options|parameters|path|pipestatus|prompt|psvar|signals|status|watch"
)
"""Variables that bash or zsh computes, evaluates or obeys, or does not allow to be set."""


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan in the shape that users were promised."""
    return _as_json(plan, dict)


def as_record(plan: Plan) -> dict[str, Any]:
    """Return the plan as a run keeps it: without the TF_CONFIGs, which follow from the rest.

    Each of N tasks has the addresses of all in its own, so that of 10,000 tasks more than a gigabyte would be kept.
    """
    return _as_json(plan, lambda env: dict(without_tf_config(env)))


def _as_json(plan: Plan, env_as_json: Callable[[Mapping[str, str]], dict[str, str]]) -> dict[str, Any]:
    return {
        "name": plan.name,
        "strategy": plan.strategy,
        "success": plan.success,
        "tasks": [_task_as_json(plan, task, env_as_json(task.env)) for task in plan.tasks],
        "sidecars": [_task_as_json(plan, task, env_as_json(task.env)) for task in plan.sidecars],
        "hosts": [host._asdict() for host in plan.hosts],
        "restart": plan.restart._asdict(),
        "timeouts": plan.timeouts._replace(lease=plan.lease)._asdict(),
        "sync": None if plan.sync is None else plan.sync._asdict(),
        "elastic": None if plan.elastic is None else plan.elastic._asdict(),
        "preflight": plan.preflight,
        "keep": plan.keep,
        "preload": list(plan.preload),
    }


def _task_as_json(plan: Plan, task: TaskPlan, env: dict[str, str]) -> dict[str, Any]:
    return {
        "task": task.task,
        "host": task.host,
        "address": str(task.address) if task.address is not None else None,
        "argv": list(task.argv),
        "workdir": task.workdir,
        "env": env,
        "unset": list(task.unset),
        "required": task.is_required,
        "preload": preloading.prospect(plan, task),
        "reasons": dict(task.reasons),
    }


def from_json(data: dict[str, Any]) -> Plan:
    """Return the plan that `as_record` has written, or `as_json`, whose form earlier versions kept.

    Raises:
        KeyError, TypeError, ValueError: the data is none.
    """
    sync, elastic, restart = data["sync"], data["elastic"], data["restart"]
    kept = Plan(
        name=data["name"],
        strategy=data["strategy"],
        success=data["success"],
        tasks=tuple(_task_from_json(task) for task in data["tasks"]),
        sidecars=tuple(_task_from_json(task) for task in data["sidecars"]),
        hosts=tuple(HostPlan(**host) for host in data["hosts"]),
        restart=Restart(**{**restart, "backoff": tuple(restart["backoff"])}),
        timeouts=Timeouts(**data["timeouts"]),
        lease=data["timeouts"]["lease"],
        sync=None if sync is None else SyncPlan(sync["directory"], tuple(sync["paths"]), tuple(sync["exclude"])),
        elastic=None if elastic is None else Elastic(**elastic),
        preflight=data["preflight"],
        keep=data.get("keep", False),  # a run of an earlier version does not say
        preload=tuple(data.get("preload", ())),
    )
    return resolve(kept, {})  # with the TF_CONFIGs


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
        reasons=data.get("reasons", {}),  # a run of an earlier version does not say
    )


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, None if port == "auto" else int(port))


def shell_exports(plan: Plan, task: TaskPlan) -> str:
    """Return shell commands after which the task's command can be run by hand."""
    env = {**task.env, "TFLAUNCH_RUN": f"{plan.name}-by-hand", "TFLAUNCH_ATTEMPT": "0"}
    lines = [f"unset {name}" for name in task.unset]
    for name in ("TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", "TFLAUNCH_LEGACY_KERAS"):  # what an agent fills in
        env.pop(name, None)
    for name, value in sorted(env.items()):
        if _is_plain(name):
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append('export TFLAUNCH_TASK_DIR="$(mktemp -d)"')
    lines.append(f"cd -- {shlex.quote(task.workdir)}")
    rest = [f"{name}={value}" for name, value in sorted(env.items()) if not _is_plain(name)]
    if rest:
        lines.append("# A shell cannot hold all variables of the task, so `env` sets the rest:")
    command = [*(("env", "--", *rest) if rest else ()), *task.argv]
    return "\n".join([*lines, *(f"# {line}" for line in shlex.join(command).split("\n"))])


def _is_plain(name: str) -> bool:
    """Whether a shell can hold a variable, and it means nothing to the shell itself."""
    return _SHELL_NAME.fullmatch(name) is not None and _OF_SHELLS.fullmatch(name) is None
