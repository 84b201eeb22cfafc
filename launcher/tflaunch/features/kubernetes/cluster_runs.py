"""Runs with supervisor and files in a cluster: their state, files, and commands."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files, records
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features import notes
from tflaunch.features.kubernetes import cluster_objects, kubectl
from tflaunch.features.kubernetes.kubectl import POD_CONTAINER, KubectlError, KubernetesPlan, made_in
from tflaunch.features.kubernetes.pod_state import PodState, read_pods
from tflaunch.features.kubernetes.pods import label
from tflaunch.features.kubernetes.run_archive import ArchiveError, unpack_archive
from tflaunch.store import run_dir
from tflaunch_worker import linux, wire
from tflaunch_worker.readable import duration_words, printable

NOTE_NAME = "launcher.json"
"""The file in a run directory that says in which cluster the run has its supervisor."""

_LONGEST_SAID = 600  # characters
_ENDED_THERE = b"command terminated with exit code"  # from kubectl, for every exit code but 0


def write_note(directory: Path, cluster: KubernetesPlan) -> None:
    """Record in which cluster the run of a directory has its supervisor."""
    private_files.write_text(directory / NOTE_NAME, cluster_objects.note_of(cluster))


def read_note(directory: Path) -> KubernetesPlan | None:
    """Return the cluster with a run's supervisor and files; None if they are here."""
    return notes.read_note(KubernetesPlan, directory / NOTE_NAME)


def remove_note(directory: Path) -> None:
    """Record that all files of a run are in its directory."""
    (directory / NOTE_NAME).unlink(missing_ok=True)


class Whereabouts(Enum):
    """Where the supervisor of a run is."""

    STARTING = "starting"
    """Its pod does not run yet, or not any more, and Kubernetes makes another."""
    LIVE = "live"
    """It runs in a pod."""
    KEPT = "kept"
    """The run has ended, and a pod keeps its directory."""
    OVER = "over"
    """Its Job has ended, and its pods are gone."""
    DELETED = "deleted"
    """Its Job was deleted, and all that belonged to the run with it."""


class LauncherState(NamedTuple):
    """What Kubernetes knows of a run's supervisor.

    ``pod`` is the one that runs, "" if none does; ``reason``: what it waits for, as a sentence. ``is_begun``: a
    supervisor has begun the run. ``exit_code`` is that of the run, None while it has not ended, and ``said`` why it did
    not begin or go on, "" if it did. ``failure``: how the last pod has failed, "" if none has. ``is_held``: a queue
    such as Kueue's holds it back. ``stuck``: a pod in which only other containers run, so that no other is made.
    """

    where: Whereabouts
    pod: str = ""
    reason: str = ""
    is_begun: bool = False
    exit_code: int | None = None
    said: str = ""
    failure: str = ""
    is_held: bool = False
    stuck: str = ""


def look_at(cluster: KubernetesPlan, run: str) -> LauncherState:
    """Return the state of a run's supervisor; raises as `kubectl.run_kubectl`."""
    label = f"--selector={cluster_objects.LAUNCHER_LABEL}={run}"
    items = kubectl.run_for_json(cluster, "get", "jobs,pods", label)
    with kubectl.readable_answer():
        return _state(items.get("items", []))


def _state(items: Sequence[Mapping[str, Any]]) -> LauncherState:
    job = next((item for item in items if item["kind"] == "Job"), None)
    if job is None or "deletionTimestamp" in job["metadata"]:
        return LauncherState(Whereabouts.DELETED)
    pods = [item for item in items if item["kind"] == "Pod" and "job-name" in item["metadata"].get("labels", {})]
    pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    marks = job["metadata"].get("annotations") or {}
    code, said = marks.get(cluster_objects.EXIT_CODE_MARK), str(marks.get(cluster_objects.SAID_MARK, ""))
    failures = [failure for pod in pods if (failure := _failure(pod))]
    known = LauncherState(
        Whereabouts.STARTING,
        is_begun=cluster_objects.BEGUN_MARK in marks,
        exit_code=None if code is None else int(code),
        said=printable(said, _LONGEST_SAID),
        failure=failures[-1] if failures else "",
    )
    conditions = job.get("status", {}).get("conditions") or []
    if any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions):
        return known._replace(where=Whereabouts.OVER)
    states = read_pods(pods, [], [pod["metadata"]["name"] for pod in pods])
    for name, state in reversed(states.items()):
        if state.container and not state.waits_for:
            return known._replace(where=Whereabouts.LIVE if code is None else Whereabouts.KEPT, pod=name)
    stuck = next((pod["metadata"]["name"] for pod in pods if _has_only_others(pod)), "")
    if stuck and code is not None:
        return known._replace(where=Whereabouts.OVER)
    if stuck:
        return known._replace(reason="its container has ended, and a sidecar stays in its pod", stuck=stuck)
    if job.get("spec", {}).get("suspend"):
        return known._replace(reason="its Job is suspended, as by Kueue until there is room", is_held=True)
    last = next(reversed(states.values()), PodState(reason="its pod was not made yet"))
    return known._replace(reason=last.reason or "its pod ends", is_held=last.is_held)


