"""Units of systemd for a plan, as a shell script that writes them: a service per task, and a target for all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tflaunch.job import policy
from tflaunch.plan import Plan, TaskPlan
from tflaunch.render.compose import service_of
from tflaunch.spec import LOCALHOST, Container

_HEAD = """\
#!/bin/sh
# Made by `tflaunch render --to systemd`: writes the units of {name} for a user's systemd, 252 or later.
#   sh FILE ~/.config/systemd/user && systemctl --user daemon-reload && systemctl --user start {name}.target
# When the tasks that decide have ended, or one has failed, the others are ended: systemctl --user status '{name}*'
set -eu
cd "${{1:?name the directory of units, for example ~/.config/systemd/user}}"
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}

Section = list[tuple[str, str]]


def render(plan: Plan, directory: str, server_program: str, container: Container) -> str:
    """Return the text of a script for sh.

    Args:
        plan: with fixed ports.
        directory: not used, as it is in the plan.
        server_program: not used, as its text is in the plan.
        container: not used: the tasks run as they are.
    """
    units = {f"{plan.name}.target": _target(plan), f"{plan.name}.failed.target": _failed(plan)}
    units[f"{plan.name}.service"] = _done(plan)
    units |= {_service(plan, process): _unit(_task(plan, process)) for process in plan.processes()}
    files = [f"\ncat > {name} <<'END'\n{text}END\n" for name, text in units.items()]
    return _HEAD.format(name=plan.name) + "".join(files)


def _service(plan: Plan, process: TaskPlan) -> str:
    return f"{plan.name}-{service_of(process)}.service"


def _target(plan: Plan) -> str:
    services = [_service(plan, process) for process in plan.processes()]
    wanted = [("Wants", name) for name in (*services, f"{plan.name}.service")]
    return _unit({"Unit": [("Description", f"All tasks of {plan.name}"), *wanted]})


def _failed(plan: Plan) -> str:
    """What a task that fails starts, and what stops the others by that."""
    unit = [("Description", f"A task of {plan.name} has failed"), ("Conflicts", f"{plan.name}.target")]
    return _unit({"Unit": unit})


def _done(plan: Plan) -> str:
    """What waits until the tasks that decide have ended well, and then stops the others."""
    deciders = [plan.find(task) for task in policy.deciders(plan)]
    target = f"{plan.name}.target"
    unit = [("Description", f"The end of {plan.name}"), ("PartOf", target), ("After", target)]
    for decider in deciders:
        unit += [(word, _service(plan, decider)) for word in ("Requires", "After")]
    hosts = dict.fromkeys(decider.host for decider in deciders)
    unit += [("ConditionHost", f"|{_value(host)}") for host in hosts if not _is_here(host)]
    stop = f"systemctl --user --no-block stop {target}"
    return _unit({"Unit": unit, "Service": [("Type", "oneshot"), ("ExecStart", stop)]})


def _task(plan: Plan, process: TaskPlan) -> dict[str, Section]:
    target = f"{plan.name}.target"
    unit = [("Description", f"{process.task} of {plan.name}"), ("PartOf", target), ("After", target)]
    if not _is_here(process.host):
        unit.append(("ConditionHost", _value(process.host)))
    if policy.in_gang(process) or process.is_required:
        unit.append(("OnFailure", f"{plan.name}.failed.target"))
    service = [
        ("Type", "oneshot" if process.task in policy.deciders(plan) else "exec"),
        ("WorkingDirectory", _value(process.workdir)),
        *(("Environment", _word(f"{name}={value}")) for name, value in process.env.items() if _NAME.fullmatch(name)),
        ("UnsetEnvironment", " ".join(process.unset)),
        ("ExecStart", _command(process)),
        ("TimeoutStopSec", f"{plan.timeouts.grace:g}"),
        *_limit(plan, process),
    ]
    if plan.restart.max > 0 and policy.restarts_alone(plan, process):
        is_counted = policy.in_gang(process) or process.is_required
        unit.append(("StartLimitIntervalSec", f"{plan.restart.window:g}" if is_counted else "0"))
        unit += [("StartLimitBurst", str(plan.restart.max + 1))] if is_counted else []
        service += [("Restart", "on-failure"), ("RestartSec", f"{plan.restart.backoff[0]:g}")]
    return {"Unit": unit, "Service": service}


def _limit(plan: Plan, process: TaskPlan) -> Iterator[tuple[str, str]]:
    """A oneshot service is being started for as long as it runs."""
    if plan.timeouts.deadline is not None and process.task in policy.deciders(plan):
        yield "TimeoutStartSec", f"{plan.timeouts.deadline:g}"


def _is_here(host: str) -> bool:
    return host == LOCALHOST or host.startswith("127.")


def _command(process: TaskPlan) -> str:
    """The command: env finds a program by the PATH, and sets variables whose names systemd refuses."""
    odd = [f"{name}={value}" for name, value in process.env.items() if not _NAME.fullmatch(name)]
    argv = process.argv if process.argv[0].startswith("/") and not odd else ("/usr/bin/env", *odd, *process.argv)
    return " ".join(_word(word).replace("$", "$$") for word in argv)


def _value(text: str) -> str:
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Return text as one word, with nothing in it for systemd to replace."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = "".join(_ESCAPES.get(sign, sign if sign.isprintable() else _bytes(sign)) for sign in text)
    return f"'{escaped}'" if "'" not in text else '"' + escaped.replace('"', '\\"') + '"'


def _bytes(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape"))


def _unit(sections: dict[str, Section]) -> str:
    written = [
        "".join([f"[{name}]\n", *(f"{key}={value}\n" for key, value in lines)]) for name, lines in sections.items()
    ]
    return "\n".join(written)
