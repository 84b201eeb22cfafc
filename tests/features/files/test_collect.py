"""Files that are fetched from working directories: what an agent lists, what is accepted of it, and what is stored."""

import hashlib
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.disks import DEPTH, make_deep
from support.job_history import HERE, mirrored
from support.specs import clustered
from support.waiting import PATIENCE
from tflaunch.core import step
from tflaunch.core.states import TaskPhase
from tflaunch.features.files.collect import CollectedFiles, Listing, workdirs_of
from tflaunch.features.files.collector import Collector
from tflaunch.features.files.file_patterns import is_pattern
from tflaunch.features.rpc import AgentRpc
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.loop import Collaborators, Run
from tflaunch.transport.base import LinkError
from tflaunch_worker import wire
from tflaunch_worker.features.file_parts import PART, open_inside, read_part
from tflaunch_worker.features.files.listed_files import list_files, matches

CONTENT = b"weights" * PART
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("outputs/**", ["outputs/a/b.txt", "outputs/b.txt"], ["other"]),
        ("outputs", ["outputs/a/b.txt"], ["out"]),
        ("outputs/", ["outputs/a"], []),
        ("./outputs", ["outputs/a"], []),
        ("outputs/*.txt", ["outputs/b.txt"], ["outputs/a/b.txt"]),
        ("**/*.keras", ["model.keras", "a/b/model.keras"], ["a/b/model.keras.tmp"]),
        ("a/**/b/*", ["a/b/c", "a/x/y/b/c"], ["b/c"]),
        ("out?", ["outs/x"], ["out"]),
    ],
)
def test_a_pattern(pattern: str, matched: list[str], others: list[str]) -> None:
    """As in .gitignore, and a directory matches everything in it."""
    assert [path for path in (*matched, *others) if matches(path, [pattern])] == matched


def test_an_agent_lists_regular_files_only(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"key")
    place = tmp_path / "run"
    (place / "outputs" / "deep").mkdir(parents=True)
    (place / "outputs" / "deep" / "model").write_bytes(b"model")
    (place / "outputs" / "link").symlink_to(outside / "secret")
    (place / "outputs" / "linked").symlink_to(outside)
    os.mkfifo(place / "outputs" / "pipe")
    (place / "outputs" / "two\nlines").write_bytes(b"")
    (place / "other").write_bytes(b"")
    found = list_files(str(place), ["outputs"])
    assert found["files"] == [["outputs/deep/model", 5, hashlib.sha256(b"model").hexdigest()]]
    assert found["left_out"] == 4
    assert list_files(str(place / "missing"), ["**"]) == {"files": [], "left_out": 0, "problem": ""}


def test_deep_files_are_listed_or_named(deep_path: Path) -> None:
    """Tasks may nest directories as they like; a path that is too long is an error, not left out in silence."""
    make_deep(deep_path / "short", "d")
    make_deep(deep_path / "long")
    (deep_path / "other").touch()
    found = list_files(str(deep_path), ["*"])
    assert [path for path, _, _ in found["files"]] == ["other", "short/" + "d/" * DEPTH + "file"]
    assert found["problem"].endswith("File name too long")
    store = CollectedFiles(deep_path / "fetched", "worker-0")
    assert store.fetch(found["files"][1][0], 0, hashlib.sha256().hexdigest(), bytes)


