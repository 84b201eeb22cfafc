"""Make other releases of tflaunch, with another version, protocol or journal format, and packages that add to it."""

import re
import shutil
from pathlib import Path

import tomllib

from support.launch import Launch
from support.specs import REPOSITORY

VERSION = "0.0.9"
_PACKAGES = ("launcher/tflaunch", "worker/tflaunch_worker")
_NUMBERS = {"PROTOCOL": "worker/tflaunch_worker/wire.py"}


def release(directory: Path, **numbers: int) -> Launch:
    """Copy the code into a directory as release `VERSION`, and return what runs it there.

    Args:
        directory: where the commands run, and where their runs are recorded.
        **numbers: PROTOCOL, where it differs from that of this code.
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


def install(launch: Launch, files: dict[str, str]) -> None:
    """Write the modules of a package, and what pip would write from its pyproject.toml."""
    site = launch.directory / "site"
    site.mkdir()
    for name, text in files.items():
        (site / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (group,) = project["entry-points"]
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"][group].items())
    (about / "entry_points.txt").write_text(f"[{group}]\n{points}")
    launch.env["PYTHONPATH"] = str(site)
