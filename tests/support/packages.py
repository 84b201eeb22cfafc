"""Packages that add to tflaunch, installed as pip does."""

from __future__ import annotations

import tomllib

from support.launch import Launch


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
