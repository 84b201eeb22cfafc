"""Call kubectl for the cluster of a plan, with the user's own configuration."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from tflaunch import records
from tflaunch.plan.model import MadeHosts, Plan, Seconds
from tflaunch_worker.readable import duration_words, exit_words, printable

NAME = "kubernetes"
"""The engine of hosts that are pods, and the field of specs for them."""

POD_CONTAINER = "tensorflow"
"""The container of a pod in which its task runs."""
_Answer = TypeVar("_Answer")

RUN_LABEL = "tflaunch/run"
"""The label with the name of the run to which an object of Kubernetes belongs."""

_PATIENCE = 30.0  # seconds
_BETWEEN_TRIES = 1.0
_AT_A_TIME = 4  # questions about permissions
_LONGEST = 600  # characters of an error
_ADVICE = "; if you choose to ignore these errors"
_NEEDED = (
    *((verb, kind) for kind in ("services", "statefulsets.apps") for verb in ("create", "get", "list", "delete")),
    *((verb, "pods") for verb in ("get", "list", "delete")),
    ("create", "pods/exec"),
)
_OF_SUPERVISOR = (
    *((verb, "jobs.batch") for verb in ("create", "get", "list", "patch", "delete")),
    ("create", "secrets"),
)
_RBAC = ".rbac.authorization.k8s.io"
_OF_ACCOUNT = (("create", "serviceaccounts"), ("create", f"roles{_RBAC}"), ("create", f"rolebindings{_RBAC}"))
_PREFIXES = ("error: ", "Error from server ")


class KubernetesPlan(NamedTuple):
    """A plan's cluster, whose pods are its hosts, and the objects that make them.

    ``name`` is that of the Service that owns the others; ``objects`` is their JSON, "" if they exist; ``pending``: the
    limit for a pod to run, in seconds. ``context``, ``namespace`` and ``config`` (KUBECONFIG) are for kubectl, None for
    its default. Of a supervisor in the cluster: ``launcher`` is the image, ``run_volume`` the PersistentVolumeClaim
    with its run directories, if there is one, and ``keep`` how long its pod keeps the directory of a run that has
    ended, in seconds; ``supervisor`` is the JSON of what the user says of its Job: labels, annotations, pod, container.
    ``is_checked``: kubectl checks the objects, whose fields the user may have misspelt.
    """

    name: str
    objects: str
    pending: Seconds
    context: str | None = None
    namespace: str | None = None
    config: str | None = None
    launcher: str | None = None
    run_volume: str | None = None
    keep: Seconds = 0.0
    supervisor: str = "{}"
    is_checked: bool = False

    def command(self, *arguments: str) -> list[str]:
        """Return the argv of a kubectl command for this cluster and namespace."""
        argv = [] if self.config is None else ["env", f"KUBECONFIG={self.config}"]
        argv.append("kubectl")
        argv += [] if self.context is None else [f"--context={self.context}"]
        argv += [] if self.namespace is None else [f"--namespace={self.namespace}"]
        return [*argv, *arguments]


def cluster_of(plan: Plan) -> KubernetesPlan:
    """Return the cluster of a plan whose hosts are pods."""
    assert plan.made_hosts is not None
    return records.read_record(KubernetesPlan, plan.made_hosts.data)._replace(pending=plan.made_hosts.limit)


def made_in(cluster: KubernetesPlan) -> MadeHosts:
    """Read the part of a plan about hosts that are pods."""
    forward = tuple(cluster.command("port-forward"))
    return MadeHosts(NAME, records.as_json(cluster), cluster.pending, forward, by_another=not cluster.objects)


class KubectlError(Exception):
    """Raised when a kubectl command fails; the message is one sentence."""


def insist(ask: Callable[[], _Answer], patience: float) -> _Answer:
    """Return the result of ``ask``, tried for ``patience`` seconds, or its error."""
    end = time.monotonic() + patience
    while True:
        try:
            return ask()
        except KubectlError:
            if time.monotonic() + _BETWEEN_TRIES >= end:
                raise
        time.sleep(_BETWEEN_TRIES)


def exec_command(cluster: KubernetesPlan, pod: str) -> list[str]:
    """Return the argv prefix of a command in a pod, connected to stdin and stdout."""
    return cluster.command("exec", "--stdin", pod, f"--container={POD_CONTAINER}", "--")


def run_kubectl(cluster: KubernetesPlan, *arguments: str, given: str = "", patience: float = _PATIENCE) -> str:
    """Return the output of a kubectl command; ``patience`` is its limit in seconds.

    Raises:
        KubectlError: it cannot be run, or fails.
    """
    done = _run(cluster, arguments, given, patience)
    if done.returncode != 0:
        raise KubectlError(_reason(done.stderr) or f"`kubectl {arguments[0]}` {exit_words(done.returncode)}")
    return done.stdout


def _run(
    cluster: KubernetesPlan, arguments: tuple[str, ...], given: str = "", patience: float = _PATIENCE
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            cluster.command(*arguments),
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
            start_new_session=True,  # Ctrl-C is handled here
        )
    except FileNotFoundError:
        raise KubectlError("`kubectl` is not installed here, or not on the PATH; install it") from None
    except OSError as error:
        raise KubectlError(f"`kubectl` cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise KubectlError(f"`kubectl {arguments[0]}` did not end within {duration_words(patience)}") from None


def run_for_json(
    cluster: KubernetesPlan, *arguments: str, given: str = "", patience: float = _PATIENCE
) -> dict[str, Any]:
    """Return a kubectl command's JSON; arguments and errors as in `run_kubectl`."""
    return parse_answer(arguments[0], run_kubectl(cluster, *arguments, "--output=json", given=given, patience=patience))


