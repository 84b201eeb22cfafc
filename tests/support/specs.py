"""Specs that several tests use, and the installed command to read them."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from support.warm_python import WarmPython
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.problems import validate_data
from tflaunch.plan import lint, planner
from tflaunch.plan.model import Machine, Plan

TFLAUNCH = Path(sys.executable).with_name("tflaunch")
REPOSITORY = Path(__file__).resolve().parent.parent.parent
_IMPORT_COMMAND = "import tflaunch.cli.check, tflaunch.cli.up, tflaunch.plan.lint, yaml"
_RUN_COMMAND = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
from tflaunch.__main__ import main
main()
"""
DIRECTORY = PurePosixPath("/home/ann/training")
"""The directory of specs that were not read from a file."""

MACHINE = Machine(
    cores=4,
    local_names=frozenset({"localhost", "127.0.0.1"}),
    environ={},
    python_directory=None,
    server_program="/opt/tflaunch/server.py",
)

SMALLEST = {"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "command": ["python", "train.py"]}
SMALLEST_LOCAL = {"cluster": {"worker": 2}, "command": ["python", "train.py"]}

GOOD: dict[str, dict[str, Any]] = {
    "smallest": SMALLEST,
    "smallest-local": SMALLEST_LOCAL,
    "chief-and-workers": {"cluster": {"chief": 1, "worker": 2}, "command": "python train.py --epochs 2"},
    "chosen-ports": {"cluster": {"worker": ["alpha", "beta:2222"]}, "command": ["python", "train.py"]},
    "evaluator": {"cluster": {"worker": 2, "evaluator": 1}, "command": ["python", "train.py"]},
    "parameter-servers": {"cluster": {"chief": 1, "worker": 2, "ps": 2}, "command": ["python", "train.py"]},
    "standard-servers": {
        "cluster": {"chief": 1, "worker": 2, "ps": 1},
        "roles": {"chief": {"command": "python train.py"}, "worker": {"server": True}, "ps": {"server": True}},
    },
    "mirrored": {"cluster": {"worker": 1}, "strategy": "mirrored", "command": ["python", "train.py"]},
    "tpu": {"cluster": {"worker": 1}, "strategy": "tpu", "command": ["python", "train.py"]},
    "no-strategy": {"cluster": {"chief": 1, "ps": 2}, "strategy": "none", "command": ["python", "train.py"]},
    "every-field": {
        "name": "nightly",
        "strategy": "multi_worker_mirrored",
        "cluster": {"chief": ["alpha:2222"], "worker": ["beta:2222", "beta:2223"], "evaluator": ["alpha"]},
        "command": ["python", "train.py"],
        "roles": {
            "worker": {"gpus": 1, "env": {"TF_CPP_MIN_LOG_LEVEL": 1}, "workdir": "workers"},
            "evaluator": {"command": "python evaluate.py", "gpus": 0},
        },
        "sidecars": {"board": {"command": ["tensorboard", "--logdir", "logs"], "host": "alpha", "env": {"A": "1"}}},
        "hosts": {
            "alpha": {"ssh": "ann@10.0.0.1:22", "identity_file": "/keys/ann", "python": "/opt/py/bin/python"},
            "beta": {"workdir": "/scratch", "env": {"NCCL_DEBUG": "INFO"}, "gpus": 2},
        },
        "env": {"DATA": "/data", "SEED": 7, "RATE": 0.5},
        "secrets": {"API_KEY": {"env": "KEY_OF_ANN"}},
        "workdir": "run",
        "restart": {"max": 5, "window": "1h", "backoff": ["2s", 90]},
        "timeouts": {"connect": 5, "grace": "20s", "lease": "1m", "stall": 300, "finish": "5m", "deadline": "2d"},
        "success": "all",
        "legacy_keras": True,
        "container": {"image": "ghcr.io/ann/train:1", "resources": {"memory": "4Gi"}, "volumes": {"/data": "claim"}},
    },
}
"""Specs without errors or warnings."""


def made(data: dict[str, Any]) -> Spec:
    """Return the spec in data that must be valid."""
    result = validate_data(data)
    assert isinstance(result, Spec), result
    return result


def planned(data: dict[str, Any], machine: Machine = MACHINE) -> Plan:
    read = made(data)
    assert not [problem for problem in lint.check_spec(read) if problem.severity == "error"]
    return planner.make_plan(read, DIRECTORY, machine)


def clustered(cluster: dict[str, Any], **fields: Any) -> Plan:
    return planned({"cluster": cluster, "command": ["train"], **fields})


def written(directory: Path, data: dict[str, Any], name: str = "cluster.json") -> Path:
    path = directory / name
    path.write_text(json.dumps(data))
    return path


def tflaunch(
    *arguments: str | Path, home: Path, cwd: Path | None = None, typed: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for its end, with 1 GiB of memory and without an inherited TF_CONFIG.

    It is forked, as its imports take longer than what it does. ``typed`` is its standard input.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "TFLAUNCH_"))}
    env = {**inherited, "TFLAUNCH_HOME": str(home), "TFLAUNCH_CONFIG": "", **variables}
    argv = [str(TFLAUNCH), *map(str, arguments)]
    return _imported_command().run(_RUN_COMMAND, argv, env=env, cwd=cwd, typed=typed, patience=300)


@functools.cache
def _imported_command() -> WarmPython:
    return WarmPython(_IMPORT_COMMAND, os.environ)
