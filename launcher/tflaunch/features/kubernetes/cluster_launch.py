"""Start a run whose supervisor is a Job in the cluster; check its rights first."""

import io
import json
import os
import tarfile
import time
from pathlib import Path

import click

from tflaunch import __version__
from tflaunch.cli.arguments.launch import Launching, flag_of
from tflaunch.cli.arguments.spec import say
from tflaunch.client.secret_values import read_secrets
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_USAGE, Problem, TflaunchError
from tflaunch.feature import features
from tflaunch.features.kubernetes import cluster_objects, cluster_runs, kubectl, pods
from tflaunch.features.kubernetes.cluster_runs import LauncherState, Whereabouts
from tflaunch.features.kubernetes.kubectl import KubectlError, KubernetesPlan, cluster_of, made_in
from tflaunch.features.kubernetes.pod_state import PodWait
from tflaunch.features.kubernetes.run_archive import add_file
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan, SecretSource
from tflaunch.private_files import user_name
from tflaunch.runtime import launch
from tflaunch.runtime.run_config import SpecOrder
from tflaunch.store.run_dir import RunDirectory

_BETWEEN_LOOKS = 1.0
_CREATE_PATIENCE = 120.0  # seconds for an order to be sent
_NO_TFLAUNCH = "executable file not found"


def start_in_cluster(launching: Launching) -> int:
    """Start a run supervised in its cluster; return 0 once tasks run, else exit code.

    Raises:
        TflaunchError: the run cannot begin; nothing of it is left in the cluster.
    """
    options, plan = launching.options, launching.plan
    assert plan is not None
    flags = ["--log-dir"] if options.log_dir is not None else []
    flags += [flag_of(name) for name in options.extras]
    if flags:
        raise click.UsageError(
            f"{flags[0]} needs the supervisor on this machine, and -d has it in the cluster; leave out one of them"
        )
    with launch.new_directory(plan, None, launching.suffix, launching.spec) as directory:
        exit_code = _start(plan, directory, options.quiet)
    if exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _start(plan: Plan, directory: RunDirectory, is_quiet: bool) -> int:
    path, run = directory.path, directory.run
    plan = pods.for_run(plan, run)
    planned = cluster_of(plan)
    if plan.checkpoints is not None and planned.run_volume is None:
        say(
            "warning: the copies of checkpoints are lost with the launcher's pod; name a PersistentVolumeClaim as"
            " kubernetes.run_volume"
        )
    try:
        cluster = kubectl.pinned(planned)
        parts = cluster_objects.split_order(_order(plan, cluster, directory))
        cluster_runs.write_note(path, cluster)  # before, since an interrupted kubectl may have created the Job
        owner = _create_job(cluster, directory, len(parts))
        cluster_runs.write_note(path, cluster)  # a command that saw no Job has removed it
        cluster_objects.create_owned(plan._replace(made_hosts=made_in(cluster)), run, owner)
        items = cluster_objects.owned(cluster, run, parts, owner, cluster_objects.pods_of(cluster))
        things = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        kubectl.run_kubectl(cluster, "create", "--filename=-", given=things, patience=_CREATE_PATIENCE)
        job = cluster_objects.launcher_name(cluster)
        kubectl.run_kubectl(cluster, "patch", "job", job, "--type=merge", '--patch={"spec":{"parallelism":1}}')
        return _wait_until_running(path, cluster, is_quiet)
    except BaseException as error:
        if (pinned := cluster_runs.read_note(path)) is not None:
            cluster_runs.delete(path, pinned, say)
            cluster_runs.remove_note(path)
        if isinstance(error, KubectlError):
            message = f"Kubernetes does not start the launcher: {error}; {cluster_objects.REMEDY}"
            raise TflaunchError(message, EXIT_PREFLIGHT) from None
        raise


def _order(plan: Plan, cluster: KubernetesPlan, directory: RunDirectory) -> bytes:
    """Encode the order: a line with plan and secrets, and an archive of spec and code."""
    values = {name: value or "" for name, value in read_secrets(plan.secrets).items()}
    code = launch.code_for_hosts(plan)
    if "records" in features():
        from tflaunch.features.records import run_record  # another feature, which may be gone

        run_record.write(directory.path, plan)  # of the code as it is here
    there = cluster._replace(objects="", context=None, config=None)
    sources = {name: SecretSource(env=name) for name in plan.secrets}
    ordered = serialize.as_json(plan._replace(made_hosts=made_in(there), secrets=sources))
    files = [] if code is None else code.export(directory.path)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", dereference=True) as archive:
        for path in sorted(path for path in directory.path.iterdir() if path.is_file()):
            add_file(archive, path, path.name)
        for path, name in files:
            add_file(archive, path, name)
    order = (
        json.dumps({"version": __version__, "plan": ordered, "secrets": values}).encode() + b"\n" + packed.getvalue()
    )
    if len(order) > cluster_objects.MOST_ORDERED:
        raise TflaunchError(
            f"the code of the run has {len(order) / 1e6:.1f} MB when packed, more than the"
            f" {cluster_objects.MOST_ORDERED / 1e6:.0f} MB that a launcher in the cluster can begin with; leave files"
            " out with sync.exclude, put them into the image, or run without -d",
            EXIT_USAGE,
        )
    return order