def parse_answer(command: str, printed: str) -> dict[str, Any]:
    """Return the object that a command has printed, or raise `KubectlError`."""
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise KubectlError(f"`kubectl {command}` did not print JSON: {error}") from None
    if not isinstance(found, dict):
        raise KubectlError(f"`kubectl {command}` did not print an object")
    return found


@contextmanager
def readable_answer() -> Iterator[None]:
    """Turn errors of reading an answer of an unexpected form into a `KubectlError`."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise KubectlError(f"its answer has an unexpected form: {error!r:.100}") from None


def has_own_account(cluster: KubernetesPlan) -> bool:
    """Return whether the user has named the service account of the supervisor."""
    return any("serviceAccountName" in part for part in json.loads(cluster.supervisor).get("pod", ()))


def missing_permissions(cluster: KubernetesPlan) -> tuple[list[str], list[str]]:
    """Return the missing rights of a run, and of `-d` alone, as ``create pods/exec``."""

    def ask(needed: tuple[str, str]) -> subprocess.CompletedProcess[str]:
        return _run(cluster, ("auth", "can-i", *needed))

    missing: tuple[list[str], list[str]] = ([], [])
    needed = (*_NEEDED, *_OF_SUPERVISOR, *(() if has_own_account(cluster) else _OF_ACCOUNT))
    with ThreadPoolExecutor(_AT_A_TIME) as pool:  # no limit: its threads have theirs
        answers = list(pool.map(ask, needed))
    for number, ((verb, resource), done) in enumerate(zip(needed, answers, strict=True)):
        if not done.stdout.startswith(("yes", "no")):
            raise KubectlError(_reason(done.stderr) or "`kubectl auth can-i` gave no answer")
        if done.stdout.startswith("no"):
            missing[number >= len(_NEEDED)].append(f"{verb} {resource}")
    return missing


def pinned(cluster: KubernetesPlan) -> KubernetesPlan:
    """Return the cluster pinned to the context and namespace that kubectl chooses now.

    Raises:
        KubectlError: kubectl has no configuration, or not this context.
    """
    config = cluster.config or os.environ.get("KUBECONFIG") or None
    if config is not None:
        config = os.pathsep.join(os.path.abspath(path) if path else "" for path in config.split(os.pathsep))
    cluster = cluster._replace(config=config)
    if cluster.context is not None and cluster.namespace is not None:
        return cluster
    view = run_for_json(cluster, "config", "view", "--minify")
    with readable_answer():
        contexts = view.get("contexts") or []
        if not contexts:  # in a pod, kubectl finds its cluster without a configuration
            return cluster
        namespace = cluster.namespace or contexts[0].get("context", {}).get("namespace") or "default"
        return cluster._replace(context=contexts[0]["name"], namespace=namespace)


def _reason(errors: str) -> str:
    """Return the error in kubectl's output, without the parts that every error has."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = "; ".join(lines[-3:])
    for prefix in _PREFIXES:
        said = said.removeprefix(prefix)
    return printable(said.partition(_ADVICE)[0], _LONGEST)
