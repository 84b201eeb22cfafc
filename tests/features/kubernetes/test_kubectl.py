"""Calls of kubectl, with a program in its place: where it runs, what it is given, and what is said when it fails."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.signals import SOME_ENDING
from support.specs import clustered
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import TflaunchError
from tflaunch.features.kubernetes import cluster_objects, cluster_runs, kubectl
from tflaunch.features.kubernetes.cluster_launch import problems_on_cluster
from tflaunch.features.kubernetes.cluster_objects import PodHosts
from tflaunch.features.kubernetes.cluster_runs import find_runs
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubectlError, KubernetesPlan, cluster_of, made_in
from tflaunch.private_files import user_name
from tflaunch.runtime.run_config import SpecOrder
from tflaunch_worker.readable import signal_name

OBJECTS = [
    {"kind": "Service", "metadata": {"name": "job", "labels": {"a": "b"}}, "spec": {"selector": {"a": "b"}}},
    {"kind": "StatefulSet", "metadata": {"name": "job-worker", "labels": {}}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"tflaunch/group": "job-worker"}},
        "template": {"metadata": {"labels": {}}, "spec": {"containers": [{"command": ["python3"]}]}},
    }},
]  # fmt: skip
CLUSTER = KubernetesPlan("job", json.dumps(OBJECTS), 60.0, namespace="team")
RUN = "job-20260102-030405-6789"
VIEW = {"contexts": [{"name": "lab", "context": {"namespace": "own"}}]}
FAKE = f"""#!{sys.executable}
import json, os, sys
place = os.path.dirname(__file__)
words = [word for word in sys.argv[1:] if not word.startswith(("--context", "--namespace", "--output"))]
given = sys.stdin.read()
with open(os.path.join(place, "calls"), "a") as calls:
    calls.write(json.dumps([sys.argv[1:], given]) + "\\n")
if given and json.loads(given)["kind"] == "List":
    words.append("list")
