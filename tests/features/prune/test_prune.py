"""What `prune` removes, and above all what it never does."""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.job_history import HERE
from support.specs import clustered
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features import bootstrap, file_tree
from tflaunch.features.prune import agent_caches, drills, prune
from tflaunch.features.slurm import jobs
from tflaunch.features.slurm.jobs import SlurmError, SlurmJob
from tflaunch.plan import serialize
from tflaunch.plan.model import RetentionPlan
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

DAY = 86_400.0
NOW = float(int(time.time()))  # clock: compared with the times of files
WEEK = RetentionPlan(0, 7 * DAY)
AT_ONCE = RetentionPlan(0, 0.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "runs").mkdir(parents=True, mode=0o700)
    (tmp_path / "home").chmod(0o700)
    return tmp_path / "home"


def make_run(
    monkeypatch: pytest.MonkeyPatch,
    days: float,
    job: str = "train",
    host: str = HERE,
    exit_code: int | None = 0,
    logs: Path | None = None,
) -> Path:
    """Record a run that ended ``days`` ago, or whose supervisor was killed then (``exit_code`` None)."""
    then = NOW - days * DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: then)
        patch.setattr(time, "strftime", lambda form: time_then(form, then))
        plan = clustered({"worker": [f"{host}:2222"]})
        directory = RunDirectory(job, logs)
        journal = Journal(directory)
        journal.record_plan(directory, serialize.as_json(plan), 0.0)
        if exit_code is not None:
            journal.record_end(exit_code, [], "succeeded")
        journal.close()
    (directory.logs / "worker-0.log").write_bytes(b"x" * 5000)
    age(directory.path, days)
    return directory.path


def time_then(form: str, then: float, real: Callable[..., str] = time.strftime) -> str:
    """Format a time as `RunDirectory` does."""
    return real(form, time.localtime(then))


def age(path: Path, days: float) -> None:
    """Make a directory and everything in it look as old."""
    then = NOW - days * DAY
    for each in (path, *path.rglob("*")):
        os.utime(each, (then, then), follow_symlinks=False)


def names(retention: RetentionPlan = WEEK) -> list[str]:
    """Return the runs that would be removed."""
    return [run.name for run in prune.find_old(retention, NOW).runs]


def reason(path: Path) -> str:
    """Return why a run is kept, whatever its age."""
    found = prune.find_old(AT_ONCE, NOW)
    assert path.name not in [run.name for run in found.runs]
    (kept,) = found.kept
    assert kept.name == path.name
    return kept.reason


def remove_all(retention: RetentionPlan = WEEK) -> None:
    for run in prune.find_old(retention, NOW).runs:
        prune.remove_run(run)


def test_the_newest_runs_of_each_job_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    train = [make_run(monkeypatch, days) for days in (30, 40, 50)]
    evaluate = [make_run(monkeypatch, days, "evaluate") for days in (20, 60)]
    assert names(RetentionPlan(1, 7 * DAY)) == [train[1].name, train[2].name, evaluate[1].name]
    assert names(RetentionPlan(2, 7 * DAY)) == [train[2].name]
    assert names(RetentionPlan(3, 7 * DAY)) == []


