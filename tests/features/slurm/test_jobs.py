"""What Slurm is asked for and tells of a job, in words of the spec that it is for."""

import json
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.features.render import slurm, targets
from tflaunch.features.render.slurm import Ending, seconds_in, wanted_of_job
from tflaunch.features.requested_gpus import with_gpus
from tflaunch.features.slurm import allocation, jobs, submission
from tflaunch.features.slurm.jobs import NoSlurmError, SlurmError, SlurmJob
from tflaunch.features.slurm.location import QueuePlace, find_place
from tflaunch.plan import planner
from tflaunch.runtime.run_config import SpecOrder

LOGIN_NODE = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2"}
TWO = {"worker": 2}


@pytest.mark.parametrize(
    ("environ", "cluster", "says"),
    [
        (LOGIN_NODE, TWO, "and not on the 2 nodes of job 17 of Slurm"),
        ({**LOGIN_NODE, "SLURM_JOB_NUM_NODES": "1"}, TWO, "and not on the node of job 17 of Slurm"),
        ({**LOGIN_NODE, "SLURMD_NODENAME": "n1"}, TWO, "and not on the 2 nodes"),
        ({**LOGIN_NODE, "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}, TWO, ""),
        (LOGIN_NODE, {"worker": ["n1", "n2"]}, ""),
        ({}, TWO, ""),
    ],
)
def test_unused_nodes_are_told(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], cluster: dict[str, Any], says: str
) -> None:
    """With what to write; there is no file that the warning is about."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = allocation.find_warnings(made({"cluster": cluster, "command": ["x"]}), Path())
    assert [says in problem.message and "--set hosts.discover=slurm" in problem.hint for problem in found] == (
        [True] if says else []
    )


TRAINING = {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "command": ["x"], "strategy": "parameter_server"}
WORKERS_ON_GPUS = {
    "container": {"resources": {"cpu": 2}},
    "roles": {"worker": {"resources": {"cpu": 4, "gpu": 1, "features": ["a100", "ib"]}}},
}


def spec(**fields: Any) -> Spec:
    return with_gpus(made({**TRAINING, **fields}))


def options(of: Spec) -> list[set[str]]:
    """Return the options of each part, on nodes with the number of the part in their names."""

    def on_nodes(number: int, part: Spec) -> Spec:
        return slurm.onto(part, [f"part-{number}-{n}" for n in range(slurm.nodes_wanted(part))])

    placed = submission.placed(of, on_nodes)
    plan = planner.make_plan(placed, DIRECTORY, MACHINE)
    assert {task.host.split("-")[1] for task in plan.tasks if task.role == "ps"} == {"0"}
    return [set(slurm.as_options(part)) for part in submission.wanted(plan, placed, slurm.USUAL_ENDING)]


def test_roles_with_the_same_resources_share_nodes() -> None:
    """Each named host is a node of the part of its tasks. A GPU is given only to a role that asks for one.

    The number of the container is for tasks that train.
    """
    ours, workers = options(spec(**WORKERS_ON_GPUS))
    assert {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2"} <= ours
    assert not [option for option in ours if option.startswith(("--gres", "--constraint"))]
    assert {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=4", "--gres=gpu:2"} <= workers
    assert "--constraint='a100&ib'" in workers
    named = {"cluster": {"chief": ["c"], "worker": ["a", "b"], "ps": ["c"]}}
    _, workers = options(spec(**WORKERS_ON_GPUS | named, sidecars={"feed": {"command": ["feed"], "host": "b"}}))
    assert {"--nodes=2", "--ntasks-per-node=2"} <= workers
    assert len(options(spec(roles={"ps": {"resources": {"cpu": 2}}}, container={"resources": {"cpu": 2}}))) == 1
    for fields, gpus in (
        (WORKERS_ON_GPUS, [0, 1, 0]),
        ({"container": {"resources": {"gpu": 2}}, "roles": {"ps": {"resources": {"gpu": 1}}}}, [0, 2, 1]),
    ):
        assert [spec(**fields).roles[role].gpus for role in ("chief", "worker", "ps")] == gpus


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"cluster": {"chief": ["a"], "worker": ["a"], "ps": ["b"]}}, "roles.worker.resources"),
        ({"slurm": {"gpus-per-node": "1", "partition": "all"}}, "slurm.gpus-per-node"),
        ({"cluster": {"chief": 1, "ps": 1}, "discover": {"worker": "slurm"}}, "roles.worker.resources"),
    ],
)
def test_what_cannot_be_asked_for_is_named(fields: dict[str, Any], where: str) -> None:
    (problem,) = submission.problems_of_parts(made({**TRAINING, **WORKERS_ON_GPUS, **fields}))
    assert problem.where == where
    assert problem.hint
    unlike = {**TRAINING, "roles": {"worker": {"resources": {"cpu": 4}}}}  # the nodes of a script are alike
    problems = targets.find_problems("slurm", made(unlike))
    assert [problem.where for problem in problems] == ["roles.worker.resources"]


def answer(*command: str, given: str | None = None, patience: float = 0) -> str:
    """Answer as a Slurm whose TERM reaches all processes."""
    assert command == ("scontrol", "--oneliner", "show", "config")
    return "KillWait                = 30 sec\nProctrackType           = proctrack/linuxproc"


def test_a_grace_that_slurm_cuts_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run_command", answer)
    ending = submission.find_ending()
    assert submission.find_warnings(20, ending) == []
    (warning,) = submission.find_warnings(60, ending)
    assert warning.where == "timeouts.grace"
    assert "is 1 min, and Slurm kills 30 s after TERM (KillWait)" in warning.message


def fail_with(monkeypatch: pytest.MonkeyPatch, error: SlurmError) -> None:
    """Have each command of Slurm fail."""

    def fail(*_: str, given: str | None = None, patience: float = 0) -> str:
        raise error

    monkeypatch.setattr(jobs, "run_command", fail)


def test_a_slurm_that_does_not_answer_forbids_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job itself then tells; only a machine without Slurm is told."""
    fail_with(monkeypatch, SlurmError("no controller"))
    assert submission.find_ending() == Ending()
    (problem,) = submission.try_script("#!/bin/sh")
    assert problem.message == "Slurm does not take the job: no controller"
    assert find_place("17", WAITING) is None
    fail_with(monkeypatch, NoSlurmError("there is no command `sbatch` here"))
    (problem,) = submission.try_script("#!/bin/sh")
    assert problem.sentence().startswith("there is no command `sbatch` here; run this on a login node")


def test_where_term_reaches_all_it_comes_before_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the supervisor alone, as Slurm would send it twice; of a short time limit nothing is taken."""
    monkeypatch.setattr(jobs, "run_command", answer)
    ending = submission.find_ending()
    assert ending == Ending(30.0, reaches_all=True)
    spec = slurm.onto(made({"cluster": {"worker": 1}, "command": ["x"]}), ["n1"])
    plan = planner.make_plan(spec, DIRECTORY, MACHINE)

    def signal_for(limit: str) -> str | None:
        limited = spec.model_copy(update={"slurm": {"time": limit}})
        return wanted_of_job(plan, limited, plan.processes(), ending).get("signal")

    assert signal_for("1:00:00") == "B:TERM@15"
    assert signal_for("2") is None


@pytest.mark.parametrize(
    ("signal", "given", "to_supervisor", "to_tasks"),
    [
        ("USR1@90", {}, "B:TERM@90", "USR1"),
        ("B:SIGUSR2", {}, "B:TERM@60", "USR2"),
        ("RB:10@5", {}, "RB:TERM@5", "USR1"),
        ("USR1@90", {"stop_signal": "INT"}, "B:TERM@90", "INT"),
        ("TERM@9", {}, "B:TERM@9", "TERM"),
        ("?", {}, "?", "TERM"),
    ],
)
def test_a_signal_before_the_time_limit_is_for_the_tasks(
    tmp_path: Path, signal: str, given: dict[str, Any], to_supervisor: str, to_tasks: str
) -> None:
    """The supervisor, which would die of any but TERM, passes it on; what sbatch does not know, it refuses."""
    fields = {**TRAINING, **given, "slurm": {"signal": signal}}
    file = SpecFile("job.json", tmp_path, ".json", json.dumps(fields))
    spec = submission.load_spec(file, SpecOrder(str(tmp_path), ".json"))
    assert (spec.slurm["signal"], spec.stop_signal) == (to_supervisor, to_tasks)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-3", 183600), ("1-2:30", 95400), ("1-0:0:10", 86410)],
)
def test_time_limits_in_the_formats_of_sbatch(text: str, seconds: int) -> None:
    """As its manual page has them; what is none is no limit."""
    assert seconds_in(text) == seconds
    assert seconds_in("UNLIMITED") == float("inf")


WAITING = SlurmJob("PENDING", "Priority", "", 0, 0, partition="all")


def test_a_place_has_the_expected_start_if_slurm_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm 22.05 lists each part of a heterogeneous job, as 14+0, 14+1 and so on."""
    soon = time.time() + 7200  # clock: squeue tells a moment, and the place is described from now
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(soon))
    monkeypatch.setattr(jobs, "run_command", lambda *_: f"14+0 N/A\n14+1 N/A\n17+0 {at}\n17+1 {at}\n18 N/A\n")
    place, unknown = find_place("17", WAITING), find_place("18", WAITING)
    assert (place.position, place.of) == (2, 3)
    assert re.match(r"2 of 3 in the queue of its partition, expected to start in (2 h|1 h .*) \(", place.describe())
    assert unknown.describe() == "3 of 3 in the queue of its partition"
    monkeypatch.setattr(jobs, "run_command", lambda *_: "17+0 N/A\n17+1 N/A\n")
    assert find_place("17", WAITING) is None, "it waits alone"


