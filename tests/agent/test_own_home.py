"""Where tflaunch keeps its files: of users with a home, without one, and with that of another user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tflaunch import own_home
from tflaunch_worker import process_state

pytestmark = pytest.mark.agent
needs_root = pytest.mark.needs("root")
NAMELESS, OTHER = 54321, 1234


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the choice to the user's home."""
    for name in ("TFLAUNCH_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def told_as(user: int, tell: Callable[[], str]) -> str:
    """Return what a function returns in a process of another user."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            os.setuid(user)
            os.write(theirs, tell().encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        text = answer.read()
    os.wait()
    return text


def test_the_default_is_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (own_home.home_path(), own_home.notice()) == (str(tmp_path / ".local/state/tflaunch"), "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert own_home.home_path() == str(tmp_path / "state/tflaunch")
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "given"))
    assert own_home.home_path() == str(tmp_path / "given")


@needs_root
@pytest.mark.parametrize("home", [None, "/"])
def test_a_user_whom_nobody_knows_has_a_directory_below_tmp(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in OpenShift, and with `docker run -u 1234`; `~` in paths is `/`, and no directory of that name."""
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)

    def tell() -> str:
        path = own_home.home_path()
        process_state.set_own_state()
        return f"{path} {os.path.expanduser('~/x')}"

    assert told_as(NAMELESS, tell) == f"/tmp/tflaunch-{NAMELESS} /x"


@needs_root
def test_root_leaves_nothing_in_the_home_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sudo -E`: that user could not write there any more. What root has there already is used on."""
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(tmp_path, OTHER, OTHER)
    path = own_home.home_path()
    assert not path.startswith(str(tmp_path))
    assert own_home.notice().startswith(f"HOME={tmp_path} is not root's, so the files of this run are in {path}; ")
    (tmp_path / ".local/state/tflaunch").mkdir(parents=True)
    assert (own_home.home_path(), own_home.notice()) == (str(tmp_path / ".local/state/tflaunch"), "")
