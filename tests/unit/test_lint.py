"""TensorFlow's rules, checked before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.specs import GOOD, SMALLEST, SMALLEST_LOCAL, made, planned
from tflaunch.clusterspec.problems import without_faults
from tflaunch.clusterspec.spec_file import read_spec_file
from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.discovery import prepare
from tflaunch.errors import Problem, SpecError
from tflaunch.plan import lint
from tflaunch.plan.attempts import addresses

pytestmark = pytest.mark.unit

PARAMETER_SERVER = {"cluster": {"chief": 1, "worker": 1, "ps": 1}, "command": "python train.py"}


def problems_of(base: dict[str, Any], **fields: Any) -> list[Problem]:
    """Return what lint reports for a spec with some fields added or changed."""
    return lint.check_spec(made({**base, **fields}))


def the_error(base: dict[str, Any], **fields: Any) -> Problem:
    """Return the only problem, an error."""
    (problem,) = problems_of(base, **fields)
    assert problem.severity == "error"
    return problem


def the_warning(base: dict[str, Any], **fields: Any) -> Problem:
    """Return the only problem, a warning."""
    (problem,) = problems_of(base, **fields)
    assert problem.severity == "warning"
    return problem


class TestGoodSpecs:
    """Specs that lint accepts."""

    @pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
    def test_a_good_spec_has_no_problem(self, data: dict[str, Any]):
        """Neither error nor warning; this includes the two smallest specs of the documentation."""
        assert problems_of(data) == []


def faulty(data: Any) -> Iterator[Any]:
    """Yield the data with one fault: a value of a wrong type in it, or a misspelt key."""
    if isinstance(data, dict):
        for key, value in data.items():
            rest = {name: item for name, item in data.items() if name != key}
            yield {**rest, key: {"x": [None]}}
            yield {**rest, f"{key}x": value}
            for changed in faulty(value):
                yield {**rest, key: changed}


class TestInvalidFields:
    """Problems that the valid fields of a spec have with each other, told with those of invalid ones."""

    @pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
    def test_an_invalid_field_makes_no_others_wrong(self, data: dict[str, Any]):
        """Whatever is left out with it."""
        for changed in faulty(data):
            rest = without_faults(changed)
            if rest is not None and rest.places:
                found = lint.check_remainder(*rest)
                assert [problem for problem in found if problem.severity == "error"] == [], changed

    def test_problems_of_both_kinds_are_told_at_once(self, tmp_path: Path):
        """In the fields, and between them."""
        spec = {
            "cluster": {"worker": 2},
            "command": ["python", "train.py", "{task.number}"],
            "retention": {"runs": "few"},
            "restart": {"max": -1, "backoff": ["2m", "1m"]},
        }
        (tmp_path / "job.json").write_text(json.dumps(spec))
        settings = ["name=a/b", "restart", "cluster.worker.x=1"]
        with pytest.raises(SpecError) as raised:
            prepare.load_spec(read_spec_file(tmp_path / "job.json"), settings[:1])
        assert {problem.where for problem in raised.value.problems} == {
            *("name", "command[2]", "retention.runs", "restart.max", "restart.backoff"),
        }
        with pytest.raises(SpecError) as raised:
            prepare.load_spec(read_spec_file(tmp_path / "job.json"), settings)
        assert len(raised.value.problems) == 2, "both settings that cannot be applied"

    def test_tasks_on_other_hosts_need_a_lease(self):
        """They would end with the connection."""
        with pytest.raises(SpecError, match="lease"):
            prepare.warnings_about("job.json", made({**SMALLEST, "timeouts": {"lease": 0}}))
        assert prepare.warnings_about("job.json", made({**SMALLEST_LOCAL, "timeouts": {"lease": 0}})) == []


class TestImages:
    """Images in a spec for `up`, which starts no containers."""

    def test_an_image_is_refused_where_the_scheduler_could_start_containers(self):
        """The tasks would lack what the image provides."""
        spec = made({**SMALLEST, "container": {"image": "train:1"}})
        (error,) = lint.unused_image(spec, "slurm")
        assert (error.severity, error.where) == ("error", "container.image")
        (warning,) = lint.unused_image(spec, None)
        assert (warning.severity, warning.where) == ("warning", "container.image")
        assert lint.unused_image(made(SMALLEST), "slurm") == []


class TestRoles:
    """Which roles are allowed."""

    def test_a_master_is_a_chief_in_tensorflow_2(self):
        """TensorFlow 1 specs use this name."""
        error = the_error(SMALLEST, cluster={"master": ["alpha:1"], "worker": ["beta:1"]})
        assert (error.where, error.hint) == ("cluster.master", "rename it to 'chief'")

    @pytest.mark.parametrize("role", ["tensorboard", "TensorBoard", "dispatcher", "data_worker"])
    def test_what_takes_no_part_in_training_belongs_to_the_sidecars(self, role: str):
        """TensorFlow refuses a cluster with such a job name."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": 2, role: 1})
        assert error.where == f"cluster.{role}"
        assert ("sidecars" if "oard" not in role else '"tensorboard": "logs/"') in error.hint

    @pytest.mark.parametrize(("role", "guess"), [("workers", "worker"), ("Chief", "chief"), ("evalutor", "evaluator")])
    def test_an_unknown_role_is_answered_with_the_nearest_one(self, role: str, guess: str):
        """Only four roles exist."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": 1, role: 1})
        assert (error.where, error.hint) == (f"cluster.{role}", f"did you mean '{guess}'?")

    def test_a_role_like_no_other_is_answered_with_all_four(self):
        """When no name is similar."""
        assert "chief, worker, ps or evaluator" in the_error(SMALLEST_LOCAL, cluster={"worker": 1, "zzz": 1}).hint

    def test_an_empty_cluster_is_an_error(self):
        """No task would run."""
        assert the_error(SMALLEST_LOCAL, cluster={}).where == "cluster"

    @pytest.mark.parametrize("role", ["chief", "evaluator"])
    def test_there_is_at_most_one_chief_and_one_evaluator(self, role: str):
        """TensorFlow validates that in every task."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": 2, role: 2})
        assert error.where == f"cluster.{role}"
        assert "TensorFlow allows one" in error.message

    def test_settings_for_a_role_that_is_not_in_the_cluster_are_an_error(self):
        """They would have no effect."""
        error = the_error(SMALLEST_LOCAL, roles={"wroker": {"gpus": 1}})
        assert error.where == "roles.wroker"