def test_a_field_without_a_value_does_not_take_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a job that waits again; of two parts, the first one counts."""
    told = "JobId=17 NodeList= BatchHost=n1 Comment=a\nJobId=18 NodeList=n2 BatchHost=n2\n"
    monkeypatch.setattr(jobs, "run_command", lambda *_, **__: told)
    assert jobs.show("job", "17") == {"JobId": "17", "NodeList": "", "BatchHost": "n1", "Comment": "a"}


@pytest.mark.parametrize("job", [None, WAITING._replace(state="RUNNING"), WAITING._replace(reason="BeginTime")])
def test_a_job_that_does_not_wait_has_no_place(monkeypatch: pytest.MonkeyPatch, job: SlurmJob | None) -> None:
    monkeypatch.setattr(jobs, "run_command", lambda *_: "15 N/A\n17 N/A\n")
    assert find_place("17", WAITING) is not None
    assert find_place("16", WAITING) is None
    assert find_place("17", job) is None


def test_only_what_changes_much_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the way, or a start that is expected much earlier or later."""
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    told = QueuePlace(8, 20, now + 4000)
    assert QueuePlace(5, 30, now + 4500).is_about(told)
    assert not QueuePlace(4, 20, now + 4000).is_about(told)
    assert not QueuePlace(8, 20, now + 6000).is_about(told)
    assert not QueuePlace(8, 20, math.inf).is_about(told)
    assert not told.is_about(None)
