"""Show the input of a run's tasks, its origin and its spec, all without secrets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.records import run_diff
from tflaunch.features.report.redaction import HIDDEN, Redactor
from tflaunch.features.report.support_bundle import secrets_of
from tflaunch.features.secret_names import looks_secret
from tflaunch.plan import attempts, placeholders
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.tf_config import compile_tf_config
from tflaunch.store.run_dir import PATCH_NAME
from tflaunch_worker.tf_config import NAME as TF_CONFIG

_DEVICES = "CUDA_VISIBLE_DEVICES"
_LONGEST_SPEC = 1024 * 1024
_LONGEST_PATCH = 256 * 1024
_MOST_COMMANDS = 12
_FIRST = ("results", "spec")


def task_plan(directory: Path, job: Job, name: str) -> dict[str, Any]:
    """Return a task's command, directory and environment in the current attempt.

    Raises:
        TflaunchError: no task has this name.
    """
    plan = _current_plan(job)
    if name not in job.tasks:
        raise TflaunchError(f"run {job.run} has no task {name!r}", EXIT_USAGE)
    return _given(job, plan, plan.find(name), _redactor_of(directory))


def what_ran(directory: Path, job: Job) -> dict[str, Any]:
    """Return a run's commands, and the spec, code, packages and machine behind them.

    Tasks whose plans are the same but for variables have one of the ``commands``, which is that of the first of them;
    ``varies`` names these variables. ``left_out`` counts the tasks of further commands, and ``tensorflow`` are the
    versions that tasks have imported.
    """
    plan, redactor = _current_plan(job), _redactor_of(directory)
    groups: dict[object, list[TaskPlan]] = {}
    for process in plan.processes():
        same = (process.role, process.argv, process.workdir, process.unset)
        groups.setdefault(same, []).append(process)
    shown = list(groups.values())[:_MOST_COMMANDS]
    patch, is_cut = _start_of(directory / PATCH_NAME, redactor, _LONGEST_PATCH)
    return {
        "commands": [
            {**_given(job, plan, tasks[0], redactor), "tasks": [task.task for task in tasks], "varies": _varies(tasks)}
            for tasks in shown
        ],
        "tensorflow": sorted({task.tensorflow for task in job.tasks.values() if task.tensorflow}),
        "left_out": len(plan.processes()) - sum(map(len, shown)),
        "record": _without_secrets(run_diff.read_record(directory), redactor),
        "patch": patch,
        "is_patch_cut": is_cut,
        "spec": _kept_spec(directory, redactor),
    }


def machines_of(directory: Path, job: Job, gpus: Mapping[str, int | None]) -> dict[str, Any]:
    """Describe each host: its and its tasks' GPUs; of this machine, cores and memory.

    ``gpus`` are the numbers of GPUs of the hosts that have joined.
    """
    here = run_diff.read_record(directory).get("machine")
    known = {name: here.get(name) for name in ("cores", "memory", "gpu_models")} if isinstance(here, dict) else {}
    devices: dict[str, dict[str, str]] = {}
    for process in job.process_plans():
        if _DEVICES in process.reasons:
            devices.setdefault(process.host, {})[process.task] = process.env.get(_DEVICES, "")
    return {
        host.host: {
            "gpus": gpus.get(host.host),
            "devices": devices.get(host.host, {}),
            **(known if host.is_local else {}),
        }
        for host in job.original.hosts
    }


class Row(TypedDict):
    """A value that is not the same in all runs; null in those that do not have it."""

    section: str
    name: str
    values: list[Any]


def compare_runs(directories: Sequence[Path]) -> list[Row]:
    """Return differences between runs, with each one's value; secrets are replaced.

    Raises:
        TflaunchError: a journal is missing or damaged.
    """
    first, *others = directories
    rows: dict[tuple[str, str], list[Any]] = {}
    for number, other in enumerate(others, 1):
        for found in run_diff.compare(first, other):
            values = rows.setdefault((found.section, found.name), [found.first] * len(directories))
            values[number] = found.second
    order = sorted(rows, key=lambda key: _FIRST.index(key[0]) if key[0] in _FIRST else len(_FIRST))
    redactor = _redactor_of(*directories)

    def shown(name: str, value: Any) -> Any:
        return shown_value(name.rpartition(".")[2], value, redactor) if isinstance(value, str) else value

    return [
        {"section": section, "name": name, "values": [shown(name, value) for value in rows[section, name]]}
        for section, name in order
    ]


def _redactor_of(*directories: Path) -> Redactor:
    return Redactor(set().union(*map(secrets_of, directories)))


def shown_value(name: str, value: str, redactor: Redactor) -> str:
    """Return a variable's value without secrets; hide all of it for a secret's name."""
    return HIDDEN.decode() if looks_secret(name) else _shown(redactor, value)


def _current_plan(job: Job) -> Plan:
    return attempts.resolve(attempts.moved(job.original, job.places), job.ports)


def _given(job: Job, plan: Plan, process: TaskPlan, redactor: Redactor) -> dict[str, Any]:
    filled = placeholders.fill(process, plan, job.run, str(job.tasks[process.task].attempt))
    config = compile_tf_config(plan.strategy, attempts.addresses(plan), process.role, process.task_index)
    env = {key: shown_value(key, value, redactor) for key, value in filled.env.items()}
    return {
        "task": process.task,
        "host": process.host,
        "address": None if process.address is None else str(process.address),
        "strategy": plan.strategy,
        "argv": [_shown(redactor, word) for word in filled.argv],
        "workdir": filled.workdir,
        "env": env if config is None else {TF_CONFIG: config, **env},
        "reasons": dict(process.reasons),
        "unset": list(process.unset),
        "secrets": sorted(plan.secrets),
    }


def _varies(tasks: list[TaskPlan]) -> list[str]:
    names = dict.fromkeys(name for task in tasks for name in task.env)
    return [name for name in names if len({task.env.get(name) for task in tasks}) > 1]


def _kept_spec(directory: Path, redactor: Redactor) -> dict[str, str] | None:
    path = next(iter(sorted(directory.glob("spec.*"))), None)
    if path is None:
        return None
    return {"name": path.name, "text": _start_of(path, redactor, _LONGEST_SPEC)[0] or ""}


def _start_of(path: Path, redactor: Redactor, most: int) -> tuple[str | None, bool]:
    """Return the beginning of a file, None without one, and whether it goes on.

    It is cut after secrets are replaced: half a secret would not be recognized.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + redactor.longest)
            goes_on = bool(file.read(1))
    except FileNotFoundError:
        return None, False
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}", EXIT_INTERNAL) from None
    text = redactor.redact(data)
    text = text[: -redactor.longest] if goes_on else text  # its end may cut a secret
    return text[:most].decode("utf-8", "replace"), goes_on or len(text) > most


def _without_secrets(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {_shown(redactor, key): _without_secrets(inner, redactor) for key, inner in value.items()}
    return _shown(redactor, value) if isinstance(value, str) else value


def _shown(redactor: Redactor, text: str) -> str:
    return redactor.redact(text).decode("utf-8", "replace")
