"""Which of the user's files are copied to hosts, how their content is split, and the copy in the directory of a run."""

import errno
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.joined_host import Host, joined_host
from support.played_agent import PlayedAgent
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.code import user_code
from tflaunch.features.code.user_code import Code, File, gather, read_copy
from tflaunch.features.uploads import PART
from tflaunch.plan.model import SyncPlan

_HASH = "ab" * 32


def tree(root: Path, *paths: str) -> Path:
    """Create files that contain their own paths; a path that ends with a slash is an empty directory."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (root / path).mkdir()
        else:
            (root / path).write_text(path)
    return root


def gathered(root: Path, *paths: str, exclude: tuple[str, ...] = ()) -> Code:
    """Return what a spec in this directory copies."""
    return gather(SyncPlan(str(root), paths or (".",), exclude))


def names(found: Code) -> list[str]:
    return [file.path for file in found.files]


def refused(root: Path, *paths: str) -> str:
    with pytest.raises(TflaunchError) as caught:
        gathered(root, *paths)
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestGather:
    def test_the_named_files_come_with_mode_hash_and_size(self, tmp_path: Path) -> None:
        tree(tmp_path, "bin/train")
        (tmp_path / "bin/train").chmod(0o750)
        (file,) = gathered(tmp_path).files
        assert file == ("bin/train", 0o750, hashlib.sha256(b"bin/train").hexdigest(), 9, None)
        tree(tmp_path, "pkg/a.py", "pkg/b.py", "data/big", "train.py")
        assert names(gathered(tmp_path, "pkg", "train.py", "./pkg/a.py")) == ["pkg/a.py", "pkg/b.py", "train.py"]

    @pytest.mark.parametrize(
        ("exclude", "left"),
        [
            ("*.pyc", ["a.py", "sub/.git/config", "sub/data/x"]),
            (".git", ["a.py", "a.pyc", "sub/data/x"]),
            ("sub/data/", ["a.py", "a.pyc", "sub/.git/config"]),
            ("data/x", ["a.py", "a.pyc", "sub/.git/config", "sub/data/x"]),
            (".*", ["a.py", "a.pyc", "sub/data/x"]),
            ("*", []),
        ],
    )
    def test_a_pattern_is_for_a_name_or_a_path(self, tmp_path: Path, exclude: str, left: list[str]) -> None:
        """A directory that matches is not entered; the spec's own directory is not matched as "."."""
        tree(tmp_path, "a.py", "a.pyc", "sub/.git/config", "sub/data/x")
        assert names(gathered(tmp_path, exclude=(exclude,))) == left

    def test_a_link_to_a_file_elsewhere_stays_one(self, tmp_path: Path) -> None:
        """Its target is not part of the code, so it is not copied: directly, through another link, or as a path."""
        tree(tmp_path, "secret/key", "code/train.py")
        user_code = tmp_path / "code"
        tree(tmp_path, "shared/data")
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked/data").symlink_to(tmp_path / "shared/data")
        beside = gathered(tmp_path, "linked")
        assert (names(beside), beside.links) == (["linked/data"], ()), "a link to a file of the code is that file"
        (user_code / "near").symlink_to("../secret/key")
        (user_code / "far").symlink_to(tmp_path / "secret/key")
        (user_code / "chain").symlink_to("near")
        (user_code / "keys").symlink_to("../secret")
        (user_code / "through").symlink_to("keys/key")
        found = gathered(user_code)
        assert names(found) == ["train.py"]
        key = str(tmp_path / "secret/key")
        assert dict(found.links) == {
            "near": key, "far": key, "chain": "near", "keys": str(tmp_path / "secret"), "through": "keys/key",
        }  # fmt: skip
        assert "keys/key lies behind a link that leads out of" in refused(user_code, "keys/key")

    def test_a_link_to_a_directory_stays_one(self, tmp_path: Path) -> None:
        root = tree(tmp_path / "code", "real/x", "sub/y")
        (root / "sub/near").symlink_to("../real")
        (root / "sub/full").symlink_to(root / "real")
        (root / "sub/up").symlink_to("..")
        (root / "far").symlink_to("../elsewhere")
        (root / "abs").symlink_to("/")
        (tmp_path / "elsewhere").mkdir()
        found = gathered(root)
        assert names(found) == ["real/x", "sub/y"]
        assert "sub/near/x lies behind the link sub/near" in refused(root, "sub", "sub/near/x")
        assert dict(found.links) == {
            "sub/near": "../real", "sub/full": "../real", "sub/up": "..", "abs": "/",
            "far": str(tmp_path / "elsewhere"),
        }  # fmt: skip

    def test_a_path_that_is_missing_is_named(self, tmp_path: Path) -> None:
        """So is a link without a target; the spec itself may lie behind a link."""
        tree(tmp_path, "real/a")
        (tmp_path / "link").symlink_to("real")
        assert names(gathered(tmp_path / "link")) == ["a"]
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "loop").symlink_to("loop")
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "empty").mkdir()
        assert names(gathered(tmp_path)) == ["real/a"], "what has no content does not come"
        for name in ("missing", "dangling"):
            assert refused(tmp_path, name).startswith(f"sync.paths: {tmp_path / name} does not exist; ")

    @pytest.mark.parametrize(
        ("owner", "call", "name"), [(Path, "open", "sub/b"), (os, "listdir", "sub"), (Path, "stat", "a")]
    )
    def test_what_cannot_be_read_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, call: str, name: str
    ) -> None:
        """It is neither skipped nor causes a traceback."""
        where, original = tree(tmp_path, "a", "sub/b") / name, getattr(owner, call)

        def fail(path: Any, *arguments: Any, **options: Any) -> Any:
            if path == where or path == str(where):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return original(path, *arguments, **options)

        monkeypatch.setattr(owner, call, fail)
        assert refused(tmp_path) == f"sync.paths: {where}: Permission denied; exclude it?"
        monkeypatch.setattr(owner, call, original)
        monkeypatch.setattr(user_code, "_MOST_FILES", 1)
        assert "more than 1 files" in refused(tmp_path)


