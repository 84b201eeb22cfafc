"""What the system refuses, in one sentence; trees deeper than Python recurses, and than a path may be long."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from support.deep_trees import DEPTH, make_deep
from tflaunch import descriptors
from tflaunch.client import file_tree
from tflaunch.errors import TflaunchError, describe_os_error
from tflaunch_worker import file_trees

pytestmark = pytest.mark.unit


def test_a_file_that_is_not_ready_is_no_lack_of_processes_and_what_is_in_the_way_is_named(tmp_path: Path):
    """The kernel says EAGAIN for both; of a file to be renamed, its target is named."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb"), open(writing, "wb"), pytest.raises(BlockingIOError) as raised:
        os.read(reading, 1)
    assert describe_os_error(raised.value) == "Resource temporarily unavailable"
    (tmp_path / "part").touch()
    (tmp_path / "target").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        (tmp_path / "part").replace(tmp_path / "target")
    assert describe_os_error(refused.value) == f"{tmp_path}/target: Is a directory"


def test_a_run_without_room_for_its_descriptors_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link per host; a log and its index per task."""
    for limit, tasks in ((descriptors.needed(10, 100), 100), (resource.RLIM_INFINITY, 10**9)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (1, limit))
        descriptors.require(10, tasks)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1024))
    said = r"1000 tasks on 10 hosts need 2110 .* may have 1024; raise .*ulimit"
    with pytest.raises(TflaunchError, match=said) as refusal:
        descriptors.require(10, 1000)
    assert refusal.value.exit_code == 3


def test_a_walk_yields_directories_after_what_is_in_them(tmp_path: Path) -> None:
    """By name, with their paths; links are not followed."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    (tmp_path / "d").mkdir()
    found = [(entry.path, entry.is_directory) for entry in file_trees.walk(str(tmp_path))]
    assert found == [("a/b/c", False), ("a/b", True), ("a/link", False), ("a", True), ("d", True)]
    assert [entry.path for entry in file_trees.walk(str(tmp_path), lambda entry: entry.name != "b")][:1] == ["a/b"]
    walk = file_trees.walk(str(tmp_path / "a"))
    next(walk)
    (tmp_path / "a" / "b").rename(tmp_path / "elsewhere")  # its ".." leads elsewhere then
    with pytest.raises(OSError, match="moved"):
        list(walk)


@pytest.mark.parametrize("remove", [file_trees.remove_tree, lambda path: file_tree.delete_tree(Path(path))])
def test_a_tree_is_walked_measured_and_removed(deep_path: Path, remove: Callable[[str], OSError | None]) -> None:
    """However deep, also what is read-only; nothing behind its links; no descriptor stays open."""
    tree, other = deep_path / "tree", deep_path / "other"
    make_deep(tree)
    other.mkdir()
    (other / "file").touch()
    before = os.listdir("/proc/self/fd")
    depths = [entry.depth for entry in file_trees.walk(str(tree))]
    assert (len(depths), depths[0]) == (DEPTH + 1, DEPTH)
    assert file_tree.tree_size(tree) >= 0
    (tree / "link").symlink_to(other)
    (tree / "locked" / "inside").mkdir(parents=True)
    (tree / "locked").chmod(0o500)
    assert remove(str(tree)) is None
    assert os.listdir("/proc/self/fd") == before
    assert not tree.exists()
    assert (other / "file").exists()
    assert file_trees.remove_tree(str(tree)) is None, "a missing path is not an error"
    (deep_path / "link").symlink_to(other)
    assert file_trees.remove_tree(str(deep_path / "link")) is None, "a link is removed itself"
    assert other.exists()
    failed = file_trees.remove_tree("/proc/self/task")
    assert str(failed and failed.filename).startswith("/proc/self/task/")
