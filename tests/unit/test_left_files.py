"""Files that tasks leave: what an agent announces, what a session accepts of it, and what is stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.played_agent import PlayedAgent
from tflaunch.agents.left_files import LeftFiles
from tflaunch.store.left_files import LeftFile, LeftFileStore, path_of
from tflaunch_worker.agent import left_files as of_agent
from tflaunch_worker.agent.left_files import PART

pytestmark = pytest.mark.unit

FILE = LeftFile("worker:0", 0, "outcome")
ABOUT = FILE._asdict()
MOST = 3 * PART


class Session(PlayedAgent):
    """A session with an agent that may leave files; it stores them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.store = LeftFileStore(directory)
        session: Any = self
        LeftFiles(session, self.store)
        self.most_bytes = lambda *file: {FILE: MOST, FILE._replace(task="worker:1"): MOST}.get(LeftFile(*file))
        self._watch = self.find("watch_left_files")
        self.take_sent()

    def request(self, kind: str, **about: Any) -> None:
        self.sent.append({"kind": kind, **about})

    def announce(self, size: int, **about: Any) -> None:
        self.tell(self._watch, **{**ABOUT, "size": size, **about})

    def part(self, body: bytes) -> None:
        self.answer(self.find("read_file"), body)

    def lose_link(self) -> None:
        self.calls.lose()
        self.calls.open()
        self._watch = self.find("watch_left_files")

    def brief(self) -> list[tuple[Any, ...]]:
        """Return kind, task and offset of what was sent since the last call."""
        return [(message["kind"], message["task"], message.get("offset")) for message in self.take_sent()]


class TestSession:
    def test_a_file_in_parts(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(PART + 2)
        session.announce(1, task="worker:1")  # one file after the other
        session.part(b"x" * PART)
        assert not path_of(tmp_path, *FILE).exists()
        session.part(b"yz")
        read = [("read_file", "worker:0", offset) for offset in (0, PART)]
        assert session.brief() == [*read, ("release_file", "worker:0", None), ("read_file", "worker:1", 0)]
        assert path_of(tmp_path, *FILE).read_bytes() == b"x" * PART + b"yz"
        assert path_of(tmp_path, *FILE).stat().st_mode & 0o777 == 0o600
        empty = Session(tmp_path)
        empty.announce(0, task="worker:1")
        assert empty.brief() == [("release_file", "worker:1", None)]
        assert path_of(tmp_path, *FILE._replace(task="worker:1")).read_bytes() == b""

    def test_another_link_and_another_supervisor_go_on(self, tmp_path: Path) -> None:
        session = Session(tmp_path)
        session.announce(2 * PART)
        session.part(b"x" * PART)
        session.lose_link()
        session.take_sent()
        session.announce(2 * PART)
        assert session.brief() == [("read_file", "worker:0", PART)]
        heir = Session(tmp_path)
        heir.announce(2 * PART)
        heir.part(b"y" * PART)
        assert heir.brief() == [("read_file", "worker:0", PART), ("release_file", "worker:0", None)]
        late = Session(tmp_path)
        late.announce(2 * PART)
        assert late.brief() == [("release_file", "worker:0", None)]

    def test_a_file_that_cannot_be_read_or_stored(self, tmp_path: Path) -> None:
        (tmp_path / "full").write_text("not a directory")
        unreadable = Session(tmp_path)
        unreadable.announce(5)
        unreadable.part(b"")
        assert unreadable.brief()[1:] == [("release_file", "worker:0", None)]
        assert not path_of(tmp_path, *FILE).exists()
        session = Session(tmp_path / "full")
        session.announce(5)
        session.part(b"value")
        assert session.brief()[1:] == [("release_file", "worker:0", None)]
        (sentence,) = session.store.trouble()
        assert sentence.startswith(f"{path_of(tmp_path / 'full', *FILE)} could not be written: ")

    @pytest.mark.parametrize(
        "wrong",
        [{"task": "worker:7"}, {"attempt": 1}, {"name": "../x"}, {"size": MOST + 1}, {"size": -1}, {"name": 3}],
    )
    def test_a_file_that_was_not_asked_for(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"not asked|must be"):
            Session(tmp_path).announce(**{"size": 5, **wrong})

    @pytest.mark.parametrize("body", [b"four", b"sixsix"])
    def test_what_was_not_requested(self, tmp_path: Path, body: bytes) -> None:
        session = Session(tmp_path)
        session.announce(5)
        with pytest.raises(ValueError, match="not asked"):
            session.announce(5)
        with pytest.raises(ValueError, match="another length"):
            session.part(body)


class TestAgent:
    def test_only_a_file_of_the_size_is_one(self, tmp_path: Path) -> None:
        """A pipe would block the agent, a link could lead anywhere."""
        path = tmp_path / "outcome"
        path.write_bytes(b"value")
        file = of_agent.find_left_file(str(path), 5)
        assert file is not None
        assert (file.size, file.read(2), file.read(5)) == (5, b"lue", b"")
        file.remove()
        assert not path.exists()
        (tmp_path / "large").write_bytes(b"values")
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to("/etc/hostname")
        os.mkfifo(tmp_path / "pipe")
        for name in ("missing", "large", "directory", "link", "pipe"):
            assert of_agent.find_left_file(str(tmp_path / name), 5) is None

    def test_nobody_takes_it(self, tmp_path: Path) -> None:
        """A task that is killed without grace, or whose agent leaves, does not wait."""
        path = tmp_path / "outcome"
        files = of_agent.LeftFiles(lambda _task, _name, most: of_agent.find_left_file(str(path), most))
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
        nothing = of_agent.LeftFiles(lambda *_: None)
        nothing.want("worker:2", {"outcome": 5})
        nothing.bring("worker:2", 0, lambda: gone.append("worker:2"))
        assert gone[2:] == ["worker:2"]