class TestStrategies:
    """What each strategy requires of the cluster."""

    def test_a_ps_in_a_multi_worker_mirrored_cluster_is_an_error(self):
        """All workers would wait for a service on ps:0."""
        error = the_error(PARAMETER_SERVER, strategy="multi_worker_mirrored")
        assert error.where == "cluster.ps"
        assert "ps:0" in error.message

    def test_a_multi_worker_mirrored_job_has_a_worker(self):
        """A lone evaluator would wait for checkpoints that no task writes."""
        error = the_error(SMALLEST_LOCAL, cluster={"evaluator": 1})
        assert (error.where, error.hint) == ("cluster", 'add for example "worker": 2')

    @pytest.mark.parametrize("role", ["chief", "worker", "ps"])
    def test_a_parameter_server_job_has_a_chief_a_worker_and_a_ps(self, role: str):
        """Without a chief in the cluster TensorFlow uses `localhost`, which no other host can reach."""
        cluster = {name: 1 for name in ("chief", "worker", "ps") if name != role}
        error = the_error(SMALLEST_LOCAL, cluster=cluster, strategy="parameter_server")
        assert (error.where, error.message) == ("cluster", f"ParameterServerStrategy needs a {role}")

    @pytest.mark.parametrize("strategy", ["mirrored", "tpu"])
    def test_a_strategy_of_one_process_has_one_task(self, strategy: str):
        """Several tasks would each train alone, and all would seem to succeed."""
        error = the_error(SMALLEST_LOCAL, strategy=strategy)
        assert error.where == "cluster"
        assert "one process" in error.message

    def test_success_of_all_waits_for_ever_with_parameter_servers(self):
        """Worker and ps run TensorFlow's server, which never exits."""
        assert the_warning(PARAMETER_SERVER, success="all").where == "success"

    @pytest.mark.parametrize("base", [SMALLEST_LOCAL, PARAMETER_SERVER], ids=["mirrored", "parameter-server"])
    def test_keras_3_under_a_strategy_of_several_tasks_is_warned_about(self, base: dict[str, Any]):
        """A program with its own training loop may handle it."""
        warning = the_warning(base, legacy_keras=False)
        assert warning.where == "legacy_keras"
        assert "Keras 3 cannot `fit`" in warning.message


