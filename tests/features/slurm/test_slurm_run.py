"""Runs that are jobs of Slurm, as all commands see them."""

import os
import time
from pathlib import Path

import pytest

from support.specs import clustered
from tflaunch.client import control_client, follow, observer, run_list, runs
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import TflaunchError
from tflaunch.features.slurm import jobs, supervise, waiting_jobs
from tflaunch.features.slurm.jobs import SlurmError, SlurmJob
from tflaunch.features.slurm.location import SlurmRun
from tflaunch.plan import serialize
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import SUPERVISOR_LOG, RunDirectory

WAITING = SlurmJob("PENDING", "Priority", "", 0, 0)
RUNNING = SlurmJob("RUNNING", "None", "node-1", 0, 0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


def submit(path: Path) -> Path:
    """Note a run as job 17 of Slurm."""
    jobs.note_job(path, "17")
    return path


def jobs_are(monkeypatch: pytest.MonkeyPatch, *seen: SlurmJob | None) -> None:
    """Have Slurm report these states, one after the other, and the last one from then on."""
    states = list(seen)
    monkeypatch.setattr(jobs, "find_job", lambda _: states.pop(0) if len(states) > 1 else states[0])
    monkeypatch.setattr(jobs, "run_command", lambda *_, **__: "")


def test_a_run_is_found_by_its_mark(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is private whatever the umask. If it cannot be read, the run can still be looked at, and be removed."""
    jobs_are(monkeypatch, WAITING)
    earlier = os.umask(0)
    try:
        jobs.note_life(submit(path), 0)
    finally:
        os.umask(earlier)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir() if file.is_file()} == {0o600}
    assert type(locate_run(path)) is SlurmRun
    (path / "slurm.json").write_text("[")
    assert type(locate_run(path)) is RunLocation


def test_what_is_shown_of_a_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_are(monkeypatch, WAITING)
    location = locate_run(submit(path))
    assert (run_list.entry_of(path).state, location.is_live()) == ("queued", True)
    with pytest.raises(TflaunchError, match=r"has not begun: job 17 is PENDING \(Priority\)"):
        runs.plan_of(path)

    def fails(_: str) -> SlurmJob:
        raise SlurmError("no controller")

    monkeypatch.setattr(jobs, "find_job", fails)
    assert (location.is_live(), location.describe_wait()) == (False, None)
    jobs_are(monkeypatch, None)
    assert (run_list.entry_of(path).state, location.is_live()) == ("stopped", False)
    assert location.describe_loss() == (
        f"the supervisor of {path.name} is gone, and with it job 17 of Slurm; start its spec again"
    )
    for verb, remedy in (("resume", "Slurm puts a job back"), ("rerun", "up --on slurm")):
        with pytest.raises(TflaunchError, match=remedy):
            location.require_verb(verb)


def test_a_lost_run_is_not_taken_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_are(monkeypatch, None)
    journal = Journal(directory := RunDirectory("lost"))
    journal.record_plan(directory, serialize.as_json(clustered({"worker": ["n1:2222"]})), 0.0)
    journal.close()
    found = observer.current_status(submit(directory.path))
    assert (found.because, found.next_commands) == (locate_run(directory.path).describe_loss(), ())


@pytest.mark.parametrize(
    ("state", "left", "due", "why"),
    [
        ("COMPLETING", 0.0, "", "the job was cancelled with scancel"),
        ("COMPLETING", 0.0, " DUE TO TIME LIMIT", "the time limit of 1:00 is reached (slurm.time)"),
        ("COMPLETING", 0.0, " DUE TO JOB REQUEUE", "the job was put back into the queue"),
        ("NODE_FAIL", 0.0, " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node n2 of the job has failed"),
        ("RUNNING", 70.0, "", "the time limit of 1:00 will soon be reached (slurm.time)"),
        ("RUNNING", 700.0, "", "the job was cancelled with scancel"),
        ("RUNNING", 700.0, None, ""),
    ],
)
def test_why_slurm_has_sent_term(
    path: Path, monkeypatch: pytest.MonkeyPatch, state: str, left: float, due: str | None, why: str
) -> None:
    """Slurm's daemon has written it into the output of the job; of what ``--signal`` asks for, too little."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S")  # clock: the job's output is judged by its age
    said = "" if due is None else f"slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT {at}{due} ***\n"
    (submit(path) / SUPERVISOR_LOG).write_text(said)
    (path / jobs.SCRIPT_NAME).write_text("#SBATCH --signal=B:TERM@15\n")
    job = SlurmJob(state, "None", "n1", 0, 0, "1:00", left)
    monkeypatch.setattr(jobs, "find_job", lambda *_, **__: job)
    monkeypatch.setattr(jobs, "run_command", lambda *_, **__: "n1 idle\nn2 down*\n")
    assert supervise.explain_term(path) == why


@pytest.mark.parametrize(
    ("job", "mode", "is_over"),
    [
        ({"PreemptTime": "2026-01-02T03:04:05", "Requeue": "0"}, "REQUEUE", True),
        ({"PreemptTime": "2026-01-02T03:04:05", "Requeue": "1"}, "CANCEL", True),
        ({"PreemptTime": "2026-01-02T03:04:05", "Requeue": "1"}, "REQUEUE", False),
        ({"PreemptTime": "None", "Requeue": "0"}, "CANCEL", False),
    ],
)
def test_a_preempted_job_is_over_unless_it_is_queued_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, str], mode: str, is_over: bool
) -> None:
    shown = {"job": job, "partition": {"PreemptMode": mode}}
    monkeypatch.setattr(jobs, "show", lambda kind, _: shown[kind])
    assert bool(supervise.explain_preemption(submit(path))) is is_over


