"""Copies of checkpoints: what is complete, what is accepted of an agent, and which one an attempt starts with."""

import os
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import Self

from support.checkpoint_program import INDEX_END, save
from support.job_history import Willing
from support.played_agent import PlayedAgent
from support.specs import clustered
from support.ungreeted_run import supervision
from tflaunch.agents.calls import Calls
from tflaunch.core import time_limits
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event, HostLost, HostPrepared, HostRefused, LinkLost, LinkRestored, TimePassed
from tflaunch.core.job_state import Phase
from tflaunch.features.checkpoints.checkpoint_copies import CheckpointCopies, KeptCheckpoint
from tflaunch.features.checkpoints.checkpoint_keeper import CheckpointKeeper
from tflaunch.features.checkpoints.checkpoint_link import CheckpointLink
from tflaunch.features.uploads import HashedFile as File
from tflaunch.mailbox import Mailbox
from tflaunch_worker import wire
from tflaunch_worker.agent import orders
from tflaunch_worker.features.checkpoints import checkpoint_copies, saved_checkpoints
from tflaunch_worker.features.checkpoints.checkpoint_store import NOTHING, CheckpointStore

DATA = "ckpt-10.data-00000-of-00001"
KERAS = b"PK\3\4" + b"x" * 50 + b"PK\5\6" + bytes(18)
HDF5 = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08" + bytes(25) + (100).to_bytes(8, "little") + bytes(52)


def found(directory: Path, is_quiet: bool = True) -> tuple[str, int, list[str]] | None:
    newest = saved_checkpoints.find_newest(str(directory), is_quiet)
    return None if newest is None else (newest.name, newest.step, list(newest.files))


