"""`render --to slurm|compose`: the output matches the plan, for every spec."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path, PurePath
from typing import Any

import click
import jsonschema
import pytest
import yaml

from support import compose_checks, script_checks
from support.rendering import HOSTILE_TEXTS, hostile, plan_of, rendered, shipped
from support.specs import DIRECTORY, GOOD, MACHINE, SMALLEST_LOCAL, made
from support.waiting import PATIENCE, wait_until
from tflaunch.clusterspec.model import Container, Resources
from tflaunch.clusterspec.problems import validate_data
from tflaunch.clusterspec.schema import json_schema
from tflaunch.errors import Problem
from tflaunch.features.render import command as render
from tflaunch.features.render import compose, slurm, targets
from tflaunch.features.render.target_plan import fixed
from tflaunch.plan import placement, planner

pytestmark = pytest.mark.unit

CHECKS = {"compose": compose_checks.found_in, "slurm": script_checks.found_in_slurm}
EXCEPTIONS = {"slurm": ["smallest", "every-field"], "compose": ["smallest"]}
OF_SCRIPTS = {"cluster": "a", "task": "b", "session": "c", "IFS": "s", "SECONDS": "9", "UID": "1"}
"""Variables of the script itself."""

ODD: dict[str, Any] = {
    "cluster": {"chief": ["localhost:2222"], "worker": 1, "ps": 1, "evaluator": 1},
    "command": ["python", "-c", "print(\"it's 100% $HOME\")\nprint('<node 0>')", ""],
    "env": {"QUOTED": 'it\'s 100% "so" \\ $HOME `x`\t\n$$', "a-b": "c d", "EMPTY": "", "TILDE": "~/x", **OF_SCRIPTS},
    "roles": {"worker": {"server": True}, "evaluator": {"workdir": "/else where", "env": {"OWN": "1"}}},
    "sidecars": {"feed": {"command": ["serve"], "required": True}},
    "timeouts": {"grace": "1500ms", "deadline": "90s"},
    "tensorboard": "logs",
}
BY_NAME = {**shipped(), **GOOD, "odd": ODD}


@pytest.mark.parametrize("engine", CHECKS)
def test_no_text_is_more_than_text(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bash, sbatch, YAML nor Compose interprets it: variables, arguments and directories arrive unchanged."""
    monkeypatch.chdir(tmp_path)  # an injected command would leave its file here
    text = rendered(hostile(), engine)
    assert CHECKS[engine](text, plan_of(hostile(), engine)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", CHECKS)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_spec_is_written_as_planned(name: str, engine: str) -> None:
    """Including text that is hard to quote; else an error says why it cannot be expressed."""
    data = BY_NAME[name]
    read = made(data)
    if not read.discover and targets.find_problems(engine, read, MACHINE):
        assert name in EXCEPTIONS[engine]
        return
    assert CHECKS[engine](rendered(data, engine), plan_of(data, engine)) == []


@pytest.mark.parametrize(
    ("engine", "fields", "message"),
    [
        ("slurm", {"cluster": {"worker": ["10.0.0.1"]}}, "gives addresses of its own"),
        ("slurm", {"roles": {"worker": {"gpus": 1}}}, "want GPUs"),
        ("slurm", {"cluster": {"worker": ["a", "a"]}, "hosts": {"a": {"gpus": 2}}}, "want GPUs"),
        ("compose", {"cluster": {"worker": ["10.0.0.1"]}}, "gives addresses of its own"),
        ("compose", {"secrets": {"TOKEN": {"file": "token"}}}, "Compose takes the values of variables only from"),
        *((engine, {"env": {"A": "${host:HOME}"}}, "tflaunch's agent") for engine in CHECKS),
        *((engine, {"workdir": "~/here"}, "tflaunch's agent") for engine in CHECKS),
        *((engine, {"tensorboard": "~/logs"}, "tflaunch's agent") for engine in CHECKS),
    ],
)
def test_what_an_engine_cannot_express_is_an_error(engine: str, fields: dict[str, Any], message: str) -> None:
    (problem,) = targets.find_problems(engine, made({"cluster": {"worker": 2}, "command": "train", **fields}), MACHINE)
    assert problem.severity == "error"
    assert message in problem.message
    assert problem.hint


def test_slurm_is_asked_for_what_the_tasks_want() -> None:
    """For the most loaded node; a task without GPUs sees none."""
    data = {
        "cluster": {"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]},
        "command": "train",
        "timeouts": {"deadline": "90m"},
        "restart": {"max": 0},
        "container": {"resources": {"cpu": 1.5, "memory": "4Gi", "gpu": 2}},
    }
    lines = rendered(data, "slurm").splitlines()
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        *("--job-name=job", "--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=8G"),
        *("--gres=gpu:2", "--time=90", "--no-requeue"),
    ]
    started = rendered(data, "slurm").split("\nstart ")[1:]
    hidden = [text.split()[0] for text in started if "CUDA_VISIBLE_DEVICES=-1" in text]
    assert hidden == ["chief:0", "ps:0"]


@pytest.mark.parametrize("value", ["a\n#SBATCH --wrap=id", "a\rb", "a\0b", "a\x85b"])
def test_an_option_of_sbatch_is_one_line(value: str) -> None:
    """A second line would be another option or a command."""
    (problem,) = validate_data({"cluster": {"worker": 1}, "command": "train", "slurm": {"comment": value}})
    assert isinstance(problem, Problem)
    assert problem.where == "slurm.comment"


def test_jobs_that_share_a_node_use_different_ports() -> None:
    """Those of jobs with consecutive numbers do not overlap, and none is in Linux's range for connections."""
    text = rendered({"cluster": {"worker": ["a", "a", "b:2222"]}, "command": "train"}, "slurm")
    (line,) = (line for line in text.splitlines() if line.startswith("first_port="))
    assert '"${nodes[0]}:$((first_port + 0))"' in text
    assert '"${nodes[0]}:$((first_port + 1))"' in text
    assert '"${nodes[1]}"' in text
    assert ":2222" in text
    program = f'for SLURM_JOB_ID in {{1..400}} 4294901759; do {line}\necho "$first_port"; done'
    first = list(map(int, subprocess.run(["bash", "-c", program], stdout=subprocess.PIPE, check=True).stdout.split()))
    assert all(abs(one - other) >= 64 for one, other in itertools.pairwise(first))
    assert all(1024 < port <= 32_768 - 64 for port in first)


def test_compose_gives_tasks_resources_and_volumes() -> None:
    container = {
        "image": "train:1",
        "resources": {"cpu": "0.5", "memory": "512Mi", "gpu": 1},
        "volumes": {"/data": "claim", "/cache": "/var/cache"},
    }
    data = {"cluster": {"worker": 2}, "command": "train", "container": container}
    content = yaml.safe_load(rendered(data, "compose"))
    for number, service in enumerate(content["services"][name] for name in ("worker-0", "worker-1")):
        assert (service["image"], service["cpus"], service["mem_limit"]) == ("train:1", 0.5, "512m")
        assert service["volumes"][2:] == ["claim:/data", "/var/cache:/cache"]
        assert devices_of(service) == [str(number)]
        assert "CUDA_VISIBLE_DEVICES" not in service["environment"]
    assert content["volumes"]["claim"] == {}


def test_compose_is_given_no_secrets_but_where_they_are() -> None:
    """It reads them from the environment of whoever starts it, and starts nothing without."""
    data = {"cluster": {"worker": 2}, "command": "train", "secrets": {"API_KEY": {"env": "MY_KEY"}}}
    services = yaml.safe_load(rendered(data, "compose"))["services"]
    for name in ("worker-0", "worker-1"):
        reference = services[name]["environment"]["API_KEY"]
        assert reference == "${MY_KEY:?a secret of the spec is read from it}"


def devices_of(service: dict[str, Any]) -> list[str]:
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    found: list[str] = device["device_ids"]
    return found


def test_compose_gives_tasks_of_all_hosts_different_gpus() -> None:
    container = {"image": "train:1", "resources": {"gpu": 2}}
    data = {"cluster": {"worker": ["a:2222", "b:2222"]}, "command": "train", "container": container}
    services = yaml.safe_load(rendered(data, "compose"))["services"]
    assert [devices_of(services[name]) for name in ("worker-0", "worker-1")] == [["0", "1"], ["2", "3"]]


LASTING = ": > up-$TFLAUNCH_TASK; exec sleep 9999"
AFTERWARDS = "until [ -e ended ]; do sleep 0.02; done"


def composed(directory: Path, **fields: Any) -> dict[str, subprocess.Popen[str]]:
    """Start the commands of a compose file's services as processes, without containers."""
    text = rendered({"command": ["sh", "-c", f"cd {directory}; . ./$TFLAUNCH_TASK"], **fields}, "compose")
    services = yaml.safe_load(text)["services"]
    started = {}
    for name, service in services.items():
        command = [word.replace("$$", "$").replace("/tflaunch/job", str(directory)) for word in service["command"]]
        given = {key: value.replace("$$", "$") for key, value in service.get("environment", {}).items()}
        env = {"PATH": os.environ["PATH"], **given}
        started[name] = subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE)
    return started


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        ((AFTERWARDS, "touch ended; exit 0", LASTING, "exit 3"), 0),
        ((LASTING, "exit 7", LASTING, LASTING), 7),
        ((LASTING, "kill -KILL $$", LASTING, "exit 0"), 137),
        (("exit 0", LASTING, "exit 5", "exit 0"), 5),
    ],
)
def test_a_composed_job_ends_as_its_tasks_do(tmp_path: Path, programs: tuple[str, ...], code: int) -> None:
    """When all deciding tasks have ended or one has failed; no task's container ends earlier."""
    by_task = dict(zip(("worker:0", "worker:1", "feed", "evaluator:0"), programs, strict=True))
    for task, program in by_task.items():
        (tmp_path / task).write_text(program)
    feed = {"feed": {"command": ["sh", "-c", f"cd {tmp_path}; . ./$TFLAUNCH_TASK"], "required": True}}
    started = composed(tmp_path, cluster={"worker": 2, "evaluator": 1}, sidecars=feed)
    try:
        job = started.pop("job")
        job.wait(PATIENCE)
        assert [name for name, task in started.items() if task.poll() is not None] == []
        # A TERM between the fork and the exec of a task would be lost; Docker kills after the grace.
        lasting = [tmp_path / f"up-{task}" for task, program in by_task.items() if program == LASTING]
        wait_until(lambda: all(path.exists() for path in lasting))
    finally:
        for process in (job, *started.values()):
            process.terminate()
        said = [process.communicate(timeout=PATIENCE)[1] for process in (job, *started.values())]
    assert job.returncode == code, said