class TestAddresses:
    """Which addresses the tasks can use."""

    @pytest.mark.parametrize(
        "workers",
        [
            ["alpha:2222", "alpha:2222"],
            ["alpha:2222", "Alpha:2222"],
            ["localhost:2222", "127.0.0.1:2222"],
            ["127.0.0.1:2222", "127.0.0.2:2222"],
        ],
        ids=["same", "other-case", "loopback-names", "loopback-addresses"],
    )
    def test_two_tasks_cannot_have_one_address(self, workers: list[str]):
        """TensorFlow binds all interfaces, so loopback addresses count as one host."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": workers})
        assert error.where == "cluster.worker[1]"
        assert "cluster.worker[0]" in error.message

    def test_one_address_in_two_roles_is_an_error(self):
        """The message names the location of the other task."""
        error = the_error(SMALLEST_LOCAL, cluster={"chief": ["alpha:1"], "worker": ["beta:1", "alpha:1"]})
        assert error.where == "cluster.worker[1]"
        assert "cluster.chief[0]" in error.message

    @pytest.mark.parametrize("local", ["localhost", "127.0.0.1", "LOCALHOST", "localhost.localdomain"])
    def test_a_loopback_address_among_hosts_is_an_error(self, local: str):
        """On every host it refers to a different machine."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": ["alpha:1", f"{local}:2"]})
        assert error.where == "cluster.worker[1]"
        assert "a different machine" in error.message

    def test_a_count_among_hosts_is_an_error(self):
        """Local tasks have no address that other hosts could use."""
        assert the_error(SMALLEST_LOCAL, cluster={"worker": ["alpha:1"], "chief": 1}).where == "cluster.chief[0]"

    def test_a_cluster_has_no_more_tasks_than_a_tf_config_can_name(self):
        """Linux limits a single variable to 128 KiB."""
        error = the_error(SMALLEST_LOCAL, cluster={"worker": 10_000})
        assert error.where == "cluster"
        assert "TF_CONFIG" in error.message
        assert problems_of(SMALLEST_LOCAL, cluster={"worker": 4000}) == []

    def test_a_host_that_nothing_runs_on_is_warned_about(self):
        """Its name is probably misspelt."""
        assert the_warning(SMALLEST, hosts={"10.0.0.3": {"python": "/opt/python"}}).where == "hosts.10.0.0.3"

    def test_a_host_for_a_sidecar_alone_is_used(self):
        """Sidecars are outside the cluster."""
        sidecars = {"board": {"command": "tensorboard", "host": "beta"}}
        assert problems_of(SMALLEST, sidecars=sidecars, hosts={"beta": {"gpus": 0}}) == []

    def test_a_host_has_the_gpus_that_its_tasks_ask_for(self):
        """Counted over all its roles."""
        error = the_error(
            SMALLEST,
            cluster={"chief": ["alpha:1"], "worker": ["alpha:2", "beta:1"]},
            roles={"chief": {"gpus": 2}, "worker": {"gpus": 1}},
            hosts={"alpha": {"gpus": 2}, "beta": {"gpus": 1}},
        )
        assert error.where == "hosts.alpha.gpus"
        assert "ask for 3 GPUs, and it has 2" in error.message

    @pytest.mark.parametrize(
        ("gpus", "severity", "said"),
        [(1, "error", "2 tasks would share 1 GPUs"), (3, "warning", "1 of them are not used")],
    )
    def test_gpus_can_be_shared(self, gpus: int, severity: str, said: str):
        """All training tasks get the same number."""
        fields = {"cluster": {"worker": ["alpha:1", "alpha:2"]}, "hosts": {"alpha": {"gpus": gpus}}}
        (problem,) = problems_of(SMALLEST, **fields)
        assert (problem.where, problem.severity) == ("hosts.alpha.gpus", severity)
        assert said in problem.message


