"""Checks of a rendered script for sbatch: bash itself lists its tasks, and nothing is started."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from tflaunch.core import policy
from tflaunch.plan.model import Plan

_FIRST_OF_TASKS = "\ntrap 'echo \"- signal 129"
_BEHIND_TASKS = "\nwhile read -r task"
_LISTING = r"""
scontrol() { [ "$1 $2" = "show hostnames" ] && printf '%s\n' NODES || echo unknown; }
start() { printf '%s\0' "$@"; printf '\001\0'; env -0; printf '\001\0'; }
"""
_END = r"""
printf '%s\0' deciding "${!deciding[@]}"; printf '\001\0'
printf '%s\0' optional "${!optional[@]}"; printf '\001\0'
printf '%s\0' traps "$(trap -p)"; printf '\001\0'
trap - HUP INT TERM
"""
_STEP = ["srun", "--overlap", "--nodes=1", "--ntasks=1"]
_OPTIONS = ("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "gres", "time", "requeue", "no-requeue")

_JOB = 7
_STANDS_FOR = 100_000

Listed = list[list[str]]


def found_in_slurm(text: str, plan: Plan) -> list[str]:
    """Return all problems of an sbatch script that was rendered from a plan."""
    if not text.startswith("#!/bin/bash\n"):
        return ["it is not a bash script"]
    hosts = list(dict.fromkeys(process.host for process in plan.processes()))
    nodes = [f"n{number}" for number in range(len(hosts))]
    found = list(_options(text, plan, len(nodes)))
    return found or _found(text, plan, nodes, dict(zip(hosts, nodes, strict=True)))


def _options(text: str, plan: Plan, nodes: int) -> Iterator[str]:
    # Like sbatch, which reads options only before the first command.
    head = itertools.takewhile(lambda line: not line or line.startswith("#"), text.split("\n"))
    options = dict(re.findall(r"^#SBATCH --([^=\n]*)=?(.*)$", "\n".join(head), re.MULTILINE))
    yield from (f"sbatch has no option {name} here" for name in options if name not in _OPTIONS)
    if options.get("nodes") != str(nodes):
        yield f"it asks for {options.get('nodes')} nodes, not {nodes}"
    hosts = [process.host for process in plan.processes()]
    if int(options.get("ntasks-per-node", 0)) != max(map(hosts.count, hosts)):
        yield f"it asks for {options.get('ntasks-per-node')} tasks on a node"


def _found(text: str, plan: Plan, nodes: Sequence[str], names: Mapping[str, str]) -> list[str]:
    checked = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
    if checked.returncode:
        return [checked.stderr.decode()]
    listed = _listed(text, nodes)
    if isinstance(listed, str):
        return [listed]
    started = [index for index, part in enumerate(listed) if part and part[0].partition(" ")[0] not in _TOLD]
    tasks = {listed[index][0]: index for index in started[::2]}
    wanted = {process.task: process for process in plan.processes()}
    if list(tasks) != list(wanted):
        return [f"it starts {list(tasks)}, not {list(wanted)}"]
    found = []
    for task, index in tasks.items():
        command, env = listed[index][1:], dict(pair.partition("=")[::2] for pair in listed[index + 1])
        found += [f"{task}: {problem}" for problem in _task(command, env, plan, task, names)]
    return found + list(_rest(listed, plan))


_TOLD = ("deciding", "optional", "traps")


def _listed(text: str, nodes: Sequence[str]) -> Listed | str:
    """Run the lines before and among those that start tasks, with a `start` that only lists."""
    before, first, rest = text.partition(_FIRST_OF_TASKS)
    tasks, _, _ = rest.partition(_BEHIND_TASKS)
    settings = "\n".join(
        line for line in before.split("\n") if line.startswith(("declare ", "step=", "mapfile ", "first_port="))
    )
    listing = _LISTING.replace("NODES", " ".join(nodes))
    script = f"set -u\n{listing}\nSLURM_JOB_NODELIST=x SLURM_JOB_ID={_JOB}\n{settings}{first}{tasks}\n{_END}"
    env = {"PATH": os.environ["PATH"], "grpc_proxy": "x"}
    ended = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=False)
    if ended.returncode:
        return ended.stderr.decode() or f"exit code {ended.returncode}"
    parts = ended.stdout.decode().split("\x01\0")
    return [part.split("\0")[:-1] if part.endswith("\0") else [part] for part in parts if part]


def _task(command: list[str], env: dict[str, str], plan: Plan, task: str, names: Mapping[str, str]) -> Iterator[str]:
    planned = plan.find(task)
    step, command = command[: len(_STEP)], command[len(_STEP) :]
    if step != _STEP or command[:1] != [f"--nodelist={names[planned.host]}"]:
        yield f"it is not a step of its own on its node: {step} {command[:1]}"
    command = command[1:]
    directory = command[command.index("--chdir") + 1] if "--chdir" in command else ""
    if directory != planned.workdir:
        yield f"it works in {directory}"
    env, command = _through_env(env, command)
    if command[:3] == ["sh", "-c", 'exec "$0" "$@"']:
        command = command[3:]
    if command != [_in_job(word, names) for word in planned.argv]:
        yield f"the command is {command}"
    for name, value in planned.env.items():
        if env.get(name) != (wanted := _in_job(value, names)):
            yield f"{name} is {env.get(name)!r}, not {wanted!r}"
    yield from (f"{name} is set" for name in planned.unset if name in env)


def _in_job(text: str, names: Mapping[str, str]) -> str:
    """Return text with node names and the ports chosen by a job replaced."""
    for host, node in names.items():
        text = text.replace(host, node)
    return re.sub(r":(1\d{5})\b", lambda found: f":{10_000 + _JOB * 64 + int(found[1]) - _STANDS_FOR}", text)


def _through_env(env: dict[str, str], command: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables and command that result from `env`."""
    if command[:1] != ["env"]:
        return env, command
    env, words = dict(env), command[1:]
    while words and words[0] in ("-u", "--chdir"):
        if words[0] == "-u":
            env.pop(words[1], None)
        words = words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    while words and "=" in words[0]:
        name, _, value = words[0].partition("=")
        env[name] = value
        words = words[1:]
    return env, words


def _rest(listed: Listed, plan: Plan) -> Iterator[str]:
    told = {part[0].partition(" ")[0]: part for part in listed if part}
    if set(told["deciding"][1:]) != set(policy.success_tasks(plan)):
        yield f"the tasks that decide are {told['deciding'][1:]}"
    optional = {process.task for process in plan.processes() if not (policy.in_gang(process) or process.required)}
    if set(told["optional"][1:]) != optional:
        yield f"the tasks that may fail are {told['optional'][1:]}"
    traps = " ".join(told["traps"][1:])
    yield from (
        f"{name} does not end all"
        for name in ("HUP", "INT", "TERM")
        if not re.search(rf"signal \d+\" >&3' SIG{name}", traps)
    )
