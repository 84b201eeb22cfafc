"""The plan: the command, host and environment of each process."""

import json
from typing import Any

import pytest

from support.specs import DIRECTORY, GOOD, MACHINE, SMALLEST, SMALLEST_LOCAL, planned
from tflaunch.clusterspec.values import ROLES, Address
from tflaunch.plan import attempts, placeholders, serialize
from tflaunch.plan.model import HostPlan, Plan, TaskPlan
from tflaunch.plan.tf_config import compile_tf_config, has_cluster, members

PARAMETER_SERVER = GOOD["parameter-servers"]
CHIEF, WORKERS, PS, EVALUATOR = ["c:1"], ["w0:1", "w1:1"], ["p0:1", "p1:1"], ["e:1"]
MIRRORED = {"chief": CHIEF, "worker": WORKERS}
EVALUATED = {"worker": WORKERS, "evaluator": EVALUATOR}
SERVED = {**MIRRORED, "ps": PS}
ALL_ROLES = {**SERVED, "evaluator": EVALUATOR}
SHARES_OF_8 = {1: None, 2: "4", 3: "2", 16: "1"}  # cores


def plan_of(base: dict[str, Any], machine: dict[str, Any] | None = None, **fields: Any) -> Plan:
    """Return the plan of a spec with some fields changed, on a machine with some facts changed."""
    return planned({**base, **fields}, MACHINE._replace(**(machine or {})))


def task_of(base: dict[str, Any], task: str = "worker:0", **fields: Any) -> TaskPlan:
    plan = plan_of(base, **fields)
    return plan.find(task) if task else plan.tasks[0]


def clusters_of(plan: Plan) -> list[dict[str, list[str]]]:
    return [json.loads(task.env["TF_CONFIG"])["cluster"] for task in attempts.with_tf_configs(plan).tasks]


