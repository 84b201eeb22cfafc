"""Create the objects of a run in a Kubernetes cluster, and delete them when the run has ended."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.kubernetes import kubectl, pods
from tflaunch.features.kubernetes.cluster import KubernetesPlan, cluster_of, made_in
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError
from tflaunch.plan.model import Plan

_KINDS = "statefulsets,services,pods"
_DELETE_PATIENCE = 120.0  # seconds for Kubernetes to take a request
_BETWEEN_TRIES = 2.0  # seconds
REMEDY = 'see that `kubectl get pods` works here, and that "kubernetes" and "container" of the spec fit'


def create(plan: Plan, run: str) -> Plan:
    """Create the objects from which Kubernetes makes the pods of a run; return the plan with its cluster and pods.

    Raises:
        TflaunchError: Kubernetes cannot be reached, or refuses them.
    """
    return create_owned(pods.for_run(plan, run), run)


def create_owned(plan: Plan, run: str, owner: Mapping[str, str] | None = None) -> Plan:
    """Create the objects of a plan that `pods.for_run` has returned, and return it with its cluster pinned.

    They are deleted with the object to which ``owner`` refers, if one is given. Errors are those of `create`.
    """
    try:
        cluster = kubectl.pinned(cluster_of(plan))
        things = [_completed(thing) for thing in json.loads(cluster.objects)]
        try:
            for thing in things if owner else ():
                thing["metadata"]["ownerReferences"] = [owner]
            together = {"apiVersion": "v1", "kind": "List", "items": things}
            check = f"--validate={json.dumps(_has_fields_of_users(things))}"  # it takes kubectl longer than the rest
            kubectl.run_kubectl(cluster, "create", check, "--filename=-", given=json.dumps(together))
        except BaseException:
            delete_objects(cluster, run)  # an interrupted kubectl may have created some
            raise
    except KubectlError as error:
        message = f"Kubernetes does not make the pods: {error}; {REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    return plan._replace(made_hosts=made_in(cluster))


def _has_fields_of_users(things: Iterable[Mapping[str, Any]]) -> bool:
    templates = [thing["spec"]["template"]["spec"] for thing in things if "template" in thing["spec"]]
    return any(not pods.OWN_FIELDS.issuperset(template) for template in templates)


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


def _completed(thing: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the program of its pods."""
    template = thing["spec"].get("template")
    if template is not None:
        source = Path(__file__).with_name("first_process.py").read_text(encoding="utf-8")
        template["spec"]["containers"][0]["command"] += ["-E", "-s", "-S", "-c", f"{source}\n\nmain()"]
    return thing


@contextmanager
def deleted_after(cluster: KubernetesPlan, run: str, say: Callable[[str], None]) -> Iterator[None]:
    """Delete the objects of a run on exit."""
    try:
        yield
    finally:
        try:
            delete_objects(cluster, run)
        except (KubectlError, KeyboardInterrupt) as error:
            command = shlex.join(cluster.command("delete", "statefulsets,services", f"--selector={RUN_LABEL}={run}"))
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
    """Ask Kubernetes to delete the objects of a run, which takes it a while after their tasks have ended.

    Raises:
        KubectlError: Kubernetes did not take the request in time.
    """
    end = time.monotonic() + _DELETE_PATIENCE
    selector = f"--selector={RUN_LABEL}={run}"
    while True:
        try:
            kubectl.run_kubectl(cluster, "delete", _KINDS, selector, "--ignore-not-found", "--wait=false")
            return
        except KubectlError:
            if time.monotonic() + _BETWEEN_TRIES >= end:
                raise
        time.sleep(_BETWEEN_TRIES)
