"""Runs whose supervisor and files are in a Kubernetes cluster: their state and files, and commands that run there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files
from tflaunch.client.file_tree import delete_tree, is_directory
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.kubernetes import kubectl, launcher_note, launcher_objects
from tflaunch.kubernetes.kubectl import KubectlError
from tflaunch.kubernetes.pod_state import PodState, read_pods
from tflaunch.plan.model import KubernetesPlan
from tflaunch.store.run_copy import CopyError, unpack_copy
from tflaunch.store.run_dir import JOURNAL_NAME
from tflaunch_worker import linux, wire

OUTCOME_NAME = "outcome.json"
"""How a run has ended, also one that did not begin."""

_ENDED_THERE = b"command terminated with exit code"  # from kubectl, for every exit code but 0
_COPIED_IN_VAIN = ("code", "code.json", "order.json", OUTCOME_NAME)


class Whereabouts(Enum):
    """Where the supervisor of a run is."""

    STARTING = "starting"
    """Its pod does not run yet, or not any more, and Kubernetes makes another."""
    LIVE = "live"
    """It runs in a pod."""
    OVER = "over"
    """Its Job has ended."""
    DELETED = "deleted"
    """Its Job was deleted, and all that belonged to the run with it."""


class LauncherState(NamedTuple):
    """What Kubernetes knows of a run's supervisor.

    ``pod`` is the one that runs, "" if none does; ``reason``: what it waits for, as a sentence; ``exit_code``: that of
    the last pod that has ended, None if there is none.
    """

    where: Whereabouts
    pod: str = ""
    reason: str = ""
    exit_code: int | None = None


def look_at(cluster: KubernetesPlan, run: str) -> LauncherState:
    """Return the state of a run's supervisor.

    Raises:
        KubectlError: Kubernetes does not answer.
    """
    label = f"--selector={launcher_objects.LAUNCHER_LABEL}={run}"
    items = kubectl.run_for_json(cluster, "get", "jobs,pods", label)
    with kubectl.readable_answer():
        return _state(items.get("items", []))


def _state(items: Sequence[Mapping[str, Any]]) -> LauncherState:
    job = next((item for item in items if item["kind"] == "Job"), None)
    if job is None or "deletionTimestamp" in job["metadata"]:
        return LauncherState(Whereabouts.DELETED)
    pods = [item for item in items if item["kind"] == "Pod" and "job-name" in item["metadata"].get("labels", {})]
    pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    codes = [code for pod in pods if (code := _exit_code(pod)) is not None]
    code = codes[-1] if codes else None
    conditions = job.get("status", {}).get("conditions") or []
    if any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions):
        return LauncherState(Whereabouts.OVER, exit_code=code)
    states = read_pods(pods, [], [pod["metadata"]["name"] for pod in pods])
    for name, state in reversed(states.items()):
        if state.container and not state.waits_for:
            return LauncherState(Whereabouts.LIVE, name, exit_code=code)
    last = next(reversed(states.values()), PodState(reason="its pod was not made yet"))
    return LauncherState(Whereabouts.STARTING, reason=last.reason or "its pod ends", exit_code=code)


def _exit_code(pod: Mapping[str, Any]) -> int | None:
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if end := container.get("state", {}).get("terminated"):
            return int(end["exitCode"])
    return None


class Executed(NamedTuple):
    """A command that ran, or did not, in a pod: its exit code, and what kubectl said if it did not run to its end."""

    exit_code: int
    failure: str


def execute(cluster: KubernetesPlan, pod: str, command: Sequence[str], is_quiet: bool = False) -> Executed:
    """Run a command of tflaunch in a pod, connected to this terminal; with ``is_quiet``, its errors are not shown."""
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not is_quiet
    argv = kubectl.exec_command(cluster, pod)
    if has_terminal:
        argv.insert(argv.index("--stdin"), "--tty")
    try:
        process = subprocess.Popen(
            [*argv, "tflaunch", *command],
            stdin=None if has_terminal else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # else kubectl would keep the output of a command that was killed open until the run ends
            preexec_fn=lambda: linux.die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there is one thread
        )
    except OSError as error:
        raise TflaunchError(f"`kubectl` cannot be run: {error.strerror}", EXIT_INTERNAL) from None
    assert process.stderr is not None
    last = b""
    for line in process.stderr:
        if not line.startswith((_ENDED_THERE, b"error: ", b"Error from server", b"Unable to use a TTY")):
            if not is_quiet:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
        else:
            last = line
    code = process.wait()
    if code == 0 or last.startswith(_ENDED_THERE):
        return Executed(code, "")
    return Executed(code, last.decode("utf-8", "replace").strip() or f"`kubectl exec` ended with code {code}")


def bring_home(directory: Path, cluster: KubernetesPlan, state: LauncherState, say: Callable[[str], None]) -> None:
    """Copy the files of a run whose Job has ended to its directory here, and delete what it has in the cluster.

    Raises:
        TflaunchError: the run did not begin, or its files are lost; the exit code is that of the run.
    """
    try:
        _copy(directory, cluster)
    except (CopyError, OSError, ValueError, LookupError) as error:
        code = EXIT_INTERNAL if state.exit_code is None else state.exit_code
        job = launcher_objects.names_of(cluster).job
        message = (
            f"run {directory.name} has ended with exit code {code}; its files cannot be copied: {error};"
            f" `{' '.join(cluster.command('logs', f'job/{job}'))}` has what it wrote"
        )
        raise TflaunchError(message, code or EXIT_INTERNAL) from None
    outcome = _outcome(directory)
    has_begun = (directory / JOURNAL_NAME).exists()
    if has_begun:
        _move_home(directory, cluster)
    for name in _COPIED_IN_VAIN:
        _remove(directory / name)
    if outcome is not None:  # else its supervisor was killed too often, and the tasks may be alive
        delete(directory, cluster, say)
    launcher_note.remove_note(directory)
    if not has_begun:
        code = EXIT_INTERNAL if outcome is None else int(outcome["exit_code"])
        said = "no reason is known" if outcome is None else str(outcome["said"])
        raise TflaunchError(f"run {directory.name} had not begun when it ended: {said}", code or EXIT_INTERNAL)


def delete(directory: Path, cluster: KubernetesPlan, say: Callable[[str], None]) -> None:
    """Delete a run's Job, and with it all that the run has in the cluster."""
    job = launcher_objects.names_of(cluster).job
    try:
        kubectl.run_kubectl(cluster, "delete", "job", job, "--ignore-not-found", "--wait=false")
    except KubectlError as error:
        command = " ".join(cluster.command("delete", "job", job))
        say(f"warning: Job {job} of {directory.name} was not deleted: {error}; `{command}` deletes it")