class TestProcesses:
    """The commands of tasks, and their environment."""

    def test_every_role_has_something_to_run(self):
        """A common command, one of its own, or the standard server."""
        error = the_error({"cluster": {"worker": 2, "evaluator": 1}, "roles": {"worker": {"command": "python a.py"}}})
        assert (error.where, error.message) == ("command", "evaluator has nothing to run")

    @pytest.mark.parametrize(
        ("base", "role"),
        [(SMALLEST_LOCAL, "worker"), (PARAMETER_SERVER, "chief")],
        ids=["worker-of-another-strategy", "chief"],
    )
    def test_only_worker_and_ps_of_a_parameter_server_job_run_the_standard_server(self, base: Any, role: str):
        """All other roles have work of their own."""
        assert the_error(base, roles={role: {"server": True}}).where == f"roles.{role}.server"

    def test_a_role_has_a_command_or_the_standard_server(self):
        """Not both."""
        assert the_error(PARAMETER_SERVER, roles={"ps": {"server": True, "command": "x"}}).where == "roles.ps"

    @pytest.mark.parametrize(
        "variable", ["TF_CONFIG", "TFLAUNCH_RUN", "TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR"]
    )
    def test_what_tflaunch_makes_for_each_task_cannot_be_given(self, variable: str):
        """A common TF_CONFIG would give all tasks the same identity."""
        assert the_error(SMALLEST_LOCAL, env={variable: "x"}).where == f"env.{variable}"

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"env": {"TF_CONFIG": "{}"}}, "env"),
            ({"roles": {"worker": {"env": {"TF_CONFIG": "{}"}}}}, "roles.worker.env"),
            ({"hosts": {"localhost": {"env": {"TF_CONFIG": "{}"}}}}, "hosts.localhost.env"),
            ({"sidecars": {"board": {"command": "b", "env": {"TF_CONFIG": "{}"}}}}, "sidecars.board.env"),
        ],
        ids=["all", "role", "host", "sidecar"],
    )
    def test_rules_for_variables_hold_wherever_an_env_may_stand(self, fields: dict[str, Any], where: str):
        """In all four places."""
        assert the_error(SMALLEST_LOCAL, **fields).where == f"{where}.TF_CONFIG"

    @pytest.mark.parametrize("value", ["yes", "on", "TRUE", "2"])
    def test_a_spelling_of_legacy_keras_that_tensorflow_ignores_is_an_error(self, value: str):
        """It compares with `1`, `true` and `True`."""
        error = the_error(SMALLEST_LOCAL, env={"TF_USE_LEGACY_KERAS": value})
        assert (error.where, error.hint) == ("env.TF_USE_LEGACY_KERAS", 'write "1"')

    @pytest.mark.parametrize("value", ["1", "true", "True", "0", ""])
    def test_a_spelling_of_legacy_keras_that_tensorflow_knows_is_none(self, value: str):
        """Turning it off is valid."""
        assert problems_of(SMALLEST_LOCAL, env={"TF_USE_LEGACY_KERAS": value}) == []

    def test_one_inter_op_thread_is_warned_about_with_parameter_servers(self):
        """Servers block inside such threads."""
        warning = the_warning(PARAMETER_SERVER, env={"TF_NUM_INTEROP_THREADS": "1"})
        assert warning.where == "env.TF_NUM_INTEROP_THREADS"
        assert problems_of(SMALLEST_LOCAL, env={"TF_NUM_INTEROP_THREADS": "1"}) == []

    def test_a_text_that_no_process_can_be_given_is_warned_about(self):
        """The kernel refuses arguments and variables of 128 KiB or more."""
        longest = "x" * (128 * 1024 - 1)
        assert problems_of(SMALLEST_LOCAL, env={"BIG": longest}, command=["echo", longest]) == []
        assert problems_of(SMALLEST_LOCAL, command=["echo", "\udcff" + longest[1:]]) == []  # a byte, and no text
        assert the_warning(SMALLEST_LOCAL, env={"BIG": longest + "x"}).where == "env.BIG"
        warning = the_warning(SMALLEST_LOCAL, command=["echo", "é" + longest])
        said = "command[1]: has 131073 bytes, and Linux takes at most 131071 in one argument or variable; put it into"
        assert warning.sentence().startswith(said)

    @pytest.mark.parametrize("name", ["worker-0", "worker"])
    def test_a_sidecar_cannot_have_the_name_of_a_task_or_role(self, name: str):
        """They would share a log, and `logs worker` would be ambiguous."""
        assert the_error(SMALLEST_LOCAL, sidecars={name: {"command": "tensorboard"}}).where == f"sidecars.{name}"

    def test_a_first_wait_is_not_longer_than_the_longest(self):
        """Otherwise the backoff would decrease."""
        assert the_error(SMALLEST_LOCAL, restart={"backoff": ["1m", "1s"]}).where == "restart.backoff"

    @pytest.mark.parametrize("least", [0, 3])
    def test_an_elastic_job_keeps_some_of_its_workers(self, least: int):
        """Zero is too few, and more than there are is too many."""
        error = the_error(SMALLEST_LOCAL, elastic={"min_workers": least})
        assert error.where == "elastic.min_workers"
        assert not problems_of(SMALLEST_LOCAL, elastic={"min_workers": 1})

    def test_a_job_in_one_process_cannot_be_elastic(self):
        """It has no worker to lose."""
        error = the_error(GOOD["mirrored"], elastic={"min_workers": 1})
        assert error.where == "elastic"

    def test_only_those_who_look_on_can_be_required(self):
        """All other tasks always are."""
        error = the_error(SMALLEST_LOCAL, roles={"worker": {"required": True}})
        assert error.where == "roles.worker.required"
        assert not problems_of(GOOD["evaluator"], roles={"evaluator": {"required": True}})


