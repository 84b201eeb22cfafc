"""Files that are fetched from working directories: what an agent lists, what is accepted of it, and what is stored."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from support.deep_trees import DEPTH, make_deep
from support.specs import planned
from tflaunch.agents.rpc import AgentRpc
from tflaunch.core import step
from tflaunch.core.task_state import TaskPhase
from tflaunch.features.files.collect import _Listing, workdirs_of
from tflaunch.features.files.collected_files import CollectedFiles
from tflaunch.plan.setting_rules import is_pattern
from tflaunch.transport.base import LinkError
from tflaunch_worker import wire
from tflaunch_worker.agent.left_files import PART
from tflaunch_worker.features.files.listed_files import ListedFile, list_files, matches

pytestmark = pytest.mark.unit

CONTENT = b"weights" * PART
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("outputs/**", "outputs/a/b.txt", True),
        ("outputs/**", "outputs/b.txt", True),
        ("outputs", "outputs/a/b.txt", True),
        ("outputs/", "outputs/a", True),
        ("./outputs", "outputs/a", True),
        ("outputs/*.txt", "outputs/a/b.txt", False),
        ("outputs/*.txt", "outputs/b.txt", True),
        ("**/*.keras", "model.keras", True),
        ("**/*.keras", "a/b/model.keras", True),
        ("**/*.keras", "a/b/model.keras.tmp", False),
        ("a/**/b/*", "a/b/c", True),
        ("a/**/b/*", "a/x/y/b/c", True),
        ("a/**/b/*", "b/c", False),
        ("out?", "outs/x", True),
        ("logs", "other", False),
    ],
)
def test_a_pattern(pattern: str, path: str, is_match: bool) -> None:
    """As in .gitignore, and a directory matches everything in it."""
    assert matches(path, [pattern]) is is_match


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
    file = ListedFile(str(tmp_path), "a/file")
    assert (file.read(3), file.read(99)) == (b"tent", b"")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert file.read(0) == b""


LISTED: dict[str, Any] = {"directory": "/w", "files": [["outputs/m", 5, DIGEST]], "left_out": 0, "problem": ""}


def test_a_list_of_files() -> None:
    assert _Listing.read(LISTED, ["outputs"]).files == (("outputs/m", 5, DIGEST),)


@pytest.mark.parametrize(
    "files",
    [
        [["../m", 5, DIGEST]],
        [["/etc/m", 5, DIGEST]],
        [["outputs/../../m", 5, DIGEST]],
        [["outputs//m", 5, DIGEST]],
        [["outputs/.", 5, DIGEST]],
        [["outputs/a\0b", 5, DIGEST]],
        [["outputs/\x1b[2J", 5, DIGEST]],
        [["outputs/\udc80\ud800", 5, DIGEST]],
        [["outputs/" + "x" * 5000, 5, DIGEST]],
        [["elsewhere/m", 5, DIGEST]],
        [["", 5, DIGEST]],
        [["outputs/m", -1, DIGEST]],
        [["outputs/m", True, DIGEST]],
        [["outputs/m", 2**60, DIGEST]],
        [["outputs/m", 5, "../../" + DIGEST[6:]]],
        [["outputs/m", 5, DIGEST], ["outputs/m", 6, DIGEST]],
        [["outputs/m", 5]],
        ["outputs/m"],
        "outputs/m",
    ],
)
def test_a_hostile_list_is_refused(files: Any) -> None:
    with pytest.raises(ValueError, match=r"lists|must be|surrogates"):
        _Listing.read({**LISTED, "files": files}, ["outputs"])


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

    def test_a_file_that_has_changed_meanwhile(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path, "worker-0")
        assert not store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT[:-1] + b"x"))
        assert not store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT[: 2 * PART]))
        assert not (store.directory / "m").exists()
        assert store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT))

    def test_other_content_is_fetched_again(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path, "worker-0")
        (store.directory).mkdir()
        (store.directory / "m").write_bytes(CONTENT[::-1])
        assert not store.has("m", len(CONTENT), DIGEST)
        assert store.fetch("m", len(CONTENT), DIGEST, reader(CONTENT))
        assert (store.directory / "m").read_bytes() == CONTENT

    def test_what_is_no_directory(self, tmp_path: Path) -> None:
        store = CollectedFiles(tmp_path, "worker-0")
        nothing = hashlib.sha256().hexdigest()
        assert store.fetch("m", 0, nothing, reader(b""))
        with pytest.raises(OSError, match="m"):
            store.fetch("m/below", 0, nothing, reader(b""))


@pytest.mark.parametrize("answer", [{"call": 7}, {"call": 0}, {}, {"kind": "told", "call": 1}])
def test_an_answer_that_was_not_requested(answer: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()

    def play() -> None:
        theirs.sendall(wire.encode({"kind": "greeted"}))
        while b"read_file" not in theirs.recv(1 << 20):
            pass
        theirs.sendall(wire.encode({"kind": "answered", **answer}, b"part"))

    thread = threading.Thread(target=play)
    thread.start()
    agent = AgentRpc(Ends(ours), "run")
    with pytest.raises(LinkError, match="its agent broke the protocol: "):
        agent.call("read_file", 5.0, task="worker:0", attempt=0, name="outputs/m", offset=0)
    thread.join()
    agent.close()
    theirs.close()


class Ends:
    """A link over a socket."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket = ours

    def close(self) -> None:
        self.socket.close()


def test_tasks_that_share_a_directory_are_listed_once() -> None:
    """And those that were never started are not asked about."""
    plan = planned(
        {
            "cluster": {"worker": ["a:1", "a:2", "b:1"], "evaluator": ["b:2"]},
            "command": ["train"],
            "workdir": "/w",
            "roles": {"evaluator": {"workdir": "/w/{task.name}-{attempt}"}},
            "collect": ["outputs"],
        }
    )
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


@pytest.mark.parametrize(("path", "is_good"), [("a/**", True), ("*.log", True), ("/a", False), ("../a", False)])
def test_a_path_of_a_spec(path: str, is_good: bool) -> None:
    assert is_pattern(path) is is_good
    assert not is_pattern("./")
    assert not is_pattern("~/a")