def _copy(directory: Path, cluster: KubernetesPlan) -> None:
    pod = launcher_objects.names_of(cluster).copy_pod
    command = [*kubectl.exec_command(cluster, pod), "tflaunch", "launcher", "read-copy"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        unpack_copy(process.stdout, directory.parent, directory.name)
    except CopyError:
        process.kill()
        _, errors = process.communicate()
        raise CopyError(errors.decode("utf-8", "replace").strip() or "its pod does not answer") from None
    process.communicate()
    directory.chmod(0o700)


def _outcome(directory: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = wire.parse((directory / OUTCOME_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _move_home(directory: Path, cluster: KubernetesPlan) -> None:
    """Change the places in the first record of a journal to those of this machine."""
    path = directory / JOURNAL_NAME
    first, _, rest = path.read_bytes().partition(b"\n")
    record = json.loads(first)
    record["logs"] = str(directory / "logs")
    about = {"context": cluster.context, "namespace": cluster.namespace, "config": cluster.config}
    record["plan"]["kubernetes"].update(about)
    head = json.dumps(record, separators=(",", ":")).encode()
    private_files.write_text(path, (head + b"\n" + rest).decode("utf-8", "surrogateescape"))


def _remove(path: Path) -> None:
    if is_directory(path):
        delete_tree(path)
    else:
        path.unlink(missing_ok=True)


def cluster_of(directory: Path) -> KubernetesPlan:
    """Return the cluster in which a run has its supervisor.

    Raises:
        TflaunchError: it is on this machine.
    """
    cluster = launcher_note.read_note(directory)
    if cluster is None:
        raise TflaunchError(f"run {directory.name} is on this machine", EXIT_INTERNAL)
    return cluster
