"""Copies of checkpoints: what is complete, what is accepted of an agent, and which one an attempt starts with."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_program import INDEX_END, save
from support.job_history import Willing
from support.played_agent import PlayedAgent
from support.specs import clustered
from support.supervising import supervision
from tflaunch.agents.calls import Calls
from tflaunch.agents.transfer import HashedFile as File
from tflaunch.core import time_limits
from tflaunch.core.actions import PlaceCheckpoint
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import (
    CheckpointPlaced,
    CheckpointRefused,
    Event,
    HostLost,
    LinkLost,
    LinkRestored,
    Superseded,
    TimePassed,
)
from tflaunch.core.job_state import Phase
from tflaunch.features.checkpoints.checkpoint_copies import CheckpointCopies, DiskFullError, KeptCheckpoint
from tflaunch.features.checkpoints.checkpoint_keeper import CheckpointKeeper
from tflaunch.features.checkpoints.checkpoint_link import CheckpointLink, FoundCheckpoint, Missing
from tflaunch.mailbox import Mail, Mailbox
from tflaunch_worker import wire
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.arriving_files import FilesError
from tflaunch_worker.features.checkpoints import checkpoint_copies, saved_checkpoints
from tflaunch_worker.features.checkpoints.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.unit

KERAS = b"PK\3\4" + b"x" * 50 + b"PK\5\6" + bytes(18)
HDF5 = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08" + bytes(25) + (100).to_bytes(8, "little") + bytes(52)


def found(directory: Path, is_quiet: bool = True) -> tuple[str, int, list[str]] | None:
    """Return name, step and files of the newest checkpoint."""
    newest = saved_checkpoints.find_newest(str(directory), is_quiet)
    return None if newest is None else (newest.name, newest.step, list(newest.files))


def write(path: Path, data: bytes = b"x", age: float = 0.0) -> None:
    """Write a file that is ``age`` seconds old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    at = time.time() - age
    os.utime(path, (at, at))


# ---- what is complete


def test_a_checkpoint_of_tensorflow_is_what_its_directory_names(tmp_path: Path) -> None:
    save(tmp_path, 10, 1, 5)
    write(tmp_path / "ckpt-20.data-00000-of-00001")
    write(tmp_path / "ckpt-20.index", INDEX_END)
    assert found(tmp_path) == ("ckpt-10", 10, ["ckpt-10.data-00000-of-00001", "ckpt-10.index", "checkpoint"])


@pytest.mark.parametrize("lacking", ["ckpt-3.data-00001-of-00002", "ckpt-3.index"])
def test_all_parts_must_be_there(tmp_path: Path, lacking: str) -> None:
    for number in range(2):
        write(tmp_path / f"ckpt-3.data-0000{number}-of-00002")
    write(tmp_path / "ckpt-3.index", b"index" + INDEX_END)
    assert found(tmp_path) is not None
    if lacking.endswith(".index"):
        write(tmp_path / lacking, b"index" + INDEX_END[:-1])
    else:
        (tmp_path / lacking).unlink()
    assert found(tmp_path) is None


@pytest.mark.parametrize(("name", "data"), [("m-7.keras", KERAS), ("m-7.weights.h5", HDF5), ("m-7.h5", HDF5)])
def test_a_file_of_keras_must_have_its_end(tmp_path: Path, name: str, data: bytes) -> None:
    """An archive ends with its directory, HDF5 begins with its length; else it is being written."""
    write(tmp_path / name, data)
    assert found(tmp_path, is_quiet=False) == (name, 7, [name])
    write(tmp_path / name, data[:-23])
    assert found(tmp_path) is None
    with pytest.raises(saved_checkpoints.UnfinishedError):
        found(tmp_path, is_quiet=False)
    write(tmp_path / name, data[:-23], age=100)
    assert found(tmp_path, is_quiet=False) is None, "its program was killed"


def test_backup_and_restore_writes_its_epoch_last(tmp_path: Path) -> None:
    """Weights of an epoch with the number of the one before would be trained on twice."""
    write(tmp_path / "latest.weights.h5", HDF5, age=10)
    write(tmp_path / "training_metadata.json", b'{"epoch": 1}', age=9)
    assert found(tmp_path) == ("latest.weights.h5", 0, ["latest.weights.h5", "training_metadata.json"])
    write(tmp_path / "latest.weights.h5", HDF5, age=1)
    assert found(tmp_path) is None