@pytest.mark.parametrize(("files", "links"), [(0, 0), (1, 0), (200, 0), (201, 1), (1, 450), (1000, 0)])
def test_an_offer_comes_in_pieces(files: int, links: int) -> None:
    found = Code(
        Path("/"),
        tuple(File(str(number), 0o644, "0" * 64, 1) for number in range(files)),
        tuple((f"l{number}", "x") for number in range(links)),
    )
    frames = [piece.about for piece in found.offers()]
    assert [path for frame in frames for path, _, _ in frame["files"]] == [file.path for file in found.files]
    assert [tuple(link) for frame in frames for link in frame["links"]] == [*found.links]
    assert [frame["is_first"] for frame in frames] == [True] + [False] * (len(frames) - 1)
    assert [frame["is_last"] for frame in frames] == [False] * (len(frames) - 1) + [True]
    longest = Code(Path("/"), tuple(File("\udcff" * 4096, 0o644, "0" * 64, 1) for _ in range(200)), ())
    assert len(list(longest.offers())) == 1, "4 KB of undecodable bytes take 24 KB of JSON each"


class TestParts:
    @pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART - 1])
    def test_parts_make_up_the_file(self, tmp_path: Path, size: int) -> None:
        """Only the last part is marked as such, and it is empty only if the file is."""
        content = os.urandom(size)
        (tmp_path / "x").write_bytes(content)
        found = gathered(tmp_path)
        parts = list(found.parts([(found.files[0].sha256, 0)]))
        assert b"".join(part.body for part in parts) == content
        assert [part.about["offset"] for part in parts] == list(range(0, max(size, 1), PART))
        assert [part.about["is_last"] for part in parts] == [False] * (len(parts) - 1) + [True]

    def test_what_has_arrived_is_not_sent_again(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"0123456789")
        found = gathered(tmp_path)
        (part,) = found.parts([(found.files[0].sha256, 7)])
        assert part == ({"sha256": found.files[0].sha256, "offset": 7, "is_last": True}, b"789")

    @pytest.mark.parametrize("size", [0, PART, 100 * PART])
    def test_a_file_that_changed_still_comes_to_an_end(self, tmp_path: Path, size: int) -> None:
        """Even for a log that grows as fast as it is sent; the hash reveals the change."""
        (tmp_path / "x").write_bytes(bytes(2 * PART))
        found = gathered(tmp_path)
        (tmp_path / "x").write_bytes(bytes(size))
        parts = list(found.parts([(found.files[0].sha256, 0)]))
        assert sum(len(part.body) for part in parts) == min(size, 2 * PART)
        assert parts[-1].about["is_last"]


def test_few_parts_are_sent_before_they_are_acknowledged(tmp_path: Path) -> None:
    """Otherwise heartbeats would wait behind the whole code on a slow link."""
    (tmp_path / "model.bin").write_bytes(bytes(20 * PART))
    code, agent = gathered(tmp_path), PlayedAgent()
    code.upload(agent.calls.begin, lambda _: None)
    agent.answer(1, wanted=[[code.files[0].sha256, 0]])
    ahead = len(agent.sent) - 1
    assert 0 < ahead < 20
    agent.answer(2)
    assert len(agent.sent) - 1 == ahead + 1


def test_an_upload_that_has_failed_sends_nothing_any_more(tmp_path: Path) -> None:
    """Answers to what was on its way may come later; the file is named."""
    (tmp_path / "model.bin").write_bytes(bytes(20 * PART))
    code, agent, failed = gathered(tmp_path), PlayedAgent(), list[str]()
    (tmp_path / "model.bin").unlink()
    code.upload(agent.calls.begin, failed.append)
    agent.answer(1, wanted=[[code.files[0].sha256, 0]])
    assert failed == [f"{tmp_path / 'model.bin'}: No such file or directory"]
    (tmp_path / "model.bin").write_bytes(bytes(20 * PART))
    stop = code.upload(agent.calls.begin, failed.append)
    agent.answer(2, wanted=[[code.files[0].sha256, 0]])
    stop()
    sent = len(agent.sent)
    for message in agent.sent[2:]:
        agent.answer(message["call"])
    assert len(agent.sent) == sent


