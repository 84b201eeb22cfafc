"""Find the runs of this user whose supervisor is in a cluster, wherever they were started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tflaunch import private_files
from tflaunch.cli.arguments.spec import say
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain.wording import listed
from tflaunch.features.kubernetes import kubectl, launcher_note, launcher_objects
from tflaunch.features.kubernetes.cluster import KubernetesPlan
from tflaunch.features.kubernetes.kubectl import KubectlError
from tflaunch.features.kubernetes.pods import label
from tflaunch.private_files import user_name
from tflaunch.store import run_names
from tflaunch.store.run_dir import runs_directory


def find_runs(settings: Sequence[str]) -> list[Path]:
    """Return the directories of this user's runs in a namespace; those that were not here have a note only.

    Args:
        settings: of a spec, which say where.

    Raises:
        TflaunchError: Kubernetes does not tell them.
    """
    given = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    where = KubernetesPlan("", "", 0.0, given.get("kubernetes.context"), given.get("kubernetes.namespace"))
    try:
        where = kubectl.pinned(where)
        there = kubectl.run_for_json(where, "get", "jobs,pods", "--selector=app.kubernetes.io/managed-by=tflaunch")
        with kubectl.readable_answer():
            jobs = [item for item in there["items"] if item["kind"] == "Job" and not _ends(item)]
            user = label(user_name(os.geteuid()))
            found = [_run_of(job, where) for job in jobs if _labels(job).get(launcher_objects.USER_LABEL) == user]
            ending = _by_run(item for item in there["items"] if item["kind"] == "Pod" and _ends(item))
    except KubectlError as error:
        raise TflaunchError(f"Kubernetes does not tell your runs: {error}", EXIT_INTERNAL) from None
    paths = [_here(run, cluster) for run, cluster in found if run_names.is_run_name(run)]
    for run, names in ending.items():
        if run_names.is_run_name(run) and (runs_directory() / Path(run).name).exists():
            say(f"pods of {run} still end: {listed(names)}")
    return paths


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


def _ends(item: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in item["metadata"]


def _by_run(pods: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of pods by their runs."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        found.setdefault(_labels(pod).get(kubectl.RUN_LABEL, ""), []).append(pod["metadata"]["name"])
    return found


def _run_of(job: Mapping[str, Any], where: KubernetesPlan) -> tuple[str, KubernetesPlan]:
    about = job["metadata"]
    try:
        cluster = launcher_note.from_text(about["annotations"][launcher_objects.NOTE_MARK].encode())
    except ValueError as error:
        raise KubectlError(f"the note of Job {about['name']} cannot be read: {error}") from None
    cluster = cluster._replace(context=where.context, config=where.config, namespace=where.namespace)
    return str(about["labels"][launcher_objects.LAUNCHER_LABEL]), cluster


def _here(run: str, cluster: KubernetesPlan) -> Path:
    path = runs_directory() / Path(run).name
    if not path.exists():
        private_files.make_directories(path)
        launcher_note.write_note(path, cluster)
    return path
