"""docs/extending.md: its package adds a verb, a watcher and a request."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from support.documents import Block, blocks, run_block, shell_of
from support.launch import Launch
from support.specs import REPOSITORY

pytestmark = pytest.mark.cli

PAGE = REPOSITORY / "docs" / "extending.md"


def install(page: list[Block], site: Path) -> None:
    """Write the package's modules, and what pip would write from its pyproject.toml."""
    site.mkdir()
    for block in page:
        if block.file.endswith(".py"):
            (site / block.file).write_text(block.text)
    (text,) = (block.text for block in page if block.file == "pyproject.toml")
    project = tomllib.loads(text)["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (group,) = project["entry-points"]
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"][group].items())
    (about / "entry_points.txt").write_text(f"[{group}]\n{points}")


def test_the_package_of_the_page_works(launch: Launch) -> None:
    """Its commands print what the page shows."""
    page = list(blocks(PAGE))
    install(page, launch.directory / "site")

    launch.env["PYTHONPATH"] = str(launch.directory / "site")
    (commands,) = (block for block in page if block.kind == "console")
    run_block(commands._replace(mark=""), lambda *_: None, shell_of(launch))