def _has_only_others(pod: Mapping[str, Any]) -> bool:
    """Return whether only sidecars keep a pod running, as our container has ended."""
    containers = pod.get("status", {}).get("containerStatuses") or []
    ours = [one for one in containers if one["name"] == POD_CONTAINER and "terminated" in one.get("state", {})]
    return bool(ours) and any("running" in one.get("state", {}) for one in containers)


def delete_pod(cluster: KubernetesPlan, pod: str) -> None:
    """Delete a pod, so that the Job makes another; raises as `kubectl.run_kubectl`."""
    kubectl.run_kubectl(cluster, "delete", "pod", pod, "--ignore-not-found", "--wait=false")


def _failure(pod: Mapping[str, Any]) -> str:
    """Return how a pod's container failed, with its last message; "" if it did not."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        end = container.get("state", {}).get("terminated") or {}
        if end.get("exitCode"):
            words = str(end.get("message") or end.get("reason") or "no reason is given").strip()
            return f"its container ended with code {end['exitCode']}: {printable(words[-_LONGEST_SAID:])}"
    return ""


class Executed(NamedTuple):
    """A command's exit code in a pod; kubectl's error if it did not run to its end."""

    exit_code: int
    failure: str


def execute(cluster: KubernetesPlan, pod: str, command: Sequence[str], takes_input: bool = False) -> Executed:
    """Run a tflaunch command in a pod on this terminal.

    ``takes_input``: it gets the input of this process even if that is not a terminal.
    """
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = kubectl.exec_command(cluster, pod)
    if has_terminal:
        argv.insert(argv.index("--stdin"), "--tty")
    try:
        process = subprocess.Popen(
            [*argv, "tflaunch", *command],
            stdin=None if has_terminal or takes_input else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # else kubectl would keep the output of a command that was killed open until the run ends
            preexec_fn=lambda: linux.die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there is one thread
        )
    except OSError as error:
        raise TflaunchError(f"`kubectl` cannot be run: {error.strerror}", EXIT_INTERNAL) from None
    assert process.stderr is not None
    last = b""
    for line in process.stderr:
        if line.startswith(b"Unable to use a TTY"):
            continue
        shown, last = last, line  # only a last line is kubectl's own
        if not line.startswith((_ENDED_THERE, b"error: ", b"Error from server")):
            shown, last = shown + line, b""
        sys.stderr.buffer.write(shown)
        sys.stderr.buffer.flush()
    code = process.wait()  # no limit: the user waits for it, and can press Ctrl-C
    if code == 0 or last.startswith(_ENDED_THERE):
        return Executed(code, "")
    return Executed(code, last.decode("utf-8", "replace").strip() or f"`kubectl exec` ended with code {code}")


def bring_home(directory: Path, cluster: KubernetesPlan, state: LauncherState, say: Callable[[str], None]) -> None:
    """Copy an ended run's files to its directory here, and delete it in the cluster.

    Raises:
        TflaunchError: the run did not begin, or its files are not there; the exit code is that of the run.
    """
    code = EXIT_INTERNAL if state.exit_code is None else state.exit_code
    problem = _fetch(directory, cluster, state.pod) if state.where is Whereabouts.KEPT else ""
    if problem and not state.said:
        message = (
            f"run {directory.name} has ended with exit code {code}, and its files were not copied: {problem}; try"
            f" again: they are kept for {duration_words(cluster.keep)} after its end (kubernetes.keep)"
        )
        raise TflaunchError(message, code or EXIT_INTERNAL)
    if state.where is Whereabouts.OVER and not state.said:
        raise _not_kept(directory, cluster, state, code)
    delete(directory, cluster, say)
    remove_note(directory)
    if problem or state.where is Whereabouts.OVER:
        raise TflaunchError(f"run {directory.name} did not begin: {state.said}", code or EXIT_INTERNAL)
    if state.said:
        say(f"warning: {state.said}")


def _not_kept(directory: Path, cluster: KubernetesPlan, state: LauncherState, code: int) -> TflaunchError:
    logs = shlex.join(cluster.command("logs", f"job/{cluster_objects.launcher_name(cluster)}"))
    if state.exit_code is None:
        why = f"its supervisor was lost ({state.failure or 'no reason is known'}), and its directory with it"
    else:
        why = f"its directory was kept for {duration_words(cluster.keep)} (kubernetes.keep)"
    if cluster.run_volume is not None:
        why += f"; it is in home/runs on the volume {cluster.run_volume}"
    message = f"run {directory.name} has ended with exit code {code}; {why}; `{logs}` shows what it wrote"
    return TflaunchError(f"{message}; `tflaunch down {directory.name}` deletes its Job", code or EXIT_INTERNAL)


def delete(directory: Path, cluster: KubernetesPlan, say: Callable[[str], None]) -> None:
    """Delete a run's Job, and with it all that the run has in the cluster."""
    job = cluster_objects.launcher_name(cluster)
    own = f"--selector={cluster_objects.LAUNCHER_LABEL}={directory.name}"  # a Job of this name can be another run's
    try:
        kubectl.run_kubectl(cluster, "delete", "jobs", own, "--ignore-not-found", "--wait=false")
    except KubectlError as error:
        command = " ".join(cluster.command("delete", "job", job))
        say(f"warning: Job {job} of {directory.name} was not deleted: {error}; `{command}` deletes it")


