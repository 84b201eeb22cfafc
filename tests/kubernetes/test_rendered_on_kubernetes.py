"""`render --to k8s` on a real Kubernetes, which trains without tflaunch.

The cluster has no Indexed Jobs, which are newer. The test makes the pods that their controller makes, with the same
names, annotations and indices; the rest of the manifest is used as it is.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kube_cluster import IMAGE, Kube
from support.launch import Launch
from support.specs import REPOSITORY, written

pytestmark = pytest.mark.kubernetes
PYTHON = {path: path for path in (sys.prefix, sys.base_prefix, str(REPOSITORY))}
INDEX = "batch.kubernetes.io/job-completion-index"
TRAINING = 900.0  # seconds
POLL = 2.0


def pods_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods that the controller of Indexed Jobs makes."""
    made = []
    for index in range(job["spec"]["completions"]):
        template = job["spec"]["template"]
        name = f"{job['metadata']['name']}-{index}"
        metadata = {**template["metadata"], "name": name, "annotations": {INDEX: str(index)}}
        spec = {**template["spec"], "hostname": name}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return made


def phases(kube: Kube, names: list[str]) -> dict[str, str]:
    """Return the phase of each pod."""
    shown = json.loads(kube.kubectl("get", "pods", *names, "--output=json"))
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in shown["items"]}


@pytest.mark.tensorflow
def test_a_manifest_trains_without_tflaunch(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    data = {
        "name": "plain",
        "cluster": {"worker": 3},
        "command": [sys.executable, "-m", "tflaunch_worker.examples.mnist_multi_worker"],
        "workdir": "/state",
        "container": {"image": IMAGE, "volumes": {**PYTHON, "/state": str(tmp_path / "state")}},
    }
    rendered = launch.run("render", written(tmp_path, data), "--to", "k8s")
    assert rendered.returncode == 0, rendered.stderr
    service, job = yaml.safe_load_all(rendered.stdout)
    pods = pods_of(job)
    names = [pod["metadata"]["name"] for pod in pods]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, *pods]})
    kube.kubectl("create", "--filename=-", given=manifest)
    try:
        end = time.monotonic() + TRAINING
        while {"Pending", "Running"} & set((found := phases(kube, names)).values()):
            assert time.monotonic() < end, found
            time.sleep(POLL)
        assert set(found.values()) == {"Succeeded"}, kube.kubectl("logs", names[0])
        assert "test accuracy" in kube.kubectl("logs", names[2])
    finally:
        kube.kubectl("delete", "--filename=-", "--wait=false", given=manifest)
