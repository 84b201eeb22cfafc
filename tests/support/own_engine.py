"""Discovery engines from other packages, installed as pip does."""

from __future__ import annotations

import os
from pathlib import Path

from support.launch import Launch


def install(launch: Launch, directory: Path, code: str, points: str) -> None:
    """Install a package with one module for the commands of a test.

    Args:
        launch: runs the commands.
        directory: for the package.
        code: source of its module.
        points: its entry points in the group of engines, one ``name = module:object`` per line.
    """
    module = points.partition("=")[2].partition(":")[0].strip()
    about = directory / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (directory / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[tflaunch.discovery]\n{points}")
    launch.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), launch.env.get("PYTHONPATH")]))
