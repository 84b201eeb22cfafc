"""The host's copy of the user's code."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch_worker.features.code.received_code import OFFERED, Files
from tflaunch_worker.features.file_parts import FilesError
from tflaunch_worker.schema import check_fields


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Host:
    """tflaunch's home on a host, with an agent directory."""

    def __init__(self, home: Path, run: str = "run") -> None:
        self.home = home
        self.agent = home / "runs" / run / "agents" / "h1"
        self.agent.mkdir(parents=True)
        self.code = self.agent / "code"
        self.cache = home / "files"

    def offer(self, *offered: tuple[str, bytes], links: Any = (), mode: int = 0o644) -> Files:
        files = [[path, mode, digest_of(content)] for path, content in offered]
        found = Files(str(self.agent), **check_fields({"files": files, "links": [*links]}, OFFERED))
        found.missing = set(found.compare())
        return found

    def bring(self, *offered: tuple[str, bytes], **options: Any) -> Files:
        found = self.offer(*offered, **options)
        for _, content in offered:
            found.take(digest_of(content), 0, content, True)
        assert found.missing == set()
        assert not (reason := found.place()), reason
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "home")


class TestOffer:
    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "..", ".", "", "a/..", "x\0y"])
    def test_a_path_that_leads_out_is_refused(self, host: Host, path: str):
        with pytest.raises(ValueError, match=r"inside a directory|NUL"):
            host.offer((path, b""))
        with pytest.raises(ValueError, match=r"inside a directory|NUL"):
            host.offer(links=[[path, "target"]])

    @pytest.mark.parametrize("path", ["a/x", "a/b/x"])
    def test_a_path_through_a_link_is_refused(self, host: Host, path: str):
        with pytest.raises(ValueError, match="through a link"):
            host.offer((path, b""), links=[["a", "/etc"]])
        with pytest.raises(ValueError, match="through a link"):
            host.offer(links=[["a", "/etc"], [path, "y"]])

    @pytest.mark.parametrize("digest", ["", "0" * 63, "../" + "0" * 61, "A" * 64])
    def test_a_hash_is_a_hash(self, digest: str):
        """It is used as a file name."""
        with pytest.raises(ValueError, match="must be a SHA-256 digest"):
            check_fields({"files": [["a", 0o644, digest]], "links": []}, OFFERED)


class TestArrival:
    def test_a_content_is_wanted_once(self, host: Host):
        found = host.offer(("a", b"same"), ("b", b"same"), ("c", b"other"))
        assert found.wanted() == sorted([(digest_of(b"same"), 0), (digest_of(b"other"), 0)])
        found.take(digest_of(b"same"), 0, b"same", True)
        assert found.wanted() == [(digest_of(b"other"), 0)]
        found.take(digest_of(b"same"), 0, b"late", True)
        assert (host.cache / digest_of(b"same")).read_bytes() == b"same"
        assert Host(host.home, "later").offer(("d", b"same")).missing == set()

    def test_a_file_comes_in_parts_and_goes_on_where_it_was(self, host: Host):
        content = b"0123456789"
        found = host.offer(("a", content))
        found.take(digest_of(content), 0, b"0123", False)
        assert found.wanted() == [(digest_of(content), 4)]
        with pytest.raises(ValueError, match="byte 7 of"):
            found.take(digest_of(content), 7, b"789", True)
        # Where the agent's guard removes it: for a later agent it is void.
        assert not host.cache.exists()
        assert [path.parent.parent.name for path in host.agent.rglob("*") if path.is_file()] == ["tasks"]
        assert host.offer(("a", content)).wanted() == [(digest_of(content), 0)]
        found.take(digest_of(content), 4, b"456789", True)
        assert found.missing == set()
        assert (host.cache / digest_of(content)).read_bytes() == content

    def test_another_content_is_refused(self, host: Host):
        found = host.offer(("pkg/a", b"before"), ("b", b"b"))
        with pytest.raises(FilesError, match=r"^pkg/a changed while it was sent"):
            found.take(digest_of(b"before"), 0, b"after", True)
        found.take(digest_of(b"b"), 0, b"b", True)
        assert not host.cache.exists()
        assert not [*(host.agent / "tasks/.files").iterdir()]

    def test_a_full_disk_is_one_sentence(self, host: Host):
        found = host.offer(("a", b"0123456789"))
        found.take(digest_of(b"0123456789"), 0, b"01", False)
        (arriving,) = (host.agent / "tasks/.files").iterdir()
        arriving.unlink()
        arriving.symlink_to("/dev/full")
        with pytest.raises(FilesError, match=r"^/.*: No space left on device$"):
            found.take(digest_of(b"0123456789"), 2, b"23456789", True)
        assert not arriving.is_symlink()