def write(path: Path, data: bytes = b"x", age: float = 0.0) -> None:
    """Write a file that is ``age`` seconds old."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    at = path.stat().st_mtime - age
    os.utime(path, (at, at))


# ---- what is complete


def test_a_checkpoint_of_tensorflow_is_what_its_directory_names_with_all_parts(tmp_path: Path) -> None:
    save(tmp_path, 10, 1, 5)
    write(tmp_path / "ckpt-20.data-00000-of-00001")
    write(tmp_path / "ckpt-20.index", INDEX_END)
    assert found(tmp_path) == ("ckpt-10", 10, [DATA, "ckpt-10.index", "checkpoint"])
    place = tmp_path / "parts"
    parts = [place / f"ckpt-3.data-0000{number}-of-00002" for number in range(2)]
    for part in parts:
        write(part)
    write(place / "ckpt-3.index", b"index" + INDEX_END)
    assert found(place) is not None
    parts[1].unlink()
    assert found(place) is None
    write(parts[1])
    write(place / "ckpt-3.index", b"index" + INDEX_END[:-1])
    assert found(place) is None


@pytest.mark.parametrize(("name", "data"), [("m-7.keras", KERAS), ("m-7.weights.h5", HDF5), ("m-7.h5", HDF5)])
def test_a_file_of_keras_must_have_its_end(tmp_path: Path, name: str, data: bytes) -> None:
    """An archive ends with its directory, HDF5 begins with its length; else it is being written."""
    write(tmp_path / name, data)
    assert found(tmp_path, is_quiet=False) == (name, 7, [name])
    write(tmp_path / name, data[:-23])
    assert found(tmp_path) is None
    save(tmp_path / "other", 3, 1, 1)
    assert found(tmp_path, is_quiet=False) is None, "the other one is incomplete without it"
    write(tmp_path / name, data[:-23], age=100)
    assert (found(tmp_path, is_quiet=False) or ("",))[0] == "ckpt-3", "its program was killed"


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
    files = ["best/epoch-2.keras", *(f"chief/{name}" for name in ("checkpoint", DATA, "ckpt-10.index"))]
    assert (*newest[:2], sorted(newest[2])) == ("ckpt-10", 10, files)


# ---- the store of a host


def test_a_checkpoint_that_changes_while_it_is_copied_is_not_taken(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "store"))
    for change in (lambda path: path.write_bytes(b"another"), lambda path: path.unlink()):
        save(tmp_path / "state", 10, 1, 5)
        newest = saved_checkpoints.find_newest(str(tmp_path / "state"), is_quiet=True)
        assert newest is not None
        change(tmp_path / "state" / DATA)
        assert store.capture(str(tmp_path / "state"), newest, None) is None


def test_a_checkpoint_is_put_where_it_is_missing(tmp_path: Path) -> None:
    """Its age stays, what is there is not written again, and nothing else is removed."""
    store, state, far = CheckpointStore(str(tmp_path / "store")), tmp_path / "state", tmp_path / "far"
    save(state / "deep", 10, 1, 5)
    captured = store.look(str(state))
    assert captured is not None
    write(far / "deep" / "notes")
    files = captured["found"]["files"]
    for _ in range(2):
        assert store.place([str(far)], files, 1000.0) == {"missing": [], "problem": ""}
        assert sorted(os.listdir(far / "deep")) == sorted([*(Path(path).name for path, _, _ in files), "notes"])
        assert found(far) == found(state)
        assert (far / "deep/notes").stat().st_mtime - (far / "deep/checkpoint").stat().st_mtime > 900
    outside, linked = tmp_path / "outside", tmp_path / "linked"
    outside.mkdir()
    linked.mkdir()
    (linked / "deep").symlink_to(outside)  # a task may have replaced a directory by a link out of it
    assert "is a symbolic link" in store.place([str(linked)], files, 1.0)["problem"]
    assert (os.listdir(outside), os.listdir(linked)) == ([], ["deep"])
    store.retain([])
    assert store.place([str(far)], files, 1.0)["missing"] == []
    (far / "deep" / "checkpoint").unlink()
    assert store.place([str(far)], files, 1.0)["missing"] == [files[-1][2]]


# ---- what is accepted of an agent

FILE = ["ckpt-1.index", 5, "ab" * 32]
GOOD = {"name": "ckpt-1", "step": 1, "age": 2.5, "files": [FILE]}


def heard(**answer: Any) -> list[object]:
    told: list[object] = []
    agent = PlayedAgent()
    link = CheckpointLink("h1", agent.calls.begin, lambda: None)
    link.find("/w", "state", "", lambda *known: told.extend(known), wait=True)
    agent.answer(1, mark="m", problem="", **answer)
    return told


@pytest.mark.parametrize(
    "changed",
    [
        *({"files": [[path, 5, "ab" * 32]]} for path in ("../x", "/etc/x", "a/../../x", "", "a//b", "x\n", ".")),
        *({"files": [["x", size, sha]]} for size, sha in ((-1, "ab" * 32), (5, "AB" * 32), (5, "../" * 21 + "x"))),
        *({"files": files} for files in ([FILE, FILE], [["a", 5, "ab" * 32], ["a/b", 5, "ab" * 32]], [])),
        *({"name": name} for name in ("../up", "", "two\nlines")),
        *({"age": age} for age in (-1, "old")),
        {"step": -1},
    ],
)
def test_an_agent_that_lies_about_a_checkpoint(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    told = heard(found=GOOD)
    files = (File("ckpt-1.index", 5, "ab" * 32),)
    assert told == [KeptCheckpoint("", "h1", "ckpt-1", 1, 97.5, files, ("h1",)), "m", ""]
    with pytest.raises(ValueError, match=r".+"):
        heard(found={**GOOD, **changed})


def test_an_agent_wants_what_it_was_not_offered() -> None:
    told: list[object] = []
    for missing in (["cd" * 32, 0], ["ab" * 32, -1], ["ab" * 32], "ab"):
        agent = PlayedAgent()
        link = CheckpointLink("h1", agent.calls.begin, lambda: None)
        link.place(["/w"], "state", [File("x", 5, "ab" * 32)], 1.0, lambda *missing: told.extend(missing))
        with pytest.raises(ValueError, match=r"it asks for|must be"):
            agent.answer(1, missing=[missing], problem="")
    assert told == []


@pytest.mark.parametrize("part", [b"four", b"sixsix"])
def test_an_agent_sends_a_part_that_was_not_requested(tmp_path: Path, part: bytes) -> None:
    agent = PlayedAgent()
    link = CheckpointLink("h1", agent.calls.begin, lambda: None)
    link.fetch(CheckpointCopies(tmp_path, keep=1), [File("x", 5, "ab" * 32)], lambda _: None)
    with pytest.raises(ValueError, match="another length"):
        agent.answer(1, part)


# ---- the copies in the run's directory


def test_copies_are_limited_and_share_contents(tmp_path: Path) -> None:
    copies = CheckpointCopies(tmp_path / "checkpoints", keep=2)
    host = _Host(tmp_path / "h1")
    for number in (1, 2, 3):
        if number == 1:
            write(host.state / "best" / "same.keras", KERAS)
        save(host.state, number, 1, 1)
        _fetch(host, copies)
    assert [kept.name for kept in copies.kept] == ["ckpt-2", "ckpt-3"]
    with pytest.raises(OSError, match=r"256M that stay free, and .* are free"):
        copies.missing([File("x", 2**49, "ab" * 32)])
    places = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert places == ["0002-ckpt-2", "0003-ckpt-3", "index.json"]
    shared = [tmp_path / "checkpoints" / place / "best" / "same.keras" for place in places[:2]]
    assert shared[0].stat().st_ino == shared[1].stat().st_ino
    assert host.sent.count(next(file.sha256 for file in copies.kept[0].files if "same" in file.path)) == 1
    assert CheckpointCopies(tmp_path / "checkpoints", keep=2).kept == copies.kept
    shared[0].unlink()
    assert [kept.name for kept in CheckpointCopies(tmp_path / "checkpoints", keep=2).kept] == ["ckpt-3"]
    (tmp_path / "checkpoints" / "index.json").write_text('[{"place": "../x"}, 3]')
    assert CheckpointCopies(tmp_path / "checkpoints", keep=2).kept == []


# ---- which checkpoint an attempt starts with


class _Host:
    """A host whose agent answers at once, also that its disk is full if `is_full`. Takes the place of a session."""

    def __init__(self, place: Path) -> None:
        self.state = place / "state"
        self.calls = Calls(lambda frame: self._obey(*wire.Decoder().feed(b"".join(frame))[0]))
        self.calls.open()
        self.sent: list[str] = []
        self.is_full = False
        self.problem = ""
        self.asked = 0
        self.waiting: int | None = None
        self._place = place
        self._store = CheckpointStore(str(place / "store"))

    def destroy(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self.lose_link()

    def lose_link(self) -> None:
        self.calls.lose()
        self.calls.open()

    def _obey(self, message: Any, body: bytes) -> None:
        orders.check(message, {**orders.FIELDS, **checkpoint_copies.CheckpointCopies.CALLS}[message["kind"]])
        call = message["call"]
        match message["kind"]:
            case "find_checkpoint":
                self.asked += 1
                self.waiting = call if message["wait"] and not self.problem else None
                if self.waiting is None:
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
        found = None if self.problem else self._store.look(str(self.state))
        self._answer(call, **(found or {**NOTHING, "problem": self.problem}))

    def saves(self, step: int, value: int = 1) -> None:
        """Write a checkpoint, and notice it."""
        save(self.state, step, value, step)
        if self.waiting is not None:
            call, self.waiting = self.waiting, None
            self.answer_find(call)


def _fetch(host: _Host, copies: CheckpointCopies) -> KeptCheckpoint:
    told: list[Any] = []
    link = CheckpointLink("h1", host.calls.begin, lambda: None)
    link.find("/w", "state", "", lambda *newest: told.extend(newest), wait=False)
    checkpoint, problems = told[0], list[str]()
    link.fetch(copies, checkpoint.files, problems.append)
    assert problems == [""]
    return copies.add(checkpoint._replace(written_at=0.0))


class _Cluster:
    """A job on hosts with disks of their own, and the keeper of its checkpoints."""

    def __init__(self, directory: Path, hosts: int = 3, **checkpoints: int) -> None:
        self.names = [f"h{number + 1}" for number in range(hosts)]
        self.hosts = {name: _Host(directory / name) for name in self.names}
        plan = clustered({"worker": self.names}, checkpoints={"dir": "state", **checkpoints})
        self.job = Willing(plan)
        self.mailbox = Mailbox()
        self.said: list[Any] = []
        sessions: Any = self.hosts
        self.keeper = CheckpointKeeper(supervision(self.job.job, directory / "run", self.mailbox, sessions))

    def happens(self, *events: Event | Annotation) -> None:
        """Let events happen, and all that follow."""
        waiting: list[Any] = list(events)
        while (event := waiting.pop(0) if waiting else cast("Any", self.mailbox.take(self.mailbox.now()))) is not None:
            self.said.append(event)
            self.job.happens(event)
            self.keeper.watch(self.job.job, self.job.now)

    def begin(self) -> Self:
        self.happens(TimePassed())
        return self

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
        return [(event.host, event.name) for event in self.said if isinstance(event, HostPrepared)]

    def safe(self) -> tuple[str, tuple[str, ...]]:
        """Return the newest checkpoint that has a copy, and the hosts that have it."""
        self.happens()
        known = self.job.job.checkpoint
        return known.name, known.hosts

    def steps(self) -> list[int]:
        """Return the step of the newest checkpoint on each host, 0 for none."""
        return [0 if (newest := found(host.state)) is None else newest[1] for host in self.hosts.values()]


def test_an_attempt_starts_with_the_newest_checkpoint(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path).begin()
    assert cluster.placed() == [("h1", ""), ("h2", ""), ("h3", "")]
    without = Willing(clustered({"worker": ["h1", "h2"]}))
    assert without.job.phase is Phase.RUNNING
    cluster.hosts["h1"].saves(10)
    assert cluster.safe() == ("ckpt-10", ("h1", "h2"))
    cluster.loses("h3")
    assert cluster.steps() == [10, 10, 10]
    assert cluster.safe() == ("ckpt-10", ("h1", "h2", "h3"))
    cluster.hosts["h1"].saves(20)
    cluster.loses("h1")
    assert cluster.steps() == [20, 20, 20]
    assert cluster.placed()[3:] == [(host, name) for name in ("ckpt-10", "ckpt-20") for host in cluster.names]
    cluster.hosts["h1"].waiting = None  # the next one, just before the failure, is not noticed
    cluster.hosts["h1"].saves(30)
    assert cluster.safe()[0] == "ckpt-20"
    cluster.loses("h2")
    assert cluster.steps() == [30, 30, 30]


def test_a_run_begins_with_what_an_earlier_one_has_left(tmp_path: Path) -> None:
    """On any host: the newest one, although another host has a higher step."""
    cluster = _Cluster(tmp_path)
    save(cluster.hosts["h2"].state, 900, 1, 1)
    for path in cluster.hosts["h2"].state.iterdir():
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    save(cluster.hosts["h3"].state, 50, 1, 1)
    cluster.begin()
    assert cluster.steps()[0] == 50
    assert cluster.placed() == [(name, "ckpt-50") for name in cluster.names]


def test_as_many_hosts_have_copies_as_are_wanted(tmp_path: Path) -> None:
    for copies, hosts in ((1, ("h1",)), (2, ("h1", "h2")), (9, ("h1", "h2", "h3"))):
        cluster = _Cluster(tmp_path / str(copies), copies=copies).begin()
        cluster.hosts["h1"].saves(10)
        assert cluster.safe() == ("ckpt-10", hosts)


def test_a_host_that_cannot_store_the_checkpoint_fails_the_attempt(tmp_path: Path) -> None:
    """Its tasks would train from another state than the others'."""
    cluster = _Cluster(tmp_path)
    save(cluster.hosts["h1"].state, 10, 1, 1)
    cluster.hosts["h2"].is_full = True
    cluster.begin()
    assert [event.reason for event in cluster.said if isinstance(event, HostRefused)] == ["the disk is full"]
    assert cluster.job.culprit.message == "the newest checkpoint cannot be put on h2: the disk is full"


def test_a_host_that_does_not_know_the_directory_is_asked_once(tmp_path: Path) -> None:
    """At the start and while it runs: it would answer at once, again and again."""
    cluster = _Cluster(tmp_path)
    cluster.hosts["h1"].problem = "$SCRATCH is not known here"
    cluster.begin()
    assert cluster.job.job.phase is Phase.RUNNING
    assert cluster.hosts["h1"].asked == 2


def test_a_link_is_lost_while_a_checkpoint_is_awaited(tmp_path: Path) -> None:
    cluster = _Cluster(tmp_path).begin()
    cluster.hosts["h1"].saves(10)
    cluster.hosts["h1"].lose_link()
    cluster.happens(LinkLost("h1", "cut"))
    cluster.hosts["h1"].waiting = None
    cluster.hosts["h1"].saves(20)
    cluster.happens(LinkRestored("h1", is_leaving=False))
    assert cluster.hosts["h1"].waiting is not None
    cluster.hosts["h1"].saves(30)
    assert cluster.safe()[0] == "ckpt-30"
