"""A supervisor in the cluster: its objects and state, its run as commands see it, and its directory as an archive."""

import base64
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.schemas import violations
from support.specs import DIRECTORY, MACHINE, made
from tflaunch.client import run_list, runs
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_INTERNAL, SupervisedElsewhereError, TflaunchError
from tflaunch.features.kubernetes import cluster_objects, cluster_runs, kubectl, pods
from tflaunch.features.kubernetes.cluster_runs import Executed, LauncherState, Whereabouts
from tflaunch.features.kubernetes.kubectl import RUN_LABEL, KubernetesPlan, cluster_of
from tflaunch.features.kubernetes.location import KubernetesRun
from tflaunch.features.kubernetes.run_archive import ArchiveError, unpack_archive, write_archive
from tflaunch.plan import planner
from tflaunch.store.run_dir import RunDirectory

RUN = "night-ly-20260102-030405-6789"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "night-ly-launcher", "uid": "1"}


def cluster(**fields: Any) -> KubernetesPlan:
    """Return the cluster plan of a job with a chief, two workers and a parameter server."""
    data: dict[str, Any] = {"name": "night-ly", "cluster": {"chief": 1, "worker": 2, "ps": 1}, "workdir": "/code"}
    data |= {"container": {"image": "train:1"}, "kubernetes": {"namespace": "team", **fields}}
    spec, _ = prepare.complete("spec", Path(), made({**data, "command": "python train.py"}))
    return cluster_of(pods.with_cluster(spec, planner.make_plan(spec, DIRECTORY, MACHINE)))


def objects(plan: KubernetesPlan) -> list[dict[str, Any]]:
    parts = [b"first", b"second"]
    job = cluster_objects.job(plan, RUN, len(parts), "ann")
    return [job, *cluster_objects.owned(plan, RUN, parts, OWNER, cluster_objects.pods_of(plan))]


@pytest.mark.parametrize(
    ("fields", "image", "source"),
    [
        ({}, "train:1", {"emptyDir": {}}),
        ({"launcher_image": "launcher:2", "run_volume": "runs"}, "launcher:2",
         {"persistentVolumeClaim": {"claimName": "runs"}}),
    ],
)  # fmt: skip
def test_the_job_owns_the_others_and_they_do_not_count_as_pods_of_tasks(
    fields: dict[str, str], image: str, source: dict[str, Any]
) -> None:
    """Its pod has the image and volume that are named; its Role allows only lists without names."""
    plan = cluster(**fields)
    job, *others = objects(plan)
    assert [list(violations(thing)) for thing in [job, *others, *json.loads(plan.objects)]] == [[]] * 10
    assert all(thing["metadata"]["ownerReferences"] == [OWNER] for thing in others)
    for thing in (job, *others):
        assert thing["metadata"]["labels"][cluster_objects.LAUNCHER_LABEL] == RUN
        assert RUN_LABEL not in json.dumps(thing)
        assert thing["metadata"]["labels"]["app.kubernetes.io/name"] != "night-ly"  # selected by the tasks' Service
    assert plan.launcher == image
    assert job["spec"]["template"]["spec"]["volumes"][0] == {"name": "home", **source}
    (role,) = (thing for thing in others if thing["kind"] == "Role")
    free = [rule for rule in role["rules"] if "resourceNames" not in rule]
    assert {verb for rule in free for verb in rule["verbs"]} == {"list"}
    (executing,) = (rule for rule in role["rules"] if rule["resources"] == ["pods/exec"])
    pods = ["night-ly-chief-0", "night-ly-worker-0", "night-ly-worker-1", "night-ly-ps-0"]
    assert executing["resourceNames"] == pods


def test_the_parts_of_an_order_come_in_their_order() -> None:
    job, *others = objects(cluster())
    _, order = job["spec"]["template"]["spec"]["volumes"]
    named = [(part["secret"]["name"], part["secret"]["items"][0]["path"]) for part in order["projected"]["sources"]]
    assert named == [("night-ly-launcher-0", "00"), ("night-ly-launcher-1", "01")]
    data = {thing["metadata"]["name"]: thing["data"]["part"] for thing in others if thing["kind"] == "Secret"}
    assert b"".join(base64.b64decode(data[name]) for name, _ in named) == b"firstsecond"
    long = bytes(2_000_000)
    parts = cluster_objects.split_order(long)
    assert b"".join(parts) == long
    assert max(map(len, parts)) < 1 << 20  # what a Secret may have


