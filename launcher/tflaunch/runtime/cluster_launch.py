"""Start a run whose supervisor is a Job in the cluster of its pods."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tflaunch import __version__, private_files
from tflaunch.agents import code_copy
from tflaunch.client import cluster_runs
from tflaunch.client.cluster_runs import Whereabouts
from tflaunch.client.secret_values import read_secrets
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.kubernetes import kubectl, launcher_note, launcher_objects
from tflaunch.kubernetes.kubectl import KubectlError
from tflaunch.kubernetes.pod_watch import PodWatch
from tflaunch.plan import serialize
from tflaunch.plan.model import KubernetesPlan, Plan, SecretSource
from tflaunch.runtime import cluster_objects, launch, run_record
from tflaunch.runtime.launcher_pod import ORDER_NAME
from tflaunch.store.run_copy import pack_run
from tflaunch.store.run_dir import RunDirectory

_REPORT_AFTER = 3.0  # seconds for which a pod waits for the same thing before that is reported
_BETWEEN_LOOKS = 1.0
_PUT_PATIENCE = 600.0  # seconds for the user's code to be sent
_NO_TFLAUNCH = "executable file not found"


def start(plan: Plan, directory: RunDirectory, say: Callable[[str], None], is_quiet: bool) -> int:
    """Start a run with its supervisor in the cluster; return 0 once its tasks run, or else its exit code.

    Raises:
        TflaunchError: the run cannot begin; nothing of it is left in the cluster.
    """
    assert plan.kubernetes is not None
    assert plan.kubernetes.launcher is not None
    secrets = read_secrets(plan.secrets)
    path, run = directory.path, directory.run
    try:
        cluster = kubectl.pinned(plan.kubernetes)
        owner = _create_job(cluster, run)
    except KubectlError as error:
        message = f"Kubernetes does not start the launcher: {error}; {cluster_objects.REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    launcher_note.write_note(path, cluster)
    try:
        cluster_objects.create(plan._replace(kubernetes=cluster), run, owner)
        _create_owned(cluster, run, owner)
        _wait_for_copy(cluster, run, say)
        _put_copy(plan, cluster, directory, {name: value or "" for name, value in secrets.items()})
        job = launcher_objects.names_of(cluster).job
        kubectl.run_kubectl(cluster, "patch", "job", job, "--type=merge", '--patch={"spec":{"parallelism":1}}')
        return _wait_until_running(path, cluster, say, is_quiet)
    except KubectlError as error:
        _withdraw(path, cluster, say)
        message = f"Kubernetes does not start the launcher: {error}; {cluster_objects.REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    except BaseException:
        _withdraw(path, cluster, say)
        raise


def _withdraw(path: Path, cluster: KubernetesPlan, say: Callable[[str], None]) -> None:
    if launcher_note.read_note(path) is not None:
        cluster_runs.delete(path, cluster, say)
        launcher_note.remove_note(path)


def _create_job(cluster: KubernetesPlan, run: str) -> dict[str, str]:
    """Create the Job that owns everything else, and return a reference to it."""
    assert cluster.launcher is not None
    job = launcher_objects.job(cluster, run, cluster.launcher, _pull_secrets(cluster))
    try:
        made = kubectl.run_for_json(cluster, "create", "--filename=-", given=json.dumps(job))
    except KubectlError as error:
        if "AlreadyExists" not in str(error):
            raise
        name = job["metadata"]["name"]
        raise KubectlError(
            f"Job {name} of another run of this name exists; end that run (`tflaunch down`), choose another --name, or"
            f" delete it (`{' '.join(cluster.command('delete', 'job', name))}`)"
        ) from None
    with kubectl.readable_answer():
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": made["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }


def _create_owned(cluster: KubernetesPlan, run: str, owner: Mapping[str, str]) -> None:
    assert cluster.launcher is not None
    items = launcher_objects.owned(
        cluster, run, cluster.launcher, owner, launcher_objects.pods_of(cluster), _pull_secrets(cluster)
    )
    things = {"apiVersion": "v1", "kind": "List", "items": items}
    kubectl.run_kubectl(cluster, "create", "--filename=-", given=json.dumps(things))


def _pull_secrets(cluster: KubernetesPlan) -> list[Any]:
    """Return the secrets with which the tasks' image is pulled; the launcher's may need them, too."""
    sets = [thing for thing in json.loads(cluster.objects) if thing["kind"] == "StatefulSet"]
    return list(sets[0]["spec"]["template"]["spec"].get("imagePullSecrets", []))


def _wait_for_copy(cluster: KubernetesPlan, run: str, say: Callable[[str], None]) -> None:
    """Wait until the pod with the copy of the run directory runs.

    Raises:
        TflaunchError: it does not, within ``kubernetes.pending``, or cannot.
    """
    pod = launcher_objects.names_of(cluster).copy_pod
    watch = PodWatch(cluster, f"{launcher_objects.LAUNCHER_LABEL}={run}", [pod])
    begun = time.monotonic()
    told = ""
    while True:
        state = watch.look_at(pod)
        if state.container and not state.waits_for:
            return
        if _NO_TFLAUNCH in state.reason:
            message = (
                f"image {cluster.launcher!r} has no tflaunch, and with -d the supervisor runs in the cluster; name an"
                " image with tflaunch and kubectl as kubernetes.launcher_image, or run without -d"
            )
            raise TflaunchError(message, EXIT_PREFLIGHT)
        waited = time.monotonic() - begun
        if waited >= cluster.pending:
            message = f"the launcher: {state.reason}; it did not run within {cluster.pending:g} s (kubernetes.pending)"
            raise TflaunchError(message, EXIT_PREFLIGHT)
        if waited >= _REPORT_AFTER and state.waits_for != told:
            told = state.waits_for
            say(f"the launcher: {state.reason}")
        time.sleep(_BETWEEN_LOOKS)


def _put_copy(plan: Plan, cluster: KubernetesPlan, directory: RunDirectory, secrets: Mapping[str, str]) -> None:
    """Send what the supervisor needs to the pod with the copy: plan, spec, code, and the values of secrets."""
    code = launch.code_for_hosts(plan)
    run_record.write(directory.path, plan)  # of the code as it is here
    there = cluster._replace(objects="", context=None, config=None)
    sources = {name: SecretSource(env=name) for name in plan.secrets}
    ordered = plan._replace(kubernetes=there, secrets=sources)
    order = {"version": __version__, "plan": serialize.as_json(ordered)}
    private_files.write_text(directory.path / ORDER_NAME, json.dumps(order))
    if code is not None:
        private_files.write_text(directory.path / code_copy.NAME, code_copy.describe(code))
    pod = launcher_objects.names_of(cluster).copy_pod
    command = [*kubectl.exec_command(cluster, pod), "tflaunch", "launcher", "put-copy"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(dict(secrets)).encode() + b"\n")
        with tarfile.open(fileobj=process.stdin, mode="w|", dereference=True) as archive:
            for name in sorted(path.name for path in directory.path.iterdir() if path.is_file()):
                if name != "launcher.json":
                    pack_run(archive, directory.path / name, name)
            for file in code.files if code is not None else ():
                source = file.source or code.directory / file.path if code is not None else None
                assert source is not None
                pack_run(archive, source, f"{code_copy.DIRECTORY}/{file.path}")
    except BrokenPipeError:
        pass  # its errors tell why
    try:
        _, errors = process.communicate(timeout=_PUT_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise KubectlError(f"the code was not sent within {_PUT_PATIENCE:g} s") from None
    if process.returncode != 0:
        raise KubectlError(f"the launcher's files cannot be sent: {errors.decode('utf-8', 'replace').strip()[-300:]}")


def _wait_until_running(path: Path, cluster: KubernetesPlan, say: Callable[[str], None], is_quiet: bool) -> int:
    """Show the run's messages until its tasks run; return 0 then, or its exit code if it ends first."""
    begun = time.monotonic()
    told = ""
    command = ["launcher", "await-start", path.name, *(["--quiet"] if is_quiet else [])]
    while True:
        state = cluster_runs.look_at(cluster, path.name)
        if state.where is Whereabouts.LIVE:
            done = cluster_runs.execute(cluster, state.pod, command)
            if not done.failure and done.exit_code == 0:
                return 0
        if state.where is Whereabouts.OVER:
            cluster_runs.bring_home(path, cluster, state, say)
            return EXIT_INTERNAL if state.exit_code is None else state.exit_code
        if state.where is Whereabouts.DELETED:
            raise TflaunchError(f"the Job of run {path.name} was deleted", EXIT_INTERNAL)
        waited = time.monotonic() - begun
        if state.where is Whereabouts.STARTING and waited >= cluster.pending:
            raise TflaunchError(
                f"the launcher: {state.reason}; it did not run within {cluster.pending:g} s", EXIT_PREFLIGHT
            )
        if state.where is Whereabouts.STARTING and waited >= _REPORT_AFTER and state.reason != told:
            told = state.reason
            say(f"the launcher: {state.reason}")
        time.sleep(_BETWEEN_LOOKS)
