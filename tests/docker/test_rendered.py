"""`tflaunch render --to compose`: the output matches `plan`, and docker-compose runs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

from support.compose import Compose
from support.container_engine import Engine
from support.launch import Launch
from support.mnist import digests
from support.rendering import TRAINING, tf_configs, written

pytestmark = [pytest.mark.docker, pytest.mark.thorough]


@pytest.mark.tensorflow
def test_a_rendered_cluster_trains(engine: Engine, launch: Launch, tmp_path: Path) -> None:
    """With the plan's TF_CONFIG byte for byte, without any file of tflaunch's."""
    job = tmp_path / "job"
    job.mkdir()
    state = job / "state"
    state.mkdir()
    state.chmod(0o777)  # the image has a different user
    spec = launch.spec(
        "job/cluster.json",
        cluster={"worker": ["alpha:2222", "beta:2222"]},
        command=TRAINING,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    file = written(launch, spec, "compose")
    content = yaml.safe_load(file.read_text())
    tasks = {name: service for name, service in content["services"].items() if name != "job"}
    configs = {name: service["environment"]["TF_CONFIG"] for name, service in tasks.items()}
    assert configs == {task.replace(":", "-"): config for task, config in tf_configs(launch, spec).items()}

    project = Compose(engine, f"tfl{os.getpid()}", job, file)
    try:
        ended = project.run("up", "--exit-code-from", "job")
    finally:
        project.end()
        shutil.rmtree(state)
    assert ended.returncode == 0, ended.stdout
    assert not project.running()
    assert len(set(digests(ended.stdout))) == 1
