"""What is wrong with rendered units of systemd: they are written by the script, and read as systemd reads them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tflaunch.job import policy
from tflaunch.plan import Plan, TaskPlan

_KEYS = {
    "Unit": {
        *("Description", "Wants", "Requires", "After", "PartOf", "Conflicts", "OnFailure", "ConditionHost"),
        *("StartLimitIntervalSec", "StartLimitBurst"),
    },
    "Service": {
        *("Type", "ExecStart", "WorkingDirectory", "Environment", "UnsetEnvironment", "TimeoutStopSec"),
        *("TimeoutStartSec", "Restart", "RestartSec"),
    },
}
_REFERENCES = ("Wants", "Requires", "After", "PartOf", "Conflicts", "OnFailure")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

Unit = dict[str, list[str]]


def found_in(text: str, plan: Plan) -> list[str]:
    """Return all that is wrong with a script that was rendered of a plan."""
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run(["sh", "-s", directory], input=text, capture_output=True, text=True, check=False)
        if ended.returncode:
            return [ended.stderr]
        files = {path.name: path.read_text() for path in sorted(Path(directory).iterdir())}
    found = [f"{name}: {problem}" for name, content in files.items() for problem in _unknown(content)]
    if found:
        return found
    units = {name: _read(content) for name, content in files.items()}
    return [*_references(units), *_circle(units), *_ends(units, plan), *_tasks(units, plan)]


def _unknown(content: str) -> Iterator[str]:
    section = ""
    for line in filter(None, content.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
            if section not in _KEYS:
                yield f"there is no section {section}"
                return
        elif line.partition("=")[0] not in _KEYS[section]:
            yield f"there is no {line.partition('=')[0]} in {section}"


def _read(content: str) -> Unit:
    unit: Unit = {}
    for line in content.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            unit.setdefault(key, []).append(value)
    return unit


def _references(units: dict[str, Unit]) -> Iterator[str]:
    for name, unit in units.items():
        for key in _REFERENCES:
            yield from (f"{name}: {key} names {other}" for other in unit.get(key, []) if other not in units)


def _circle(units: dict[str, Unit]) -> Iterator[str]:
    """A target comes after what it wants, unless that says that it comes after the target."""
    after = {name: set(unit.get("After", [])) for name, unit in units.items()}
    for name, unit in units.items():
        after[name] |= {other for other in unit.get("Wants", []) if name not in after.get(other, set())}
    while free := [name for name, others in after.items() if not others & after.keys()]:
        for name in free:
            del after[name]
    if after:
        yield f"a circle: {sorted(after)}"


def _ends(units: dict[str, Unit], plan: Plan) -> Iterator[str]:
    target, done, failed = (units[f"{plan.name}{ending}"] for ending in (".target", ".service", ".failed.target"))
    deciders = {_name(plan, plan.find(task)) for task in policy.deciders(plan)}
    if set(done["Requires"]) != deciders or not deciders <= set(done.get("After", [])):
        yield f"the end does not wait for {sorted(deciders)}"
    if failed.get("Conflicts") != [f"{plan.name}.target"]:
        yield "a failure does not stop the others"
    missing = {*(_name(plan, process) for process in plan.processes()), f"{plan.name}.service"} - set(target["Wants"])
    yield from (f"the target does not start {name}" for name in sorted(missing))


def _name(plan: Plan, process: TaskPlan) -> str:
    return f"{plan.name}-{process.task.replace(':', '-')}.service"


def _tasks(units: dict[str, Unit], plan: Plan) -> Iterator[str]:
    for process in plan.processes():
        unit = units.get(_name(plan, process))
        if unit is None:
            yield f"there is no {_name(plan, process)}"
        else:
            yield from (f"{process.task}: {problem}" for problem in _task(unit, process, plan))


def _task(unit: Unit, process: TaskPlan, plan: Plan) -> Iterator[str]:
    target, is_decider = f"{plan.name}.target", process.task in policy.deciders(plan)
    if unit.get("PartOf") != [target] or target not in unit.get("After", []):
        yield "it does not start and end with the target"
    if unit.get("Type") != ["oneshot" if is_decider else "exec"]:
        yield f"its type is {unit.get('Type')}"
    must_live = policy.in_gang(process) or process.is_required
    if unit.get("OnFailure") != ([f"{plan.name}.failed.target"] if must_live else None):
        yield f"its failure starts {unit.get('OnFailure')}"
    if unit["TimeoutStopSec"] != [f"{plan.timeouts.grace:g}"]:
        yield f"its grace is {unit['TimeoutStopSec']}"
    command = [word.replace("$$", "$") for word in words(unit["ExecStart"][0])]
    env = dict(word.partition("=")[::2] for line in unit.get("Environment", []) for word in words(line))
    if command[0] == "/usr/bin/env":
        command.pop(0)
        while "=" in command[0]:
            name, _, env[name] = command.pop(0).partition("=")
    if command != list(process.argv):
        yield f"its command is {command}"
    yield from (f"{name} is {env.get(name)!r}" for name, value in process.env.items() if env.get(name) != value)
    if set(unit["UnsetEnvironment"][0].split()) != set(process.unset):
        yield f"it unsets {unit['UnsetEnvironment']}"
    if unit["WorkingDirectory"][0].replace("%%", "%") != process.workdir:
        yield f"it works in {unit['WorkingDirectory']}"


def words(line: str) -> list[str]:
    """Return the words of a line: quoted or not, with escapes of C, and `%%` for a percent sign."""
    found = re.findall(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|(\S+)", line)
    return [_unescaped("".join(groups)).replace("%%", "%") for groups in found]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)