def test_the_newest_of_every_directory_belongs_to_it(tmp_path: Path) -> None:
    save(tmp_path / "chief", 10, 1, 5)
    write(tmp_path / "best" / "epoch-1.keras", KERAS, age=50)
    write(tmp_path / "best" / "epoch-2.keras", KERAS, age=40)
    save(tmp_path / "workertemp_1", 12, 1, 5)
    save(tmp_path / "ckpt-12_temp", 12, 1, 5)
    save(tmp_path / ".hidden", 12, 1, 5)
    (tmp_path / "linked").symlink_to(tmp_path / "workertemp_1")
    (tmp_path / "other-99.keras").symlink_to(tmp_path / "best" / "epoch-1.keras")
    newest = found(tmp_path)
    assert newest is not None
    assert newest[:2] == ("ckpt-10", 10)
    assert sorted(newest[2]) == [
        "best/epoch-2.keras",
        "chief/checkpoint",
        "chief/ckpt-10.data-00000-of-00001",
        "chief/ckpt-10.index",
    ]


# ---- the store of a host


def test_a_checkpoint_that_changes_while_it_is_copied_is_not_taken(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "store"))
    for change in (lambda path: path.write_bytes(b"another"), lambda path: path.unlink()):
        save(tmp_path / "state", 10, 1, 5)
        newest = saved_checkpoints.find_newest(str(tmp_path / "state"), is_quiet=True)
        assert newest is not None
        change(tmp_path / "state" / "ckpt-10.data-00000-of-00001")
        assert store.capture(str(tmp_path / "state"), newest, None) is None


def test_a_checkpoint_is_put_where_it_is_missing(tmp_path: Path) -> None:
    """Its age stays, what is there is not written again, and nothing else is removed."""
    store, state = CheckpointStore(str(tmp_path / "store")), tmp_path / "state"
    save(state, 10, 1, 5)
    captured = store.look(str(state))
    assert captured is not None
    write(tmp_path / "far" / "notes")
    files = captured["files"]
    for _ in range(2):
        assert store.place([str(tmp_path / "far")], files, 1000.0) == {"missing": [], "problem": ""}
        assert sorted(os.listdir(tmp_path / "far")) == sorted([*(path for path, _, _ in files), "notes"])
        assert found(tmp_path / "far") == found(state)
        assert time.time() - (tmp_path / "far" / "checkpoint").stat().st_mtime > 900
    store.retain([])
    assert store.place([str(tmp_path / "far")], files, 1.0)["missing"] == []
    (tmp_path / "far" / "checkpoint").unlink()
    assert store.place([str(tmp_path / "far")], files, 1.0)["missing"] == [files[-1][2]]


def test_nothing_is_written_behind_a_link(tmp_path: Path) -> None:
    """A task may have replaced a directory by a link out of the directory of checkpoints."""
    store, state = CheckpointStore(str(tmp_path / "store")), tmp_path / "state"
    save(state / "deep", 10, 1, 5)
    captured = store.look(str(state))
    assert captured is not None
    (tmp_path / "outside").mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "deep").symlink_to(tmp_path / "outside")
    assert "is a symbolic link" in store.place([str(tmp_path / "far")], captured["files"], 1.0)["problem"]
    assert not os.listdir(tmp_path / "outside")
    assert os.listdir(tmp_path / "far") == ["deep"]


def test_what_arrives_damaged_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    with pytest.raises(FilesError, match="damaged"):
        store.take("0" * 64, 0, b"content", is_last=True)
    store.take("0" * 64, 0, b"con", is_last=False)
    assert store.lacks(["0" * 64]) == [["0" * 64, 3]]
    with pytest.raises(ValueError, match="does not follow"):
        store.take("0" * 64, 7, b"tent", is_last=True)
    store.retain([])
    assert store.lacks(["0" * 64]) == [["0" * 64, 0]]


# ---- what is accepted of an agent

FILE = ["ckpt-1.index", 5, "ab" * 32]
GOOD = {"number": 1, "name": "ckpt-1", "step": 1, "age": 2.5, "files": [FILE]}


def heard(**answer: Any) -> list[object]:
    """Return what a request to find a checkpoint is answered with."""
    told: list[object] = []
    agent = PlayedAgent()
    link = CheckpointLink(agent.calls.begin, lambda: None)
    link.find("/w", "state", 0, lambda *known: told.extend(known), wait=True)
    agent.answer(1, **answer)
    return told