def _pod(name: str, made_at: str, **status: Any) -> dict[str, Any]:
    about = {"name": name, "uid": name, "creationTimestamp": made_at, "labels": {"job-name": "night-ly-launcher"}}
    conditions = [{"type": "PodScheduled", "status": "True"}]
    return {"kind": "Pod", "metadata": about, "status": {"conditions": conditions, **status}}


def _container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "tensorflow", "containerID": "c", "state": state}]


RUNNING = _pod("new", "2026-01-02T03:04:06Z", phase="Running", containerStatuses=_container(running={}))
WORDS = {"exitCode": 7, "message": "x" * 600 + "tflaunch: no kubectl\n"}
FAILED = _pod("old", "2026-01-02T03:04:05Z", phase="Failed", containerStatuses=_container(terminated=WORDS))
FAILURE = f"its container ended with code 7: {'x' * 580}tflaunch: no kubectl"
JOB: dict[str, Any] = {"kind": "Job", "metadata": {"name": "night-ly-launcher"}, "status": {}}
MARKS = {"tflaunch/begun": "1", "tflaunch/exit-code": "3", "tflaunch/ended": "2", "tflaunch/said": "no room"}
MARKED = {**JOB, "metadata": {**JOB["metadata"], "annotations": MARKS}}
FAILED_JOB = {"conditions": [{"type": "Failed", "status": "True"}]}
HAS_FAILED = "its pod has failed: its container ended with code 7 (no reason)"
SUSPENDED = {**JOB, "spec": {"suspend": True}}
HELD = "its Job is suspended, as by Kueue until there is room"
ONLY_SIDECAR = [{**_container(terminated=WORDS)[0]}, {"name": "istio-proxy", "state": {"running": {}}}]
WITH_SIDECAR = _pod("new", "2026-01-02T03:04:06Z", phase="Running", containerStatuses=ONLY_SIDECAR)
STAYS = "its container has ended, and a sidecar stays in its pod"
STATES: dict[str, tuple[list[dict[str, Any]], LauncherState]] = {
    "suspended": ([SUSPENDED], LauncherState(Whereabouts.STARTING, "", HELD, is_held=True)),
    "sidecar": ([MARKED, WITH_SIDECAR], LauncherState(Whereabouts.OVER, "", "", True, 3, "no room", FAILURE)),
    "stuck": ([JOB, WITH_SIDECAR], LauncherState(Whereabouts.STARTING, reason=STAYS, failure=FAILURE, stuck="new")),
    "live": ([JOB, RUNNING, FAILED], LauncherState(Whereabouts.LIVE, "new", failure=FAILURE)),
    "kept": ([MARKED, RUNNING], LauncherState(Whereabouts.KEPT, "new", is_begun=True, exit_code=3, said="no room")),
    "over": ([{**MARKED, "status": FAILED_JOB}], LauncherState(Whereabouts.OVER, "", "", True, 3, "no room")),
    "lost": ([{**JOB, "status": FAILED_JOB}, FAILED], LauncherState(Whereabouts.OVER, failure=FAILURE)),
    "deleted": ([RUNNING], LauncherState(Whereabouts.DELETED)),
    "no-pod": ([JOB], LauncherState(Whereabouts.STARTING, reason="its pod was not made yet")),
    "ended": ([JOB, FAILED], LauncherState(Whereabouts.STARTING, reason=HAS_FAILED, failure=FAILURE)),
}


@pytest.mark.parametrize("name", STATES)
def test_where_a_supervisor_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items, state = STATES[name]
    monkeypatch.setattr(kubectl, "run_for_json", lambda *_, **__: {"items": items})
    assert cluster_runs.look_at(cluster(), RUN) == state


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


def send(path: Path) -> Path:
    cluster_runs.write_note(path, KubernetesPlan("train", "", 60.0))
    return path


def test_a_run_is_found_by_its_mark_until_it_has_come_home(path: Path) -> None:
    location = locate_run(send(path))
    assert (type(location), location.is_live(), run_list.entry_of(path).state) == (KubernetesRun, True, "elsewhere")
    with pytest.raises(SupervisedElsewhereError):
        runs.find_run(path.name)
    cluster_runs.remove_note(path)
    assert type(locate_run(path)) is RunLocation
    (path / "launcher.json").write_text("[")
    assert type(locate_run(path)) is RunLocation, "it can still be looked at, and be removed"


def test_a_run_whose_supervisor_does_not_run_yet_is_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[Path] = []
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.STARTING))
    monkeypatch.setattr(cluster_runs, "delete", lambda directory, *_: deleted.append(directory))
    said: list[str] = []
    assert locate_run(send(path)).stop_run(5.0, said.append, lambda: 9) == 0
    assert (deleted, said, type(locate_run(path))) == ([path], [f"stopped {path.name}"], RunLocation)


