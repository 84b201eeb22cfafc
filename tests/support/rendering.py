"""The output of `tflaunch render`, for tests that run or check it."""

import json
from pathlib import Path, PurePath
from typing import Any

from support.launch import LONG, Launch
from support.specs import DIRECTORY, MACHINE, REPOSITORY, made
from tflaunch.clusterspec.model import Spec
from tflaunch.discovery import resolve
from tflaunch.features.render import targets
from tflaunch.plan.model import Plan

SERVER = "print('a server')\n"
EXAMPLE = [
    *("python", "-m", "tflaunch_worker.examples.mnist_multi_worker", "--data=synthetic"),
    *("--epochs=1", "--steps-per-epoch=30", "--state-dir=state", "--min-accuracy=0.3"),
]
"""A training of 30 steps, which ends with the same weights everywhere."""
_STEPS = """
import hashlib, os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros(3))
@tf.function
def step():
    def on_replica():
        context = tf.distribute.get_replica_context()
        mine = tf.range(3.0) + tf.cast(context.replica_id_in_sync_group, tf.float32)
        weights.assign_add(context.all_reduce("SUM", tf.sin(weights + mine)))
    strategy.run(on_replica)
for _ in range(5):
    step()
os.write(1, f"weights sha256 {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}\\n".encode())
"""
TRAINING = EXAMPLE if LONG else ["python", "-c", _STEPS]
"""The smallest training that proves a working cluster: in each step all tasks add up what each one computes from the
weights. `make nightly` trains a network of Keras.
"""

MARK = "injected"
HOSTILE_TEXTS = (
    f"a\ntouch {MARK}\n#SBATCH --wrap=touch\\ {MARK}\n",
    f"a[$(touch {MARK})]",
    f"'; touch {MARK}; '\"; touch {MARK}; \"`touch {MARK}`",
    f"${{{MARK}:-x}} $${MARK} $({MARK}) $$({MARK}) %n {{{{.{MARK}}}}}",
    f"x: &a [1, *a] # {MARK}\n- !!python/name:os.system\n...\n---\nEND\nEOF\n",
    "\x85 next\x85line \u2028\u2029\ufeff \t\r\x0b\x0c\x1b[31m\x7f \u202e é 😀 ",
    "- ",
    "~",
    "null",
    "1e3",
    "0x10",
    "=",
    "",
)
"""Texts that a shell, a template, YAML or sbatch would interpret."""

SPECIAL_VARIABLES = (
    *("TMOUT", "OPTIND", "EPOCHREALTIME", "EPOCHSECONDS", "BASHPID", "BASH_ENV", "ENV", "BASHOPTS", "SHELLOPTS", "IFS"),
    *("UID", "EUID", "PPID", "RANDOM", "SECONDS", "LINENO", "GROUPS", "DIRSTACK", "FUNCNAME", "PIPESTATUS", "HISTCMD"),
    *("BASH_ARGV0", "BASH_ALIASES", "BASH_COMPAT", "BASH_LINENO", "BASH_XTRACEFD", "POSIXLY_CORRECT", "PS4", "_"),
    *("COPROC", "MAPFILE", "REPLY", "CDPATH", "HOME", "OLDPWD", "PWD", "GLOBIGNORE", "FIGNORE", "LC_ALL", "cluster"),
    *("task", "session", "news", "common", "nodes", "step", "first_port", "what", "number", "late", "deciding"),
    *("-dash", "--", "-u", "-i", "a-b", "a.b", "1a", "a b", "é", f"$(touch {MARK})", f"BASH_FUNC_{MARK}%%"),
)
"""Names that a shell reads, sets, evaluates or refuses, or that a command takes for an option."""


def hostile() -> dict[str, Any]:
    """Return a spec with all of these in every field that accepts any text."""
    names = dict.fromkeys(SPECIAL_VARIABLES, HOSTILE_TEXTS[1])
    return {
        "cluster": {"chief": 1, "worker": 2, "ps": 1},
        "command": ["python", *HOSTILE_TEXTS],
        "workdir": "/" + "/".join(HOSTILE_TEXTS[:6]),
        "env": {**names, **{f"HOSTILE_{number}": text for number, text in enumerate(HOSTILE_TEXTS)}},
        "roles": {"ps": {"workdir": f"/-x\n{MARK}", "command": [f"a=$(touch {MARK})", "-x"], "env": {"-own": "\n"}}},
        "sidecars": {"feed": {"command": ["-serve", *HOSTILE_TEXTS]}},
        "tensorboard": "/logs" + HOSTILE_TEXTS[0],
    }


def shipped() -> dict[str, dict[str, Any]]:
    """Return the specs in cluster_specs/ by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((REPOSITORY / "cluster_specs").glob("*.json"))}


def to_render(data: dict[str, Any], engine: str) -> Spec:
    """Return the spec in data, with an image where the target needs one, without lookups."""
    spec = made(data if engine == "slurm" else {"container": {"image": "ghcr.io/ann/train:1"}, **data})
    spec = resolve.with_hosts("job.json", spec, Path(), is_offline=True) if spec.discover else spec
    assert not targets.find_problems(engine, spec)
    return spec


def rendered(data: dict[str, Any], engine: str) -> str:
    return targets.render_spec(engine, to_render(data, engine), PurePath(DIRECTORY), MACHINE, SERVER)


def plan_of(data: dict[str, Any], engine: str) -> Plan:
    return targets.plan_for_target(engine, to_render(data, engine), PurePath(DIRECTORY), MACHINE, SERVER)


def written(launch: Launch, spec: Path, engine: str, *arguments: str) -> Path:
    """Run `tflaunch render`, and return the output file and what is printed."""
    ended = launch.succeed("render", spec, "--to", engine, *arguments)
    path = spec.with_suffix(f".{engine}")
    path.write_text(ended.stdout)
    return path


def node_of_slurm(directory: Path, path: str) -> dict[str, str]:
    """Return the variables with which bash runs an sbatch script on this machine: one node, whose steps are programs.

    Args:
        directory: where the programs that stand in for srun and scontrol are written.
        path: the PATH of the script.
    """
    programs = directory / "slurm"
    programs.mkdir(exist_ok=True)
    steps = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"'
    for name, script in {"srun": steps, "scontrol": "echo localhost"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{path}", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": "7"}


def tf_configs(launch: Launch, spec: Path) -> dict[str, str]:
    """Return the TF_CONFIG of every task from `tflaunch plan`."""
    plan = json.loads(launch.run("plan", spec, "--json").stdout)
    return {task["task"]: task["env"]["TF_CONFIG"] for task in plan["tasks"]}
