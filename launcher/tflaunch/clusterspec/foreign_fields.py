"""Fields of other tools that users write into a spec, and their equivalents here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tflaunch.clusterspec.model import Container, Host, Resources, Restart, Role, Sidecar, Spec, Timeouts
from tflaunch.errors import Problem

_CONTAINER = 'write for example "container": {"image": "ghcr.io/ann/train:1"}'
_ENV = 'write for example "env": {"A": "b"}'
_NOT_NEEDED = "remove it: tflaunch makes the task part of TF_CONFIG for every task"
_RESOURCES = 'write for example "container": {"resources": {"cpu": "2", "memory": "4Gi"}}'
_TABLE: Mapping[Any, Mapping[str, str]] = {
    Spec: {
        "workers worker num_workers replicas nproc nproc_per_node np ntasks num_processes":
            'write for example "cluster": {"worker": 2}',
        "hosts_file hostfile": 'write for example "hosts": {"discover": "file:hosts.txt"}',
        "nodes nnodes machines": 'write for example "cluster": {"worker": ["10.0.0.1", "10.0.0.2"]}',
        "ps parameter_servers num_ps": 'write for example "cluster": {"chief": 1, "worker": 2, "ps": 1}',
        "chief master": 'write for example "cluster": {"chief": 1, "worker": 2}',
        "evaluator": 'write for example "cluster": {"worker": 2, "evaluator": 1}',
        "ps_hosts": 'write for example "cluster": {"chief": 1, "worker": 2, "ps": ["10.0.0.1:2222"]}',
        "worker_hosts": 'write for example "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}',
        "gpus gpu num_gpus gpus_per_task gpus_per_worker": 'write for example "roles": {"worker": {"gpus": 1}}',
        "environment env_vars envs environ variables": _ENV,
        "env_file": "give it to `tflaunch run --env-file FILE`, or write \"env\"",
        "image containers": _CONTAINER,
        "volumes mounts": 'write for example "container": {"volumes": {"/data": "claim"}}',
        "resources cpus cpu memory mem limits requests": _RESOURCES,
        "args arguments": 'put the arguments into "command"',
        "program script entrypoint entry_point main exec cmd": 'write for example "command": ["python", "train.py"]',
        "working_dir cwd directory dir": 'write for example "workdir": "work"',
        "max_restarts retries backoff_limit restart_policy restartPolicy": 'write for example "restart": {"max": 3}',
        "timeout deadline time_limit time activeDeadlineSeconds": 'write for example "timeouts": {"deadline": "1h"}',
        "grace_period stop_grace_period": 'write for example "timeouts": {"grace": "30s"}',
        "modules": 'write for example "preload": ["tensorflow"]',
        "partition account qos nodelist": 'write for example "slurm": {"partition": "gpu"}',
        "namespace context": 'write for example "kubernetes": {"namespace": "train"}',
        "logdir": 'write for example "tensorboard": "logs/"',
        "log_dir logs": "give it to `tflaunch up --log-dir DIR`",
        "checkpoint checkpoint_dir ckpt_dir": 'write for example "checkpoints": {"dir": "state"}',
        "ports expose": "remove it: the ports of tasks are chosen, or written into \"cluster\"",
        "depends_on": "remove it: the tasks of a run start together",
        "task index rank TF_CONFIG": _NOT_NEEDED,
        "secret": 'write for example "secrets": {"API_KEY": {"file": "key"}}',
        "services version": "docker compose has it; `tflaunch init` writes a spec for a program",
    },
    Host: {
        "user port hostname host key username address_ip":
            'write for example "ssh": "ann@10.0.0.1:2222", and "identity_file" for a key',
        "slots cpus max_slots": "write the host once for each of its tasks into \"cluster\"",
    },
    Role: {
        "replicas count workers num": 'write beside "roles": "cluster": {"worker": 2}',
        "args arguments": 'put the arguments into "command"',
        "image containers": 'write beside "roles": "container": {"image": "ghcr.io/ann/train:1"}',
        "environment env_vars": _ENV,
        "cpu cpus memory": 'write for example "resources": {"cpu": "2"}',
        "working_dir cwd": 'write for example "workdir": "work"',
    },
    Sidecar: {"args arguments": 'put the arguments into "command"', "environment env_vars": _ENV},
    Container: {
        "command args": "write \"command\" beside \"container\"",
        "env environment": "write \"env\" beside \"container\"",
        "name": "remove it",
        "gpu gpus cpu cpus memory limits requests": 'write for example "resources": {"cpu": "2", "memory": "4Gi"}',
        "volumeMounts mounts": 'write for example "volumes": {"/data": "claim"}',
    },
    Resources: {
        "limits requests": 'write for example "cpu": "2"',
        "cpus cores": 'write for example "cpu": "2"',
        "gpus nvidia.com/gpu": 'write for example "gpu": 1',
        "mem ram": 'write for example "memory": "4Gi"',
    },
    Restart: {"policy condition max_attempts limit retries": 'write for example "max": 3; 0 for none'},
    Timeouts: {
        "start": 'remove it: a cluster that does not form hangs, which "stall" ends',
        "timeout total job": 'write for example "deadline": "1h"',
        "stop kill": 'write for example "grace": "30s"',
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
