"""What `render --to compose|jobset|trainjob` writes is as planned, for every spec; planted mistakes would be found.

Scripts for sbatch are run (test_rendered_scripts_run.py).
"""

import functools
import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support import compose_checks, pod_checks
from support.rendering import hostile, plan_of, rendered, shipped, to_render
from support.schemas import need_schemas
from support.specs import DIRECTORY, GOOD, MACHINE, made
from tflaunch.clusterspec.model import Container, Resources, Spec
from tflaunch.clusterspec.problems import validate_data
from tflaunch.clusterspec.schema import json_schema
from tflaunch.errors import Problem
from tflaunch.features.render import slurm, targets
from tflaunch.plan import planner
from tflaunch.plan.model import Plan

CHECKS: dict[str, Callable[[str, Plan], list[str]]] = {
    "jobset": pod_checks.found_in,
    "trainjob": pod_checks.found_in,
    "compose": compose_checks.found_in,
}
EXCEPTIONS = {"compose": ["smallest"], **{name: ["smallest", "every-field", "odd"] for name in ("jobset", "trainjob")}}
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
TRAIN = ["python", "train.py"]
TWO: dict[str, Any] = {"cluster": {"worker": 2}, "command": "train", "container": {"image": "x"}}
TWO_HOSTS = {"worker": ["a", "b"]}
AGENT = "tflaunch's agent"