def test_a_composed_task_has_its_variables(tmp_path: Path) -> None:
    """Even those that the surrounding shell has or refuses."""
    names = ("OPTIND", "task", "code", "is_stopped", "left", "TMOUT", "-dash", "a-b")
    env = dict.fromkeys(names, HOSTILE_TEXTS[1])
    program = ["cp", "/proc/self/environ", str(tmp_path / "env")]
    started = composed(tmp_path, cluster={"worker": ["a:2222"]}, env=env, command=program)
    started["job"].communicate(timeout=PATIENCE)
    started["worker-0"].terminate()
    started["worker-0"].communicate(timeout=PATIENCE)
    assert {f"{name}={value}" for name, value in env.items()} <= set((tmp_path / "env").read_text().split("\0"))
    assert started["job"].returncode == 0


def test_a_composed_task_is_told_to_stop(tmp_path: Path) -> None:
    """It saves, its container exits with its code, and the job sees the code."""
    (tmp_path / "worker:0").write_text(
        "trap 'until [ -e told ]; do sleep 0.02; done; echo > saved; exit 42' TERM; echo > ready; sleep 600 2>&- & wait"
    )
    started = composed(tmp_path, cluster={"worker": ["a:2222"]})
    wait_until((tmp_path / "ready").exists, started["worker-0"])
    started["worker-0"].terminate()
    (tmp_path / "told").touch()
    started["worker-0"].communicate(timeout=PATIENCE)
    assert (tmp_path / "saved").exists()
    started["job"].communicate(timeout=PATIENCE)
    assert [process.returncode for process in started.values()] == [42, 42]