def test_a_sidecar_neither_ends_nor_hangs_a_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [LauncherState(Whereabouts.STARTING, stuck="old"), LauncherState(Whereabouts.LIVE, "new")]
    deleted: list[str] = []
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: states.pop(0))
    monkeypatch.setattr(cluster_runs, "delete_pod", lambda _, pod: deleted.append(pod))
    monkeypatch.setattr(cluster_runs, "execute", lambda *_, **__: Executed(0, ""))
    assert (locate_run(send(path)).run_verb(["ps", path.name], print, lambda: 9), deleted) == (0, ["old"])


def test_a_run_that_has_ended_comes_home_before_a_command_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.KEPT, "pod", exit_code=3))
    monkeypatch.setattr(cluster_runs, "bring_home", lambda directory, *_: cluster_runs.remove_note(directory))
    assert locate_run(send(path)).run_verb(["ps", path.name], print, lambda: 9) == 9
    assert runs.find_run(path.name) == path


@pytest.mark.parametrize(("verb", "code"), [("wait", 0), ("attach", 137)])
def test_what_carries_a_command_has_no_say_in_its_exit_code(
    verb: str, code: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubectl that loses its stream just before the end of a run may exit with 0 all the same."""
    states = [LauncherState(Whereabouts.LIVE, "pod"), LauncherState(Whereabouts.KEPT, "pod", exit_code=7)]
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: states.pop(0))
    monkeypatch.setattr(cluster_runs, "execute", lambda *_, **__: Executed(code, ""))
    monkeypatch.setattr(cluster_runs, "bring_home", lambda directory, *_: cluster_runs.remove_note(directory))
    assert locate_run(send(path)).run_verb([verb, path.name], print, lambda: 7) == 7


def test_a_run_whose_job_was_deleted_is_said_to_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.DELETED))
    with pytest.raises(TflaunchError, match=f"the Job of run {path.name} was deleted") as gone:
        locate_run(send(path)).run_verb(["wait", path.name], print, lambda: 9)
    assert (gone.value.exit_code, type(locate_run(path))) == (EXIT_INTERNAL, RunLocation)


def archive_of(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """Return an archive of these paths, types and contents or targets of links."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, kind, content in members:
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, content
            member.uid, member.uname, member.mode = 12345, "cloudsdk", 0o666
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content.encode()))
    stream.seek(0)
    return stream


def test_everything_comes_home_except_what_only_the_supervisor_uses(tmp_path: Path) -> None:
    run, home = tmp_path / "run-1", tmp_path / "home" / "run-1"
    for name in ("events.jsonl", "logs/worker-0.log", "collected/model/weights", "checkpoints/index.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    before = {path.relative_to(run): path.read_text() for path in run.rglob("*") if path.is_file()}
    for name in ("lock", "reserve", "control.sock", "agents/h/lock", "checkpoints/.parts/a", "code/a.py", "code.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    stream = io.BytesIO()
    write_archive(run, stream)
    stream.seek(0)
    unpack_archive(stream, home)
    assert {path.relative_to(home): path.read_text() for path in home.rglob("*") if path.is_file()} == before


def test_files_and_directories_alone_are_unpacked_for_nobody_else(tmp_path: Path) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    others = [(f"run/{number}", kind, "/etc/passwd") for number, kind in enumerate(kinds)]
    stream = archive_of(("run", tarfile.DIRTYPE, ""), ("run/logs/worker-0.log", tarfile.REGTYPE, "text"), *others)
    unpack_archive(stream, tmp_path / "run-1")
    assert sorted(path.name for path in (tmp_path / "run-1").rglob("*")) == ["logs", "worker-0.log"]
    for path in (tmp_path / "run-1", *(tmp_path / "run-1").rglob("*")):
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (os.getuid(), 0), path


@pytest.mark.parametrize("name", ["../a", "/a", "run/../../a", "other/a"])
def test_nothing_is_written_outside_the_run_directory(name: str, tmp_path: Path) -> None:
    """An incomplete archive is an error, too."""
    with pytest.raises(ArchiveError):
        unpack_archive(archive_of((name, tarfile.REGTYPE, "text")), tmp_path / "run-1")
    assert list(tmp_path.rglob("a")) == []
    whole = archive_of(("run/a", tarfile.REGTYPE, "x" * 3000)).getvalue()
    for length in (0, 100, 700):
        with pytest.raises(ArchiveError):
            unpack_archive(io.BytesIO(whole[:length]), tmp_path / "run-1")
