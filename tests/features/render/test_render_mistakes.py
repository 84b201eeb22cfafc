"""Mistakes planted in the output of `render`: a dozen per target, each found by the checks of the tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from support import compose_checks, pod_checks, script_checks
from support.rendering import plan_of, rendered
from support.schemas import need_schemas
from tflaunch.plan.model import Plan

pytestmark = pytest.mark.unit

SPEC: dict[str, Any] = {
    "cluster": {"chief": ["localhost:2222"], "worker": 2, "ps": 1, "evaluator": 1},
    "command": ["python", "train.py"],
    "env": {"DATA": "/data"},
    "sidecars": {"feed": {"command": ["serve", "data"]}},
    "container": {"image": "train:1", "volumes": {"/data": "claim"}},
}
CHECKS: dict[str, Callable[[str, Plan], list[str]]] = {
    "jobset": pod_checks.found_in,
    "compose": compose_checks.found_in,
    "slurm": script_checks.found_in_slurm,
}
MISTAKES: dict[str, dict[str, tuple[str, str]]] = {
    "jobset": {
        "a field that does not exist": ("parallelism: 2", "paralelism: 2"),
        "no completionMode": ("completionMode: Indexed", "completionMode: NonIndexed"),
        "fewer pods than tasks": ("completions: 2", "completions: 1"),
        "not all at once": ("parallelism: 2", "parallelism: 1"),
        "another port than in TF_CONFIG": ("containerPort: 2222", "containerPort: 2223"),
        "an index that is text": ('"index":$(JOB_COMPLETION_INDEX)', '"index":"$(JOB_COMPLETION_INDEX)"'),
        "the evaluator in the others' cluster": (
            '"task":{"type":"chief"',
            '"evaluator":["x:1"],"task":{"type":"chief"',
        ),
        "a restart that a Job cannot have": ("restartPolicy: Never", "restartPolicy: Always"),
        "a variable less": ("name: DATA", "name: DATE"),
        "a task that restarts without its peers": ("backoffLimit: 0", "backoffLimit: 6"),
        "two replicatedJobs of one name": ("- name: ps\n", "- name: worker\n"),
        "pods without names": ("enableDNSHostnames: true", "enableDNSHostnames: false"),
        "success when any has ended": ("operator: All", "operator: Any"),
        "success by a job that is not there": (
            "targetReplicatedJobs:\n      - chief\n  failure",
            "targetReplicatedJobs:\n      - boss\n  failure",
        ),
        "another budget": ("maxRestarts: 3", "maxRestarts: 0"),
        "a rule for a failure that does not exist": ("- PodFailurePolicy", "- PodFailed"),
    },
    "compose": {
        "no list": (
            "volumes:\n      - /home/ann/training:/home/ann/training\n",
            "volumes: 7\n    ports:\n",
        ),
        "a field that does not exist": ("working_dir:", "workdir:"),
        "a network that is not defined": ("network_mode: service:chief-0", "networks:\n      - cluster"),
        "the network of a service that is not there": ("network_mode: service:chief-0", "network_mode: service:boss-0"),
        "a network of its own for a task on localhost": ("    network_mode: service:chief-0\n", ""),
        "an index that is text": ('"index":1', '"index":"1"'),
        "an index twice": ('"type":"worker","index":1', '"type":"worker","index":0'),
        "the evaluator in the others' cluster": (
            '"ps":["localhost:2225"]},"task"',
            '"ps":["localhost:2225"],"evaluator":["localhost:2226"]},"task"',
        ),
        "a port of another task": ("localhost:2223", "localhost:2229"),
        "a service less": ("  ps-0:\n", "  server:\n"),
        "a volume that is not defined": ("\n  claim: {}", ""),
        "an end that is not waited for": ("  job:\n", "  jobs:\n"),
        "a task that says it is another": ("      - ps-0\n", "      - ps-1\n"),
        "a process that reaps nothing": ("    init: true\n", ""),
        "no grace": ("stop_grace_period: '10s'", "stop_grace_period: '1s'"),
        "another program": ("- train.py", "- test.py"),
        "a variable of the user's shell": ("DATA: /data", "DATA: ${DATA}"),
    },
}
MISTAKES["slurm"] = {
    "an index that is text": ('"worker","index":1}}', '"worker","index":"1"}}'),
    "an index twice": ('"worker","index":1}}', '"worker","index":0}}'),
    "a cluster without a worker": ('],"ps"', 'x],"ps"'),
    "a quote too few": ("  DATA=/data", "  DATA='/data"),
    "another program": ("start chief:0", "start chief:0 echo"),
    "a task less": ("TFLAUNCH_TASK=ps:0", "TFLAUNCH_TASK=ps:0 true"),
    "another decider": ("deciding=([chief:0]=1)", "deciding=([worker:0]=1)"),
    "an evaluator that decides": ("optional=([evaluator:0]=1", "optional=("),
    "a variable less": ("  DATA=/data", "  DATE=/data"),
    "another directory": ("cd -- /home/ann/training", "cd -- /home/ann"),
    "TERM that ends the script alone": ("""trap 'echo "- signal 143" >&3'""", "trap 'exit 143'"),
    "not bash": ("bash\n", "sh\n"),
    "an option too late": ("#SBATCH --nodes=1\n", "\necho now\n#SBATCH --nodes=1\n"),
    "fewer nodes": ("--nodes=1\n#", "--nodes=0\n#"),
    "steps that wait for each other": (" --overlap", ""),
    "a step without a node": ('--nodelist="${nodes[0]}"', ""),
    "a node that is not there": ("nodes[0]", "nodes[1]"),
}


@functools.cache
def good(engine: str) -> tuple[str, Plan]:
    """Return what is rendered from the spec for a target, and its plan."""
    return rendered(SPEC, engine), plan_of(SPEC, engine)


@pytest.mark.parametrize("engine", CHECKS)
def test_nothing_is_wrong_without_a_mistake(engine: str) -> None:
    """Otherwise the rest would prove nothing; and each target has a dozen mistakes."""
    need_schemas(engine)
    assert CHECKS[engine](*good(engine)) == []
    assert len(MISTAKES[engine]) >= 12


@pytest.mark.parametrize(
    ("engine", "mistake"), [(engine, name) for engine, planted in MISTAKES.items() for name in planted]
)
def test_a_planted_mistake_is_found(engine: str, mistake: str) -> None:
    """Only its first occurrence is replaced."""
    need_schemas(engine)
    right, wrong = MISTAKES[engine][mistake]
    text, plan = good(engine)
    assert right in text
    assert CHECKS[engine](text.replace(right, wrong, 1), plan)
