"""Runs whose supervisor is in a cluster, as all commands see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.client import run_list, runs
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import SupervisedElsewhereError
from tflaunch.features.kubernetes import cluster_runs, launcher_note
from tflaunch.features.kubernetes.cluster_runs import LauncherState, Whereabouts
from tflaunch.features.kubernetes.location import KubernetesRun
from tflaunch.plan.model import KubernetesPlan
from tflaunch.store.run_dir import RunDirectory

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


def send(path: Path) -> Path:
    """Note a run as supervised in a cluster."""
    launcher_note.write_note(path, KubernetesPlan("train", "", 60.0))
    return path


def test_a_run_is_found_by_its_mark_until_it_has_come_home(path: Path) -> None:
    assert type(locate_run(send(path))) is KubernetesRun
    launcher_note.remove_note(path)
    assert type(locate_run(path)) is RunLocation
    (path / "launcher.json").write_text("[")
    assert type(locate_run(path)) is RunLocation, "it can still be looked at, and be removed"


def test_what_is_known_of_it_without_asking_the_cluster(path: Path) -> None:
    """Its files are not here, so commands go there."""
    location = locate_run(send(path))
    assert (run_list.entry_of(path)["state"], location.is_live()) == ("elsewhere", True)
    with pytest.raises(SupervisedElsewhereError):
        runs.find_run(path.name)


def test_a_run_whose_supervisor_does_not_run_yet_is_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[Path] = []
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.STARTING))
    monkeypatch.setattr(cluster_runs, "delete", lambda directory, *_: deleted.append(directory))
    said: list[str] = []
    assert locate_run(send(path)).stop_run(5.0, said.append, lambda: 9) == 0
    assert (deleted, said, type(locate_run(path))) == ([path], [f"stopped {path.name}"], RunLocation)


def test_a_run_that_has_ended_comes_home_before_a_command_runs_here(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.KEPT, "pod", exit_code=3))
    monkeypatch.setattr(cluster_runs, "bring_home", lambda directory, *_: launcher_note.remove_note(directory))
    assert locate_run(send(path)).run_verb(["ps", path.name], print, lambda: 9) == 9
    assert runs.find_run(path.name) == path