@pytest.mark.parametrize("engine", CHECKS)
def test_no_text_is_more_than_text(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither YAML, Compose nor Kubernetes interprets it: all arrives unchanged."""
    need_schemas(engine)
    monkeypatch.chdir(tmp_path)  # an injected command would leave its file here
    data = {key: value for key, value in hostile().items() if engine == "compose" or key != "tensorboard"}
    assert CHECKS[engine](rendered(data, engine), plan_of(data, engine)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", CHECKS)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_spec_is_written_as_planned(name: str, engine: str) -> None:
    """Including text that is hard to quote; else an error says why it cannot be expressed."""
    need_schemas(engine)
    read = made({"container": {"image": "x"}, **BY_NAME[name]})
    if not read.discover and targets.find_problems(engine, read):
        assert name in EXCEPTIONS[engine]
        return
    assert CHECKS[engine](rendered(BY_NAME[name], engine), plan_of(BY_NAME[name], engine)) == []


@pytest.mark.parametrize(
    ("engine", "fields", "where", "message"),
    [
        ("slurm", {"cluster": {"worker": ["10.0.0.1"]}}, "", "gives addresses of its own"),
        ("slurm", {"roles": {"worker": {"gpus": 1}}}, "", "want GPUs"),
        ("slurm", {"cluster": {"worker": ["a", "a"]}, "hosts": {"a": {"gpus": 2}}}, "", "want GPUs"),
        ("compose", {"cluster": {"worker": ["10.0.0.1"]}}, "", "gives addresses of its own"),
        ("compose", {"secrets": {"TOKEN": {"file": "token"}}}, "", "Compose takes the values of variables only from"),
        *((engine, {"env": {"A": "${host:HOME}"}}, "env.A", AGENT) for engine in ("slurm", "compose")),
        *((engine, {"workdir": "~/here"}, "workdir", AGENT) for engine in ("slurm", "compose")),
        *((engine, {"tensorboard": "~/logs"}, "tensorboard", AGENT) for engine in ("slurm", "compose")),
        ("slurm", {}, "container.image", "what `tflaunch up --on slurm` starts tasks in"),
        ("slurm", {"command": [*TRAIN, "{attempt}"]}, f"command[{len(TRAIN)}]", ""),
        ("compose", {"workdir": "/out/{attempt}"}, "workdir", ""),
        ("jobset", {"workdir": "/out/{task.index}"}, "workdir", ""),
        ("jobset", {"env": {"A": "1{task.index}"}}, "env.A", ""),
        ("jobset", {"container": {}}, "container.image", ""),
        ("jobset", {"cluster": {"worker": ["10.0.0.1:2222", "b"]}}, "cluster.worker[0]", ""),
        ("jobset", {"workdir": "here"}, "workdir", ""),
        ("jobset", {"roles": {"worker": {"workdir": "here"}}}, "roles.worker.workdir", ""),
        ("jobset", {"env": {"CACHE": "${host:HOME}/cache"}}, "env.CACHE", ""),
        ("jobset", {"cluster": TWO_HOSTS, "hosts": {"b": {"env": {"A": "1"}}}}, "hosts.b.env", ""),
        ("jobset", {"cluster": TWO_HOSTS, "hosts": {"b": {"gpus": 2}}}, "hosts.b.gpus", ""),
        ("jobset", {"name": "a" * 60}, "name", ""),
        ("jobset", {"sidecars": {"Worker": {"command": "x"}}}, "sidecars.Worker", ""),
        ("jobset", {"sidecars": {"a_b": {"command": "x"}, "a-b": {"command": "x"}}}, "sidecars.a-b", ""),
        *((engine, {"network": "private"}, "network", "") for engine in targets.ENGINES),
        ("trainjob", {"kubernetes": {"pod": {"priorityClassName": "a"}}}, "kubernetes.pod.priorityClassName", ""),
        ("jobset", {"kubernetes": {"pod": {"terminationGracePeriodSeconds": 5}}}, "", "must be at least 10: timeouts"),
        ("jobset", {"container": {"resources": {"features": ["a100"]}}}, "container.resources.features", ""),
    ],
)
def test_what_an_engine_cannot_say_is_an_error(engine: str, fields: dict[str, Any], where: str, message: str) -> None:
    """At its place, with a remedy; placeholders are not left unexpanded, and ports are not left open."""
    problems = targets.find_problems(engine, made({**TWO, **fields}))
    assert [problem.where for problem in problems if where in ("", problem.where) and message in problem.message]
    assert all(problem.severity == "error" and problem.hint for problem in problems)


# ---- mistakes

SPEC: dict[str, Any] = {
    "cluster": {"chief": ["localhost:2222"], "worker": 2, "ps": 1, "evaluator": 1},
    "command": ["python", "train.py"],
    "env": {"DATA": "/data"},
    "sidecars": {"feed": {"command": ["serve", "data"]}},
    "container": {"image": "train:1", "volumes": {"/data": "claim"}},
}
MISTAKES: dict[str, dict[str, tuple[str, str]]] = {
    "jobset": {
        "a field that does not exist": ("parallelism: 2", "paralelism: 2"),
        "another port than in TF_CONFIG": ("containerPort: 2222", "containerPort: 2223"),
        "an index that is text": ('"index":$(JOB_COMPLETION_INDEX)', '"index":"$(JOB_COMPLETION_INDEX)"'),
        "pods without names": ("enableDNSHostnames: true", "enableDNSHostnames: false"),
    },
    "trainjob": {
        "a field that does not exist": ("runtimeRef:", "runtimeReference:"),
        "the name of another runtime": ("Runtime\n    name: job", "Runtime\n    name: a"),
    },
    "compose": {
        "a field that does not exist": ("working_dir:", "workdir:"),
        "the network of a service that is not there": ("network_mode: service:chief-0", "network_mode: service:boss-0"),
        "an index that is text": ('"index":1', '"index":"1"'),
        "an end that is not waited for": ("  job:\n", "  jobs:\n"),
        "no grace": ("stop_grace_period: '10s'", "stop_grace_period: '1s'"),
        "a variable of the user's shell": ("DATA: /data", "DATA: ${DATA}"),
    },
}


@functools.cache
def good(engine: str) -> tuple[str, Plan]:
    """Return what is rendered from the spec for a target, and its plan."""
    return rendered(SPEC, engine), plan_of(SPEC, engine)


@pytest.mark.thorough
@pytest.mark.parametrize(("engine", "mistake"), [(engine, name) for engine, each in MISTAKES.items() for name in each])
def test_a_planted_mistake_is_found(engine: str, mistake: str) -> None:
    need_schemas(engine)
    right, wrong = MISTAKES[engine][mistake]
    text, plan = good(engine)
    assert right in text
    assert CHECKS[engine](text, plan) == [], "which would prove nothing"
    assert CHECKS[engine](text.replace(right, wrong, 1), plan)


# ---- pods

FULL: dict[str, Any] = {
    "name": "Night_ly",
    "cluster": {"chief": ["a:2222"], "worker": [f"h{number}" for number in range(12)], "ps": 2, "evaluator": 1},
    "command": ["python", "-c", "print('a $HOME $(NAME) $$')\nprint(2)\n"],
    "env": {"YES": "y", "NUMBER": "1e3", "DOLLARS": "$(A) $$ $"},
    "roles": {"worker": {"gpus": 2, "server": True}, "evaluator": {"workdir": "/evaluate"}},
    "sidecars": {"Data_a": {"command": ["serve", "data"]}},
    "timeouts": {"deadline": "2h", "grace": "2500ms"},
    "container": {
        "image": "ghcr.io/ann/train:1",
        "resources": {"cpu": 2, "memory": "4Gi", "gpu": 1},
        "volumes": {"/data": "claim", "/cache": "/var/cache"},
    },
}


def test_a_spec_with_everything_gives_good_manifests() -> None:
    """With names that DNS refuses, text that YAML and Kubernetes would misinterpret, GPUs, volumes, and secrets.

    The head of the file says how to make the secret.
    """
    need_schemas("jobset")
    secrets = {"API_KEY": {"env": "MY_KEY"}, "TOKEN": {"file": "/keys/my token"}}
    data = {**FULL, "secrets": secrets}
    text = rendered(data, "jobset")
    assert pod_checks.found_in(text, plan_of(data, "jobset")) == []
    containers = list(_containers(text))
    assert {each["image"] for each in containers} == {"ghcr.io/ann/train:1"}
    limits = [each["resources"]["limits"] for each in containers]
    assert limits.count({"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 2}) == 1
    assert [each["mountPath"] for each in containers[0]["volumeMounts"]] == ["/data", "/cache"]
    wanted = [{"name": key, "valueFrom": {"secretKeyRef": {"name": "night-ly", "key": key}}} for key in sorted(secrets)]
    assert all(pod["env"][-2:] == wanted for pod in containers)
    assert (
        "# Before, in bash: kubectl create secret generic night-ly"
        ' --from-file=API_KEY=<(printf %s "${MY_KEY:?a secret of the spec is read from it}")'
        " --from-file=TOKEN=<(printf %s \"$(cat -- '/keys/my token')\")\n"
    ) in text


def _containers(text: str) -> Iterator[Any]:
    for part in yaml.safe_load_all(text):
        for job in part["spec"].get("replicatedJobs", []):
            yield from job["template"]["spec"]["template"]["spec"]["containers"]


def test_the_rules_of_a_spec_become_policies() -> None:
    """A worker of a parameter_server job restarts alone; free restarts are not counted; `max: 0` means never.

    TensorFlow looks for its peers before they are ready, and each pod has an index.
    """
    spec = yaml.safe_load(rendered(GOOD["parameter-servers"], "jobset"))["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
    assert [(rule["action"], rule["targetReplicatedJobs"]) for rule in spec["failurePolicy"]["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["chief", "ps"]),
        ("FailJobSet", ["worker"]),
    ]
    limits = {part["name"]: part["template"]["spec"]["backoffLimit"] for part in spec["replicatedJobs"]}
    assert limits == {"chief": 0, "worker": 3, "ps": 0}
    assert spec["failurePolicy"]["maxRestarts"] == 3
    assert spec["network"].get("publishNotReadyAddresses", True)
    for part in spec["replicatedJobs"]:
        job = part["template"]["spec"]
        assert (part.get("replicas", 1), job["completionMode"]) == (1, "Indexed")
        assert (job["parallelism"], job["template"]["spec"]["restartPolicy"]) == (job["completions"], "Never")
    never = yaml.safe_load(rendered({**GOOD["evaluator"], "restart": {"max": 0}}, "jobset"))["spec"]
    assert never["failurePolicy"] == {"maxRestarts": 0}
    assert "podFailurePolicy" not in str(never)


def test_names_are_made_of_letters_that_dns_takes() -> None:
    """The file's stem is often not a valid name."""
    names = [to_render({**GOOD["smallest-local"], "name": name}, "jobset").name for name in ("mnist_x.1", "7", "A-b")]
    plans = [plan_of({**GOOD["smallest-local"], "name": name}, "jobset").name for name in names]
    assert plans == ["mnist-x-1", "job-7", "a-b"]


# ---- Slurm and Compose


def test_in_a_job_of_slurm_a_task_without_gpus_sees_none() -> None:
    cluster = {"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}
    text = rendered({"cluster": cluster, "command": "train", "container": {"resources": {"gpu": 2}}}, "slurm")
    assert "\n#SBATCH --gres=gpu:2\n" in text
    hidden = [start.split()[0] for start in text.split("\nstart ")[1:] if "CUDA_VISIBLE_DEVICES=-1" in start]
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
    assert [text.count(f'--nodelist="${{nodes[{number}]}}"') for number in (0, 1)] == [2, 1]
    assert ":2222" in text
    program = f'for SLURM_JOB_ID in {{1..400}} 4294901759; do {line}\necho "$first_port"; done'
    first = list(map(int, subprocess.run(["bash", "-c", program], stdout=subprocess.PIPE, check=True).stdout.split()))
    assert all(abs(one - other) >= 64 for one, other in itertools.pairwise(first))
    assert all(1024 < port <= 32_768 - 64 for port in first)


def test_a_service_has_what_the_spec_gives_its_task() -> None:
    """GPUs of its own, also those of other hosts; only where its secrets are; TensorBoard on the loopback address."""
    container = {
        "image": "train:1",
        "resources": {"cpu": "0.5", "memory": "512Mi", "gpu": 2},
        "volumes": {"/data": "claim", "/cache": "/var/cache"},
    }
    about = {"command": "train", "secrets": {"API_KEY": {"env": "MY_KEY"}}, "container": container}
    data = {**about, "cluster": {"worker": ["a:2222", "b:2222"]}, "tensorboard": "logs/"}
    content = yaml.safe_load(rendered(data, "compose"))
    for name, devices in {"worker-0": ["0", "1"], "worker-1": ["2", "3"]}.items():
        service = content["services"][name]
        assert (service["image"], service["cpus"], service["mem_limit"]) == ("train:1", 0.5, "512m")
        assert service["volumes"][2:] == ["claim:/data", "/var/cache:/cache"]
        (reserved,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert reserved["device_ids"] == devices
        assert "CUDA_VISIBLE_DEVICES" not in service["environment"]
        assert service["environment"]["API_KEY"] == "${MY_KEY:?a secret of the spec is read from it}"
    assert content["volumes"]["claim"] == {}
    board = content["services"]["tensorboard"]  # its container has an address of its own
    assert board["command"][-4:] == ["--host", "0.0.0.0", "--port", "6006"]
    assert board["ports"] == ["127.0.0.1:6006:6006"]
    assert "network_mode" not in board


def test_a_container_is_read_as_the_schema_has_it() -> None:
    for cpu in (0.5, "2"):
        about: dict[str, Any] = {"image": "a.b/c:1@sha256", "volumes": {"/data": "claim-1", "/cache/x": "/var/cache"}}
        container = {**about, "resources": {"cpu": cpu, "memory": "512Mi", "gpu": 0}}
        data = {"cluster": {"worker": 1}, "command": "train", "container": container}
        jsonschema.Draft202012Validator(json_schema()).validate(data)
        assert made(data).container == Container(resources=Resources(cpu=str(cpu), memory="512Mi", gpu=0), **about)
    assert made({"cluster": {"worker": 1}, "container": {}}).container == Container()


@pytest.mark.parametrize(
    ("container", "where"),
    [
        ({"resources": {"cpu": "2 cores"}}, "container.resources.cpu"),
        ({"resources": {"cpu": -1}}, "container.resources.cpu"),
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


# ---- options of sbatch


def options(**fields: Any) -> set[str]:
    """Return the options passed to sbatch."""
    read = made({"cluster": {"worker": 1}, "command": ["x"], **fields})
    nodes = [f"n{number}" for number in range(slurm.nodes_wanted(read))]
    read = slurm.onto(read, nodes)
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

TO_RENDER = {
    "cluster": {"worker": 12},
    "command": [*TRAIN, "--shard={task.index}/{task.name}", "{cluster.worker}", "{run}"],
    "container": {"image": "train"},
    "name": "mine",
}


@pytest.mark.parametrize("engine", targets.ENGINES)
def test_placeholders_have_values_where_each_task_has_a_command(engine: str) -> None:
    """Pods are alike, and get the index from Kubernetes."""
    text = targets.render_spec(engine, made(TO_RENDER), DIRECTORY, MACHINE, "")
    index = "$(JOB_COMPLETION_INDEX)" if engine in ("jobset", "trainjob") else "11"
    assert f"--shard={index}/worker:{index}" in text
    assert "{task" not in text


def test_pods_have_the_variables_of_a_strategy():
    spec = made({**TO_RENDER, "command": TRAIN, "strategy": "jax"})
    assert targets.find_problems("jobset", spec) == []
    text = targets.render_spec("jobset", spec, DIRECTORY, MACHINE, "")
    assert "value: $(JOB_COMPLETION_INDEX)" in text or "job-completion-index" in text


# ---- nodes


def placed_spec(**fields: Any) -> Spec:
    return made({"cluster": {"worker": 1}, "command": ["x"], **fields})


def test_nodes_take_the_place_of_named_hosts() -> None:
    """They keep its ports, environment and GPUs, but not its connection settings."""
    named = placed_spec(
        cluster={"chief": ["a:2222"], "worker": ["b", "a"]},
        hosts={"a": {"ssh": "ann@10.0.0.1", "env": {"X": "1"}, "gpus": 2}, "z": {"gpus": 1}},
        sidecars={"board": {"command": ["x"], "host": "b"}, "other": {"command": ["x"]}},
    )
    placed = slurm.onto(named, ["n7", "n8", "n9"])
    assert str(placed.cluster["chief"][0]) == "n7:2222"
    assert [address.host for address in placed.cluster["worker"]] == ["n8", "n7"]
    assert (placed.hosts["n7"].env, placed.hosts["n7"].gpus, placed.hosts["n7"].ssh) == ({"X": "1"}, 2, None)
    assert set(placed.hosts) == {"n7"}
    assert {name: sidecar.host for name, sidecar in placed.sidecars.items()} == {"board": "n8", "other": "n7"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cluster": {"worker": 4}}, 1),
        ({"cluster": {"worker": 4}, "slurm": {"nodes": 2}}, 2),
        ({"cluster": {"worker": 4}, "slurm": {"nodes": "2-4"}}, 2),
        ({"cluster": {"worker": ["a", "b"], "chief": ["c"]}, "slurm": {"nodes": 9}}, 3),
    ],
)
def test_how_many_nodes_a_spec_asks_for(fields: dict[str, Any], expected: int) -> None:
    """One per named host, else the number in the spec."""
    assert slurm.nodes_wanted(placed_spec(**fields)) == expected