class TestSync:
    """Which paths can be copied to hosts."""

    @pytest.mark.parametrize("path", ["/etc", "~/code", "~ann/code", "..", "../lib", "src/../../lib"])
    def test_a_path_stays_below_the_spec(self, path: str):
        """Each needs a place in the run's directory on a host."""
        error = the_error(SMALLEST, sync={"paths": ["src", path]})
        assert error.where == "sync.paths[1]"
        assert f"{path!r} is not below the spec's directory" in error.message
        assert "move the spec to a directory above both" in error.hint

    @pytest.mark.parametrize("sync", [{}, {"paths": ["."]}, {"paths": ["a/b", "./c", "d..e"], "exclude": ["/x", ".."]}])
    def test_other_paths_are_good(self, sync: dict[str, Any]):
        """`exclude` holds patterns, not paths."""
        assert problems_of(SMALLEST, sync=sync) == []


class TestShellSyntax:
    """Syntax that only a shell would interpret."""

    @pytest.mark.parametrize(
        ("command", "word", "remedy"),
        [
            ("python train.py > log.txt", ">", '["sh", "-c", "python train.py > log.txt"]'),
            ("python train.py 2>&1", "2>&1", "python train.py 2>&1"),
            ("a && b", "&&", "a && b"),
            ("a | tee log", "|", 'write "a": tflaunch keeps the output'),
            ("a | b", "|", '-o", "pipefail", "-c", "a | b"'),
            (["python", "train.py", "--dir=$HOME/data"], "--dir=$HOME/data", "--dir=$HOME/data"),
            (["python", "train.py", "${HOME}"], "${HOME}", "${HOME}"),
            (["python", "~/train.py"], "~/train.py", "~/train.py"),
            (["FOO=1", "python"], "FOO=1", "FOO=1 python"),
            (["python", "$(date)"], "$(date)", "$(date)"),
        ],
    )
    def test_it_is_warned_of_with_the_remedy(self, command: Any, word: str, remedy: str):
        """No shell is used."""
        warning = the_warning(SMALLEST_LOCAL, command=command)
        assert (warning.where, repr(word) in warning.message) == ("command", True)
        assert remedy in warning.hint

    @pytest.mark.parametrize(
        "command",
        [
            ["sh", "-c", "cd ~/x && FOO=$BAR python train.py > log"],
            ["python", "-c", "print('$X > y')"],
            ["~/venv/bin/python", "train.py"],
            ["python", "train.py", "--data=${host:DATA}", "a>b", "^x$", "--lr=1"],
            ["env", "FOO=1", "python"],
        ],
    )
    def test_a_script_for_a_shell_and_what_tflaunch_expands_are_fine(self, command: list[str]):
        """So is what a shell would leave unchanged."""
        assert problems_of(SMALLEST_LOCAL, command=command) == []


