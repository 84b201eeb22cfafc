"""docs/tutorial.md, from its first line to its last: in a launcher's container, with two others as the machines."""

from __future__ import annotations

import shlex

import pytest

from support.compose import Compose
from support.documents import blocks, run_block
from support.specs import REPOSITORY

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow, pytest.mark.thorough]

DIRECTORY = "/home/tflaunch/tutorial"


def test_the_tutorial_works_as_it_is_written(compose: Compose) -> None:
    """Only that h1 and h2 are names of hosts is arranged before."""
    compose.run("up", "--detach", "worker")
    for name, machine in zip(("h1", "h2"), compose.containers("worker"), strict=True):
        compose.engine.docker("network", "disconnect", compose.network, machine)
        compose.engine.docker("network", "connect", "--alias", name, compose.network, machine)
    started = compose.run("run", "--detach", "launcher", "sleep", "infinity")
    assert started.returncode == 0, started.stdout
    (launcher,) = compose.containers("launcher")

    def shell(command: str) -> tuple[int, str]:
        words = ["exec", "--workdir", DIRECTORY, launcher, "bash", "-c", f"{{ {command}\n}} 2>&1; echo; echo $?"]
        output, _, code = compose.engine.docker(*words).rpartition("\n")
        return int(code), output

    def write(name: str, text: str) -> None:
        assert shell(f"printf %s {shlex.quote(text)} > {name}") == (0, "")

    compose.engine.docker("exec", launcher, "mkdir", DIRECTORY)
    for block in blocks(REPOSITORY / "docs" / "tutorial.md"):
        run_block(block, write, shell)
