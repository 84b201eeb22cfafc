"""What Slurm tells of a job before it waits, in words of the spec that it is for."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.features.render.slurm import Ending, seconds_in, wanted_of_job
from tflaunch.features.slurm import commands, limits
from tflaunch.features.slurm.commands import NoSlurmError, SlurmError
from tflaunch.plan import placement, planner
from tflaunch.plan.placement import with_gpus

pytestmark = pytest.mark.unit

SAID = {
    ("sinfo", "--noheader", "--format=%P"): "all*\nbig\n",
    ("scontrol", "--oneliner", "show", "partition", "all"): "PartitionName=all MaxNodes=2 MaxTime=04:00:00 State=UP",
    ("scontrol", "--oneliner", "show", "partition", "big"): "PartitionName=big MaxTime=UNLIMITED State=DRAIN",
    ("scontrol", "--oneliner", "show", "config"): "KillWait                = 30 sec\nProctrackType           = "
    "proctrack/linuxproc",
}
NODES = "8 16000 gpu:a100:2(S:0)\n4 32000 (null)\n"


def answer(*command: str, given: str | None = None, patience: float = 0) -> str:
    """Answer as a Slurm with two partitions."""
    return NODES if "--Node" in command else SAID[command]


def found(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> dict[str, str]:
    """Return the messages about a spec, by their places."""
    monkeypatch.setattr(commands, "run_command", answer)
    spec = made({"cluster": {"worker": 1}, "command": ["x"], **fields})
    spec = placement.onto(with_gpus(spec), [f"n{number}" for number in range(placement.nodes_wanted(spec))])
    plan = planner.make_plan(spec, DIRECTORY, MACHINE)
    wanted = wanted_of_job(plan, spec, plan.processes())
    problems = limits.find_problems(wanted, spec, ["worker"], limits.find_ending())
    return {problem.where: problem.message for problem in problems}


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({}, "", ""),
        ({"slurm": {"partition": "nope"}}, "slurm.partition", "there is no partition 'nope'"),
        ({"slurm": {"partition": "big"}}, "slurm.partition", "partition big is DRAIN"),
        ({"slurm": {"nodes": "3"}, "cluster": {"worker": 3}}, "slurm.nodes", "the job wants 3 nodes"),
        ({"cluster": {"worker": ["a", "b", "c"]}}, "cluster", "gives at most 2"),
        ({"slurm": {"time": "5:00:00"}}, "slurm.time", "wants 5:00:00, and partition all gives at most 04:00:00"),
        ({"timeouts": {"deadline": "5h"}}, "timeouts.deadline", "gives at most 04:00:00"),
        ({"cluster": {"worker": 2}, "slurm": {"cpus-per-task": "5"}}, "slurm.cpus-per-task", "want 10 cores"),
        ({"container": {"resources": {"cpu": "9"}}}, "container.resources.cpu", "have at most 8"),
        ({"container": {"resources": {"memory": "40Gi"}}}, "container.resources.memory", "want 40960 MB of memory"),
        ({"roles": {"worker": {"resources": {"cpu": 9}}}}, "roles.worker.resources.cpu", "have at most 8"),
        ({"roles": {"worker": {"gpus": 3}}}, "roles.worker.gpus", "want 3 GPUs"),
        ({"slurm": {"gpus-per-node": "a100:4"}}, "slurm.gpus-per-node", "have at most 2"),
        ({"timeouts": {"grace": 60}}, "timeouts.grace", "is 1 min, and Slurm kills 30 s after TERM (KillWait)"),
    ],
)  # fmt: skip
def test_a_limit_is_told_by_the_field_that_exceeds_it(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], where: str, message: str
) -> None:
    """And by nothing else."""
    told = found(monkeypatch, **fields)
    assert list(told) == [where] * bool(where)
    assert message in told.get(where, "")


def test_a_slurm_that_does_not_answer_forbids_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job itself then tells."""

    def fail(*_: str, given: str | None = None, patience: float = 0) -> str:
        raise SlurmError("no controller")

    monkeypatch.setattr(commands, "run_command", fail)
    spec = made({"cluster": {"worker": 1}, "command": ["x"]})
    assert limits.find_problems({}, spec, [], limits.find_ending()) == []
    (problem,) = limits.try_script("#!/bin/sh")
    assert problem.message == "Slurm would not start the job: no controller"


def test_a_machine_without_slurm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `check`, which cannot do anything then."""

    def fail(*command: str, given: str | None = None, patience: float = 0) -> str:
        raise NoSlurmError(f"there is no command `{command[0]}` here")

    monkeypatch.setattr(commands, "run_command", fail)
    (problem,) = limits.try_script("#!/bin/sh")
    assert problem.sentence() == "there is no command `sbatch` here; run this on a login node of a Slurm cluster"


def test_where_term_reaches_all_it_comes_before_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the supervisor alone, as Slurm would send it twice; of a short time limit nothing is taken."""
    monkeypatch.setattr(commands, "run_command", answer)
    ending = limits.find_ending()
    assert ending == Ending(30.0, reaches_all=True)
    spec = placement.onto(made({"cluster": {"worker": 1}, "command": ["x"]}), ["n1"])
    plan = planner.make_plan(spec, DIRECTORY, MACHINE)

    def signal_for(limit: str) -> str | None:
        limited = spec.model_copy(update={"slurm": {"time": limit}})
        return wanted_of_job(plan, limited, plan.processes(), ending).get("signal")

    assert signal_for("1:00:00") == "B:TERM@15"
    assert signal_for("2") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-3", 183600), ("1-2:30", 95400), ("1-0:0:10", 86410)],
)
def test_time_limits_in_the_formats_of_sbatch(text: str, seconds: int) -> None:
    """As its manual page has them; what is none is no limit."""
    assert seconds_in(text) == seconds
    assert seconds_in("UNLIMITED") == float("inf")