class TestEveryHost:
    """`hosts."*"`."""

    def test_it_is_not_unused(self):
        """It is not a host."""
        assert problems_of(SMALLEST_LOCAL, hosts={"*": {"env": {"A": "1"}}}) == []

    @pytest.mark.parametrize("field", ["ssh", "docker", "address"])
    def test_the_way_to_a_host_is_its_own(self, field: str):
        """All hosts would be the same machine."""
        assert the_error(SMALLEST, hosts={"*": {field: "h1"}}).where == f"hosts.*.{field}"

    def test_its_gpus_are_shared_out(self):
        """As if they were specified for each host."""
        spec = {"cluster": {"worker": ["a", "a"]}, "command": "train", "hosts": {"*": {"gpus": 1}}}
        assert the_error(spec).where == "hosts.a.gpus"


class TestSidecarsAlone:
    """A job without a cluster."""

    def test_required_sidecars_are_a_job(self):
        """A tf.data service, for instance."""
        assert problems_of({"sidecars": {"dispatcher": {"command": "serve", "required": True}}}) == []

    def test_sidecars_that_are_not_required_are_no_job(self):
        """Nothing would decide when it is done."""
        error = the_error({"sidecars": {"dispatcher": {"command": "serve"}}})
        assert error.where == "cluster"
        assert '"required": true' in error.hint

    @pytest.mark.parametrize(
        ("fields", "where"), [({"strategy": "mirrored"}, "strategy"), ({"tensorboard": "logs"}, "tensorboard")]
    )
    def test_what_needs_a_task_is_refused(self, fields: dict[str, Any], where: str):
        """There is none."""
        assert the_error({"sidecars": {"a": {"command": "serve", "required": True}}}, **fields).where == where