@pytest.fixture
def host() -> Host:
    return joined_host()


def test_what_was_not_asked_for_does_not_start_an_upload(host: Host) -> None:
    """Each part that is answered triggers the next: answers to unsent parts would make us send a whole file at once."""
    code = Code(Path("/dev"), (File("null", 0o644, _HASH, 0),), ())
    host.session.send_files(code)
    host.tells("answered", call=1, wanted=[[_HASH, 0]])
    host.tells("answered", call=2)
    assert not host.lost()
    host.tells("answered", call=3)
    assert "must be an integer from 1 to 2" in host.lost()


@pytest.mark.parametrize("wanted", [[[_HASH, 0]] * 2, [["00" * 32, 0]], [[_HASH, 1]], [[_HASH, -1]], [_HASH], [[0, 0]]])
def test_only_what_was_offered_is_sent(host: Host, wanted: list[Any]) -> None:
    host.session.send_files(Code(Path("/dev"), (File("null", 0o644, _HASH, 0),), ()))
    host.tells("answered", call=1, wanted=wanted)
    assert re.search(r"not offered|must be", host.lost())


@pytest.fixture
def code(tmp_path: Path) -> Code:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg\n")
    (root / "pkg/model.py").write_text("LAYERS = 3\n")
    (root / "pkg/model.py").chmod(0o640)
    (root / "data").write_bytes(bytes(1000))
    (root / "same").symlink_to("pkg")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).write_text("x")  # a name that is not text
    (tmp_path / "run").mkdir(mode=0o700)
    return gather(SyncPlan(str(root), (".",), ()))


def contents(code: Code) -> dict[str, bytes]:
    """Return the content of each file as it would be sent."""
    return {file.path: b"".join(part.body for part in code.parts([(file.sha256, 0)])) for file in code.files}


def test_what_is_edited_later_is_sent_as_it_was(tmp_path: Path, code: Code) -> None:
    before = contents(code)
    kept = code.keep(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):  # only the user can read it, whatever the mode that hosts get
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    (tmp_path / "project/train.py").write_text("import other\n")
    (tmp_path / "project/pkg/model.py").unlink()
    assert contents(kept) == before
    assert kept == read_copy(tmp_path / "run")
    assert (kept.links, [file[:4] for file in kept.files]) == (code.links, [file[:4] for file in code.files])
    assert kept.keep(tmp_path / "run") is kept


def test_large_files_stay_where_they_are(tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a program, there may be data."""
    monkeypatch.setattr(user_code, "MOST_COPIED", 500)
    before = contents(code)
    kept = code.keep(tmp_path / "run")
    assert contents(kept) == before
    assert sorted(path.name for path in (tmp_path / "run/code").rglob("*.*")) == ["model.py", "train.py"]
    assert not (tmp_path / "run/code/data").exists()
    assert kept == read_copy(tmp_path / "run")


def test_a_copy_that_cannot_be_taken_is_read_where_it_is(tmp_path: Path, code: Code) -> None:
    """Also if the file has changed: each host would refuse it by its hash; the original may be restored."""
    (tmp_path / "run/code").write_text("in the way")
    assert contents(code.keep(tmp_path / "run")) == contents(code)
    (tmp_path / "run/code.json").unlink()
    (tmp_path / "run/code").unlink()
    (tmp_path / "project/train.py").write_text("import other\n")
    (found,) = [file for file in code.keep(tmp_path / "run").files if file.path == "train.py"]
    assert found.source == tmp_path / "project/train.py"
    assert not (tmp_path / "run/code/train.py").exists()
    (tmp_path / "run/code.json").unlink()
    (tmp_path / "run/code.json").mkdir()
    assert code.keep(tmp_path / "run") is code


def test_a_supervisor_in_a_cluster_gets_all_of_it(tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "MOST_COPIED", 0)
    there = tmp_path / "there"
    there.joinpath("code").mkdir(parents=True)
    for path, name in code.export(there):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there / name)
    found = read_copy(there)
    assert found is not None
    assert contents(found) == contents(code)
    assert found.keep(there) is found


@pytest.mark.parametrize("text", ["", '{"files": [', "[]", '{"files": [["a"]], "links": []}', '{"files": 3}'])
def test_a_description_that_is_incomplete(tmp_path: Path, text: str) -> None:
    assert read_copy(tmp_path) is None, "it was begun by an earlier version, or its tasks run where the code is"
    (tmp_path / "code.json").write_text(text)
    assert read_copy(tmp_path) is None
