"""Fields of other tools that users often write into a spec, and their equivalents here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tflaunch.clusterspec.model import Host, Resources, Role, Spec
from tflaunch.errors import Problem

_ENV = 'write for example "env": {"A": "b"}'
_COMMAND = 'put the arguments into "command"'
_TABLE: Mapping[Any, Mapping[str, str]] = {
    Spec: {
        "workers worker num_workers replicas nproc nproc_per_node np ntasks num_processes":
            'write for example "cluster": {"worker": 2}',
        "hosts_file hostfile": 'write for example "hosts": {"discover": "file:hosts.txt"}',
        "nodes nnodes machines worker_hosts": 'write for example "cluster": {"worker": ["10.0.0.1", "10.0.0.2"]}',
        "ps parameter_servers num_ps ps_hosts": 'write for example "cluster": {"chief": 1, "worker": 2, "ps": 1}',
        "chief master": 'write for example "cluster": {"chief": 1, "worker": 2}',
        "evaluator": 'write for example "cluster": {"worker": 2, "evaluator": 1}',
        "gpus gpu num_gpus gpus_per_task gpus_per_worker": 'write for example "roles": {"worker": {"gpus": 1}}',
        "environment env_vars envs environ variables": _ENV,
        "env_file": "give it to `tflaunch run --env-file FILE`, or write \"env\"",
        "image containers": 'write for example "container": {"image": "ghcr.io/ann/train:1"}',
        "volumes mounts": 'write for example "container": {"volumes": {"/data": "claim"}}',
        "resources cpus cpu memory mem limits requests":
            'write for example "container": {"resources": {"cpu": "2", "memory": "4Gi"}}',
        "args arguments": _COMMAND,
        "program script entrypoint entry_point main exec cmd": 'write for example "command": ["python", "train.py"]',
        "working_dir cwd directory dir": 'write for example "workdir": "work"',
        "max_restarts retries backoff_limit restart_policy restartPolicy": 'write for example "restart": {"max": 3}',
        "timeout deadline time_limit time activeDeadlineSeconds": 'write for example "timeouts": {"deadline": "1h"}',
        "partition account qos nodelist": 'write for example "slurm": {"partition": "gpu"}',
        "namespace context": 'write for example "kubernetes": {"namespace": "train"}',
        "depends_on": "remove it: the tasks of a run start together",
        "task index rank TF_CONFIG": "remove it: tflaunch makes the task part of TF_CONFIG for every task",
    },
    Host: {"user port hostname host key username": 'write for example "ssh": "ann@10.0.0.1:2222"'},
    Role: {
        "replicas count workers num": 'write beside "roles": "cluster": {"worker": 2}',
        "args arguments": _COMMAND,
        "environment env_vars": _ENV,
        "working_dir cwd": 'write for example "workdir": "work"',
    },
    Resources: {
        "limits requests cpus cores": 'write for example "cpu": "2"',
        "gpus nvidia.com/gpu": 'write for example "gpu": 1',
        "mem ram": 'write for example "memory": "4Gi"',
    },
}  # fmt: skip

REMEDIES: Mapping[Any, Mapping[str, str]] = {
    model: {name: remedy for names, remedy in table.items() for name in names.split()}
    for model, table in _TABLE.items()
}
"""Part of a spec to the fields that it does not have, and the remedy for each."""


def manifest_in(data: object) -> Problem | None:
    """Return the problem of a file for another tool, None if it may be a spec."""
    if not isinstance(data, dict):
        return None
    remedy = 'write for example {"cluster": {"worker": 2}, "command": ["python", "train.py"]}'
    if isinstance(data.get("kind"), str) and ("apiVersion" in data or "cluster" not in data):
        what = f"is a manifest of Kubernetes ({data['kind']}), not a spec"
        return Problem.error("", what, f"{remedy}, and start it with `tflaunch up --on kubernetes`")
    if "services" in data and "cluster" not in data:
        return Problem.error("", "is a file of docker compose, not a spec", remedy)
    return None