def test_a_job_that_waits_is_cancelled_instead_of_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has begun is stopped by its supervisor, or cancelled if that cannot be reached."""
    cancelled: list[tuple[str, ...]] = []
    jobs_are(monkeypatch, WAITING)

    def run(*words: str, **about: object) -> str:
        if words[0] == "scancel":
            cancelled.append(words)
        return ""

    monkeypatch.setattr(jobs, "run_command", run)
    location, said = locate_run(submit(path)), list[str]()
    assert location.stop_run(None, said.append, lambda: 9) == 0
    assert (cancelled, said) == ([("scancel", "17")], [f"run {path.name} was cancelled before it began"])
    jobs.note_life(path, 0)
    assert location.stop_run(None, said.append, lambda: 9) == 9
    control_client.request_stop(path, None)
    assert cancelled == [("scancel", "17")] * 2


def test_a_follower_is_told_once_what_a_job_waits_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SlurmJob("CANCELLED", "None", "", 0, 0)
    jobs_are(monkeypatch, WAITING, WAITING, ended)
    said: list[str] = []
    with pytest.raises(TflaunchError, match=f"job 17 of run {path.name} was CANCELLED before the run began"):
        follow.watch_to_end(locate_run(submit(path)), said.append, lambda _: 0, lambda _: None)
    assert said == [f"job 17 of run {path.name} is PENDING (Priority)"]


def test_a_job_that_a_node_cannot_start_has_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has none but this; the usual one is a directory that only the login node has."""
    jobs_are(monkeypatch, SlurmJob("FAILED", "JobLaunchFailure", "n1", 0, 0))
    with pytest.raises(TflaunchError, match=f"job 17 on n1, which probably does not see {path}: let TFLAUNCH_HOME"):
        locate_run(submit(path)).wait_until_begun(print, lambda _: None)


def test_slurm_is_asked_ever_more_rarely(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in 20 s at last, but at once when the job has begun."""
    asked_at: list[int] = []
    seconds = 0

    def find(_: str) -> SlurmJob:
        asked_at.append(seconds)
        return WAITING if seconds < 500 else RUNNING

    def pause(_: float) -> None:
        nonlocal seconds
        seconds += 1
        if seconds == 501:
            jobs.note_life(path, 0)

    jobs_are(monkeypatch)
    monkeypatch.setattr(jobs, "find_job", find)
    locate_run(submit(path)).wait_until_begun(lambda _: None, pause)
    assert asked_at[:4] == [0, 1, 3, 6]
    assert asked_at[-3] - asked_at[-4] == 20
    assert asked_at[-1] == 501


def test_one_answer_serves_all_terminals(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is young; a job that does not wait is asked for by itself."""
    asked: list[str] = []

    def answer(*words: str) -> str:
        asked.append(words[0])
        return "17    PENDING  2    all    Priority   \n18   PENDING  0  a,b  None  \n"

    jobs_are(monkeypatch, RUNNING)
    monkeypatch.setattr(jobs, "run_command", answer)
    assert waiting_jobs.find_job("17", 0.0) == SlurmJob("PENDING", "Priority", "", 2, 0, partition="all")
    assert waiting_jobs.find_job("18", 60.0) == SlurmJob("PENDING", "None", "", 0, 0, partition="a,b")
    assert asked == ["squeue"]
    os.utime(run_dir.home() / "slurm-jobs", (0, 0))
    assert waiting_jobs.find_job("19", 60.0) == RUNNING
    assert asked == ["squeue", "squeue"]
