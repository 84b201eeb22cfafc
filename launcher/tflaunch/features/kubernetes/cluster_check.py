"""Check a cluster before pods exist: namespace and rights."""

from pathlib import Path

from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_PREFLIGHT, Problem, TflaunchError
from tflaunch.features.kubernetes import cluster_objects, kubectl
from tflaunch.features.kubernetes.kubectl import KubectlError, KubernetesPlan, cluster_of
from tflaunch.runtime.run_config import SpecOrder


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
