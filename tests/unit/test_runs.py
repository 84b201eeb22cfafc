"""Which run a name selects, and which runs are live."""

import errno
import fcntl
import grp
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzz.recorded_run import record
from tflaunch.client import runs
from tflaunch.client.observer import Observer
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.control_server import ControlServer
from tflaunch.store import run_dir
from tflaunch.store.journal import Journal
from tflaunch.store.log_writer import Marks
from tflaunch.store.run_dir import SOCKET_NAME, RunDirectory
from tflaunch_worker import linux

OLD = "train-20260101-120000-aaaa"
NEW = "train-20260102-120000-bbbb"
OTHER = "eval-20251231-120000-cccc"

HOLD = """
import sys
from pathlib import Path
from tflaunch.store import run_dir
run_dir.take_lock(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs that have ended, and another directory."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    directory = tmp_path / "runs"
    for name in (NEW, OLD, OTHER, ".hidden"):
        (directory / name).mkdir(parents=True)
    (directory / "train-file").write_text("no run")
    return directory


def test_a_run_is_found_by_name_or_beginning(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is unique; a name that is the beginning of another means itself."""
    assert runs.find_run(OLD) == place / OLD
    assert runs.find_run("eval") == place / OTHER
    assert runs.find_run("train-20260102") == place / NEW
    (place / "train").mkdir()
    assert runs.find_run("train") == place / "train"
    monkeypatch.setenv("TFLAUNCH_HOME", str(place / "none"))
    for name in (None, "train"):
        with pytest.raises(TflaunchError, match=f"there are no runs in {place}/none/runs"):
            runs.find_run(name)


@pytest.mark.parametrize("name", ["missing", "", ".hidden", "..", "/", f"{OLD}/"])
def test_what_does_not_exist_is_one_sentence_with_what_does(place: Path, name: str) -> None:
    """Newest first; nothing outside the directory is reached."""
    with pytest.raises(TflaunchError, match=f"there is no run .*; the runs are {NEW}, {OLD}, {OTHER}$") as caught:
        runs.find_run(name)
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(TflaunchError, match=f"'worker:1' is a task, not a run; the runs are {NEW}"):
        runs.find_run("worker:1")


def test_the_name_of_a_job_means_its_live_run_else_the_newest(place: Path) -> None:
    """So does no name. Several live runs are ambiguous; a job whose name merely starts with it does not match.

    The newest is that by its start: a write to an old run changes nothing.
    """
    (place / OLD / "lock").touch()
    assert runs.find_run(None) == place / NEW
    (place / "train-more-20260103-120000-dddd").mkdir()
    assert runs.find_run("train") == place / NEW
    assert runs.find_run("tra") == place / "train-more-20260103-120000-dddd"
    first = run_dir.take_lock(place / OLD)
    assert runs.find_run("train") == runs.find_run("tra") == runs.find_run(None) == place / OLD
    second = run_dir.take_lock(place / NEW)
    for name, words in (("train", " that match 'train'"), (None, "")):
        with pytest.raises(TflaunchError, match=f"several runs{words} are live; name one of them: {NEW}, {OLD}$"):
            runs.find_run(name)
    assert runs.find_run("train-20260101") == place / OLD
    os.close(first)
    os.close(second)


@pytest.mark.parametrize("level", ["", "runs", f"runs/{NEW}"])
@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_place_where_others_can_write_is_refused(place: Path, level: str, mode: int) -> None:
    """Home, runs, and the run's own directory: a journal planted there could start any command."""
    path = place.parent / level
    path.chmod(mode)
    remedy = f"{path} can be written to by any user, .*; chmod go-w {path}, or set TFLAUNCH_HOME"
    with pytest.raises(TflaunchError, match=remedy):
        runs.find_run(NEW)
    for harmless in (0o755, 0o1777):  # others cannot replace entries of a sticky directory, such as /tmp
        path.chmod(harmless if level == "" else 0o755)
        assert runs.find_run(NEW) == place / NEW


