"""Create the Kubernetes objects of a run, and delete them after its end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import EXIT_PREFLIGHT, Problem, TflaunchError
from tflaunch.features.kubernetes import kubectl, pods
from tflaunch.features.kubernetes.cluster import KubernetesPlan, cluster_of, made_in
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError
from tflaunch.features.kubernetes.pod_connectors import PodConnectors
from tflaunch.plan.host_maker import HostMaker
from tflaunch.plan.model import Plan, is_made

_DELETE_PATIENCE = 120.0  # seconds for Kubernetes to take a request
REMEDY = 'see that `kubectl get pods` works here, and that "kubernetes" and "container" of the spec fit'


class PodHosts(HostMaker):
    """Makes a pod for each task."""

    def find_problems(self, spec: Spec) -> list[Problem]:
        """Return the problems that a spec has with pods."""
        return list(pods.problems(spec))

    def place_tasks(self, spec: Spec) -> Spec:
        """Return the spec with a pod as the host of every task and sidecar."""
        return pods.placed(spec)

    def plan_hosts(self, spec: Spec, plan: Plan) -> Plan:
        """Return the plan with the objects for the pods of its processes."""
        return pods.with_cluster(spec, plan)

    def require_permissions(self, plan: Plan) -> None:
        """Check that the user may do what a run needs.

        Raises:
            TflaunchError: a permission is missing, or Kubernetes does not answer.
        """
        try:
            missing = kubectl.missing_permissions(cluster_of(plan))
        except KubectlError as error:
            raise TflaunchError(f"your permissions cannot be checked: {error}; {REMEDY}", EXIT_PREFLIGHT) from None
        if missing:
            message = f"you may not do this in the namespace: {', '.join(missing)}"
            raise TflaunchError(f"{message}; ask its administrator for a Role with it", EXIT_PREFLIGHT)

    def create_hosts(self, plan: Plan, run: str) -> Plan:
        """Create the objects, unless another process does; return the completed plan.

        Raises:
            TflaunchError: Kubernetes cannot be reached, or refuses them.
        """
        is_ours = cluster_of(plan).objects
        return create_owned(pods.for_run(plan, run), run) if is_ours else plan

    @contextmanager
    def deleted_after(self, plan: Plan, run: str, say: Callable[[str], None]) -> Iterator[None]:
        """Delete these objects on exit."""
        cluster = cluster_of(plan)
        try:
            yield
        finally:
            try:
                delete_objects(cluster, run)
            except (KubectlError, KeyboardInterrupt) as error:
                words = ("delete", "statefulsets,services", f"--selector={RUN_LABEL}={run}")
                command, why = shlex.join(cluster.command(*words)), str(error) or "interrupted"
                say(f"warning: the pods of {run} were not deleted: {why}; `{command}` deletes them")

    def connectors_for(self, plan: Plan, run: str) -> dict[str, Any]:
        """Return the connector of each pod."""
        hosts = [host for host in plan.hosts if is_made(host.engine)]
        connectors = PodConnectors(cluster_of(plan), run, hosts, plan.timeouts.connect)
        return {host.host: connectors.connector_to(host) for host in hosts}


def create_owned(plan: Plan, run: str, owner: Mapping[str, str] | None = None) -> Plan:
    """Create a plan's objects after `pods.for_run`; return it with its cluster pinned.

    They are deleted with the object to which ``owner`` refers, if one is given.

    Raises:
        TflaunchError: Kubernetes cannot be reached, or refuses them.
    """
    try:
        cluster = kubectl.pinned(cluster_of(plan))
        things = [_completed(thing) for thing in json.loads(cluster.objects)]
        try:
            for thing in things if owner else ():
                thing["metadata"]["ownerReferences"] = [owner]
            together = {"apiVersion": "v1", "kind": "List", "items": things}
            templates = [thing["spec"]["template"]["spec"] for thing in things if "template" in thing["spec"]]
            has_fields_of_users = any(not pods.OWN_FIELDS.issuperset(template) for template in templates)
            check = f"--validate={json.dumps(has_fields_of_users)}"  # it takes kubectl longer than the rest
            kubectl.run_kubectl(cluster, "create", check, "--filename=-", given=json.dumps(together))
        except BaseException:
            delete_objects(cluster, run)  # an interrupted kubectl may have created some
            raise
    except KubectlError as error:
        message = f"Kubernetes does not make the pods: {error}; {REMEDY}"
        raise TflaunchError(message, EXIT_PREFLIGHT) from None
    return plan._replace(made_hosts=made_in(cluster))


def _completed(thing: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the program of its pods."""
    template = thing["spec"].get("template")
    if template is not None:
        source = Path(__file__).with_name("first_process.py").read_text(encoding="utf-8")
        template["spec"]["containers"][0]["command"] += ["-E", "-s", "-S", "-c", f"{source}\n\nmain()"]
    return thing


def delete_objects(cluster: KubernetesPlan, run: str, kinds: str = "statefulsets,services,pods") -> None:
    """Ask Kubernetes to delete a run's objects, which takes a while after tasks end.

    Raises:
        KubectlError: Kubernetes did not take the request in time.
    """
    command = ("delete", kinds, f"--selector={RUN_LABEL}={run}", "--ignore-not-found", "--wait=false")
    kubectl.insist(lambda: kubectl.run_kubectl(cluster, *command), _DELETE_PATIENCE)