answers = json.load(open(os.path.join(place, "answers")))
code, out, err = next(answer for start, answer in answers if " ".join(words).startswith(start))
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Kubectl:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "kubectl").write_text(FAKE)
        (directory / "kubectl").chmod(0o755)

    def answers(self, *answers: tuple[str, int, str, str]) -> None:
        """Answer commands that start so with this exit code, output and error output."""
        (self._directory / "answers").write_text(json.dumps([(start, rest) for start, *rest in answers]))

    def calls(self) -> list[tuple[list[str], str]]:
        lines = (self._directory / "calls").read_text().splitlines()
        return [(words, given) for words, given in map(json.loads, lines)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """Find it before any other."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return Kubectl(tmp_path)


PLAN = clustered({"worker": 1})._replace(made_hosts=made_in(CLUSTER))
VIEWED = ("config view", 0, json.dumps(VIEW), "")
MADE = ("create", 0, "", "")


def test_context_and_namespace_are_pinned(fake: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers(VIEWED)
    pinned = kubectl.pinned(CLUSTER)
    assert (pinned.context, pinned.namespace, pinned.config) == ("lab", "team", None)
    assert kubectl.pinned(CLUSTER._replace(namespace=None)).namespace == "own"
    monkeypatch.setenv("KUBECONFIG", f"a.conf{os.pathsep}/b.conf")
    assert kubectl.pinned(CLUSTER).config == f"{Path.cwd()}/a.conf{os.pathsep}/b.conf"
    command = kubectl.exec_command(CLUSTER._replace(context="lab", config="/a.conf"), "pod")
    assert command[:5] == ["env", "KUBECONFIG=/a.conf", "kubectl", "--context=lab", "--namespace=team"]
    assert command[5:] == ["exec", "--stdin", "pod", "--container=tensorflow", "--"]
    fake.answers(("config view", 0, '{"contexts": [{"context": null}]}', ""))
    with pytest.raises(KubectlError, match="its answer has an unexpected form"):
        kubectl.pinned(CLUSTER._replace(namespace=None))


def test_objects_have_their_run_and_the_program(fake: Kubectl) -> None:
    """What Kubernetes refuses leaves nothing."""
    fake.answers(VIEWED, MADE)
    plan = PodHosts().create_hosts(PLAN, RUN)
    assert cluster_of(plan).context == "lab"
    _, (_, created) = fake.calls()
    service, workers = json.loads(created)["items"]
    assert service["metadata"] == {"name": "job-6789", "labels": {"a": "b", RUN_LABEL: RUN}}
    assert workers["spec"]["template"]["metadata"]["labels"] == {RUN_LABEL: RUN}
    command = workers["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:-1] == ["python3", "-E", "-s", "-S", "-c"]
    assert command[-1].endswith("\nmain()")
    compile(command[-1], "pod", "exec")
    refused = 'error validating data: unknown field "nodSelector"; if you choose to ignore these errors, turn it off'
    fake.answers(VIEWED, ("create --validate=false --filename=- list", 1, "", refused), ("delete", 0, "", ""))
    with pytest.raises(TflaunchError, match=r'unknown field "nodSelector"; see that `kubectl get pods` works here'):
        PodHosts().create_hosts(PLAN, RUN)
    assert [words for words, _ in fake.calls() if f"--selector={RUN_LABEL}={RUN}" in words and "delete" in words]


def problems(directory: Path) -> list[str]:
    """Return what `check` tells of a spec in a namespace."""
    data = {"cluster": {"worker": 1}, "command": ["x"], "workdir": "/code", "container": {"image": "i"}}
    text = json.dumps({**data, "strategy": "none", "kubernetes": {"namespace": "team"}})
    file = SpecFile("spec", directory, ".json", text)
    return [each.sentence() for each in problems_on_cluster(file, SpecOrder(str(directory), ".json"))]


def test_what_a_cluster_would_refuse_is_told_before(fake: Kubectl, tmp_path: Path) -> None:
    """A missing namespace, missing permissions, or that nobody answers."""
    there, allowed = ("get namespace", 0, "namespace/team", ""), ("auth can-i", 0, "yes\n", "")
    fake.answers(VIEWED, there, ("auth can-i create pods/exec", 1, "no\n", ""), allowed)
    assert kubectl.missing_permissions(CLUSTER) == (["create pods/exec"], [])
    (problem,) = problems(tmp_path)
    assert problem.startswith("kubernetes.namespace: you may not create pods/exec in it; ask its administrator")
    fake.answers(VIEWED, there, ("auth can-i create roles", 1, "no\n", ""), allowed)
    (problem,) = problems(tmp_path)
    assert problem.startswith("kubernetes.namespace: with -d you may not create roles.rbac.authorization.k8s.io in it")
    fake.answers(VIEWED, ("get namespace", 1, "", "Error from server (NotFound): namespaces"))
    (problem,) = problems(tmp_path)
    assert problem.startswith("kubernetes.namespace: 'team' does not exist in context 'lab'; correct it, or create it")
    fake.answers(VIEWED, there, ("auth can-i", 1, "", "The connection to the server x was refused"))
    with pytest.raises(TflaunchError, match="Kubernetes cannot be asked: The connection to the server x was refused"):
        problems(tmp_path)


def test_a_machine_without_kubectl(fake: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "kubectl").chmod(0o644)
    for place, said in (
        (tmp_path / "empty", "`kubectl` is not installed here, or not on the PATH; install it"),
        (tmp_path, "`kubectl` cannot be run: Permission denied"),
    ):
        monkeypatch.setenv("PATH", str(place))
        with pytest.raises(KubectlError, match=said):
            kubectl.run_kubectl(CLUSTER, "get", "pods")


PARENT = """
signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # as `main` does, which may begin after the child
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), os.write(1, b"saved"), os._exit(0)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.write(1, b"ready ")
    while True:
        signal.pause()
"""


@pytest.mark.parametrize("number", [*SOME_ENDING, signal.SIGINT, signal.SIGHUP], ids=signal_name)
def test_the_first_process_of_a_pod_lets_its_children_end(number: int) -> None:
    """They get TERM, and it stays until they have ended; an image may have chosen another signal (STOPSIGNAL)."""
    source = Path(kubectl.__file__).with_name("first_process.py").read_text()
    program = f"{source.replace('_LAST_OUTPUT = 2.0', '_LAST_OUTPUT = 0.0')}\n{PARENT}\nmain()"
    process: Any = subprocess.Popen([sys.executable, "-E", "-s", "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.read(6) == b"ready "
    process.send_signal(number)
    rest, _ = process.communicate(timeout=300)
    assert (rest, process.returncode) == (b"saved", 0)


def test_runs_are_found_by_their_user(fake: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "home"))
    own = cluster_objects.job(CLUSTER._replace(config="/theirs"), RUN, 1, user_name(os.geteuid()))
    ending = {"metadata": {"deletionTimestamp": "now"}}
    label = cluster_objects.USER_LABEL
    selected = f"get jobs --selector={label}={own['metadata']['labels'][label]}"
    fake.answers(VIEWED, (selected, 0, json.dumps({"items": [own, ending]}), ""))
    for _ in ("not known here", "known"):
        assert find_runs(["kubernetes.namespace=team"]) == [tmp_path / "home" / "runs" / RUN]
    note = cluster_runs.read_note(tmp_path / "home" / "runs" / RUN)
    assert note == CLUSTER._replace(objects="", context="lab")
