"""System packages that tests need: installed where allowed, otherwise the test is skipped; in CI it fails."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

_SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_PATIENCE = 300


def need(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Require programs; root on a Debian-like system installs their packages."""
    if not _missing(programs):
        return
    said = ""
    if os.getuid() == 0 and program("apt-get"):
        with _alone():
            said = _install(tuple(packages)) if _missing(programs) else ""
    if missing := _missing(programs):
        lacking(f"no {' and no '.join(missing)}: apt-get install {' '.join(packages)}{said and f' ({said})'}")


def lacking(reason: str) -> NoReturn:
    """End the test: skipped for developers, failed in CI, where nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str | None:
    """Return the path of a program, including those that only root has in its PATH."""
    return shutil.which(name, path=_SEARCH)


def _missing(programs: Sequence[str]) -> list[str]:
    return [name for name in programs if program(name) is None]


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for other test runs on this machine that are installing."""
    with (Path(tempfile.gettempdir()) / "tflaunch-tests-install").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache  # a failed attempt is not repeated for every test
def _install(packages: tuple[str, ...]) -> str:
    """Return the error message, if any."""
    # RUNLEVEL=1 keeps packages from starting services on this machine.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        try:
            subprocess.run(
                ["apt-get", "-o", f"DPkg::Lock::Timeout={_PATIENCE}", *arguments],
                env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_PATIENCE, check=True,
            )  # fmt: skip
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return f"apt-get {arguments[0]}: {_last_line(error.stderr)}"
    return ""


def _last_line(text: str | bytes | None) -> str:
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text or "").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no words")