class TestPlace:
    def test_files_have_their_modes_and_links_their_targets(self, host: Host):
        host.bring(("bin/run", b"x"), ("empty", b""), links=[["current", "bin"]], mode=0o4751)
        assert (host.code / "bin/run").stat().st_mode & 0o7777 == 0o751
        assert (host.code / "bin").stat().st_mode & 0o777 == 0o700
        assert [(host.code / name).read_bytes() for name in ("current/run", "empty")] == [b"x", b""]
        (host.code / "bin/run").write_bytes(b"y")  # a task that writes to it does not change other runs
        later = Host(host.home, "later")
        later.bring(("a", b"x"))
        assert (later.code / "a").read_bytes() == b"x"

    def test_another_attempt_finds_the_code_and_earlier_results(self, host: Host):
        offered = (("a", b"x"), ("b", b"y"))
        host.bring(*offered, mode=0o400)
        (host.code / "a").unlink()
        (host.code / "a").write_bytes(b"changed")
        (host.code / "result").write_bytes(b"z")
        host.bring(*offered, mode=0o400, links=[["l", "a"]])
        host.bring(*offered, mode=0o400, links=[["l", "b"]])
        content = {path.name: path.read_bytes() for path in host.code.iterdir()}
        assert content == {"a": b"x", "b": b"y", "result": b"z", "l": b"y"}

    def test_links_of_tasks_lead_nothing_of_ours_out(self, host: Host, tmp_path: Path):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "x").write_bytes(b"theirs")
        host.bring(("d/x", b"1"), ("f", b"2"))
        (host.code / "f").unlink()
        (host.code / "f").symlink_to(outside / "x")
        (host.code / "d").rename(host.code / "moved")
        (host.code / "d").symlink_to(outside)
        host.bring(("d/x", b"1"), ("f", b"2"), links=[["d/l", "x"]])
        assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"x": b"theirs"}
        assert [(host.code / name).read_bytes() for name in ("d/x", "f")] == [b"1", b"2"]
        assert not (host.code / "d").is_symlink()

    def test_a_directory_in_the_way_is_one_sentence(self, host: Host):
        """A task created it, so tflaunch must not remove its content."""
        found = host.bring(("a", b"x"))
        (host.code / "a").unlink()
        (host.code / "a").mkdir()
        (host.code / "a/result").write_bytes(b"z")
        assert found.place() == f"{host.code / 'a'}: Is a directory"
        assert (host.code / "a/result").exists()

    def test_a_damaged_content_is_not_placed(self, host: Host):
        found = host.bring(("a", b"x"))
        (host.cache / digest_of(b"x")).write_bytes(b"")
        later, place = Host(host.home, "later"), host.cache / digest_of(b"x")
        assert later.offer(("a", b"x")).place() == f"{place} was damaged and is removed; start again"
        assert not later.code.exists()
        assert not place.exists()
        assert found.missing == set()

    def test_without_room_nothing_is_left(self, host: Host, monkeypatch: pytest.MonkeyPatch):
        found = host.offer(("a", b"x"))
        found.take(digest_of(b"x"), 0, b"x", True)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fchmod", full)
        assert found.place() == f"{host.code}: No space left on device"
        assert not host.code.exists()


class TestForgetting:
    def test_what_nobody_used_for_a_month_is_forgotten(self, host: Host):
        """But not what another run is about to place, which has checked that it is there."""
        host.bring(("a", b"old"), ("b", b"used"))
        for path in host.cache.iterdir():
            os.utime(path, (path.stat().st_mtime - 31 * 86400,) * 2)
        found = Host(host.home, "one").offer(("b", b"used"))
        Host(host.home, "later").bring(("c", b"new"))
        assert found.place() == ""
        assert {path.name for path in host.cache.iterdir()} == {digest_of(b"used"), digest_of(b"new")}

    def test_two_runs_may_forget_the_same_file(self, host: Host, monkeypatch: pytest.MonkeyPatch):
        host.bring(("a", b"x"))
        listed = ["gone", digest_of(b"x")]
        monkeypatch.setattr("tflaunch_worker.features.code.received_code.os.listdir", lambda _: listed)
        host.bring(("a", b"x"))