class TestAll:
    """Properties of every spec that can be read."""

    def test_errors_come_before_warnings_and_everything_has_a_remedy(self):
        """Problems are listed in the order in which to fix them."""
        problems = problems_of(
            SMALLEST, legacy_keras=False, hosts={"gamma": {}}, env={"TF_CONFIG": "{}"}, restart={"backoff": [2, 1]}
        )
        assert [problem.severity for problem in problems] == ["error", "error", "warning", "warning"]
        assert all(problem.where and problem.message and problem.hint for problem in problems)

    @given(
        st.fixed_dictionaries(
            {
                "cluster": st.dictionaries(
                    st.sampled_from((*ROLES, "master", "zzz")),
                    st.integers(1, 3) | st.lists(st.sampled_from(["alpha", "beta:1", "localhost:1"]), min_size=1),
                ),
            },
            optional={
                "strategy": st.sampled_from(STRATEGIES),
                "command": st.just("python train.py"),
                "success": st.sampled_from(["chief", "all"]),
                "roles": st.dictionaries(
                    st.sampled_from(ROLES),
                    st.fixed_dictionaries({}, optional={"server": st.booleans(), "gpus": st.integers(0, 2)}),
                ),
                "hosts": st.dictionaries(
                    st.sampled_from(["alpha", "beta"]),
                    st.fixed_dictionaries({}, optional={"gpus": st.integers(0, 2)}),
                ),
            },
        )
    )
    @settings(max_examples=200, deadline=None)
    def test_lint_never_raises_and_names_places_that_are_there(self, data: dict[str, Any]):
        """Each place starts with a field of the spec, or with a missing one."""
        for problem in lint.check_spec(made(json.loads(json.dumps(data)))):
            assert problem.where.split(".")[0] in {*data, "command", "cluster"}


class TestSecrets:
    """Where the values of secrets come from."""

    @pytest.mark.parametrize("place", [{}, {"env": "KEY", "file": "key"}])
    def test_a_secret_has_one_place(self, place: dict[str, str]):
        """No place would be an empty variable, and two might differ."""
        error = the_error(SMALLEST_LOCAL, secrets={"API_KEY": place})
        assert (error.where, error.message) == ("secrets.API_KEY", 'must have one of "env" and "file"')

    def test_a_variable_has_one_value(self):
        """A role would silently not get its own."""
        env, secrets = {"API_KEY": "public"}, {"API_KEY": {"env": "KEY"}}
        error = the_error(SMALLEST_LOCAL, roles={"worker": {"env": env}}, secrets=secrets)
        assert error.where == "roles.worker.env.API_KEY"

    def test_variables_of_tflaunch_are_not_secret(self):
        """Tasks need them as they are."""
        assert the_error(SMALLEST_LOCAL, secrets={"TF_CONFIG": {"env": "KEY"}}).where == "secrets.TF_CONFIG"


class TestPrivateNetworks:
    """What does not go together with one."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"cluster": {"worker": ["alpha:1", "beta:2", "gamma:3"]}},
            {"cluster": {"worker": ["alpha", "alpha"]}, "sidecars": {"data": {"command": "serve", "host": "beta"}}},
            {"cluster": {"worker": ["alpha", "alpha"]}, "spares": ["beta"]},
            {"cluster": {"worker": ["alpha", "beta"]}, "hosts": {"beta": {"docker": "b"}}},
        ],
    )
    def test_it_is_for_one_host(self, fields: dict[str, Any]):
        """Those of sidecars and spare hosts count; the sentence says what protects several."""
        error = the_error(SMALLEST, network="private", **fields)
        assert error.where == "network"
        assert error.message == '"private" is for a job on one host, and this one has beta beside alpha'
        assert all(remedy in error.hint for remedy in ('"fenced"', "WireGuard", "NetworkPolicy", "--exclusive"))

    def test_tasks_of_one_host_meet_on_its_loopback_interface(self):
        """Whatever the host is called outside."""
        data = {**SMALLEST, "cluster": {"worker": ["alpha:1", "alpha:2"]}, "network": "private"}
        plan = planned(data)
        assert addresses(plan) == {"worker": ["localhost:1", "localhost:2"]}
