"""The options of pods, with ``--on kubernetes`` or a spec that chooses them."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import Launch
from tflaunch.errors import EXIT_USAGE

pytestmark = pytest.mark.cli


@pytest.mark.parametrize(
    ("fields", "arguments", "is_taken"),
    [
        ({"kubernetes": {}}, [], True),
        ({}, ["--on", "kubernetes"], True),
        ({}, [], False),
        ({"kubernetes": {}}, ["--on", "slurm"], False),
    ],
)
def test_an_image_is_for_pods(launch: Launch, fields: dict[str, Any], arguments: list[str], is_taken: bool) -> None:
    launch.env["KUBECONFIG"] = str(launch.directory / "none")
    spec = launch.spec(cluster={"worker": 1}, strategy="none", command=["true"], workdir="/", **fields)
    ended = launch.run("up", spec, "--image", "busybox", *arguments)
    assert ("--image has no effect here; add --on kubernetes" not in ended.stderr) is is_taken, ended.stderr
    assert ended.returncode != 0
    assert (ended.returncode == EXIT_USAGE) is not is_taken, ended.stderr
