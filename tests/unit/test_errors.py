"""Errors in one sentence, the command that installs what is missing, and trees deeper than Python recurses."""

import json
import os
import resource
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support.disks import DEPTH, make_deep
from tflaunch.errors import TflaunchError, describe_os_error
from tflaunch.features import file_tree
from tflaunch.install_command import command_for_extra, command_for_package
from tflaunch.runtime import launch
from tflaunch_worker import file_trees


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
    for limit, tasks in ((310, 100), (resource.RLIM_INFINITY, 10**9)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (1, limit))
        launch.require_descriptors(10, tasks)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1024))
    said = r"1000 tasks on 10 hosts need 2110 .* may have 1024; raise .*ulimit"
    with pytest.raises(TflaunchError, match=said) as refusal:
        launch.require_descriptors(10, 1000)
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


GIT = {"url": "https://example.org/tflaunch", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with the Python that runs, and its pip first on the PATH."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "pip"):
        (tmp_path / "bin" / name).touch(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    monkeypatch.setattr("tflaunch.install_command.find_spec", lambda _: sys)
    return tmp_path


@pytest.mark.parametrize(
    ("about", "what"),
    [
        (None, "'tflaunch[web]'"),
        ({"url": "file:///a b/x.whl", "archive_info": {}}, "'tflaunch[web] @ file:///a b/x.whl'"),
        (
            {**GIT, "vcs_info": {"vcs": "git", "requested_revision": "v1"}, "subdirectory": "launcher"},
            "'tflaunch[web] @ git+https://example.org/tflaunch@v1#subdirectory=launcher'",
        ),
    ],
    ids=["index", "wheel", "revision and directory"],
)
@pytest.mark.parametrize(
    ("note", "command"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_tools_install_anew_from_where_they_had_it(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, note: str, command: str, about: dict[str, Any] | None, what: str
) -> None:
    """What `pip install` of a shell does is not seen by an installation of uv tool or pipx."""
    (prefix / note).touch()
    if about is not None:
        (prefix / "direct_url.json").write_text(json.dumps(about))
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(prefix))
    assert command_for_extra("web") == f"{command} {what}"


def test_in_an_environment_pip_is_named_so_that_it_is_its_own(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its path unless its pip is the first on the PATH, as in an environment that is active."""
    assert command_for_extra("web") == "pip install 'tflaunch[web]'"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert command_for_extra("web") == f"{prefix}/bin/python -m pip install 'tflaunch[web]'"
    monkeypatch.setattr("tflaunch.install_command.find_spec", lambda _: None)
    assert command_for_extra("web") == f"uv pip install --python {prefix} 'tflaunch[web]'", "there is no pip"
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.1\n")
    assert command_for_extra("web") == f"uv pip install --python {prefix} 'tflaunch[web]'"


def test_a_python_of_the_system_must_be_told(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's pip refuses to install for it; conda has a pip of its own, and no file of a venv."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(prefix))  # ours may be Debian's
    (prefix / "EXTERNALLY-MANAGED").touch()
    assert command_for_extra("web") == "pip install 'tflaunch[web]'"
    (prefix / "pyvenv.cfg").unlink()
    assert command_for_extra("web") == "pip install --break-system-packages 'tflaunch[web]'"
    (prefix / "EXTERNALLY-MANAGED").unlink()
    (prefix / "conda-meta").mkdir()
    assert command_for_extra("web") == "pip install 'tflaunch[web]'"


def test_the_python_of_a_task_is_another_one(tmp_path: Path) -> None:
    directory = tmp_path / "of tasks"
    directory.mkdir()
    python = f"{directory}/bin/python"
    assert command_for_package("tensorboard", python) == f"'{python}' -m pip install tensorboard"
    (directory / "pyvenv.cfg").write_text("uv = 0.9.1\n")
    assert command_for_package("tensorboard", python) == f"uv pip install --python '{directory}' tensorboard"