def test_a_listed_file_is_read_without_following_links(tmp_path: Path) -> None:
    """A task's process that outlived its agent may have replaced a directory since."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"content")
    read = lambda offset: read_part(lambda: open_inside(str(tmp_path), "a/file"), offset)  # noqa: E731
    assert (read(3), read(99)) == (b"tent", b"")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert read(0) == b""


LISTED: dict[str, Any] = {"directory": "/w", "files": [["outputs/m", 5, DIGEST]], "left_out": 0, "problem": ""}


PATHS = (
    *("../m", "/etc/m", "outputs/../../m", "outputs//m", "outputs/.", "outputs/a\0b", "outputs/\x1b[2J"),
    *("outputs/\udc80\ud800", "outputs/" + "x" * 5000, "elsewhere/m", ""),
)


@pytest.mark.parametrize(
    "files",
    [
        *([[path, 5, DIGEST]] for path in PATHS),
        *([["outputs/m", size, DIGEST]] for size in (-1, True, 2**60)),
        [["outputs/m", 5, "../../" + DIGEST[6:]]],
        [["outputs/m", 5, DIGEST], ["outputs/m", 6, DIGEST]],
        *([["outputs/m", 5]], ["outputs/m"], "outputs/m"),
    ],
)
def test_a_hostile_list_is_refused(files: Any) -> None:
    assert Listing.read(LISTED, ["outputs"]).files == (("outputs/m", 5, DIGEST),)
    with pytest.raises(ValueError, match=r"lists|must|surrogates"):
        Listing.read({**LISTED, "files": files}, ["outputs"])


def reader(content: bytes, *, until: int | None = None) -> Any:
    """Return a function that returns parts of a content, and fails at an offset."""
    asked: list[int] = []

    def read(offset: int) -> bytes:
        asked.append(offset)
        if until is not None and offset >= until:
            raise LinkError("its agent hung up")
        return content[offset : offset + PART]

    read.asked = asked  # type: ignore[attr-defined]
    return read


class TestStore:
    def test_an_interrupted_transfer_goes_on(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path / "collected", "worker-0")
        with pytest.raises(LinkError):
            store.fetch("outputs/m", len(CONTENT), DIGEST, reader(CONTENT, until=3 * PART))
        assert not (store.directory / "outputs" / "m").exists()
        again = reader(CONTENT)
        assert store.fetch("outputs/m", len(CONTENT), DIGEST, again)
        assert again.asked[0] == 3 * PART
        assert (store.directory / "outputs" / "m").read_bytes() == CONTENT
        assert (store.directory / "outputs" / "m").stat().st_mode & 0o777 == 0o600
        assert store.has("outputs/m", len(CONTENT), DIGEST)
        store.forget_parts()
        assert [path.name for path in (tmp_path / "collected").iterdir()] == ["worker-0"]

    def test_a_file_that_has_changed_is_fetched_again(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path, "worker-0")
        assert not store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT[:-1] + b"x"))
        assert not store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT[: 2 * PART]))
        assert not (store.directory / "m").exists()
        store.directory.mkdir(exist_ok=True)
        (store.directory / "m").write_bytes(CONTENT[::-1])
        assert not store.has("m", len(CONTENT), DIGEST)
        assert store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT))
        assert (store.directory / "m").read_bytes() == CONTENT

    def test_a_host_that_lists_a_file_and_files_below_it(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path, "worker-0")
        nothing = hashlib.sha256().hexdigest()
        assert store.fetch("m", 0, nothing, reader(b""))
        with pytest.raises(OSError, match="m"):
            store.fetch("m/below", 0, nothing, reader(b""))


@pytest.mark.parametrize("answer", [{"call": 7}, {"call": 0}, {}, {"kind": "told", "call": 1}])
def test_an_answer_that_was_not_requested(answer: dict[str, Any]) -> None:
    """An agent that mixes up its answers is not believed."""
    ours, theirs = socket.socketpair()
    theirs.sendall(wire.encode({"kind": "greeted"}))
    with ours, theirs:
        link: Any = SimpleNamespace(socket=ours)
        agent = AgentRpc(link, "run")
        theirs.sendall(wire.encode({"kind": "answered", **answer}, b"part"))
        with pytest.raises(LinkError, match="its agent broke the protocol: "):
            agent.call("read_listed_file", PATIENCE, path="outputs/m", offset=0)


def test_tasks_that_share_a_directory_are_listed_once() -> None:
    """And those that were never started are not asked about."""
    cluster = {"worker": ["a:1", "a:2", "b:1"], "evaluator": ["b:2"]}
    roles = {"evaluator": {"workdir": "/w/{task.name}-{attempt}"}}
    plan = clustered(cluster, workdir="/w", roles=roles, collect=["outputs"])
    job = step.begin_job("run", plan, 0.0)
    assert workdirs_of(job) == []
    for name in ("worker:0", "worker:1", "worker:2", "evaluator:0"):
        task = job.tasks[name]._replace(phase=TaskPhase.GONE, attempt=2)
        job = job._replace(tasks=job.tasks.replaced({name: task}))
    assert [(each.host, each.path, each.tasks) for each in workdirs_of(job)] == [
        ("a", "/w", ("worker:0", "worker:1")),
        ("b", "/w", ("worker:2",)),
        ("b", "/w/evaluator:0-2", ("evaluator:0",)),
    ]


def test_a_path_of_a_spec_is_below_the_working_directory_and_not_all_of_it() -> None:
    paths = ("a/**", "*.log", "/a", "../a", "./", "~/a")
    assert [path for path in paths if is_pattern(path)] == ["a/**", "*.log"]


class Gate(dict[str, Any]):
    """Sessions that a thread finds only once the gate is open, of hosts that never answer."""

    def __init__(self) -> None:
        super().__init__({HERE: SimpleNamespace(calls=SimpleNamespace(begin=lambda *_, **__: None))})
        self.entered, self.is_open = threading.Event(), threading.Event()

    def __getitem__(self, host: str) -> Any:
        self.entered.set()
        assert self.is_open.wait(PATIENCE)
        return super().__getitem__(host)


def test_a_collection_that_begins_as_the_run_ends_does_not_block_it(tmp_path: Path) -> None:
    """Its thread reaches an agent after all were given up, and needs the thread that ends the run."""
    mailbox, sessions, history = Mailbox(), Gate(), mirrored(collect=["out/*"])
    config = SimpleNamespace(directory=SimpleNamespace(path=tmp_path / "run"), extras={"collect_every": 0.0})
    supervision: Any = SimpleNamespace(config=config, job=history.job, sessions=sessions, mailbox=mailbox)
    collector = Collector(supervision)
    collector.watch(history.job, mailbox.now())
    while not sessions.entered.is_set():
        mailbox.take(mailbox.now() + 0.01)
    mailbox.call(sessions.is_open.set)  # which waits for this thread, as what the agent is asked does
    parts: Any = Collaborators(mailbox, *[None] * 5)  # type: ignore[arg-type]
    run = Run(step.begin_job("run", history.job.original, mailbox.now()), parts)
    ending = threading.Thread(target=collector.finish, args=(run,), daemon=True)
    ending.start()
    ending.join(PATIENCE)
    assert not ending.is_alive()
