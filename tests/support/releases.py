"""Make other releases of tflaunch: this code with another version, and maybe another protocol or journal format."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from support.launch import Launch
from support.specs import REPOSITORY

VERSION = "0.0.9"
_PACKAGES = ("launcher/tflaunch", "worker/tflaunch_worker")
_NUMBERS = {
    "PROTOCOL": "worker/tflaunch_worker/wire.py",
    "JOURNAL_FORMAT": "launcher/tflaunch/core/record_check.py",
}


def release(directory: Path, **numbers: int) -> Launch:
    """Copy the code into a directory as release `VERSION`, and return what runs it there.

    Args:
        directory: where the commands run, and where their runs are recorded.
        **numbers: PROTOCOL and JOURNAL_FORMAT, where they differ from those of this code.
    """
    code = directory / "release"
    for package in _PACKAGES:
        shutil.copytree(REPOSITORY / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    _replace(code / "launcher/tflaunch/__init__.py", r'^__version__ = ".*"$', f'__version__ = "{VERSION}"')
    _replace(code / "worker/tflaunch_worker/guard.py", r"\Z", f"# {VERSION}\n")  # so that its agents are other ones
    for name, number in numbers.items():
        _replace(code / _NUMBERS[name], rf"^{name} = \d+$", f"{name} = {number}")
    launch = Launch(directory)
    launch.env["PYTHONPATH"] = f"{code / 'launcher'}:{code / 'worker'}"
    return launch


def _replace(path: Path, pattern: str, text: str) -> None:
    replaced, count = re.subn(pattern, text, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{path}: {pattern}"
    path.write_text(replaced)
