"""Create the objects of a run in a Kubernetes cluster, and delete them when the run has ended."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tflaunch_worker
from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.kubernetes import kubectl
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError
from tflaunch.plan.model import KubernetesPlan, Plan

_KINDS = "statefulsets,services,pods"
_DELETE_PATIENCE = 120.0  # seconds for Kubernetes to take a request
_END_PATIENCE = 5.0  # seconds for pods to be gone, in which no task runs any more
_BETWEEN_TRIES = 2.0  # seconds
REMEDY = 'see that `kubectl get pods` works here, and that "kubernetes" and "container" of the spec fit'
_IN_USE = "AlreadyExists"


def create(plan: Plan, run: str, owner: Mapping[str, str] | None = None) -> Plan:
    """Create the objects from which Kubernetes makes the pods of a run; return the plan with its cluster pinned.

    ``owner`` is a reference to the object with which they are deleted, if there is one.

    Raises:
        TflaunchError: Kubernetes cannot be reached, or refuses them.
    """
    assert plan.kubernetes is not None
    try:
        cluster = kubectl.pinned(plan.kubernetes)
        service, *sets = (_completed(thing, run) for thing in json.loads(cluster.objects))
        if owner is not None:
            service["metadata"]["ownerReferences"] = [dict(owner)]
        made = _create_service(cluster, service, run)
        try:
            with kubectl.readable_answer():
                uid = made["metadata"]["uid"]
            owner = {"apiVersion": "v1", "kind": "Service", "name": cluster.name, "uid": uid}
            for thing in sets:
                thing["metadata"]["ownerReferences"] = [owner]
            things = {"apiVersion": "v1", "kind": "List", "items": sets}
            kubectl.run_kubectl(cluster, "create", "--filename=-", given=json.dumps(things))
        except BaseException:
            delete_objects(cluster, run)
            raise
    except KubectlError as error:
        message = f"Kubernetes does not make the pods: {error}; {REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    return plan._replace(kubernetes=cluster)


def _create_service(cluster: KubernetesPlan, service: dict[str, Any], run: str) -> dict[str, Any]:
    try:
        return kubectl.run_for_json(cluster, "create", "--filename=-", given=json.dumps(service))
    except KubectlError as error:
        raise _refused(cluster, error) from None
    except BaseException:
        delete_objects(cluster, run)  # an interrupted kubectl may have created it
        raise


def require_permissions(cluster: KubernetesPlan) -> None:
    """Check that the user may do what a run needs.

    Raises:
        TflaunchError: a permission is missing, or Kubernetes does not answer.
    """
    try:
        missing = kubectl.missing_permissions(cluster)
    except KubectlError as error:
        raise TflaunchError(f"your permissions cannot be checked: {error}; {REMEDY}", EXIT_PREFLIGHT) from None
    if missing:
        message = (
            f"you may not do this in the namespace: {', '.join(missing)}; ask its administrator for a Role with it"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)


def _completed(thing: dict[str, Any], run: str) -> dict[str, Any]:
    """Return an object with the name of its run, and the program of its pods."""
    thing["metadata"]["labels"][RUN_LABEL] = run
    template = thing["spec"].get("template")
    if template is not None:
        template["metadata"]["labels"][RUN_LABEL] = run
        source = Path(tflaunch_worker.__file__).with_name("pod.py").read_text(encoding="utf-8")
        template["spec"]["containers"][0]["command"] += ["-E", "-s", "-S", "-c", f"{source}\n\nmain()"]
    return thing


def _refused(cluster: KubernetesPlan, error: KubectlError) -> Exception:
    """Return the error for a Service that cannot be made: there may be one of another run of the job."""
    if _IN_USE not in str(error):
        return error
    try:
        found = kubectl.run_for_json(cluster, "get", "service", cluster.name)
        with kubectl.readable_answer():
            run = found["metadata"].get("labels", {}).get(RUN_LABEL)
    except KubectlError:
        return error
    if run is None:
        return KubectlError(f"Service {cluster.name} exists, and does not belong to tflaunch; choose another --name")
    command = shlex.join(cluster.command("delete", "service", cluster.name))
    return KubectlError(
        f"run {run} has its pods there; end it (`tflaunch down {run}`), choose another --name, or delete what it left"
        f" (`{command}`)"
    )


@contextmanager
def deleted_after(cluster: KubernetesPlan, run: str, say: Callable[[str], None]) -> Iterator[None]:
    """Delete the objects of a run on exit."""
    try:
        yield
    finally:
        try:
            delete_objects(cluster, run)
        except (KubectlError, KeyboardInterrupt) as error:
            command = shlex.join(cluster.command("delete", "service", cluster.name))
            why = str(error) or "interrupted"
            say(f"warning: the pods of {run} were not deleted: {why}; `{command}` deletes them")


def delete_pods(cluster: KubernetesPlan, run: str) -> None:
    """Ask Kubernetes to delete the pods of a run's tasks, and to make new ones.

    Raises:
        KubectlError: Kubernetes did not take the request.
    """
    selector = f"--selector={RUN_LABEL}={run}"
    kubectl.run_kubectl(cluster, "delete", "pods", selector, "--ignore-not-found", "--wait=false")


def delete_objects(cluster: KubernetesPlan, run: str) -> None:
    """Delete the objects of a run, and wait a few seconds until its pods are gone.

    Raises:
        KubectlError: Kubernetes did not take the request in time.
    """
    end = time.monotonic() + _DELETE_PATIENCE
    selector = f"--selector={RUN_LABEL}={run}"
    while True:
        try:
            kubectl.run_kubectl(cluster, "delete", _KINDS, selector, "--ignore-not-found", "--wait=false")
            break
        except KubectlError:
            if time.monotonic() + _BETWEEN_TRIES >= end:
                raise
        time.sleep(_BETWEEN_TRIES)
    try:
        kubectl.run_kubectl(cluster, "wait", "pods", selector, "--for=delete", f"--timeout={_END_PATIENCE:g}s")
    except KubectlError:
        pass  # they are gone already, or Kubernetes takes longer