def test_a_checkpoint_that_an_agent_lists() -> None:
    told = heard(found=GOOD, problem="")
    assert told == [FoundCheckpoint(1, "ckpt-1", 1, 2.5, (File("ckpt-1.index", 5, "ab" * 32),)), ""]


@pytest.mark.parametrize(
    "changed",
    [
        *({"files": [[path, 5, "ab" * 32]]} for path in ("../x", "/etc/x", "a/../../x", "", "a//b", "x\n", ".")),
        {"files": [["x", -1, "ab" * 32]]},
        {"files": [["x", 5, "AB" * 32]]},
        {"files": [["x", 5, "../" * 21 + "x"]]},
        {"files": [FILE, FILE]},
        {"files": [["a", 5, "ab" * 32], ["a/b", 5, "ab" * 32]]},
        {"files": []},
        {"name": "../up"},
        {"name": ""},
        {"name": "two\nlines"},
        {"step": -1},
        {"age": -1},
        {"age": "old"},
        {"number": 0},
    ],
)
def test_an_agent_that_lies_about_a_checkpoint(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        heard(found={**GOOD, **changed}, problem="")


def test_an_agent_wants_what_it_was_not_offered() -> None:
    told: list[Missing] = []
    for missing in (["cd" * 32, 0], ["ab" * 32, -1], ["ab" * 32], "ab"):
        agent = PlayedAgent()
        link = CheckpointLink(agent.calls.begin, lambda: None)
        link.place(["/w"], "state", [File("x", 5, "ab" * 32)], 1.0, told.append)
        with pytest.raises(ValueError, match=r"it asks for|must be"):
            agent.answer(1, missing=[missing], problem="")
    assert told == []


# ---- the copies in the run's directory


def test_copies_are_limited_and_share_contents(tmp_path: Path) -> None:
    copies = CheckpointCopies(tmp_path / "checkpoints", keep=2)
    hosts = [_Host(tmp_path / "h1")]
    for number in (1, 2, 3):
        (hosts[0].state / "same.keras").parent.mkdir(parents=True, exist_ok=True)
        if number == 1:
            write(hosts[0].state / "best" / "same.keras", KERAS)
        save(hosts[0].state, number, 1, 1)
        _fetch(hosts[0], copies)
    assert [kept.name for kept in copies.kept] == ["ckpt-2", "ckpt-3"]
    places = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert places == ["0002-ckpt-2", "0003-ckpt-3", "index.json"]
    shared = [tmp_path / "checkpoints" / place / "best" / "same.keras" for place in places[:2]]
    assert shared[0].stat().st_ino == shared[1].stat().st_ino
    assert hosts[0].sent.count(next(file.sha256 for file in copies.kept[0].files if "same" in file.path)) == 1
    assert CheckpointCopies(tmp_path / "checkpoints", keep=2).kept == copies.kept
    shared[0].unlink()
    assert [kept.name for kept in CheckpointCopies(tmp_path / "checkpoints", keep=2).kept] == ["ckpt-3"]
    (tmp_path / "checkpoints" / "index.json").write_text('[{"place": "../x"}, 3]')
    assert CheckpointCopies(tmp_path / "checkpoints", keep=2).kept == []


def test_a_checkpoint_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    copies = CheckpointCopies(tmp_path / "checkpoints", keep=2)
    with pytest.raises(DiskFullError, match=r"MB that stay free, and .* MB are free; make room"):
        copies.missing([File("x", 2**49, "ab" * 32)])


# ---- which checkpoint an attempt starts with


class _Host:
    """A host whose agent answers at once, also that its disk is full if `is_full`. Takes the place of a session."""

    def __init__(self, place: Path) -> None:
        self.state = place / "state"
        self.calls = Calls(lambda frame: self._obey(*wire.Decoder().feed(b"".join(frame))[0]))
        self.calls.open()
        self.sent: list[str] = []
        self.is_full = False
        self.waiting: int | None = None
        self._place = place
        self._store = CheckpointStore(str(place / "store"))
        self._number = 0

    def destroy(self) -> None:
        """Lose the disk and the link."""
        shutil.rmtree(self._place, ignore_errors=True)
        self.lose_link()

    def lose_link(self) -> None:
        """Lose the link, and get another one."""
        self.calls.lose()
        self.calls.open()

    def _obey(self, message: Any, body: bytes) -> None:
        orders.check(message, {**orders.FIELDS, **checkpoint_copies.CheckpointCopies.CALLS}[message["kind"]])
        call = message["call"]
        match message["kind"]:
            case "find_checkpoint":
                self.waiting = call if message["wait"] else None
                if not message["wait"]:
                    self.answer_find(call)
            case "read_checkpoint":
                self.sent += [message["sha256"]] if message["offset"] == 0 else []
                self._answer(call, self._store.read(message["sha256"], message["offset"]))
            case "store_checkpoint":
                self._store.retain(message["kept"])
                self._answer(call, missing=self._store.lacks(message["digests"]), problem="")
            case "write_checkpoint":
                self._store.take(message["sha256"], message["offset"], body, message["is_last"])
                self._answer(call, problem="")
            case "place_checkpoint":
                done = self._store.place([str(self.state)], message["files"], message["age"])
                problem = "the disk is full" if self.is_full else done["problem"]
                self._answer(call, missing=self._store.lacks(done["missing"]), problem=problem)

    def _answer(self, call: int, body: bytes = b"", **about: Any) -> None:
        self.calls.take({"kind": "answered", "call": call, **about}, body)

    def answer_find(self, call: int) -> None:
        """Tell of the newest checkpoint."""
        self._number += 1
        newest = self._store.look(str(self.state))
        self._answer(call, found=None if newest is None else {"number": self._number, **newest}, problem="")

    def saves(self, step: int, value: int = 1) -> None:
        """Write a checkpoint, and notice it."""
        save(self.state, step, value, step)
        if self.waiting is not None:
            call, self.waiting = self.waiting, None
            self.answer_find(call)


def _fetch(host: _Host, copies: CheckpointCopies) -> KeptCheckpoint:
    """Fetch the newest checkpoint of a host."""
    told: list[Any] = []
    link = CheckpointLink(host.calls.begin, lambda: None)
    link.find("/w", "state", 0, lambda newest, _: told.append(newest), wait=False)
    checkpoint, problems = told[0], list[str]()
    link.fetch(copies, checkpoint.files, problems.append)
    assert problems == [""]
    at = time.time() - checkpoint.age
    return copies.add(KeptCheckpoint("", "h1", checkpoint.name, checkpoint.step, at, checkpoint.files, ("h1",)))


class _Cluster:
    """A job on hosts with disks of their own, and the keeper of its checkpoints."""

    def __init__(self, directory: Path, hosts: int = 3, **checkpoints: int) -> None:
        self.directory = directory
        self.names = [f"h{number + 1}" for number in range(hosts)]
        self.hosts = {name: _Host(directory / name) for name in self.names}
        plan = clustered({"worker": self.names}, checkpoints={"dir": "state", **checkpoints})
        self.job = Willing(plan)
        self.mailbox = Mailbox()
        self.said: list[Mail] = []
        self.keeper = self.supervise()

    def supervise(self) -> CheckpointKeeper:
        """Start a supervisor."""
        sessions: Any = self.hosts
        self.keeper = CheckpointKeeper(supervision(self.job.job, self.directory / "run", self.mailbox, sessions))
        return self.keeper

    def _take(self) -> Event | Annotation | None:
        """Return what was said next."""
        said = self.mailbox.take(self.mailbox.now())
        if said is not None:
            self.said.append(said)
        assert not isinstance(said, Superseded)
        return said

    def happens(self, *events: Event | Annotation) -> None:
        """Let events happen, and all that follow."""
        waiting = list(events)
        while (event := waiting.pop(0) if waiting else self._take()) is not None:
            self.job.happens(event)
            self.keeper.watch(self.job.job, self.job.now)

    def begin(self) -> None:
        """Begin to supervise; the hosts have joined."""
        self.happens(TimePassed())

    def loses(self, name: str) -> None:
        """Destroy a host with its disk; it comes back empty."""
        self.hosts[name].destroy()
        self.happens(HostLost(name, "no power"))
        while self.job.job.phase is not Phase.RUNNING:
            deadline = time_limits.next_deadline(self.job.job)
            assert deadline is not None, self.job.job.phase
            self.job.now = max(self.job.now, deadline)
            self.happens(TimePassed())

    def placed(self) -> list[tuple[str, str]]:
        """Return host and checkpoint of what was put on hosts."""
        return [(event.host, event.name) for event in self.said if isinstance(event, CheckpointPlaced)]

    def safe(self) -> tuple[str, tuple[str, ...]]:
        """Return the newest checkpoint that has a copy, and the hosts that have it."""
        self.happens()
        known = self.job.job.checkpoint
        assert known is not None
        return known.name, known.hosts

    def steps(self) -> list[int]:
        """Return the step of the newest checkpoint on each host, 0 for none."""
        return [0 if (newest := found(host.state)) is None else newest[1] for host in self.hosts.values()]


def test_an_attempt_starts_with_the_newest_checkpoint(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    cluster.begin()
    assert cluster.placed() == [("h1", ""), ("h2", ""), ("h3", "")]
    cluster.hosts["h1"].saves(10)
    assert cluster.safe() == ("ckpt-10", ("h1", "h2"))
    cluster.loses("h3")
    assert cluster.steps() == [10, 10, 10]
    assert cluster.safe() == ("ckpt-10", ("h1", "h2", "h3"))
    cluster.hosts["h1"].saves(20)
    cluster.loses("h1")
    assert cluster.steps() == [20, 20, 20]
    assert cluster.placed()[3:] == [(host, name) for name in ("ckpt-10", "ckpt-20") for host in cluster.names]


def test_what_was_saved_just_before_the_failure_counts(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    cluster.begin()
    cluster.hosts["h1"].saves(10)
    cluster.hosts["h1"].waiting = None  # the next one is not noticed
    cluster.hosts["h1"].saves(20)
    assert cluster.safe()[0] == "ckpt-10"
    cluster.loses("h2")
    assert cluster.steps() == [20, 20, 20]


def test_a_run_begins_with_what_an_earlier_one_has_left(tmp_path: Path) -> None:
    """On any host: the newest one, although another host has a higher step."""
    cluster = _Cluster(tmp_path)
    save(cluster.hosts["h2"].state, 900, 1, 1)
    for path in cluster.hosts["h2"].state.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)
    save(cluster.hosts["h3"].state, 50, 1, 1)
    cluster.begin()
    assert cluster.steps()[0] == 50
    assert cluster.placed() == [(name, "ckpt-50") for name in cluster.names]


def test_another_supervisor_goes_on(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    cluster.begin()
    cluster.hosts["h1"].saves(10)
    for host in cluster.hosts.values():
        host.lose_link()
    cluster.supervise()
    cluster.loses("h1")
    assert cluster.steps() == [10, 10, 10]


def test_as_many_hosts_have_copies_as_are_wanted(tmp_path: Path) -> None:
    for copies, hosts in ((1, ("h1",)), (2, ("h1", "h2")), (9, ("h1", "h2", "h3"))):
        cluster = _Cluster(tmp_path / str(copies), copies=copies)
        cluster.begin()
        cluster.hosts["h1"].saves(10)
        assert cluster.safe() == ("ckpt-10", hosts)


def test_a_host_that_cannot_store_the_checkpoint_fails_the_attempt(tmp_path: Path) -> None:
    """Its tasks would train from another state than the others'."""
    cluster = _Cluster(tmp_path)
    save(cluster.hosts["h1"].state, 10, 1, 1)
    cluster.hosts["h2"].is_full = True
    cluster.begin()
    assert [event.reason for event in cluster.said if isinstance(event, CheckpointRefused)] == ["the disk is full"]
    culprit = cluster.job.job.culprit
    assert culprit is not None
    assert culprit.message == "the newest checkpoint cannot be put on h2: the disk is full"


def test_a_link_is_lost_while_a_checkpoint_is_awaited(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path)
    cluster.begin()
    cluster.hosts["h1"].saves(10)
    cluster.hosts["h1"].lose_link()
    cluster.happens(LinkLost("h1", "cut"))
    cluster.hosts["h1"].waiting = None
    cluster.hosts["h1"].saves(20)
    cluster.happens(LinkRestored("h1", is_leaving=False))
    assert cluster.hosts["h1"].waiting is not None
    cluster.hosts["h1"].saves(30)
    assert cluster.safe()[0] == "ckpt-30"


def test_a_job_without_checkpoints_awaits_none() -> None:
    job = Willing(clustered({"worker": ["h1", "h2"]}))
    assert job.job.phase is Phase.RUNNING
    assert not [action for action in job.seen if isinstance(action, PlaceCheckpoint)]
