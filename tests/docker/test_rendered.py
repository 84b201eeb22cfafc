"""`tflaunch render --to compose`: what it writes is what `plan` says, and docker-compose runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from compose import Compose
from engine import Engine
from launch import Launch

pytestmark = pytest.mark.docker

SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())


@pytest.mark.tensorflow
def test_a_rendered_cluster_trains(engine: Engine, launch: Launch, tmp_path: Path) -> None:
    """With the TF_CONFIG of the plan to the byte, without anything of tflaunch's."""
    job = tmp_path / "job"
    job.mkdir()
    state = job / "state"
    state.mkdir()
    state.chmod(0o777)  # the image's user is another one
    program = "tflaunch_worker.examples.mnist_multi_worker"
    command = ["python", "-m", program, "--data=synthetic", "--epochs=1", "--steps-per-epoch=60", "--state-dir=state"]
    spec = launch.spec(
        "job/cluster.json",
        cluster={"worker": ["alpha:2222", "beta:2222"]},
        command=[*command, "--min-accuracy=0.5"],
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    rendered = launch.run("render", spec, "--to", "compose")
    assert rendered.returncode == 0, rendered.stderr
    file = job / "docker-compose.yml"
    file.write_text(rendered.stdout)
    content = yaml.safe_load(rendered.stdout)
    jsonschema.Draft7Validator(SCHEMA).validate(content)

    planned = json.loads(launch.run("plan", spec, "--json").stdout)
    expected = [task["env"]["TF_CONFIG"] for task in planned["tasks"]]
    assert [service["environment"]["TF_CONFIG"] for service in content["services"].values()] == expected

    project = Compose(engine, f"tfl{os.getpid()}", job, file)
    try:
        ended = project.run("up", "--exit-code-from", "worker-0")
    finally:
        project.end()
        shutil.rmtree(state)
    assert ended.returncode == 0, ended.stdout
    assert not project.running()
    assert len(set(re.findall(r"weights sha256 (\w+)", ended.stdout))) == 1