def test_a_shared_group_that_can_write_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is the user's own private group, as most systems set it up with a umask of 002."""
    me, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.stat(place).st_gid)
    place.chmod(0o770)
    for name, members, is_private in (
        (me.pw_name, [], me.pw_gid == group.gr_gid),
        (me.pw_name, [me.pw_name], me.pw_gid == group.gr_gid),
        (me.pw_name, ["eve"], False),
        ("staff", [], False),
    ):
        entry = grp.struct_group((name, "x", group.gr_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, entry=entry: entry)
        if is_private:
            assert runs.find_run(NEW) == place / NEW
        else:
            with pytest.raises(TflaunchError, match=f"{place} can be written to by group {name}, "):
                runs.find_run(NEW)


@pytest.mark.parametrize("uid", [0, 4711])
def test_the_home_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """For root, too: root would run the owner's commands."""
    if os.getuid() == 0:
        os.chown(place.parent, 65534, -1)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    for ask in (run_dir.newest_first, lambda: runs.find_run(NEW), lambda: RunDirectory("job")):
        with pytest.raises(TflaunchError, match=f"{place.parent} belongs to .*; run tflaunch as .*TFLAUNCH_HOME"):
            ask()
    assert len(list(place.iterdir())) == 5


def test_a_ctrl_c_just_after_a_directory_was_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    make = Path.mkdir

    def interrupted(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        if path.name.startswith("job-"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory("job")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_is_made_is_private_with_any_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "state" / "home"))
    earlier = os.umask(umask)
    try:
        directory = RunDirectory("job")
        directory.keep_spec(".json", b"{}")
        directory.write_plan({})
        Journal(directory).close()
        Marks(directory.marks).close()
        os.close(run_dir.take_lock(directory.path))
    finally:
        os.umask(earlier)
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert len(found) == 11
    modes = {path.name: path.stat().st_mode & 0o777 for path in found}
    assert modes == {path.name: 0o700 if path.is_dir() else 0o600 for path in found}


def test_the_lock_goes_with_the_process_that_has_it(place: Path) -> None:
    """Even if it is killed; a query neither takes nor creates the lock."""
    run = place / NEW
    assert not runs.is_live(run)
    assert not (run / "lock").exists()
    peer = subprocess.Popen([sys.executable, "-c", HOLD, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdout.readline() == "taken\n"
    assert runs.is_live(run)
    with pytest.raises(TflaunchError, match=f"run {NEW} has a supervisor already"):
        run_dir.take_lock(run)
    peer.kill()
    peer.communicate()
    assert not runs.is_live(run)
    os.close(run_dir.take_lock(run))
    assert (run / "lock").stat().st_mode & 0o077 == 0


def test_a_file_system_without_locks_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(TflaunchError, match=r"lock cannot be locked: Function not implemented; TFLAUNCH_HOME needs"):
        run_dir.take_lock(place / NEW)


def test_a_check_that_takes_long_is_no_supervisor(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that checks the lock shares it, and on a busy machine others may run before it lets go."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            before, self.now = self.now, self.now + seconds
            if before < 5 <= self.now:
                os.close(check)

    run = place / NEW
    (run / "lock").touch()
    check = os.open(run / "lock", os.O_RDONLY)
    fcntl.flock(check, fcntl.LOCK_SH)
    monkeypatch.setattr(linux, "time", Clock())
    os.close(run_dir.take_lock(run))


def test_an_observer_waits_for_the_exit_of_a_supervisor_that_has_recorded_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, whichever it hears of first: the record or the farewell."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    waited: list[Path] = []
    monkeypatch.setattr(run_dir, "wait_for_end", waited.append)
    for run, expected in ((record(has_ended=False), 0), (record(has_ended=True), 1)):
        observer = Observer(run)
        observer.catch_up()
        observer.catch_up()
        assert waited == [run] * expected


def test_the_socket_of_a_supervisor_has_its_name_while_it_listens(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that finds no listener takes the run for lost."""
    listen = socket.socket.listen
    named: list[bool] = []

    def note(listener: socket.socket, backlog: int) -> None:
        named.append((place / NEW / SOCKET_NAME).exists())
        listen(listener, backlog)

    monkeypatch.setattr(socket.socket, "listen", note)
    server = ControlServer(place / NEW, Mailbox(), lambda *_: None)
    assert (named, os.listdir(place / NEW)) == ([False], [SOCKET_NAME])
    linux.connect_to(str(place / NEW), SOCKET_NAME).close()
    server.close(None)
    assert os.listdir(place / NEW) == []


def test_a_child_does_not_keep_the_lock_and_a_link_in_place_of_it_is_not_followed(place: Path) -> None:
    """The process that holds it also starts the tasks' agents."""
    descriptor = run_dir.take_lock(place / NEW)
    with subprocess.Popen(["sleep", "9999"], close_fds=False) as child:
        os.close(descriptor)
        assert not runs.is_live(place / NEW)
        child.kill()
    (place / OLD / "lock").symlink_to(place / OTHER / "lock")
    assert not runs.is_live(place / OLD)
    with pytest.raises(TflaunchError, match="lock: "):
        run_dir.take_lock(place / OLD)
    assert not (place / OTHER / "lock").exists()
