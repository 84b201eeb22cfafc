"""Trees of directories that tasks have made: deeper than Python recurses, and than a path may be long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.deep_trees import DEPTH, make_deep
from tflaunch.client import file_tree
from tflaunch_worker import file_trees

pytestmark = pytest.mark.unit


def test_a_walk_yields_directories_after_what_is_in_them(tmp_path: Path) -> None:
    """By name, with their paths; links are not followed."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    (tmp_path / "d").mkdir()
    found = [(entry.path, entry.is_directory) for entry in file_trees.walk(str(tmp_path))]
    assert found == [("a/b/c", False), ("a/b", True), ("a/link", False), ("a", True), ("d", True)]
    assert [entry.path for entry in file_trees.walk(str(tmp_path), lambda entry: entry.name != "b")][:1] == ["a/b"]


def test_a_deep_tree_is_walked_and_measured(deep_path: Path) -> None:
    make_deep(deep_path)
    before = os.listdir("/proc/self/fd")
    assert sum(1 for _ in file_trees.walk(str(deep_path))) == DEPTH + 1
    assert next(file_trees.walk(str(deep_path))).depth == DEPTH
    assert file_tree.tree_size(deep_path) >= 0
    assert os.listdir("/proc/self/fd") == before


def test_a_directory_that_moves_ends_the_walk(tmp_path: Path) -> None:
    """Its ".." leads elsewhere then."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    walk = file_trees.walk(str(tmp_path / "a"))
    next(walk)
    (tmp_path / "a" / "b").rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="moved"):
        list(walk)


@pytest.mark.parametrize("remove", [file_trees.remove_tree, lambda path: file_tree.delete_tree(Path(path))])
def test_a_tree_is_removed(tmp_path: Path, remove: object) -> None:
    """However deep, also what is read-only; nothing behind its links."""
    tree, other = tmp_path / "tree", tmp_path / "other"
    make_deep(tree)
    other.mkdir()
    (other / "file").touch()
    (tree / "link").symlink_to(other)
    (tree / "locked" / "inside").mkdir(parents=True)
    (tree / "locked").chmod(0o500)
    assert remove(str(tree)) is None  # type: ignore[operator]
    assert not tree.exists()
    assert (other / "file").exists()


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    """A missing path is not an error; a link or a file is removed itself."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert file_trees.remove_tree(str(tmp_path / "missing")) is None
    assert file_trees.remove_tree(str(tmp_path / "link")) is None
    assert tmp_path.exists()
    failed = file_trees.remove_tree("/proc/self/task")
    assert failed is not None
    assert str(failed.filename).startswith("/proc/self/task/")