def test_a_container_is_read_as_the_schema_has_it() -> None:
    for cpu in (0.5, "2"):
        about = {"image": "a.b/c:1@sha256", "volumes": {"/data": "claim-1", "/cache/x": "/var/cache"}}
        container = {**about, "resources": {"cpu": cpu, "memory": "512Mi", "gpu": 0}}
        data = {"cluster": {"worker": 1}, "command": "train", "container": container}
        jsonschema.Draft202012Validator(json_schema()).validate(data)
        assert made(data).container == Container(resources=Resources(cpu=str(cpu), memory="512Mi", gpu=0), **about)
    assert made({"cluster": {"worker": 1}, "container": {}}).container == Container()


@pytest.mark.parametrize(
    ("container", "where"),
    [
        ({"image": "a b"}, "container.image"),
        ({"resources": {"cpu": "2 cores"}}, "container.resources.cpu"),
        ({"resources": {"cpu": -1}}, "container.resources.cpu"),
        ({"resources": {"memory": "4GB"}}, "container.resources.memory"),
        ({"resources": {"gpu": "1"}}, "container.resources.gpu"),
        ({"volumes": {"data": "claim"}}, "container.volumes.data"),
        ({"volumes": {"/data": "Claim"}}, "container.volumes./data"),
        ("train:1", "container"),
    ],
)
def test_a_container_that_is_none_is_an_error(container: Any, where: str) -> None:
    problems = validate_data({"cluster": {"worker": 1}, "command": "train", "container": container})
    assert isinstance(problems, list)
    assert [problem.where for problem in problems] == [where]


def test_the_command_offers_every_engine_that_there_is() -> None:
    """It lists them itself, because it does not import them to show its help."""
    (offered,) = (option.type for option in render.render.params if option.name == "engine")
    assert isinstance(offered, click.Choice)
    assert set(offered.choices) == set(targets.ENGINES)