def _fetch(directory: Path, cluster: KubernetesPlan, pod: str) -> str:
    """Copy a run's files from the pod that keeps them; return the error, or ""."""
    command = [*kubectl.exec_command(cluster, pod), "tflaunch", "launcher", "send", directory.name]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        unpack_archive(process.stdout, directory)
        _move_home(directory, cluster)
    except (ArchiveError, OSError, ValueError, LookupError) as error:
        process.kill()
        # no limit: the user waits for it, and can press Ctrl-C
        said = process.communicate()[1].decode("utf-8", "replace").strip()
        return (isinstance(error, ArchiveError) and said) or str(error)
    process.communicate()  # no limit: the user waits for it, and can press Ctrl-C
    return ""


def _move_home(directory: Path, cluster: KubernetesPlan) -> None:
    """Change the places in the first record of a journal to those of this machine."""
    path = directory / run_dir.JOURNAL_NAME
    first, _, rest = path.read_bytes().partition(b"\n")
    record = json.loads(first)
    record["logs"] = str(directory / "logs")
    about = {"context": cluster.context, "namespace": cluster.namespace, "config": cluster.config}
    made = record["plan"]["made_hosts"]
    record["plan"]["made_hosts"] = records.as_json(made_in(KubernetesPlan(**{**made["data"], **about})))
    head = json.dumps(record, separators=(",", ":")).encode()
    private_files.write_text(path, (head + b"\n" + rest).decode("utf-8", "surrogateescape"))


def find_runs(settings: Sequence[str]) -> list[Path]:
    """Return this user's runs in a namespace; raise `TflaunchError` without an answer."""
    given = {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    where = KubernetesPlan("", "", 0.0, given.get("kubernetes.context"), given.get("kubernetes.namespace"))
    try:
        where = kubectl.pinned(where)
        own = f"--selector={cluster_objects.USER_LABEL}={label(private_files.user_name(os.geteuid()))}"
        there = kubectl.run_for_json(where, "get", "jobs", own)
        with kubectl.readable_answer():
            jobs = [job for job in there["items"] if "deletionTimestamp" not in job["metadata"]]
            found = [_run_of(job, where) for job in jobs]
    except KubectlError as error:
        raise TflaunchError(f"Kubernetes does not tell your runs: {error}", EXIT_INTERNAL) from None
    return [_here(run, cluster) for run, cluster in found if run_dir.is_run_name(run)]


def _run_of(job: Mapping[str, Any], where: KubernetesPlan) -> tuple[str, KubernetesPlan]:
    about = job["metadata"]
    try:
        note = wire.parse(about["annotations"][cluster_objects.NOTE_MARK].encode())
        cluster = records.read_record(KubernetesPlan, note)
    except ValueError as error:
        raise KubectlError(f"the note of Job {about['name']} cannot be read: {error}") from None
    cluster = cluster._replace(context=where.context, config=where.config, namespace=where.namespace)
    return str(about["labels"][cluster_objects.LAUNCHER_LABEL]), cluster


def _here(run: str, cluster: KubernetesPlan) -> Path:
    path = run_dir.runs_directory() / Path(run).name
    if not path.exists():
        private_files.make_directories(path)
        write_note(path, cluster)
    return path
