"""Files that tasks leave: what an agent sends, what the supervisor accepts of it, and what is stored."""

import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agents.output import Output
from tflaunch.agents.replies import ExpectedReplies
from tflaunch.store.left_files import LeftFileStore, path_of
from tflaunch_worker.agent import left_files as of_agent
from tflaunch_worker.agent.task_output import Gap

FILE = "worker:0/outcome"
PATH = "worker:0", 0, "outcome"
MOST = 8


class Supervisor:
    """What a supervisor does with the files of a host that was asked for some."""

    def __init__(self, directory: Path) -> None:
        self.store = LeftFileStore(directory)
        expected = ExpectedReplies(0.0)
        for task in ("worker:0", "worker:1"):
            expected.note("start_task", {"task": task, "attempt": 0, "left_files": {"outcome": MOST}})
        nowhere: Any = None
        self._output = Output(nowhere, self.store, lambda: None, lambda theirs: theirs, expected.most_bytes)

    def hear(self, kind: str, offset: int, body: bytes = b"", **about: Any) -> None:
        times = [[offset, 1.0]] if body else []
        message = {"kind": kind, "task": FILE, "attempt": 0, "offset": offset, "times": times, **about}
        self._output.read(message, body)

    def notes(self) -> list[list[object]]:
        return self._output.take_notes()


class TestSupervisor:
    def test_a_file_in_parts(self, tmp_path: Path) -> None:
        supervisor = Supervisor(tmp_path)
        supervisor.hear("output", 0, b"val")
        assert supervisor.notes() == [[FILE, 0, 3, False]]
        supervisor.hear("output", 3, b"ue")
        assert not path_of(tmp_path, *PATH).exists()
        supervisor.hear("output_ended", 5)
        assert supervisor.notes() == [[FILE, 0, 5, True]]
        assert path_of(tmp_path, *PATH).read_bytes() == b"value"
        assert path_of(tmp_path, *PATH).stat().st_mode & 0o777 == 0o600
        supervisor.hear("output_ended", 0, task="worker:1/outcome")
        assert path_of(tmp_path, "worker:1", 0, "outcome").read_bytes() == b""

    def test_another_link_and_another_supervisor_go_on(self, tmp_path: Path) -> None:
        supervisor = Supervisor(tmp_path)
        supervisor.hear("output", 0, b"val")
        supervisor.hear("output", 0, b"val")
        heir = Supervisor(tmp_path)
        heir.hear("output", 0, b"valu")
        heir.hear("output", 4, b"e")
        heir.hear("output_ended", 5)
        late = Supervisor(tmp_path)
        late.hear("output", 3, b"ue")
        late.hear("output_ended", 5)
        assert late.notes() == [[FILE, 0, 5, True]]
        assert path_of(tmp_path, *PATH).read_bytes() == b"value"

    def test_a_file_that_cannot_be_read_or_stored(self, tmp_path: Path) -> None:
        (tmp_path / "full").write_text("not a directory")
        unreadable = Supervisor(tmp_path)
        unreadable.hear("output", 0, b"val")
        unreadable.hear("output_lost", 3, size=2)
        unreadable.hear("output_ended", 5)
        assert unreadable.notes() == [[FILE, 0, 5, True]]
        assert not path_of(tmp_path, *PATH).exists()
        full = Supervisor(tmp_path / "full")
        full.hear("output", 0, b"val")
        full.hear("output", 3, b"ue")
        full.hear("output_ended", 5)
        assert full.notes() == [[FILE, 0, 5, True]]
        (sentence,) = full.store.trouble()
        assert sentence.startswith(f"{path_of(tmp_path / 'full', *PATH)} could not be written: ")

    @pytest.mark.parametrize(
        "wrong",
        [{"task": "worker:7/outcome"}, {"attempt": 1}, {"task": "worker:0/../x"}, {"offset": MOST}, {"offset": -1}],
    )
    def test_a_file_that_was_not_asked_for(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"asked for|must be"):
            Supervisor(tmp_path).hear(**{"kind": "output", "offset": 0, "body": b"x", **wrong})
        assert not list(tmp_path.iterdir())


class TestAgent:
    def test_only_a_file_of_the_size_is_one(self, tmp_path: Path) -> None:
        """A pipe would block the agent, a link could lead anywhere."""
        path = tmp_path / "outcome"
        path.write_bytes(b"value")
        file = of_agent.find_left_file(str(path), 5)
        assert (file.end, file.read(0, 2), file.read(2, 5)) == (5, b"va", b"lue")
        os.truncate(path, 3)
        rest = file.read(3, 5)
        assert isinstance(rest, Gap)
        assert (rest.offset, rest.size) == (3, 2)
        file.close()
        assert not path.exists()
        (tmp_path / "large").write_bytes(b"values")
        (tmp_path / "directory").mkdir()
        (tmp_path / "link").symlink_to("/etc/hostname")
        os.mkfifo(tmp_path / "pipe")
        for name in ("missing", "large", "directory", "link", "pipe"):
            assert of_agent.find_left_file(str(tmp_path / name), 5) is None
