"""`tflaunch render --to slurm`: plain sbatch runs the script and returns the job's exit code."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.fixed_ports import free_ports
from support.launch import Launch
from support.mnist import digests
from support.rendering import TRAINING, tf_configs, written
from support.slurm_cluster import SlurmBed

pytestmark = pytest.mark.thorough
ENDED = re.compile(r"JobState=(COMPLETED|FAILED|CANCELLED)")


def submit(slurm: SlurmBed, launch: Launch, spec: Path) -> str:
    """Submit the script for a spec with sbatch, and return the job's ID."""
    script, output = written(launch, spec, "slurm"), f"--output={launch.directory / 'output'}"
    env = {**launch.env, **slurm.env}
    command = ["sbatch", "--parsable", output, str(script)]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def run(slurm: SlurmBed, launch: Launch, spec: Path) -> tuple[int, str]:
    """Run the script for a spec to completion; return the job's exit code and output."""
    job = submit(slurm, launch, spec)
    shown = ("scontrol", "--oneliner", "show", "job", job)
    slurm.wait_until(lambda: bool(ENDED.search(slurm.asked(*shown))), "the job does not end")
    (code,) = re.findall(r" ExitCode=(\d+):0 ", slurm.asked(*shown))
    return int(code), (launch.directory / "output").read_text()


@pytest.mark.tensorflow
def test_the_script_trains_on_two_nodes(slurm: SlurmBed, launch: Launch) -> None:
    """All tasks end with the same weights."""
    first, second = free_ports(2)
    cluster = {"worker": [f"n1:{first}", f"n2:{second}"]}
    spec = launch.spec(cluster=cluster, command=TRAINING, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    code, output = run(slurm, launch, spec)
    assert code == 0, output
    assert len(digests(output)) == 2
    assert len(set(digests(output))) == 1


def test_tasks_are_given_what_plan_says_and_servers_end_with_the_chief(slurm: SlurmBed, launch: Launch) -> None:
    """TF_CONFIG byte for byte for the nodes that Slurm allocated; each task is on its node."""
    say = 'printf %s "$TF_CONFIG" > "$TFLAUNCH_TASK"; echo "$TFLAUNCH_TASK $SLURMD_NODENAME"; touch "$TFLAUNCH_TASK.up"'
    wait = "for task in worker:0 ps:0 evaluator:0; do until [ -e $task.up ]; do sleep 0.05; done; done"
    spec: dict[str, Any] = {
        "cluster": {"chief": ["n1:2222"], "worker": ["n2:2222"], "ps": ["n2:2223"], "evaluator": ["n1:2223"]},
        "command": ["sh", "-c", f"{say}; exec sleep 9999"],
        "roles": {"chief": {"command": ["sh", "-c", f"{say}; {wait}"]}},
    }
    path = launch.spec(**spec)
    code, output = run(slurm, launch, path)
    assert code == 0, output
    assert {"chief:0 n1", "worker:0 n2", "ps:0 n2", "evaluator:0 n1"} <= set(output.splitlines())
    for task, config in tf_configs(launch, path).items():
        assert (launch.directory / task).read_text() == config


def test_the_first_failure_ends_the_job_with_its_code(slurm: SlurmBed, launch: Launch) -> None:
    """Not with 143, which srun would report for the tasks that it ends."""
    fails = '[ "$TFLAUNCH_TASK" = worker:1 ] && { until [ -e up ]; do sleep 0.05; done; exit 7; }; touch up; sleep 9999'
    code, output = run(slurm, launch, launch.spec(cluster={"worker": ["a", "b"]}, command=["sh", "-c", fails]))
    assert code == 7, output
    assert "worker:1 failed with 7" in output


def test_a_job_that_is_cancelled_leaves_nothing(slurm: SlurmBed, launch: Launch) -> None:
    """Whatever its tasks do."""
    command = ["sh", "-c", "trap '' TERM; touch $TFLAUNCH_TASK; exec sleep 9999"]
    job = submit(slurm, launch, launch.spec(cluster={"worker": ["a", "b"]}, command=command))
    slurm.wait_until(lambda: all((launch.directory / f"worker:{n}").exists() for n in range(2)), "tasks do not start")
    slurm.asked("scancel", job)
    slurm.wait_until(slurm.is_empty, "the job does not end")
    slurm.wait_until(lambda: not launch.survivors(), "tasks do not end")