def test_compose_publishes_tensorboard_on_the_loopback_address() -> None:
    """The container has an address of its own, and TensorBoard listens on it."""
    spec = made({"cluster": {"worker": ["alpha"]}, "command": ["python", "train.py"], "tensorboard": "logs/"})
    plan = fixed(spec, PurePath(DIRECTORY), MACHINE)
    board = yaml.safe_load(compose.render(plan, str(DIRECTORY), "/server.py", spec))["services"]["tensorboard"]
    assert board["command"][-4:] == ["--host", "0.0.0.0", "--port", "6006"]
    assert board["ports"] == ["127.0.0.1:6006:6006"]
    assert "network_mode" not in board


@pytest.mark.parametrize("engine", targets.ENGINES)
def test_no_engine_makes_a_private_network(engine: str) -> None:
    found = targets.find_problems(engine, made({**SMALLEST_LOCAL, "network": "private"}), MACHINE)
    assert "network" in [problem.where for problem in found]


# ---- options of sbatch


def options(**fields: Any) -> set[str]:
    """Return the options passed to sbatch."""
    read = made({"cluster": {"worker": 1}, "command": ["x"], **fields})
    nodes = [f"n{number}" for number in range(placement.nodes_wanted(read))]
    read = placement.onto(read, nodes)
    plan = planner.make_plan(read, DIRECTORY, MACHINE)
    return set(slurm.as_options(slurm.wanted_of_job(plan, read, plan.processes())))


def test_a_job_has_what_its_plan_needs() -> None:
    usual = {"--job-name=job", "--nodes=1", "--ntasks-per-node=1", "--requeue"}
    assert options() == usual
    assert options(restart={"max": 0}) == usual - {"--requeue"} | {"--no-requeue"}
    assert "--time=2" in options(timeouts={"deadline": "61s"})
    assert "--no-kill" in options(cluster={"worker": ["a", "b"]}, elastic={"min_workers": 1})
    assert "--signal=B:TERM@90" in options(timeouts={"grace": 60})
    resources = {"cpu": "1.5", "memory": "4Gi"}
    assert {"--cpus-per-task=2", "--mem=8G"} <= options(cluster={"worker": 2}, container={"resources": resources})
    assert "--gres=gpu:3" in options(cluster={"worker": 3}, roles={"worker": {"gpus": 1}})


def test_what_the_spec_says_of_the_job_counts() -> None:
    """It overrides our own options; text is quoted for the script."""
    said = options(
        slurm={"job-name": "my job", "exclusive": True, "no-requeue": True, "gpus-per-node": "a100:2"},
        roles={"worker": {"gpus": 1}},
    )
    assert {"--job-name='my job'", "--exclusive", "--no-requeue", "--gpus-per-node=a100:2"} <= said
    assert not any(option.startswith("--gres") for option in said)
    assert "--requeue" not in said


# ---- placeholders

TRAIN = ["python", "train.py"]
TO_RENDER = {
    "cluster": {"worker": 12},
    "command": [*TRAIN, "--shard={task.index}/{task.name}", "{cluster.worker}", "{run}"],
    "container": {"image": "train"},
    "name": "mine",
}


@pytest.mark.parametrize("engine", ["compose", "slurm"])
def test_an_engine_with_a_command_for_each_task_has_the_values(engine: str):
    text = targets.render_spec(engine, made(TO_RENDER), DIRECTORY, MACHINE, "")
    assert "--shard=11/worker:11" in text
    assert "{task" not in text


def test_pods_are_alike_and_get_the_index_from_kubernetes():
    text = targets.render_spec("jobset", made(TO_RENDER), DIRECTORY, MACHINE, "")
    assert "--shard=$(JOB_COMPLETION_INDEX)/worker:$(JOB_COMPLETION_INDEX)" in text


@pytest.mark.parametrize(
    ("engine", "fields", "where"),
    [
        ("slurm", {"command": [*TRAIN, "{attempt}"]}, "command"),
        ("compose", {"workdir": "/out/{attempt}"}, "workdir"),
        ("jobset", {"workdir": "/out/{task.index}"}, "workdir"),
        ("jobset", {"env": {"A": "1{task.index}"}}, "env.A"),
    ],
)
def test_a_value_that_an_engine_does_not_know_is_refused(engine: str, fields: dict[str, Any], where: str):
    (problem,) = targets.find_problems(engine, made({**TO_RENDER, **fields}), MACHINE)
    assert problem.where == where


def test_pods_have_the_variables_of_a_strategy():
    spec = made({**TO_RENDER, "command": TRAIN, "strategy": "jax"})
    assert targets.find_problems("jobset", spec, MACHINE) == []
    text = targets.render_spec("jobset", spec, DIRECTORY, MACHINE, "")
    assert "value: $(JOB_COMPLETION_INDEX)" in text or "job-completion-index" in text
