"""An agent stores the files of a checkpoint in parts, and returns them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.played_agent import Answers, agent_parts
from tflaunch_worker.features.checkpoints.checkpoint_copies import CheckpointCopies
from tflaunch_worker.host_vars import UnknownValueError

pytestmark = pytest.mark.unit

DATA = b"weights" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Copies:
    """The copies of one host, without a loop: only what needs no fork is asked for."""

    def __init__(self, directory: Path) -> None:
        self._answers = Answers()
        host = SimpleNamespace(directory=str(directory), expand_path=_expand)
        self._copies = CheckpointCopies(agent_parts(host=host))

    def ask(self, kind: str, body: bytes = b"", **about: Any) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a call, and its body."""
        return self._answers.ask(getattr(self._copies, kind), body, **about)

    def missing(self) -> Any:
        """Return what is missing of the checkpoint."""
        answer, _ = self.ask("store_checkpoint", kept=[DIGEST], digests=[DIGEST])
        assert answer["problem"] == ""
        return answer["missing"]

    def take(self, offset: int, body: bytes, *, is_last: bool) -> str:
        """Send a part of the file; return the problem with it."""
        return str(self.ask("write_checkpoint", body, sha256=DIGEST, offset=offset, is_last=is_last)[0]["problem"])


def _expand(path: str) -> str:
    if "$" in path:
        raise UnknownValueError(f"{path} is not known here")
    return path


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    """The copies of a host that has none yet."""
    return Copies(tmp_path)


def test_each_part_is_acknowledged_with_what_has_arrived(copies: Copies) -> None:
    assert copies.missing() == [[DIGEST, 0]]
    assert copies.take(0, DATA[:3000], is_last=False) == ""
    assert copies.missing() == [[DIGEST, 3000]]
    assert copies.take(3000, DATA[3000:], is_last=True) == ""
    assert copies.missing() == []
    assert copies.ask("read_checkpoint", sha256=DIGEST, offset=5000) == ({}, DATA[5000:])


def test_another_content_is_a_problem_and_not_kept(copies: Copies) -> None:
    assert copies.take(0, DATA[1:], is_last=True)
    assert copies.missing() == [[DIGEST, 0]]
    copies.take(0, DATA[:3000], is_last=False)
    copies.ask("store_checkpoint", kept=[], digests=[])
    assert copies.missing() == [[DIGEST, 0]], "a part of what is no longer kept"


def test_a_part_that_does_not_follow_breaks_the_protocol(copies: Copies) -> None:
    copies.take(0, DATA[:3000], is_last=False)
    with pytest.raises(ValueError, match="does not follow"):
        copies.take(4000, DATA[4000:], is_last=True)


@pytest.mark.parametrize("kind", ["place_checkpoint", "find_checkpoint"])
def test_a_directory_that_is_not_known_here_is_a_problem(copies: Copies, kind: str) -> None:
    place = {"workdirs": ["/work"], "files": [], "age": 1.0}
    find: dict[str, Any] = {"workdir": "/work", "known": 0, "kept": [], "wait": False}
    answer, _ = copies.ask(kind, directory="$SCRATCH", **(place if kind == "place_checkpoint" else find))
    assert answer["problem"] == "$SCRATCH is not known here"
