"""Where a run lives: how that is found, and what commands learn about runs elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.recorded_run import record
from support.launch import PATIENCE
from tflaunch.client import follow, requests, run_list, run_location, runs
from tflaunch.client.control_client import ControlClient, NoSupervisor
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import EXIT_INTERNAL, SupervisedElsewhereError, TflaunchError
from tflaunch.features.kubernetes import cluster_runs, launcher_note
from tflaunch.features.kubernetes.cluster_runs import LauncherState, Whereabouts
from tflaunch.features.kubernetes.location import KubernetesRun
from tflaunch.features.queue import run_queue
from tflaunch.features.queue.location import QueuedRun
from tflaunch.features.queue.run_queue import Order, Refusal
from tflaunch.features.slurm import batch, commands
from tflaunch.features.slurm.commands import SlurmError, SlurmJob
from tflaunch.features.slurm.location import SlurmRun
from tflaunch.plan.model import KubernetesPlan
from tflaunch.rooms import Place, Room
from tflaunch.store import run_lock
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

pytestmark = pytest.mark.unit

WAITING = SlurmJob("PENDING", "Priority", "", 0, 0)
RUNNING = SlurmJob("RUNNING", "None", "node-1", 0, 0)
ORDER = Order({}, "logs", {}, "/", 0o77, {}, "python", [])


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


def queue(path: Path) -> Path:
    """Put a run into the queue."""
    run_queue.add_entry(path, ORDER, {}, {"lr": "0.1"})
    return path


def refuse(path: Path) -> Path:
    """Refuse a run of the queue."""
    run_queue.refuse(path, Refusal("no room", 3))
    return path


def submit(path: Path) -> Path:
    """Note a run as job 17 of Slurm."""
    batch.note_job(path, "17")
    return path


def send(path: Path) -> Path:
    """Note a run as supervised in a cluster."""
    launcher_note.write_note(path, KubernetesPlan("train", "", 60.0))
    return path


def jobs_are(monkeypatch: pytest.MonkeyPatch, *seen: SlurmJob | None) -> None:
    """Have Slurm report these states, one after the other, and the last one from then on."""
    states = list(seen)
    monkeypatch.setattr(commands, "find_job", lambda _: states.pop(0) if len(states) > 1 else states[0])


class TestFinding:
    """The files in the directory tell."""

    @pytest.mark.parametrize(
        ("put", "kind"), [(queue, QueuedRun), (refuse, QueuedRun), (submit, SlurmRun), (send, KubernetesRun)]
    )
    def test_each_place_by_its_mark(
        self, path: Path, put: Callable[[Path], Path], kind: type[RunLocation], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which the code that writes the file and the table name alike."""
        jobs_are(monkeypatch, WAITING)
        assert type(locate_run(path)) is RunLocation
        assert type(locate_run(put(path))) is kind

    def test_a_mark_that_cannot_be_read_is_none(self, path: Path) -> None:
        """The run can still be looked at, and be removed."""
        for name in ("launcher.json", "slurm.json"):
            (path / name).write_text("[")
        assert type(locate_run(path)) is RunLocation

    def test_a_run_that_has_come_home_or_left_the_queue_is_here(self, path: Path) -> None:
        """From then on nothing of the place is asked."""
        launcher_note.remove_note(send(path))
        entry = run_queue.find_entry(queue(path).name)
        assert entry is not None
        run_queue.remove_entry(entry)
        assert type(locate_run(path)) is RunLocation

    def test_places_are_asked_in_order_and_imported_for_their_runs_only(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first that knows the run has it; no module exists for the mark that the run does not have."""
        (path / "ours").touch()
        (path / "theirs").touch()
        places = (
            Place(("no",), "no.module:no"),
            *(Place((name,), f"{__name__}:{name}") for name in ("ours", "theirs")),
        )
        monkeypatch.setattr(run_location, "rooms", lambda: {"some": Room(places=places)})
        assert locate_run(path) is THEIRS


THEIRS = RunLocation(Path())


def ours(directory: Path) -> RunLocation | None:
    """Be the finder of a place that does not know the run."""
    return None


def theirs(directory: Path) -> RunLocation | None:
    """Be the finder of a place that knows the run."""
    return THEIRS


class TestHere:
    """Runs on this machine."""

    def test_it_lives_as_long_as_its_lock_is_held(self, path: Path) -> None:
        """As `test_runs` has it, too."""
        lock = run_lock.take_lock(path)
        assert locate_run(path).is_live()
        os.close(lock)
        assert not locate_run(path).is_live()

    def test_without_records_it_has_not_begun_or_cannot_be_read(self, path: Path) -> None:
        """An empty journal is damaged."""
        assert run_list.entry_of(path)["state"] == "not begun"
        (path / JOURNAL_NAME).touch()
        assert run_list.entry_of(path)["state"] == "unreadable"

    def test_it_has_no_supervisor_to_connect_to(self, path: Path) -> None:
        with pytest.raises(NoSupervisor):
            ControlClient(path)
        requests.request_stop(path, None)


class TestQueue:
    """Runs that wait for their hosts."""

    def test_what_is_shown_of_a_run_that_waits(self, path: Path) -> None:
        """It is not live, but would begin when others have ended."""
        location = locate_run(queue(path))
        entry = run_list.entry_of(path)
        assert (entry["state"], entry["matrix"]) == ("queued", {"lr": "0.1"})
        assert (location.is_live(), location.begins_after_others()) == (False, True)
        with pytest.raises(TflaunchError, match="has not begun; `tflaunch queue` says what it waits for"):
            Observer(path)
        with pytest.raises(TflaunchError, match="`tflaunch queue` says"):
            runs.plan_of(path)

    def test_what_is_shown_of_a_run_that_could_not_begin(self, path: Path) -> None:
        location = locate_run(refuse(path))
        entry = run_list.entry_of(path)
        assert (entry["state"], entry["exit_code"]) == ("failed", 3)
        assert not location.begins_after_others()
        with pytest.raises(TflaunchError, match="could not begin: no room") as refused:
            follow.watch_to_end(location, print, lambda _: 0)
        assert refused.value.exit_code == 3
        said: list[str] = []
        assert location.stop_run(None, said.append, lambda: 9) == 0
        assert said == [f"run {path.name} could not begin: no room"]

    def test_a_run_that_is_stopped_before_it_has_begun_leaves_nothing(self, path: Path) -> None:
        """Who follows it is told."""
        location, said = locate_run(queue(path)), list[str]()
        assert location.stop_run(None, said.append, lambda: 9) == 0
        assert (said, path.exists(), run_queue.has_entries()) == ([f"took {path.name} out of the queue"], False, False)
        with pytest.raises(TflaunchError, match="was taken out of the queue") as withdrawn:
            follow.watch_to_end(location, print, lambda _: 0)
        assert withdrawn.value.exit_code == 143

    def test_a_run_without_a_supervisor_is_taken_out(self, path: Path) -> None:
        requests.request_stop(queue(path), None)
        assert not path.exists()

    def test_a_run_that_has_begun_is_stopped_as_one_here(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Its entry may be there for a moment."""
        monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
        path = queue(record(has_ended=True))
        location = QueuedRun(path)
        assert location.describe_wait() is None
        entry = run_queue.find_entry(path.name)
        assert entry is not None
        run_queue.remove_entry(entry)
        assert location.stop_run(None, print, lambda: 9) == 9


class TestSlurm:
    """Jobs of Slurm."""

    def test_what_is_shown_of_a_job(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Waiting, stopped, or unknown as Slurm does not answer."""
        jobs_are(monkeypatch, WAITING)
        location = locate_run(submit(path))
        assert (run_list.entry_of(path)["state"], location.is_live()) == ("queued", True)
        with pytest.raises(TflaunchError, match=r"has not begun: job 17 is PENDING \(Priority\)"):
            runs.plan_of(path)

        def fails(_: str) -> SlurmJob:
            raise SlurmError("no controller")

        monkeypatch.setattr(commands, "find_job", fails)
        assert (location.is_live(), location.describe_wait()) == (False, None)
        jobs_are(monkeypatch, None)
        assert (run_list.entry_of(path)["state"], location.is_live()) == ("stopped", False)
        assert location.describe_loss() == (
            f"the supervisor of {path.name} is gone, and with it job 17 of Slurm; start its spec again"
        )

    def test_a_job_that_waits_is_cancelled_instead_of_stopped(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that has begun is stopped by its supervisor, or cancelled if that cannot be reached."""
        cancelled: list[str] = []
        monkeypatch.setattr(commands, "cancel_job", cancelled.append)
        jobs_are(monkeypatch, WAITING)
        location, said = locate_run(submit(path)), list[str]()
        assert location.stop_run(None, said.append, lambda: 9) == 0
        assert (cancelled, said) == (["17"], [f"run {path.name} was cancelled before it began"])
        batch.note_life(path, 0)
        assert location.stop_run(None, said.append, lambda: 9) == 9
        requests.request_stop(path, None)
        assert cancelled == ["17", "17"]

    def test_a_supervisor_on_another_node_is_reached_through_a_step(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the step's program writes is what the supervisor answers; here it sends back what it gets."""
        monkeypatch.setattr(commands, "step_command", lambda *_: ["sh", "-c", "exec cat"])
        jobs_are(monkeypatch, RUNNING)
        client = ControlClient(submit(path))
        client.say("follow")
        assert client.hear(PATIENCE) == {"kind": "follow"}
        client.close()
        jobs_are(monkeypatch, WAITING)
        with pytest.raises(NoSupervisor):
            ControlClient(path)

    def test_a_follower_is_told_once_what_a_job_waits_for(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And what stopped it, if it does not begin."""
        ended = SlurmJob("CANCELLED", "None", "", 0, 0)
        jobs_are(monkeypatch, WAITING, WAITING, ended)
        said: list[str] = []
        with pytest.raises(TflaunchError, match=f"job 17 of run {path.name} was CANCELLED before the run began"):
            follow.watch_to_end(locate_run(submit(path)), said.append, lambda _: 0, lambda _: None)
        assert said == [f"job 17 of run {path.name} is PENDING (Priority)"]

    def test_a_job_that_slurm_starts_again_is_followed_again(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until it has ended for good; the end of its first supervisor is not that of the run."""
        batch.note_life(submit(path), 0)
        again = SlurmJob("REQUEUED", "BeginTime", "", 1, 0)
        jobs_are(monkeypatch, RUNNING, again, RUNNING, SlurmJob("FAILED", "None", "", 0, 7))
        codes = [1, 7]
        monkeypatch.setattr(follow, "Observer", lambda _: None)
        assert follow.watch_to_end(locate_run(path), print, lambda _: codes.pop(0), lambda _: None) == 7

    def test_a_job_that_is_lost_is_told_as_that(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its supervisor could not record how it ended."""
        batch.note_life(submit(path), 0)
        jobs_are(monkeypatch, RUNNING, SlurmJob("NODE_FAIL", "None", "", 0, 0))
        monkeypatch.setattr(follow, "Observer", lambda _: None)

        def lose(_: Observer) -> int:
            raise TflaunchError("killed", EXIT_INTERNAL)

        with pytest.raises(TflaunchError, match=r"Slurm has ended job 17 \(NODE_FAIL\); start the spec again"):
            follow.watch_to_end(locate_run(path), print, lose, lambda _: None)

    @pytest.mark.parametrize(("verb", "remedy"), [("resume", "Slurm puts a job back"), ("rerun", "up --on slurm")])
    def test_what_is_not_possible_from_this_machine(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, remedy: str
    ) -> None:
        jobs_are(monkeypatch, None)
        with pytest.raises(TflaunchError, match=remedy):
            locate_run(submit(path)).require_verb(verb)


class TestKubernetes:
    """Runs whose supervisor is in a cluster."""

    def test_what_is_known_of_it_without_asking_the_cluster(self, path: Path) -> None:
        """Its files are not here, so commands go there."""
        location = locate_run(send(path))
        assert (run_list.entry_of(path)["state"], location.is_live()) == ("elsewhere", True)
        with pytest.raises(SupervisedElsewhereError):
            runs.find_run(path.name)

    def test_a_run_whose_supervisor_does_not_run_yet_is_deleted(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is none to be asked to stop it."""
        deleted: list[Path] = []
        monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.STARTING))
        monkeypatch.setattr(cluster_runs, "delete", lambda directory, *_: deleted.append(directory))
        said: list[str] = []
        assert locate_run(send(path)).stop_run(5.0, said.append, lambda: 9) == 0
        assert (deleted, said, type(locate_run(path))) == ([path], [f"stopped {path.name}"], RunLocation)

    def test_a_run_that_has_ended_comes_home_before_a_command_runs_here(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its command line runs again, and finds it."""
        monkeypatch.setattr(cluster_runs, "look_at", lambda *_: LauncherState(Whereabouts.KEPT, "pod", exit_code=3))
        monkeypatch.setattr(cluster_runs, "bring_home", lambda directory, *_: launcher_note.remove_note(directory))
        assert locate_run(send(path)).run_verb(["ps", path.name], print, lambda: 9) == 9
        assert runs.find_run(path.name) == path
