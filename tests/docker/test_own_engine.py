"""The engine of docs/discovery.md: containers by label."""

from __future__ import annotations

import re

import pytest

from support.container_engine import Engine
from support.documents import blocks
from support.launch import Launch
from support.packages import install
from support.specs import REPOSITORY

pytestmark = pytest.mark.docker

PAGE = REPOSITORY / "docs" / "discovery.md"


def test_the_engine_of_the_page(engine: Engine, launch: Launch, containers: list[str]) -> None:
    """Its code, exactly as printed there, runs a task in every container with the label."""
    install(launch, {block.file: block.text for block in blocks(PAGE) if block.file})
    spec = launch.spec(
        hosts={"discover": "labelled:tflaunch.test"}, cluster={"worker": 2}, strategy="none", workdir="/state",
        command=["sh", "-c", "echo in $(hostname)"], timeouts={"connect": 30},
    )  # fmt: skip
    ended = launch.up(spec)
    assert ended.returncode == 0, ended.stderr
    assert len(set(re.findall(r"in (\w+)", ended.stdout))) == 2
    ended = launch.up(spec, "--set", "hosts.discover=labelled:nobody")
    assert ended.returncode == 2
    assert "hosts.discover: no running container has the label 'nobody'; start one" in ended.stderr
