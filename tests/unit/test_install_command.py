"""The command that installs what is missing works where it is pasted, for the Python that misses it."""

from __future__ import annotations

import json
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tflaunch.install_command import command_for_extra, command_for_package

pytestmark = pytest.mark.unit

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
        (GIT, "'tflaunch[web] @ git+https://example.org/tflaunch'"),
        (
            {**GIT, "vcs_info": {"vcs": "git", "requested_revision": "v1"}, "subdirectory": "launcher"},
            "'tflaunch[web] @ git+https://example.org/tflaunch@v1#subdirectory=launcher'",
        ),
    ],
    ids=["index", "wheel", "git", "revision and directory"],
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
    python = tmp_path / "of tasks" / "bin" / "python"
    python.parent.mkdir(parents=True)
    assert command_for_package("tensorboard", str(python)) == f"'{python}' -m pip install tensorboard"
    (python.parent.parent / "pyvenv.cfg").write_text("uv = 0.9.1\n")
    command = f"uv pip install --python '{python.parent.parent}' tensorboard"
    assert command_for_package("tensorboard", str(python)) == command
