"""The output of `render --to jobset` conforms to schemas and controllers; mistakes planted in any output are found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pytest
import yaml

from support import compose_checks, pod_checks, script_checks
from support.pod_checks import found_in
from support.rendering import hostile, plan_of, rendered, shipped, to_render
from support.schemas import expanded, need_schemas
from support.specs import GOOD, MACHINE, made
from tflaunch.features.render import targets
from tflaunch.plan import attempts, planner
from tflaunch.plan.model import Plan

pytestmark = pytest.mark.unit

BY_NAME = {**shipped(), **{name: data for name, data in GOOD.items() if name not in ("smallest", "every-field")}}


@pytest.fixture(autouse=True)
def _schemas() -> None:
    need_schemas("jobset")


@pytest.mark.parametrize("name", BY_NAME)
def test_every_spec_gives_good_manifests(name: str) -> None:
    """All shipped specs, and all valid specs of these tests that pods can express."""
    assert found_in(rendered(BY_NAME[name], "jobset"), plan_of(BY_NAME[name], "jobset")) == []


def test_no_text_is_more_than_text() -> None:
    """Neither YAML nor Kubernetes interprets it: variables, arguments and directories arrive unchanged."""
    data = {key: value for key, value in hostile().items() if key != "tensorboard"}
    assert found_in(rendered(data, "jobset"), plan_of(data, "jobset")) == []


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
    """With names that DNS refuses, text that YAML and Kubernetes would misinterpret, GPUs and volumes."""
    text = rendered(FULL, "jobset")
    assert found_in(text, plan_of(FULL, "jobset")) == []
    assert {each["image"] for each in _containers(text)} == {"ghcr.io/ann/train:1"}
    limits = [each["resources"]["limits"] for each in _containers(text)]
    assert limits.count({"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 2}) == 1
    mounts = [each["mountPath"] for each in next(_containers(text))["volumeMounts"]]
    assert mounts == ["/data", "/cache"]


def test_pods_take_secrets_from_a_secret_of_kubernetes() -> None:
    """The head of the file says how to make it."""
    secrets = {"API_KEY": {"env": "MY_KEY"}, "TOKEN": {"file": "/keys/my token"}}
    data = {**FULL, "name": "secretive", "secrets": secrets}
    text = rendered(data, "jobset")
    assert found_in(text, plan_of(data, "jobset")) == []
    wanted = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": "secretive", "key": name}}} for name in sorted(secrets)
    ]
    assert all(pod["env"][-2:] == wanted for pod in _containers(text))
    assert (
        "# Before, in bash: kubectl create secret generic secretive"
        ' --from-file=API_KEY=<(printf %s "${MY_KEY:?a secret of the spec is read from it}")'
        " --from-file=TOKEN=<(printf %s \"$(cat -- '/keys/my token')\")\n"
    ) in text


def _containers(text: str) -> Any:
    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            yield from node.get("containers", [])
            for part in node.values():
                yield from walk(part)
        elif isinstance(node, list):
            for part in node:
                yield from walk(part)

    return walk(list(yaml.safe_load_all(text)))


def test_tf_config_in_a_pod_is_that_of_plan() -> None:
    """Byte for byte what `plan` prints for a cluster with the addresses of the pods."""
    data = GOOD["parameter-servers"]
    cluster = {
        role: [f"job-{role}-0-{index}.job:2222" for index in range(count)] for role, count in data["cluster"].items()
    }
    directory = PurePath("/here")
    plan = attempts.with_tf_configs(planner.make_plan(made({**data, "cluster": cluster}), directory, MACHINE))
    expected = {task.task: task.env["TF_CONFIG"] for task in plan.tasks}
    found = {}
    for container in _containers(rendered(data, "jobset")):
        env = {each["name"]: each.get("value") for each in container["env"]}
        role = env["TFLAUNCH_TASK"].partition(":")[0]
        for index in range(data["cluster"][role]):
            variables = {"JOB_COMPLETION_INDEX": str(index)}
            found[expanded(env["TFLAUNCH_TASK"], variables)] = expanded(env["TF_CONFIG"], variables)
    assert found == expected


def test_the_rules_of_a_spec_become_policies() -> None:
    """A worker of a parameter_server job restarts alone; free restarts are not counted; `max: 0` means never."""
    spec = yaml.safe_load(rendered(GOOD["parameter-servers"], "jobset"))["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
    assert [(rule["action"], rule["targetReplicatedJobs"]) for rule in spec["failurePolicy"]["rules"]] == [
        ("RestartJobSetAndIgnoreMaxRestarts", ["chief", "ps"]),
        ("FailJobSet", ["worker"]),
    ]
    limits = {part["name"]: part["template"]["spec"]["backoffLimit"] for part in spec["replicatedJobs"]}
    assert limits == {"chief": 0, "worker": 3, "ps": 0}
    never = yaml.safe_load(rendered({**GOOD["evaluator"], "restart": {"max": 0}}, "jobset"))["spec"]
    assert never["failurePolicy"] == {"maxRestarts": 0}
    assert "podFailurePolicy" not in str(never)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"container": {}}, "container.image"),
        ({"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}}, "cluster.worker[0]"),
        ({"workdir": "here"}, "workdir"),
        ({"roles": {"worker": {"workdir": "here"}}}, "roles.worker.workdir"),
        ({"env": {"CACHE": "${host:HOME}/cache"}}, "env.CACHE"),
        ({"cluster": {"worker": ["a", "b"]}, "hosts": {"b": {"env": {"A": "1"}}}}, "hosts.b.env"),
        ({"cluster": {"worker": ["a", "b"]}, "hosts": {"b": {"gpus": 2}}}, "hosts.b.gpus"),
        ({"name": "a" * 60}, "name"),
        ({"sidecars": {"Worker": {"command": "x"}}}, "sidecars.Worker"),
        ({"sidecars": {"a_b": {"command": "x"}, "a-b": {"command": "x"}}}, "sidecars.a-b"),
    ],
)
def test_what_pods_cannot_express_is_an_error(fields: dict[str, Any], where: str) -> None:
    spec = made({"container": {"image": "x"}, "cluster": {"worker": 2}, "command": "train", **fields})
    problems = targets.find_problems("jobset", spec, MACHINE)
    assert where in [problem.where for problem in problems], problems
    assert all(problem.severity == "error" and problem.hint for problem in problems)


def test_names_are_made_of_letters_that_dns_takes() -> None:
    """The file's stem is often not a valid name."""
    names = [to_render({**GOOD["smallest-local"], "name": name}, "jobset").name for name in ("mnist_x.1", "7", "A-b")]
    plans = [plan_of({**GOOD["smallest-local"], "name": name}, "jobset").name for name in names]
    assert plans == ["mnist-x-1", "job-7", "a-b"]


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
    need_schemas(engine)
    right, wrong = MISTAKES[engine][mistake]
    text, plan = good(engine)
    assert right in text
    assert CHECKS[engine](text.replace(right, wrong, 1), plan)
