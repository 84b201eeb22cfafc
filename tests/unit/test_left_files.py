"""Files that tasks leave: what an agent announces, what a session accepts of it, and what is stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agents.left_files import LeftFile, LeftFiles
from tflaunch.store.left_files import LeftFileStore, path_of
from tflaunch_worker import wire
from tflaunch_worker.agent import left_files as of_agent
from tflaunch_worker.agent.left_files import PART

pytestmark = pytest.mark.unit

FILE = LeftFile("worker:0", 0, "outcome")
ABOUT = FILE._asdict()
MOST = 3 * PART


class Session:
    """A session's side, and what it has sent."""

    def __init__(self, directory: Path) -> None:
        self.store = LeftFileStore(directory)
        self.sent: list[dict[str, Any]] = []
        self.files = LeftFiles(self.store, self._send, {FILE: MOST, FILE._replace(task="worker:1"): MOST}.get)
        self.files.begin_link()

    def _send(self, frame: bytes) -> None:
        self.sent += [message for message, _ in wire.Decoder().feed(frame)]

    def announce(self, size: int, **about: Any) -> None:
        self.files.read_announcement({"kind": "file_left", **ABOUT, "size": size, **about})

    def part(self, offset: int, body: bytes, **about: Any) -> None:
        self.files.read_part({"kind": "file_read", **ABOUT, "offset": offset, **about}, body)

    def take_sent(self) -> list[tuple[Any, ...]]:
        """Return kind, task and offset of what was sent since the last call."""
        sent, self.sent = self.sent, []
        return [(message["kind"], message["task"], message.get("offset")) for message in sent]


class TestSession:
    def test_a_file_in_parts(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(PART + 2)
        assert session.take_sent() == [("read_file", "worker:0", 0)]
        session.part(0, b"x" * PART)
        assert session.take_sent() == [("read_file", "worker:0", PART)]
        assert not path_of(tmp_path, *FILE).exists()
        session.part(PART, b"yz")
        assert session.take_sent() == [("release_file", "worker:0", None)]
        assert path_of(tmp_path, *FILE).read_bytes() == b"x" * PART + b"yz"
        assert path_of(tmp_path, *FILE).stat().st_mode & 0o777 == 0o600

    def test_an_empty_file(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(0)
        session.part(0, b"")
        assert session.take_sent()[1:] == [("release_file", "worker:0", None)]
        assert path_of(tmp_path, *FILE).read_bytes() == b""

    def test_one_file_after_the_other(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(1)
        session.announce(1, task="worker:1")
        assert session.take_sent() == [("read_file", "worker:0", 0)]
        session.part(0, b"a")
        assert session.take_sent() == [("release_file", "worker:0", None), ("read_file", "worker:1", 0)]

    def test_another_link_and_another_supervisor_go_on(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(2 * PART)
        session.part(0, b"x" * PART)
        session.files.begin_link()
        session.take_sent()
        session.announce(2 * PART)
        assert session.take_sent() == [("read_file", "worker:0", PART)]
        heir = Session(tmp_path)
        heir.announce(2 * PART)
        heir.part(PART, b"y" * PART)
        assert heir.take_sent() == [("read_file", "worker:0", PART), ("release_file", "worker:0", None)]
        late = Session(tmp_path)
        late.announce(2 * PART)
        assert late.take_sent() == [("release_file", "worker:0", None)]

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(5)
        session.part(0, b"")
        assert session.take_sent()[1:] == [("release_file", "worker:0", None)]
        assert not path_of(tmp_path, *FILE).exists()

    def test_a_disk_without_room(self, tmp_path: Path) -> None:
        """The task is not held up, and the loss is stated."""
        (tmp_path / "full").write_text("not a directory")
        session = Session(tmp_path / "full")
        session.announce(5)
        session.part(0, b"value")
        assert session.take_sent()[1:] == [("release_file", "worker:0", None)]
        (sentence,) = session.store.trouble()
        assert sentence.startswith(f"{path_of(tmp_path / 'full', *FILE)} could not be written: ")

    @pytest.mark.parametrize(
        "wrong",
        [{"task": "worker:7"}, {"attempt": 1}, {"name": "../x"}, {"size": MOST + 1}, {"size": -1}, {"name": 3}],
    )
    def test_a_file_that_was_not_asked_for(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"not asked|must be"):
            Session(tmp_path).announce(**{"size": 5, **wrong})

    def test_a_file_announced_twice(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(5)
        with pytest.raises(ValueError, match="not asked"):
            session.announce(5)

    @pytest.mark.parametrize(
        ("wrong", "body"),
        [({}, b"four"), ({}, b"sixsix"), ({"offset": 1}, b"value"), ({"task": "worker:1"}, b"value")],
    )
    def test_a_part_that_was_not_requested(self, tmp_path: Path, wrong: dict[str, Any], body: bytes) -> None:
        session = Session(tmp_path)
        session.announce(5)
        with pytest.raises(ValueError, match="not requested"):
            session.part(**{"offset": 0, "body": body, **wrong})

    def test_a_part_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="not requested"):
            Session(tmp_path).part(0, b"value")


class TestAgent:
    """What a task may have put in the place of a file."""

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "outcome"
        path.write_bytes(b"value")
        file = of_agent.find_left_file(str(path), 5)
        assert file is not None
        assert (file.size, file.read(2), file.read(5)) == (5, b"lue", b"")
        file.remove()
        assert not path.exists()

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        """A pipe would block the agent, a link could lead anywhere."""
        (tmp_path / "large").write_bytes(b"values")
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to("/etc/hostname")
        os.mkfifo(tmp_path / "pipe")
        for name in ("missing", "large", "directory", "link", "pipe"):
            assert of_agent.find_left_file(str(tmp_path / name), 5) is None

    def test_nobody_takes_it(self, tmp_path: Path) -> None:
        """A task that is killed without grace, or whose agent leaves, does not wait."""
        path = tmp_path / "outcome"
        link: Any = Silent()
        files = of_agent.LeftFiles(link, lambda _task, _name, most: of_agent.find_left_file(str(path), most))
        gone: list[str] = []
        for task in ("worker:0", "worker:1"):
            path.write_bytes(b"value")
            files.want(task, {"outcome": 5})
            files.bring(task, 0, lambda task=task: gone.append(task))  # type: ignore[misc]
        assert gone == []
        files.give_up("worker:1")
        assert gone == ["worker:1"]
        files.give_up()
        files.give_up()
        assert gone == ["worker:1", "worker:0"]

    def test_nothing_was_left(self, tmp_path: Path) -> None:
        link: Any = Silent()
        files = of_agent.LeftFiles(link, lambda *_: None)
        gone: list[int] = []
        files.want("worker:0", {"outcome": 5})
        files.bring("worker:0", 0, lambda: gone.append(0))
        assert gone == [0]


class Silent:
    """A link whose supervisor does not answer."""

    def answer(self, kind: str, **fields: object) -> None:
        """Accept a message."""
