"""A run directory as an archive: what a supervisor in a cluster begins with, and what it leaves."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tflaunch.features.kubernetes.run_archive import ArchiveError, unpack_archive, write_archive

pytestmark = pytest.mark.unit
FOREIGN = 12345  # a uid


def archive_of(*members: tuple[str, bytes, str]) -> io.BytesIO:
    """Return an archive of these paths, types and contents or targets of links."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, kind, content in members:
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, content
            member.uid, member.uname, member.mode = FOREIGN, "cloudsdk", 0o666
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(content.encode()))
    stream.seek(0)
    return stream


def test_everything_comes_home_except_what_only_the_supervisor_uses(tmp_path: Path) -> None:
    run, home = tmp_path / "run-1", tmp_path / "home" / "run-1"
    for name in ("events.jsonl", "logs/worker-0.log", "collected/model/weights", "checkpoints/index.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    before = {path.relative_to(run): path.read_text() for path in run.rglob("*") if path.is_file()}
    for name in ("lock", "reserve", "control.sock", "agents/host/lock", "checkpoints/.parts/abc"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    stream = io.BytesIO()
    write_archive(run, stream)
    stream.seek(0)
    unpack_archive(stream, home)
    assert {path.relative_to(home): path.read_text() for path in home.rglob("*") if path.is_file()} == before


def test_files_belong_to_whoever_unpacks_them_and_to_nobody_else(tmp_path: Path) -> None:
    stream = archive_of(("run", tarfile.DIRTYPE, ""), ("run/logs/worker-0.log", tarfile.REGTYPE, "text"))
    unpack_archive(stream, tmp_path / "run-1")
    for path in (tmp_path / "run-1", *(tmp_path / "run-1").rglob("*")):
        assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (os.getuid(), 0), path


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_nothing_but_files_and_directories_is_unpacked(kind: bytes, tmp_path: Path) -> None:
    unpack_archive(archive_of(("run/a", kind, "/etc/passwd")), tmp_path / "run-1")
    assert not os.path.lexists(tmp_path / "run-1" / "a")


@pytest.mark.parametrize("name", ["../a", "/a", "run/../../a", "other/a"])
def test_nothing_is_written_outside_the_run_directory(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError):
        unpack_archive(archive_of((name, tarfile.REGTYPE, "text")), tmp_path / "run-1")
    assert list(tmp_path.rglob("a")) == []


@pytest.mark.parametrize("length", [0, 100, 700])
def test_an_incomplete_archive_is_an_error(length: int, tmp_path: Path) -> None:
    whole = archive_of(("run/a", tarfile.REGTYPE, "x" * 3000)).getvalue()
    with pytest.raises(ArchiveError):
        unpack_archive(io.BytesIO(whole[:length]), tmp_path / "run-1")