def test_names_tell_which_runs_may_be_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a run, no file of those that are not is looked at, however many they are."""
    new, old, oldest = (make_run(monkeypatch, days) for days in (6, 8, 30))
    make_run(monkeypatch, 40, "evaluate")
    examined: set[Path] = set()

    def open_run(path: Path, real: Callable[[Path], Path] = run_dir.open_run) -> Path:
        examined.add(path)
        return real(path)

    monkeypatch.setattr(run_dir, "open_run", open_run)
    assert prune.apply_retention("train", RetentionPlan(3, 7 * DAY), NOW) == []
    assert prune.apply_retention("train", RetentionPlan(0, 31 * DAY), NOW) == []
    assert prune.apply_retention("train", RetentionPlan(0, 1e12), NOW) == []
    assert not examined
    assert [run.path for run in prune.apply_retention("train", RetentionPlan(0, 7 * DAY), NOW)] == [old, oldest]
    assert examined == {old, oldest}
    assert new.exists()


def test_the_size_is_what_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(monkeypatch, 30)
    (before,) = prune.find_old(WEEK, NOW).runs
    assert before.size >= 5000
    os.link(path / "logs" / "worker-0.log", path / "again")
    (path / "link").symlink_to("/usr")
    (after,) = prune.find_old(WEEK, NOW).runs
    assert after.size <= before.size + 4096


def test_a_run_with_a_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(monkeypatch, 30)
    lock = run_dir.take_lock(path)
    assert prune.find_old(AT_ONCE, NOW) == ([], [], [])
    with pytest.raises(TflaunchError, match=f"^run {path.name} is live; to end it: tflaunch down") as caught:
        prune.find_named([path.name], NOW)
    assert caught.value.exit_code == EXIT_USAGE
    os.close(lock)
    assert names() == [path.name]


def test_a_run_with_an_agent_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of a lost run outlive its supervisor by the lease."""
    path = make_run(monkeypatch, 30, exit_code=None)
    (path / "agents" / HERE).mkdir(parents=True)
    with open(path / "agents" / HERE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        age(path, 30)
        told = f"has an agent that lives on this machine; to end it: tflaunch down {path.name}"
        assert reason(path) == told
        with pytest.raises(TflaunchError, match=f"^run {path.name} {told}$"):
            prune.find_named([path.name], NOW)
    age(path, 30)
    assert names() == [path.name]


def test_a_lost_run_with_tasks_on_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """When its supervisor was killed is not known, so for a day after its last output."""
    path = make_run(monkeypatch, 0.9, host="h1", exit_code=None)
    assert reason(path) == (
        "may have live tasks on h1, as its supervisor was killed; "
        f"to end them: tflaunch down {path.name}"
    )  # fmt: skip
    age(path, 1.1)
    assert names(AT_ONCE) == [path.name]
    here = make_run(monkeypatch, 0.0, exit_code=None)  # without an agent it has no tasks
    assert names(AT_ONCE) == [here.name, path.name]
    assert names(WEEK) == []


def test_a_run_that_may_be_starting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is made before its lock is taken; it is listed only where its age would not keep it.

    On a host of a run that was started elsewhere, there is no more than files of its agent either.
    """
    with monkeypatch.context() as patch:
        patch.setattr(time, "strftime", lambda form: time_then(form, NOW - 8 * DAY))
        directory = RunDirectory("train")
    (directory.path / "agents" / "h1" / "code").mkdir(parents=True)
    age(directory.path, 0.1)
    assert reason(directory.path) == "has not begun, and was written to within a day, so it may be alive"
    assert prune.find_old(WEEK, NOW) == ([], [], [])
    age(directory.path, 8)
    (old,) = prune.find_old(WEEK, NOW).runs
    assert (old.name, old.state) == (directory.run, "not begun")
    prune.remove_run(old)
    assert prune.find_old(AT_ONCE, NOW) == ([], [], [])
    (home / "runs" / "backup").mkdir()
    age(home / "runs" / "backup", 30)
    assert reason(home / "runs" / "backup") == "does not have the name of a run; remove it by hand"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_job_of_slurm_that_is_not_over(monkeypatch: pytest.MonkeyPatch, has_begun: bool) -> None:
    """Waiting or running, here or elsewhere; or if Slurm does not answer."""
    path = make_run(monkeypatch, 30)
    if not has_begun:
        (path / JOURNAL_NAME).unlink()
    jobs.note_job(path, "17")
    job = SlurmJob("PENDING", "Priority", "", 0, 0)
    monkeypatch.setattr(jobs, "find_job", lambda _: job)
    assert prune.find_old(AT_ONCE, NOW) == ([], [], [])
    with pytest.raises(TflaunchError, match="is live: its job of Slurm is PENDING"):
        prune.find_named([path.name], NOW)

    def fails(_: str) -> SlurmJob:
        raise SlurmError("no controller")

    monkeypatch.setattr(jobs, "find_job", fails)
    assert reason(path) == "may be alive, as Slurm cannot be asked about its job: no controller"
    monkeypatch.setattr(jobs, "find_job", lambda _: None)
    assert names() == [path.name]


def test_a_run_that_was_resumed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor holds the lock; or it has ended once more, and wrote to its journal."""
    path = make_run(monkeypatch, 30, exit_code=None)
    (old,) = prune.find_old(WEEK, NOW).runs
    lock = run_dir.take_lock(path)
    with pytest.raises(TflaunchError, match="has a supervisor already"):
        prune.remove_run(old)
    os.close(lock)
    os.utime(path / JOURNAL_NAME)
    with pytest.raises(TflaunchError, match=f"^run {path.name} has changed in the meantime$"):
        prune.remove_run(old)
    assert (path / JOURNAL_NAME).exists()
    real = fcntl.flock

    def lock_removed(descriptor: int, operation: int) -> None:
        real(descriptor, operation)
        (path / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", lock_removed)  # by a process that had opened the file before
    with pytest.raises(TflaunchError, match=f"run {path.name} has just been removed"):
        run_dir.take_lock(path)


def test_the_lock_is_held_until_the_run_is_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for the lock does not get it, and nothing is written into what is being removed."""
    path = make_run(monkeypatch, 30)
    (old,) = prune.find_old(WEEK, NOW).runs
    messages = []

    def delete(trash: Path) -> None:
        assert trash.parent == path.parent
        assert run_dir.newest_first() == []
        for place in (path, trash):
            with pytest.raises(TflaunchError) as caught:
                run_dir.take_lock(place)
            messages.append(str(caught.value))

    monkeypatch.setattr(file_tree, "delete_tree", delete)
    prune.remove_run(old)
    assert messages[0].endswith("No such file or directory")
    assert "has a supervisor already" in messages[1]


def test_what_a_killed_prune_left_is_removed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(monkeypatch, 0)
    path.rename(path.with_name(f".pruned-{path.name}"))
    assert run_dir.newest_first() == []
    (old,) = prune.find_old(RetentionPlan(10, 7 * DAY), NOW).runs
    assert (old.name, old.state) == (path.name, "removing")
    remove_all()
    prune.remove_run(old)  # which another prune has found, too
    assert os.listdir(path.parent) == []


def test_a_run_is_removed_with_all_that_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also what a task made read-only. What is elsewhere stays: logs, what links lead to, a run behind a link."""
    path, elsewhere = make_run(monkeypatch, 30, logs=tmp_path / "mine"), make_run(monkeypatch, 31)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("mine")
    deep = path / "code" / "cache"
    deep.mkdir(parents=True)
    (deep / "file").symlink_to(tmp_path / "data" / "file")
    (path / "code" / "data").symlink_to(tmp_path / "data")
    for directory in (deep, deep.parent):
        directory.chmod(0o500)
    age(path, 30)
    elsewhere.rename(tmp_path / elsewhere.name)
    elsewhere.symlink_to(tmp_path / elsewhere.name)
    (old,) = (old for old in prune.find_old(WEEK, NOW).runs if old.name == path.name)
    assert old.logs == str(tmp_path / "mine")
    remove_all()
    prune.remove_run(old)  # which another prune has found, too
    assert os.listdir(path.parent) == []
    assert (tmp_path / "mine" / "worker-0.log").exists()
    assert (tmp_path / "data" / "file").read_text() == "mine"
    assert list((tmp_path / elsewhere.name).iterdir())


@pytest.mark.needs("root")
def test_files_of_others_keep_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have written them; half a run would be worse than a whole one."""
    path, other = make_run(monkeypatch, 30), make_run(monkeypatch, 31)
    file = path / "logs" / "worker-0.log"
    os.chown(file, 65534, -1)
    found = prune.find_old(WEEK, NOW)
    assert [run.name for run in found.runs] == [other.name]
    assert [kept.name for kept in found.kept] == [path.name]
    assert f"{file} belongs to nobody; remove it by hand" in found.kept[0].reason
    os.chown(path, 65534, -1)
    assert f"{path} belongs to nobody" in reason(path)
    with pytest.raises(TflaunchError, match=f"run {path.name} cannot be removed: .* belongs to nobody"):
        prune.find_named([path.name], NOW)


@pytest.mark.parametrize("journal", [b"", b"{}\n", b"no json\n", b"\xff" * 9])
def test_a_damaged_run_is_listed_and_removed_only_by_name(monkeypatch: pytest.MonkeyPatch, journal: bytes) -> None:
    bad, sound = make_run(monkeypatch, 31), make_run(monkeypatch, 30)
    (bad / JOURNAL_NAME).write_bytes(journal)
    with pytest.raises(TflaunchError, match=f"run {bad.name} is damaged, and was written to within a day"):
        prune.find_named([bad.name], NOW)  # its journal cannot say that its tasks are dead
    age(bad, 31)
    found = prune.find_old(WEEK, NOW)
    assert [run.name for run in found.runs] == [sound.name]
    (kept,) = found.kept
    assert kept.name == bad.name
    assert kept.reason.startswith("is damaged: ")
    assert kept.reason.endswith(f"; to remove it: tflaunch prune {bad.name}")
    (named,) = prune.find_named([bad.name, bad.name], NOW).runs
    prune.remove_run(named)
    assert not bad.exists()
    assert sound.exists()


@pytest.mark.parametrize("name", ["train", "", "..", ".", "runs/..", "train-2"])
def test_a_beginning_is_not_enough(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make_run(monkeypatch, 30)
    with pytest.raises(TflaunchError, match=r"there is no run .*; give the whole name of a run") as caught:
        prune.find_named([name], NOW)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(("kind", "name", "suffix"), [("code", "files", ""), ("image", "images", ".sif")])
def test_files_that_no_run_has_used(home: Path, kind: str, name: str, suffix: str) -> None:
    """By the time of the last use, a day at least; other files are not touched."""
    place = home / name
    place.mkdir(mode=0o700)
    for content, days in ((b"old", 8.0), (b"new", 6.0), (b"newer", 0.5)):
        file = place / f"{hashlib.sha256(content).hexdigest()}{suffix}"
        file.write_bytes(content)
        os.utime(file, (NOW - days * DAY,) * 2)
    (place / "notes").touch()
    os.utime(place / "notes", (0, 0))
    agents = home / "agents"  # a link leads somewhere else
    agents.symlink_to(place)
    digests = [hashlib.sha256(content).hexdigest() + suffix for content in (b"old", b"new")]
    (found,) = prune.find_old(WEEK, NOW).cached
    assert (found.kind, found.path.name) == (kind, digests[0])
    assert {each.path.name for each in prune.find_old(AT_ONCE, NOW).cached} == set(digests)
    os.utime(found.path)
    assert not agent_caches.remove_cached(found)
    os.utime(found.path, (0, 0))
    assert agent_caches.remove_cached(found)
    assert not agent_caches.remove_cached(found)
    assert not found.path.exists()


def test_agents_of_other_versions(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of this version, and none while an agent lives, which may import from it."""
    place = home / "agents"
    for name in ("a" * 64, f"{'b' * 64}.new", bootstrap.build_archive().sha256, "c" * 64, "mine"):
        (place / name / "tflaunch_worker").mkdir(parents=True, mode=0o700)
    place.chmod(0o700)
    age(place, 30)
    os.utime(place / ("c" * 64))
    found = prune.find_old(WEEK, NOW).cached
    assert [each.path.name for each in found] == ["a" * 64, f"{'b' * 64}.new"]
    run = home / "runs" / "elsewhere-20260101-120000-aaaa" / "agents" / "h1"
    run.mkdir(parents=True)
    with open(run / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert prune.find_old(WEEK, NOW).cached == []
        assert not agent_caches.remove_cached(found[0])
        with pytest.raises(TflaunchError, match="end it on the machine where it was started"):
            prune.find_named([run.parent.parent.name], NOW)
    assert all(agent_caches.remove_cached(each) for each in found)
    assert len(list(place.iterdir())) == 4  # with the lock
    assert not list(place.glob("*.new"))


def test_a_killed_drill_goes_at_once_with_its_runs_and_a_kept_one_by_its_age(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(monkeypatch, 0)
    for name in ("killed", "live", "kept-old", "kept-new", "half-removed"):
        (home / "drills" / name / "1").mkdir(parents=True, mode=0o700)
        (home / "drills" / name / "lock").touch()
    (home / "drills").chmod(0o700)
    (home / "drills/half-removed/lock").unlink()
    for name in ("kept-old", "half-removed"):
        os.utime(home / "drills" / name, (NOW - 8 * DAY,) * 2)
    drills.note_run(home / "drills/killed", run.name)
    with open(home / "drills/live/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = prune.find_old(RetentionPlan(10, 7 * DAY), NOW)
        assert [old.path for old in found.runs] == [run]
        assert [each.path.name for each in found.cached] == ["half-removed", "kept-old", "killed"]
        assert [agent_caches.remove_cached(each) for each in found.cached] == [True, True, False], "it names its runs"
        prune.remove_left_of_drills(NOW)
        assert not run.exists()
        assert sorted(path.name for path in (home / "drills").iterdir()) == ["kept-new", "live"]
