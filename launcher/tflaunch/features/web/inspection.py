"""Return what the tasks of a run were given, and the spec as the user wrote it, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.report.redaction import HIDDEN, Redactor, looks_secret
from tflaunch.features.report.support_bundle import secrets_of
from tflaunch.plan import attempts, placeholders
from tflaunch.plan.tf_config import compile_tf_config
from tflaunch_worker.tf_config import NAME as TF_CONFIG

_LONGEST_SPEC = 1024 * 1024


def task_plan(directory: Path, job: Job, name: str) -> dict[str, Any]:
    """Return the command, working directory and environment of a task in the current attempt.

    Args:
        directory: the run's directory.
        job: the run's job.
        name: the task.

    Raises:
        TflaunchError: there is no such task.
    """
    plan = attempts.resolve(attempts.moved(job.original, job.places), job.ports)
    if name not in job.tasks:
        raise TflaunchError(f"run {job.run} has no task {name!r}", EXIT_USAGE)
    process = plan.find(name)
    filled = placeholders.fill(process, plan, job.run, str(job.tasks[name].attempt))
    config = compile_tf_config(plan.strategy, attempts.addresses(plan), process.role, process.task_index)
    redactor = Redactor(secrets_of(directory))
    env = {key: HIDDEN.decode() if looks_secret(key) else _shown(redactor, value) for key, value in filled.env.items()}
    return {
        "task": name,
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


def spec_text(directory: Path) -> tuple[str, str]:
    """Return the name and the text of the spec of the run in ``directory``.

    Raises:
        TflaunchError: there is none, or it cannot be read.
    """
    path = next(iter(sorted(directory.glob("spec.*"))), None)
    if path is None:
        raise TflaunchError(f"run {directory.name} was started without a spec", EXIT_USAGE)
    try:
        text = path.read_bytes()[:_LONGEST_SPEC].decode("utf-8", "replace")
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}", EXIT_INTERNAL) from None
    return path.name, _shown(Redactor(secrets_of(directory)), text)


def _shown(redactor: Redactor, text: str) -> str:
    return redactor.redact(text).decode("utf-8", "replace")