class TestShape:
    def test_tasks_are_named_by_role_and_index_and_know_it(self):
        cluster = {"ps": 1, "evaluator": 1, "worker": 2, "chief": 1}
        tasks = plan_of(SMALLEST_LOCAL, cluster=cluster).tasks
        assert [task.task for task in tasks] == ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
        with pytest.raises(KeyError):
            plan_of(SMALLEST_LOCAL).find("worker")
        env = task_of(SMALLEST_LOCAL, "worker:1").env
        assert env["TFLAUNCH_TASK"] == "worker:1"
        assert {"TFLAUNCH_RUN", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR"} <= env.keys()

    def test_a_port_that_is_chosen_at_the_start_reads_auto_in_address_and_tf_config(self):
        shown = serialize.as_json(placeholders.shown(plan_of(GOOD["chosen-ports"])))
        assert [task["address"] for task in shown["tasks"]] == ["alpha:auto", "beta:2222"]
        assert '"worker":["alpha:auto","beta:2222"]' in shown["tasks"][1]["env"]["TF_CONFIG"]

    def test_a_sidecar_has_no_address_and_no_tf_config(self):
        """It is not part of the cluster, nor of one whose TF_CONFIG tflaunch itself inherited."""
        (board,) = plan_of(GOOD["every-field"]).sidecars
        assert (board.task, board.host, board.address) == ("board", "alpha", None)
        assert board.argv == ("tensorboard", "--logdir", "logs")
        assert "TF_CONFIG" not in board.env
        assert "TF_CONFIG" in board.unset

    def test_the_strategy_says_when_the_job_has_succeeded(self):
        specs = (SMALLEST_LOCAL, PARAMETER_SERVER, {**SMALLEST_LOCAL, "success": "chief"})
        assert [planned(data).success for data in specs] == ["all", "chief", "chief"]


class TestResolve:
    def test_ports_get_into_every_address_and_every_tf_config(self):
        resolved = attempts.resolve(plan_of(SMALLEST_LOCAL), {"worker:0": 4001, "worker:1": 4002})
        assert [task.address for task in resolved.tasks] == [Address("localhost", 4001), Address("localhost", 4002)]
        assert clusters_of(resolved) == [{"worker": ["localhost:4001", "localhost:4002"]}] * 2

    def test_resolving_again_changes_nothing_but_the_addresses(self):
        before, ports = plan_of(SMALLEST_LOCAL), {"worker:0": 5001, "worker:1": 5002}
        once = attempts.resolve(before, {"worker:0": 4001, "worker:1": 4002})
        assert attempts.resolve(once, ports) == attempts.resolve(before, ports)
        without = [[task._replace(address=None) for task in plan.tasks] for plan in (before, once)]
        assert without[0] == without[1]

    def test_a_plan_asks_for_the_ports_of_the_spec_and_zero_for_a_free_one(self):
        """A task without a new port keeps what it has."""
        plan = plan_of(GOOD["chosen-ports"])
        assert {task.task: attempts.wanted_port(task) for task in plan.tasks} == {"worker:0": 0, "worker:1": 2222}
        assert clusters_of(attempts.resolve(plan, {}))[0] == {"worker": ["alpha:auto", "beta:2222"]}


class TestEnvironment:
    def test_env_of_a_role_or_host_reaches_nobody_else(self):
        """Neither another role nor another host; the more specific setting wins, for tasks and sidecars."""
        name, own = "PYTHONUNBUFFERED", {"A": "own"}
        plan = plan_of(
            SMALLEST,
            env={"A": "spec", "B": "spec", name: "spec"},
            hosts={"10.0.0.1": {"env": {"A": "host", "B": "host"}}},
            sidecars={"board": {"command": "b", "host": "10.0.0.1", "env": own}},
        )
        for env in (plan.find("board").env, task_of(SMALLEST, roles={"worker": {"env": own}}, env={name: "spec"}).env):
            assert (env["A"], env[name]) == ("own", "spec")
        assert plan.find("board").env["B"] == "host"
        assert task_of(SMALLEST).env[name] == "1"
        assert [plan.find(f"worker:{index}").env["A"] for index in range(2)] == ["host", "spec"]
        assert "A" not in task_of(PARAMETER_SERVER, "worker:0", roles={"ps": {"env": own}}).env

    def test_proxies_are_inherited_but_not_used_by_grpc(self):
        """Unless grpc_proxy is empty, gRPC obeys http_proxy even between the tasks, and then hangs."""
        task = task_of(SMALLEST_LOCAL)
        assert task.unset == ()
        assert task.env["grpc_proxy"] == ""
        for proxy in ("http_proxy", "grpc_proxy"):
            assert task_of(SMALLEST_LOCAL, env={proxy: "http://proxy:3128"}).env[proxy] == "http://proxy:3128"

    @pytest.mark.parametrize("strategy", ["mirrored", "tpu"])
    def test_a_strategy_of_one_process_has_no_tf_config_and_inherits_none(self, strategy: str):
        """An unrelated TF_CONFIG would make it wait for other tasks."""
        task = task_of(SMALLEST_LOCAL, cluster={"worker": 1}, strategy=strategy)
        assert "TF_CONFIG" in task.unset
        assert not {"TF_CONFIG", "TF_GRPC_REUSE_PORT"} & task.env.keys()
        assert [compile_tf_config(strategy, ALL_ROLES, role, 0) for role in ROLES] == [None] * len(ROLES)
        assert (has_cluster(strategy), members(strategy)) == (False, ())

    def test_tasks_of_a_parameter_server_job_get_the_grpc_setting_of_its_tutorial(self):
        """And may share the port that is held for them."""
        for task in ("chief:0", "worker:0", "ps:0"):
            env = task_of(PARAMETER_SERVER, task).env
            assert (env["GRPC_FAIL_FAST"], env["TF_GRPC_REUSE_PORT"]) == ("use_caller", "true")
        assert "GRPC_FAIL_FAST" not in task_of(SMALLEST_LOCAL).env

    @pytest.mark.parametrize(
        ("base", "shell", "fields", "expected"),
        [
            *((base, "", {}, "1") for base in (SMALLEST_LOCAL, PARAMETER_SERVER)),  # where Keras 3 cannot train
            *((GOOD[name], "", {}, None) for name in ("mirrored", "tpu", "no-strategy")),
            (GOOD["mirrored"], "", {"legacy_keras": True}, "1"),
            (SMALLEST_LOCAL, "", {"env": {"TF_USE_LEGACY_KERAS": "0"}}, "0"),
            (SMALLEST_LOCAL, "0", {}, None),  # it is inherited …
            (SMALLEST, "1", {}, "1"),  # … but not by other hosts
            (SMALLEST_LOCAL, "0", {"legacy_keras": True}, "1"),
            (SMALLEST_LOCAL, "1", {"legacy_keras": False}, None),
        ],
    )
    def test_tasks_get_legacy_keras_where_nobody_has_said_otherwise(
        self, base: dict[str, Any], shell: str, fields: dict[str, Any], expected: str | None
    ):
        """In the spec, or in the shell; false removes an inherited one."""
        name = "TF_USE_LEGACY_KERAS"
        task = task_of(base, "", machine={"environ": {name: shell} if shell else {}}, **fields)
        assert task.env.get(name) == expected
        assert (name in task.unset) == (fields.get("legacy_keras") is False)


class TestResources:
    @pytest.mark.parametrize(
        ("machine", "fields", "share"),
        [
            *(({"cores": 8}, {"cluster": {"worker": tasks}}, share) for tasks, share in SHARES_OF_8.items()),
            ({"cores": 1}, {}, "1"),
            ({"environ": {"TF_NUM_INTRAOP_THREADS": "7"}}, {}, None),  # somebody chose it in the shell
            ({}, {"env": {"TF_NUM_INTRAOP_THREADS": 3}}, "3"),
        ],
    )
    def test_local_tasks_share_the_cores(self, machine: dict[str, Any], fields: dict[str, Any], share: str | None):
        """By default each would start a thread per core of the machine."""
        task = task_of(SMALLEST_LOCAL, machine=machine, **fields)
        assert task.env.get("TF_NUM_INTRAOP_THREADS") == share
        assert "TF_NUM_INTEROP_THREADS" not in task.env

    def test_the_cores_of_other_hosts_are_for_their_agents_to_share(self):
        cluster = {"worker": ["10.0.0.1:2222", "10.0.0.1:2223", "10.0.0.2:2222"]}
        tasks = plan_of(SMALLEST, cluster=cluster).tasks
        shares = [task.env.get("TF_NUM_INTRAOP_THREADS") for task in tasks]
        assert shares == ["${host:TFLAUNCH_CORES/2}", "${host:TFLAUNCH_CORES/2}", None]

    def test_a_plan_says_what_it_has_set_and_why(self):
        """Not what the user has overridden."""
        task = task_of(SMALLEST_LOCAL, env={"TF_NUM_INTRAOP_THREADS": 3})
        names = "TF_GRPC_REUSE_PORT,TF_USE_LEGACY_KERAS,TF_FORCE_GPU_ALLOW_GROWTH"
        assert task.env["TFLAUNCH_SET"] == names == ",".join(task.reasons)
        assert "tf_keras" in task.reasons["TF_USE_LEGACY_KERAS"]
        assert task.env["TFLAUNCH_LEGACY_KERAS"] == "auto"  # its host decides, unless somebody has said it
        for fields in ({"legacy_keras": True}, {"env": {"TF_USE_LEGACY_KERAS": "0"}}):
            assert "TFLAUNCH_LEGACY_KERAS" not in task_of(SMALLEST_LOCAL, **fields).env

    def test_tasks_on_a_host_get_slices_of_its_gpus_that_do_not_overlap(self):
        """Two names of this machine are one machine."""
        cluster = {"worker": ["localhost:2222", "127.0.0.1:2223"]}
        tasks = plan_of(SMALLEST, cluster=cluster, roles={"worker": {"gpus": 1}}).tasks
        assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["0", "1"]
        assert [task.env.get("TF_NUM_INTRAOP_THREADS") for task in tasks] == ["2", "2"]
        plan = plan_of(
            SMALLEST,
            cluster={"chief": ["alpha:1"], "worker": ["alpha:2", "alpha:3", "beta:1"], "evaluator": ["alpha"]},
            roles={"chief": {"gpus": 1}, "worker": {"gpus": 2}, "evaluator": {"gpus": 0}},
        )
        assert "CUDA_VISIBLE_DEVICES" not in task_of(SMALLEST_LOCAL).env  # a single task per host uses all of them
        slices = [task.env["CUDA_VISIBLE_DEVICES"] for task in plan.tasks]
        assert slices == ["0", "1,2", "3,4", "0,1", "-1"]
        assert all(task.env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true" for task in plan.tasks)

    def test_those_that_train_share_the_gpus_of_a_host_evenly(self):
        """A ps, a coordinating chief and an evaluator need none; roles that specify a number are served first."""
        cluster = {"chief": ["a"], "worker": ["a", "a", "b"], "ps": ["a"], "evaluator": ["a"]}
        hosts = {"a": {"gpus": 5}}
        slices = {
            task.task: task.env.get("CUDA_VISIBLE_DEVICES")
            for task in plan_of(SMALLEST, cluster=cluster, hosts=hosts, roles={"evaluator": {"gpus": 1}}).tasks
        }
        training = {"worker:0": "0,1", "worker:1": "2,3", "worker:2": None}
        assert slices == {"chief:0": "-1", **training, "ps:0": "-1", "evaluator:0": "4"}

    def test_slices_are_of_the_gpus_that_may_be_used(self):
        machine = {"environ": {"CUDA_VISIBLE_DEVICES": "2,GPU-8d"}}
        tasks = plan_of(SMALLEST_LOCAL, machine=machine, roles={"worker": {"gpus": 1}}).tasks
        assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["2", "GPU-8d"]
        hosts = {"10.0.0.1": {"gpus": 2, "env": {"CUDA_VISIBLE_DEVICES": "6, 7"}}}
        cluster = {"worker": ["10.0.0.1:1", "10.0.0.1:2"]}
        tasks = plan_of(SMALLEST, cluster=cluster, hosts=hosts).tasks
        assert [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks] == ["6", "7"]
        roles = {"worker": {"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "7"}}}
        assert task_of(SMALLEST_LOCAL, roles=roles).env["CUDA_VISIBLE_DEVICES"] == "7"  # the user knows the machine

    def test_tasks_that_share_gpus_share_their_memory(self):
        """The first would take all of it; a task alone on its machine may, and so may one that the user configures."""
        growth = "TF_FORCE_GPU_ALLOW_GROWTH"
        first, second = plan_of(SMALLEST, cluster={"worker": ["a:1", "a:2"]}).tasks
        assert first.env[growth] == second.env[growth] == "true"
        assert "share" in first.reasons[growth]
        assert growth not in plan_of(SMALLEST, cluster={"worker": ["a:1", "b:2"]}).tasks[0].env
        own = plan_of(SMALLEST, cluster={"worker": ["a:1", "a:2"]}, env={growth: "false"}).tasks[0]
        assert own.env[growth] == "false"
        assert growth not in own.reasons


class TestCommands:
    def test_a_role_runs_its_own_command_or_else_that_of_the_spec(self):
        """A standard server is a program of tflaunch, so that the user's needs code for the chief only."""
        plan = plan_of(GOOD["evaluator"], roles={"evaluator": {"command": "python evaluate.py"}})
        assert plan.find("worker:0").argv == ("python", "train.py")
        assert plan.find("evaluator:0").argv == ("python", "evaluate.py")
        plan = plan_of(GOOD["standard-servers"])
        assert plan.find("ps:0").argv == ("python", MACHINE.server_program)
        assert plan.find("chief:0").argv == ("python", "train.py")
        plan = planned({**GOOD["standard-servers"], "cluster": {"chief": ["a"], "worker": ["a"], "ps": ["b"]}})
        assert plan.find("ps:0").argv == ("python3", "${host:TFLAUNCH_SERVER}")  # that of its host

    @pytest.mark.parametrize("word", ["python", "python3"])
    def test_python_is_the_interpreter_that_the_host_names(self, word: str):
        fields: dict[str, Any] = {
            "command": [word, "train.py", word],
            "hosts": {"10.0.0.1": {"python": "/opt/bin/python"}},
            "sidecars": {"board": {"command": [word, "-m", "tensorboard.main"], "host": "10.0.0.1"}},
        }
        plan = plan_of(SMALLEST, **fields)
        assert plan.find("worker:0").argv == ("/opt/bin/python", "train.py", word)
        assert plan.find("worker:1").argv == (word, "train.py", word)
        assert plan.find("board").argv == ("/opt/bin/python", "-m", "tensorboard.main")

    @pytest.mark.parametrize("word", ["/usr/bin/python", "python3.11", "./python", "bash"])
    def test_any_other_program_is_run_as_written(self, word: str):
        hosts = {"10.0.0.1": {"python": "/opt/bin/python"}}
        assert task_of(SMALLEST, command=[word, "x"], hosts=hosts).argv == (word, "x")

    @pytest.mark.parametrize(
        ("fields", "workdir"),
        [
            ({}, DIRECTORY),
            ({"workdir": "runs/1"}, DIRECTORY / "runs/1"),
            ({"workdir": "/scratch"}, "/scratch"),
            ({"hosts": {"10.0.0.1": {"workdir": "~/train"}}}, "~/train"),  # a home there is not looked for here
            ({"hosts": {"10.0.0.1": {"workdir": "${host:SCRATCH}/x"}}}, "${host:SCRATCH}/x"),
            ({"workdir": "runs", "hosts": {"10.0.0.1": {"workdir": "fast"}}}, DIRECTORY / "fast"),
            ({"hosts": {"10.0.0.1": {"workdir": "/fast"}}, "roles": {"worker": {"workdir": "w"}}}, DIRECTORY / "w"),
        ],
    )
    def test_a_working_directory_is_relative_to_the_file_of_the_spec(self, fields: dict[str, Any], workdir: Any):
        """A role's setting overrides the host's, which overrides the spec's."""
        assert task_of(SMALLEST, **fields).workdir == str(workdir)

    def test_local_tasks_find_the_python_that_tflaunch_was_started_with(self):
        """Even if its environment is not activated; a PATH that the user set is not changed."""
        machine = {"python_directory": "/venv/bin", "environ": {"PATH": "/usr/bin"}}
        assert task_of(SMALLEST_LOCAL, machine=machine).env["PATH"] == "/venv/bin:/usr/bin"
        assert task_of(SMALLEST_LOCAL, machine=machine, env={"PATH": "/mine"}).env["PATH"] == "/mine"
        assert "PATH" not in task_of(SMALLEST_LOCAL).env


class TestOtherHosts:
    def test_nothing_of_this_machine_reaches_a_task(self):
        """The agent sets its PATH, unless the spec does."""
        assert "PATH" not in task_of(SMALLEST, machine={"python_directory": "/venv/bin", "environ": {"PATH": "/m"}}).env
        task = task_of(SMALLEST, hosts={"10.0.0.1": {"python": "~/tf/bin/python"}})
        assert "PATH" not in task.env
        assert task.argv[0] == "~/tf/bin/python"
        assert task_of(SMALLEST, env={"PATH": "/theirs"}).env["PATH"] == "/theirs"
        assert not planned(SMALLEST).host("10.0.0.1").inherits_environment

    def test_a_task_in_a_container_inherits_its_environment(self):
        """With the directory of `python`, if given, first on PATH; directories are not those of this machine."""
        container = {"docker": "c1"}
        assert planned({**SMALLEST, "hosts": {"10.0.0.1": container}}).host("10.0.0.1").inherits_environment
        assert not planned({**SMALLEST, "hosts": {"10.0.0.1": container}}).host("10.0.0.1").is_like_here
        assert "PATH" not in task_of(SMALLEST, hosts={"10.0.0.1": container}).env
        for python, path in (("/tf/bin/python", "/tf/bin:"), ("~/tf/bin/python", "${host:HOME}/tf/bin:")):
            task = task_of(SMALLEST, hosts={"10.0.0.1": {**container, "python": python}})
            assert task.env["PATH"] == path + "${host:PATH}"

    def test_others_reach_a_host_at_its_address(self):
        plan = planned(
            {**SMALLEST, "cluster": {"worker": ["alpha:1", "beta:2"]}, "hosts": {"alpha": {"address": "10.9"}}}
        )
        assert clusters_of(plan)[1] == {"worker": ["10.9:1", "beta:2"]}
        assert plan.find("worker:0").host == "alpha"

    def test_the_way_to_a_host_is_in_the_plan(self):
        settings = {"ssh": "ann@h:22", "identity_file": "/k", "python": "/p", "env": {"TFLAUNCH_HOME": "/scratch"}}
        plan = planned({**SMALLEST, "hosts": {"10.0.0.1": settings}})
        assert plan.hosts[0] == HostPlan("10.0.0.1", False, "ann@h:22", "/k", "/p", "/scratch")
        assert planned(SMALLEST_LOCAL).hosts == (HostPlan("localhost", True),)


class TestLease:
    @pytest.mark.parametrize(
        ("data", "lease"),
        [
            (SMALLEST_LOCAL, 0.0),
            ({**SMALLEST_LOCAL, "cluster": {"worker": ["localhost:1", "127.0.0.1:2"]}}, 0.0),
            (SMALLEST, 30.0),
            ({**SMALLEST_LOCAL, "timeouts": {"lease": "5s"}}, 5.0),
            ({**SMALLEST, "timeouts": {"lease": 0}}, 0.0),
            ({**SMALLEST_LOCAL, "sidecars": {"board": {"command": "b", "host": "alpha"}}}, 30.0),
        ],
    )
    def test_only_a_run_on_this_machine_alone_has_no_lease(self, data: dict[str, Any], lease: float):
        """A link can fail without this machine noticing; the spec may choose otherwise."""
        plan = planned(data)
        assert plan.lease == lease
        assert serialize.as_json(plan)["timeouts"]["lease"] == lease
        heartbeats = [planned({**SMALLEST, **fields}).timeouts.heartbeat for fields in ({}, {"timeouts": {"lease": 6}})]
        assert heartbeats == [5, 2]  # a link is given up early enough to be restored


@pytest.mark.parametrize(
    ("strategy", "declared", "task", "cluster"),
    [
        ("multi_worker_mirrored", {"worker": WORKERS}, ("worker", 1), {"worker": WORKERS}),
        ("multi_worker_mirrored", MIRRORED, ("worker", 0), MIRRORED),
        ("multi_worker_mirrored", MIRRORED, ("chief", 0), MIRRORED),
        ("multi_worker_mirrored", EVALUATED, ("worker", 1), {"worker": WORKERS}),  # it does not see the evaluator
        ("multi_worker_mirrored", EVALUATED, ("evaluator", 0), EVALUATED),
        ("multi_worker_mirrored", ALL_ROLES, ("worker", 0), MIRRORED),  # which has never a ps
        *(("parameter_server", ALL_ROLES, task, SERVED) for task in (("chief", 0), ("worker", 1), ("ps", 1))),
        ("parameter_server", ALL_ROLES, ("evaluator", 0), ALL_ROLES),
        ("none", ALL_ROLES, ("worker", 1), ALL_ROLES),
        ("none", {"ps": PS}, ("ps", 0), {"ps": PS}),
        ("none", {"worker": WORKERS, "tensorboard": ["t:6006"]}, ("worker", 0), {"worker": WORKERS}),  # no sidecar
    ],
)
def test_a_task_finds_the_cluster_of_its_strategy_and_itself(
    strategy: str, declared: dict[str, list[str]], task: tuple[str, int], cluster: dict[str, Any]
):
    """As compact JSON, whose roles have a fixed order, however the spec orders them."""
    (role, index), shuffled = task, dict(reversed(declared.items()))
    whole = {"cluster": cluster, "task": {"type": role, "index": index}}
    assert compile_tf_config(strategy, shuffled, role, index) == json.dumps(whole, separators=(",", ":"))