def _create_job(cluster: KubernetesPlan, directory: RunDirectory, parts: int) -> dict[str, str]:
    job = cluster_objects.job(cluster, directory.run, parts, user_name(os.geteuid()))
    try:
        made = kubectl.run_for_json(cluster, "create", "--filename=-", given=json.dumps(job))
    except KubectlError:
        cluster_runs.remove_note(directory.path)  # there is nothing to withdraw
        raise
    with kubectl.readable_answer():
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": made["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }


def _wait_until_running(path: Path, cluster: KubernetesPlan, is_quiet: bool) -> int:
    """Show messages until the run's tasks run; return 0, or its exit code if it ended."""
    wait = PodWait(cluster.pending, lambda reason, _: say(f"the launcher: {reason}"))
    command = ["launcher", "await-start", path.name, *(["--quiet"] if is_quiet else [])]
    while True:
        state = cluster_runs.look_at(cluster, path.name)
        if state.where is Whereabouts.LIVE:
            done = cluster_runs.execute(cluster, state.pod, command)
            if not done.failure and done.exit_code == 0 and cluster_runs.look_at(cluster, path.name).is_begun:
                return 0  # a kubectl that has lost its connection may say so, too
        if state.where in (Whereabouts.KEPT, Whereabouts.OVER) and state.exit_code is not None:
            cluster_runs.bring_home(path, cluster, state, say)
            return state.exit_code
        if state.where is Whereabouts.DELETED:
            raise TflaunchError(f"the Job of run {path.name} was deleted", EXIT_INTERNAL)
        if state.where in (Whereabouts.STARTING, Whereabouts.OVER):
            _require_startable(cluster, state)
            if problem := wait.note(state.reason, state.reason, state.is_held):
                raise TflaunchError(f"the launcher: {problem}", EXIT_PREFLIGHT)
        time.sleep(_BETWEEN_LOOKS)


def _require_startable(cluster: KubernetesPlan, state: LauncherState) -> None:
    """Raise a `TflaunchError` if the supervisor's pod may not run any more."""
    if _NO_TFLAUNCH in state.failure:
        message = (
            f"image {cluster.launcher!r} has no tflaunch, and with -d the supervisor runs in the cluster; name an"
            " image with tflaunch and kubectl as kubernetes.launcher_image, or run without -d"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)
    if state.failure and not state.is_begun:
        raise TflaunchError(f"the launcher does not start: {state.failure}", EXIT_PREFLIGHT)


def problems_on_cluster(file: SpecFile, order: SpecOrder) -> list[Problem]:
    """Return the problems of a spec, and what its cluster would refuse.

    Raises:
        SpecError: the spec is invalid anywhere.
        TflaunchError: the cluster does not answer.
    """
    spec, problems = prepare.read_spec(file, order.settings, order.name, order.command, is_offline=True)
    planned = cluster_of(prepare.make_plan(Path(order.directory), spec))
    try:
        cluster = kubectl.pinned(planned)
        if missing := _namespace(cluster):
            return [*problems, missing]
        missing_here, missing_there = kubectl.missing_permissions(cluster)
        for permission in missing_here:
            message = f"you may not {permission} in it"
            problems.append(Problem.error("kubernetes.namespace", message, "ask its administrator for a Role with it"))
        if missing_there:
            message = f"with -d you may not {', '.join(missing_there)} in it"
            hint = "ask for a Role with it; no account is made if kubernetes.pod.serviceAccountName names yours"
            problems.append(Problem("warning", "kubernetes.namespace", message, hint))
        return problems
    except KubectlError as error:
        message = f"Kubernetes cannot be asked: {error}; {cluster_objects.REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None


def _namespace(cluster: KubernetesPlan) -> Problem | None:
    """Return the problem of a missing namespace; None if it exists or cannot be read."""
    if cluster.namespace is None:
        return None
    try:
        kubectl.run_kubectl(cluster, "get", "namespace", cluster.namespace, "--output=name")
    except KubectlError as error:
        if "NotFound" not in str(error):
            return None
        message = f"{cluster.namespace!r} does not exist in context {cluster.context!r}"
        hint = f"correct it, or create it: kubectl create namespace {cluster.namespace}"
        return Problem.error("kubernetes.namespace", message, hint)
    return None
