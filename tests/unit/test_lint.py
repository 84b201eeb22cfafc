"""TensorFlow's rules, checked before anything starts: what tests/cli/mistakes.yaml has not."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.specs import GOOD, SMALLEST, SMALLEST_LOCAL, made, planned
from tflaunch.clusterspec.load import load_spec
from tflaunch.discovery import prepare
from tflaunch.errors import SpecError
from tflaunch.plan import lint
from tflaunch.plan.attempts import addresses

PARAMETER_SERVER = {"cluster": {"chief": 1, "worker": 1, "ps": 1}, "command": "python train.py"}
GPUS, TWO = {"chief": {"gpus": 2}, "worker": {"gpus": 1}}, {"a": {"gpus": 2}}
TWO_SOURCES = {"secrets": {"KEY": {"env": "A"}}, "roles": {"worker": {"env": {"KEY": "x"}}}}


def local(*workers: str, **fields: Any) -> dict[str, Any]:
    """Return a spec of local workers, or of workers with these addresses."""
    return {**SMALLEST_LOCAL, **({"cluster": {"worker": [*workers]}} if workers else {}), **fields}


def of(**cluster: Any) -> dict[str, Any]:
    return {**SMALLEST_LOCAL, "cluster": cluster}


ERRORS: list[tuple[dict[str, Any], str, str]] = [
    # Roles, and what each strategy requires of the cluster.
    (of(worker=2, dispatcher=1), "cluster.dispatcher", "sidecars"),
    (of(worker=1, Chief=1), "cluster.Chief", "did you mean 'chief'?"),
    (of(worker=1, zzz=1), "cluster.zzz", "chief, worker, ps or evaluator"),
    (of(worker=2, evaluator=2), "cluster.evaluator", "TensorFlow allows one"),
    (of(evaluator=1), "cluster", 'add for example "worker": 2'),
    ({**of(chief=1, ps=1), "strategy": "parameter_server"}, "cluster", "ParameterServerStrategy needs a worker"),
    ({**of(chief=1, worker=1), "strategy": "parameter_server"}, "cluster", "ParameterServerStrategy needs a ps"),
    (local(strategy="tpu"), "cluster", "one process"),
    ({**of(chief=1, worker=1), "strategy": "jax"}, "cluster.chief", "strategy 'jax' has processes of one kind"),
    # A misspelt placeholder would reach the program unchanged.
    (local(env={"A": "{cluster.workers}"}), "env.A", "did you mean {cluster.worker}?"),
    (local(roles={"worker": {"workdir": "{task.id}"}}), "roles.worker.workdir", "{task.id} is not a known"),
    # Addresses. TensorFlow binds all interfaces, so loopback addresses count as one host.
    (local("alpha:2222", "Alpha:2222"), "cluster.worker[1]", "cluster.worker[0]"),
    (local("127.0.0.1:2222", "127.0.0.2:2222"), "cluster.worker[1]", "cluster.worker[0]"),
    (local("alpha:1", "127.0.0.1:2"), "cluster.worker[1]", "a different machine"),
    (of(worker=10_000), "cluster", "TF_CONFIG"),
    # GPUs are counted over all roles of a host.
    ({**of(chief=["a:1"], worker=["a:2"]), "roles": GPUS, "hosts": TWO}, "hosts.a.gpus", "ask for 3 GPUs"),
    (local("alpha:1", "alpha:2", hosts={"alpha": {"gpus": 1}}), "hosts.alpha.gpus", "2 tasks would share 1 GPUs"),
    ({**SMALLEST, "hosts": {"*": {"docker": "h1"}}}, "hosts.*.docker", "same for every host"),
    # Only worker and ps of a parameter server job run the standard server.
    (local(roles={"worker": {"server": True}}), "roles.worker.server", ""),
    ({**PARAMETER_SERVER, "roles": {"chief": {"server": True}}}, "roles.chief.server", ""),
    # What tflaunch makes for each task cannot be given, wherever an env may stand.
    (local(env={"TFLAUNCH_TASK_DIR": "x"}), "env.TFLAUNCH_TASK_DIR", ""),
    (local(roles={"worker": {"env": {"TF_CONFIG": "{}"}}}), "roles.worker.env.TF_CONFIG", ""),
    (local(sidecars={"a": {"command": "b", "env": {"TFLAUNCH_TASK": ""}}}), "sidecars.a.env.TFLAUNCH_TASK", ""),
    (local(secrets={"TF_CONFIG": {"env": "KEY"}}), "secrets.TF_CONFIG", ""),
    (local(**TWO_SOURCES), "roles.worker.env.KEY", ""),
    (local(secrets={"KEY": {}}), "secrets.KEY", 'must have one of "env" and "file"'),
    (local(env={"TF_USE_LEGACY_KERAS": "TRUE"}), "env.TF_USE_LEGACY_KERAS", 'write "1"'),
    (local(sidecars={"worker-0": {"command": "x"}}), "sidecars.worker-0", ""),
    (local(elastic={"min_workers": 0}), "elastic.min_workers", ""),
    # Without a cluster, only what is required can decide when the job is done.
    ({"sidecars": {"a": {"command": "serve"}}}, "cluster", '"required": true'),
    ({"sidecars": {"a": {"command": "serve", "required": True}}, "strategy": "mirrored"}, "strategy", ""),
    ({"sidecars": {"a": {"command": "serve", "required": True}}, "tensorboard": "logs"}, "tensorboard", ""),
    (local(tensorboard=" "), "tensorboard", ""),
    (local(tensorboard="--port"), "tensorboard", ""),
]
WARNINGS: list[tuple[dict[str, Any], str, str]] = [
    ({**PARAMETER_SERVER, "success": "all"}, "success", ""),
    (local(legacy_keras=False), "legacy_keras", "Keras 3 cannot `fit`"),
    ({**SMALLEST, "hosts": {"10.0.0.3": {"python": "/opt/python"}}}, "hosts.10.0.0.3", ""),
    (local("alpha:1", "alpha:2", hosts={"alpha": {"gpus": 3}}), "hosts.alpha.gpus", "1 of them are not used"),
    ({**PARAMETER_SERVER, "env": {"TF_NUM_INTEROP_THREADS": "1"}}, "env.TF_NUM_INTEROP_THREADS", ""),
]
FINE: list[dict[str, Any]] = [
    *GOOD.values(),
    of(worker=4000),
    {**SMALLEST, "sidecars": {"board": {"command": "b", "host": "beta"}}, "hosts": {"beta": {"gpus": 0}}},
    local(env={"TF_USE_LEGACY_KERAS": "True"}),
    local(command=["python", "train.py", "{model.name} {tasks.index}"]),
    local(env={"TF_NUM_INTEROP_THREADS": "1"}),
    {**GOOD["evaluator"], "roles": {"evaluator": {"required": True}}},
    {"sidecars": {"dispatcher": {"command": "serve", "required": True}}},
]


@pytest.mark.parametrize(
    ("data", "severity", "where", "words"),
    [(data, severity, *rest) for severity, rows in (("error", ERRORS), ("warning", WARNINGS)) for data, *rest in rows],
)
def test_a_mistake_is_told_once_at_its_place(data: dict[str, Any], severity: str, where: str, words: str) -> None:
    (problem,) = lint.check_spec(made(data))
    assert (problem.severity, problem.where) == (severity, where)
    assert words in problem.sentence()
    assert problem.hint


@pytest.mark.parametrize("data", FINE)
def test_what_is_fine_has_neither_error_nor_warning(data: dict[str, Any]) -> None:
    assert lint.check_spec(made(data)) == []


def test_all_invalid_fields_are_told_at_once(tmp_path: Path) -> None:
    spec = {"cluster": {"worker": 2}, "command": "train", "retention": {"runs": "few"}, "restart": {"max": -1}}
    (tmp_path / "job.json").write_text(json.dumps(spec))
    settings = ["name=a/b", "restart", "cluster.worker.x=1"]
    with pytest.raises(SpecError) as raised:
        load_spec(tmp_path / "job.json", settings[:1])
    assert {problem.where for problem in raised.value.problems} == {"name", "retention.runs", "restart.max"}
    with pytest.raises(SpecError) as raised:
        load_spec(tmp_path / "job.json", settings)
    assert len(raised.value.problems) == 2, "both settings that cannot be applied"
    with pytest.raises(SpecError, match="lease"):  # tasks on other hosts would end with the connection
        prepare.check_spec("job.json", tmp_path, made({**SMALLEST, "timeouts": {"lease": 0}}))
    assert prepare.check_spec("job.json", tmp_path, made(local(timeouts={"lease": 0}))) == []


def test_an_image_is_not_used_outside_of_pods() -> None:
    spec = made({**SMALLEST, "container": {"image": "train:1"}})
    (problem,) = lint.unused_image(spec)
    assert (problem.severity, problem.where) == ("warning", "container.image")
    assert lint.unused_image(made(SMALLEST)) == []


def test_errors_come_before_warnings_and_everything_has_a_remedy() -> None:
    """Problems are listed in the order in which to fix them."""
    fields = {"legacy_keras": False, "hosts": {"gamma": {}}, "env": {"TF_CONFIG": "{}"}, "restart": {"backoff": [2, 1]}}
    problems = lint.check_spec(made({**SMALLEST, **fields}))
    assert [problem.severity for problem in problems] == ["error", "error", "warning", "warning"]
    assert all(problem.where and problem.message and problem.hint for problem in problems)


def test_tasks_in_a_private_network_meet_on_its_loopback_interface() -> None:
    """Whatever the host is called outside."""
    plan = planned({**SMALLEST, "cluster": {"worker": ["alpha:1", "alpha:2"]}, "network": "private"})
    assert addresses(plan) == {"worker": ["localhost:1", "localhost:2"]}
