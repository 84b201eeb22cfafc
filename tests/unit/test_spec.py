"""What a spec may contain, what it means, and how it is read from a file."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from support.specs import GOOD, SMALLEST, SMALLEST_LOCAL, made
from tflaunch.clusterspec import defaults, model
from tflaunch.clusterspec.load import load_spec
from tflaunch.clusterspec.model import Host, Restart, Role, Spec, Timeouts, written_fields
from tflaunch.clusterspec.problems import validate_data
from tflaunch.clusterspec.schema import json_schema
from tflaunch.clusterspec.values import Address
from tflaunch.errors import Problem, SpecError
from tflaunch.plan import lint

NO_DURATIONS: list[Any] = [
    *("soon", "", "-1s", "1 week", "1h30", "30m1h", "1h1h", "h", "1." + "0" * 99 + "s", "9" * 400, "99999d", -1, True),
    *(None, [1], {}, float("nan"), float("inf"), 1e300, 10**400, 10**5000),
]
WRONG: dict[str, list[Any]] = {
    "cluster": [[], None],
    "cluster.worker": [0, -1, 10_001, 10**5000, [], True, 2.0, "2", None, {"0": "alpha:1"}],
    "command": ["", " \n ", [], [""], "un'closed", 5, None, {"python": "train.py"}],
    "env": [["A=1"]],
    "env.A": [True, None, [1], {}, "a\0b", "half \ud800", 10**5000],  # `true` could mean several texts
    "hosts.alpha": ["10.0.0.1"],
    "hosts.alpha.env": [["A=1"]],
    "hosts.alpha.gpus": ["2"],
    "hosts.alpha.ssh": ["", "-oProxyCommand=true", "ann@-oProxyCommand=true", "alpha:ssh", "a b"],
    "legacy_keras": ["true", 1],
    "name": ["", "a b", "../up", "a/b", ".hidden", "-d", "x" * 64, "a\n", 5, None],  # it is part of a file's name
    "preload": ["tensorflow"],
    "restart": [3],
    "restart.backoff": [["1s"]],
    "restart.max": [-1, True],
    "roles": [[]],
    "roles.worker": [1],
    "roles.worker.gpus": [-1, 1.5],
    "roles.worker.server": ["yes"],
    "roles.worker.workdir": [5],
    "sidecars.a b": [{"command": "x"}],
    "strategy": ["horovod", 5],
    "success": ["worker"],
    "timeouts": ["10s"],
    "timeouts.deadline": NO_DURATIONS,
    "workdir": [5],
}
"""Values that a field of the spec cannot have."""


def changed(**fields: Any) -> dict[str, Any]:
    return {**SMALLEST_LOCAL, **fields}


def problems_in(data: Any) -> list[Problem]:
    result = validate_data(data)
    assert isinstance(result, list)
    return result


def the_problem_in(data: Any) -> Problem:
    (problem,) = problems_in(data)
    return problem


class TestCluster:
    def test_addresses_are_tasks_in_the_order_of_their_index(self):
        """A pasted ClusterSpec means the same as in TensorFlow; a host alone leaves the port open."""
        read = made(changed(cluster={"worker": ["10.0.0.2:2222", "alpha.example.org"]}))
        assert read.cluster["worker"] == (Address("10.0.0.2", 2222), Address("alpha.example.org", None))

    @pytest.mark.parametrize(
        ("written", "host"), [("[::1]", "::1"), ("[2001:DB8:0:0::5]", "2001:db8::5"), ("[::ffff:10.0.0.1]", "10.0.0.1")]
    )
    def test_an_ipv6_address_is_one_host_however_it_is_written(self, written: str, host: str):
        """In brackets where a port may follow; plan and TF_CONFIG have them again."""
        settings = {written: {"ssh": f"ann@{written}:22", "address": written}}
        read = made(changed(cluster={"worker": [f"{written}:2222", written]}, hosts=settings, spares=[written]))
        assert read.cluster["worker"] == (Address(host, 2222), Address(host, None))
        assert ([*read.hosts], read.hosts[host].address, read.spares) == ([host], host, (host,))
        assert [Address.read_json("address", str(each)) for each in read.cluster["worker"]] == [*read.cluster["worker"]]
        assert made(read.as_data()) == read

    @pytest.mark.parametrize(
        ("address", "words"),
        [
            ("grpc://10.0.0.1:2222", "URL"),
            ("2001:db8::5", 'IPv6 address without brackets; write "[2001:db8::5]"'),
            ("::1:2222:", "IPv6 address without brackets"),
            *((it, "names no host") for it in ("[::1", "[1::2::3]:2222", "[10.0.0.1]:2222", "", ":2222", "a b:2222")),
            ("-oProxyCommand=true:22", "names no host"),  # an option of ssh
            ("[fe80::1%eth0]:2222", "zone"),
            *((f"alpha:{port}", "no valid port") for port in ("", "0", "65536", "00655361", "http", "-1", "\u0662")),
            ("[::1]:0", "no valid port"),
            pytest.param("alpha:" + "9" * 10_000, "no valid port", id="port-of-10000-digits"),
            *((value, 'must be "host:port"') for value in (2222, None)),
        ],
    )
    def test_an_address_that_tensorflow_could_not_use_is_refused_at_its_place(self, address: Any, words: str):
        problem = the_problem_in(changed(cluster={"worker": ["alpha:2222", address]}))
        assert problem.where == "cluster.worker[1]"
        assert words in f"{problem.message}; {problem.hint}"

    def test_a_ps_makes_the_job_a_parameter_server_job(self):
        with_ps = changed(cluster={"chief": 1, "worker": 1, "ps": 1})
        assert made(SMALLEST_LOCAL).effective_strategy() == "multi_worker_mirrored"
        assert made(with_ps).effective_strategy() == "parameter_server"
        assert made({**with_ps, "strategy": "none"}).effective_strategy() == "none"


class TestValues:
    def test_what_is_left_out_has_the_promised_default(self):
        assert made(SMALLEST_LOCAL) == Spec(
            cluster={"worker": (Address("localhost", None),) * 2}, command=("python", "train.py")
        )
        assert Spec(cluster={}).restart == Restart(max=3, window=600.0, backoff=(1.0, 60.0))
        assert Spec(cluster={}).timeouts == Timeouts(connect=10.0, grace=10.0)
        assert [getattr(Timeouts(), off) for off in ("lease", "finish", "stall", "deadline")] == [None] * 4
        assert Spec(cluster={}).legacy_keras == "auto"
        assert Spec(cluster={}).preload == ("auto",)

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            *[("90s", 90.0), ("1.5h", 5400.0), ("2d", 172_800.0), ("250ms", 0.25), ("90 s", 90.0), (" 7 ", 7.0)],
            *[("0", 0.0), ("1d 2h", 93_600.0), ("1m500ms", 60.5), (5, 5.0), (0.5, 0.5)],
        ],
    )
    def test_a_duration_is_seconds_whatever_its_unit(self, text: Any, seconds: float):
        assert made(changed(timeouts={"grace": text})).timeouts.grace == pytest.approx(seconds)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("python train.py", ("python", "train.py")),
            ("python  'my train.py' --name=\"a b\"", ("python", "my train.py", "--name=a b")),
            ("python -c 'print(1)' \"\" $HOME *", ("python", "-c", "print(1)", "", "$HOME", "*")),
            ("a#b # c", ("a#b", "#", "c")),
            (["-c", "print('a b')\n", "", "${HOME}"], ("-c", "print('a b')\n", "", "${HOME}")),
        ],
    )
    def test_a_command_as_text_is_split_as_by_a_shell_and_no_shell_expands_it(self, text: Any, words: tuple[str, ...]):
        """A list is taken word by word."""
        assert made(changed(command=text)).command == words

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("s.yaml", "cluster: {worker: 1}\ncommand: [x]\nenv: {A: 2.20, B: 1e5, C: -0.0, D: 1.0, F: -0}\n"),
            (
                "s.json",
                '{"cluster": {"worker": 1}, "command": "x", "env": {"A": 2.20, "B": 1e5, "C": -0.0, "D": 1, "F": -0}}',
            ),
            ("s.toml", 'command = ["x"]\ncluster.worker = 1\nenv = {A = 2.20, B = 1e5, C = -0.0, D = 1.0, F = "-0"}\n'),
        ],
    )
    def test_a_number_in_env_keeps_the_text_that_was_written(self, tmp_path: Path, name: str, text: str):
        """A release 2.20 is not 2.2, in files and in --set."""
        (tmp_path / name).write_text(text)
        loaded = load_spec(tmp_path / name, settings=["env.D=2.30", "env.E=1e-4"], environ={})
        assert loaded.env == {"A": "2.20", "B": "1e5", "C": "-0.0", "D": "2.30", "E": "1e-4", "F": "-0"}

    @pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
    def test_a_variable_has_a_name_that_an_environment_can_hold(self, name: str):
        """POSIX forbids the equals sign, C the NUL character, and YAML can produce lone surrogates."""
        assert "cannot be the name of an environment variable" in the_problem_in(changed(env={name: "x"})).message
        assert "half a character" in the_problem_in(changed(env={"\ud83d\ude00": "x"})).message

    @pytest.mark.parametrize("where", WRONG)
    def test_a_wrong_value_is_refused_at_its_place(self, where: str):
        """As the only problem."""
        for value in WRONG[where]:
            data = value
            for key in reversed(where.split(".")):
                data = {key: data}
            problem = the_problem_in(changed(**data))
            assert problem.where == where, value
            assert where != "timeouts.deadline" or "must be a duration" in problem.message

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            *(
                ({"command": ["python", word]}, "command[1]")
                for word in (5, "a\0b", None, "half \ud800")  # which no process can have
            ),
            ({"restart": {"backoff": ["1s", "later"]}}, "restart.backoff[1]"),
            ({"preload": [1]}, "preload[0]"),
            ({"sidecars": {"board": {}}}, "sidecars.board.command"),
            *(
                ({"sidecars": {"board": {"command": "b", "host": host}}}, "sidecars.board.host")
                for host in ("", "-oProxyCommand=true", "a b", "alpha\n")  # the second is an option of ssh
            ),
        ],
    )
    def test_a_wrong_part_is_refused_at_its_place(self, fields: dict[str, Any], where: str):
        assert the_problem_in(changed(**fields)).where == where


class TestModel:
    def test_a_spec_from_python_means_what_a_file_with_the_same_values_means(self):
        fields: dict[str, Any] = {"cluster": {"worker": 2}, "command": "python train.py", "timeouts": {"grace": "1m"}}
        assert Spec(**fields) == made(fields)
        grace: Any = "1m"
        assert Timeouts(grace=grace) == made(fields).timeouts == Timeouts(grace=60.0)

    def test_a_spec_from_python_is_validated(self):
        with pytest.raises(ValidationError) as caught:
            Spec.model_validate({"cluster": {"worker": ["alpha:0"]}, "restart": {"max": "3"}, "comand": "x"})
        places = [detail["loc"] for detail in caught.value.errors()]
        assert places == [("cluster", "worker", 0), ("restart", "max"), ("comand",)]
        assert "has no valid port; use 1 to 65535" in str(caught.value)

    def test_a_spec_cannot_be_changed(self):
        spec = made(SMALLEST_LOCAL)
        with pytest.raises(ValidationError):
            spec.name = "other"
        assert (spec.model_copy(update={"name": "other"}).name, spec.name) == ("other", "job")

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"hosts": {"alpha": {"engine": "slurm:7"}}}, "hosts.alpha.engine"),
            ({"hosts": {"alpha": {"inherits": True}}}, "hosts.alpha.inherits"),
            ({"pool": "slurm"}, "pool"),
            ({"hosts.discover": "slurm"}, "hosts.discover"),
            ({"origins": {}}, "origins"),
        ],
    )
    def test_what_tflaunch_finds_out_cannot_be_written(self, fields: dict[str, Any], where: str):
        """Such a field counts as unknown and is not offered."""
        problem = the_problem_in(changed(**fields))
        assert (problem.where, problem.message) == (where, f"unknown field {where.removeprefix('hosts.alpha.')!r}")
        assert not {"engine", "inherits", "pool", "origins"} & set(problem.hint.replace(",", "").split())

    def test_where_hosts_are_found_stands_among_the_hosts(self):
        spec = made(changed(hosts={"discover": "dns:workers", "*": {"gpus": 2}}))
        assert (spec.pool, list(spec.hosts)) == ("dns:workers", ["*"])
        assert the_problem_in(changed(hosts={"discover": 5, "alpha": {}})).where == "hosts.discover"

    @pytest.mark.parametrize("part", [Spec, Role, Host, Restart, Timeouts])
    def test_a_field_is_left_out_and_not_null(self, part: type[BaseModel]):
        for field in written_fields(part):
            null = {field: None}
            parts: dict[Any, Any] = {Role: {"roles": {"worker": null}}, Host: {"hosts": {"alpha": null}}, Spec: null}
            fields = parts.get(part, {part.__name__.lower(): null})
            assert the_problem_in(changed(**fields)).where.endswith(field)

    @pytest.mark.parametrize("name", ["[key]", "a.b", "x y"])
    def test_a_problem_is_placed_at_the_key_as_it_is_written(self, name: str):
        assert the_problem_in(changed(env={name: None})).where == f"env.{name}"
        assert the_problem_in(changed(sidecars={"[key]": {"command": "x"}})).where == "sidecars.[key]"

    def test_every_field_says_what_it_means(self):
        parts = [each for each in vars(model).values() if isinstance(each, type) and issubclass(each, BaseModel)]
        assert len(parts) > 10
        for part in parts:
            assert all(field.description for field in part.model_fields.values())
            assert part.__doc__


class TestMistakes:
    @pytest.mark.parametrize(
        ("data", "where", "guess"),
        [
            ({"Cluster": {}}, "Cluster", "cluster"),
            ({"strategy": "multi_worker_mirored"}, "strategy", "multi_worker_mirrored"),
            ({"hosts": {"alpha": {"identityfile": "k"}}}, "hosts.alpha.identityfile", "identity_file"),
            ({"restart": {"maximum": 1, "backof": []}}, "restart.backof", "backoff"),
        ],
    )
    def test_a_misspelt_word_is_answered_with_the_nearest_one(self, data: dict[str, Any], where: str, guess: str):
        hints = {problem.where: problem.hint for problem in problems_in(changed(**data))}
        assert hints[where] == f"did you mean '{guess}'?"

    @pytest.mark.parametrize(
        ("field", "words"),
        [
            ("task", "tflaunch makes the task"),
            ("ps_hosts", '"ps"'),
            ("worker_hosts", '"worker"'),
            ("args", '"command"'),
            ("zzz", "the fields here are name, strategy, cluster"),
        ],
    )
    def test_a_field_of_another_tool_is_answered_with_what_to_write_here(self, field: str, words: str):
        """Users paste TF_CONFIG and flags of TensorFlow 1."""
        problem = the_problem_in(changed(**{field: "x"}))
        assert "unknown field" in problem.message
        assert words in problem.hint

    def test_every_problem_is_reported_at_once_each_with_its_place_and_a_remedy(self):
        """Users should not have to fix a spec one error at a time."""
        problems = problems_in(
            {
                "name": "a/b",
                "cluster": {"worker": ["alpha:0", 5, "beta:2222"], "ps": 0},
                "command": ["python", 5],
                "roles": {"worker": {"gpu": 1, "env": {"A": None}}},
                "sidecars": {"board": {"host": "alpha"}},
                "timeouts": {"grace": "soon"},
            }
        )
        places = "name cluster.worker[0] cluster.worker[1] cluster.ps command[1] roles.worker.gpu roles.worker.env.A"
        places += " sidecars.board.command timeouts.grace"
        assert sorted(problem.where for problem in problems) == sorted(places.split())
        assert all(problem.severity == "error" and problem.message and problem.hint for problem in problems)

    @pytest.mark.parametrize("data", [None, 5, "text", [], [SMALLEST_LOCAL], True])
    def test_a_spec_is_an_object(self, data: Any):
        assert "must be an object" in the_problem_in(data).message
        assert the_problem_in({"command": "x"}).sentence().startswith("cluster: is missing")  # that alone is needed

    def test_a_key_of_the_user_s_own_is_ignored(self):
        """As in a Compose file; `$schema` is for editors."""
        own = {"$schema": "cluster.schema.json", "x-common": {"anything": [1]}, "roles": {"worker": {"x-note": "mine"}}}
        jsonschema.validate(changed(**own), json_schema())
        assert made(changed(**own)).command == ("python", "train.py")
        assert the_problem_in(changed(timeouts={"$schema": "x"})).where == "timeouts.$schema"  # for the top alone

    def test_settings_of_every_host_are_below_those_of_one(self):
        """Field by field, and variable by variable in the environment."""
        common = {"python": "/common", "workdir": "/w", "gpus": 2, "env": {"A": "common", "B": "common"}}
        spec = made(changed(hosts={"*": common, "alpha": {"python": "/own", "env": {"B": "own"}}}))
        assert spec.host("alpha") == Host(python="/own", workdir="/w", gpus=2, env={"A": "common", "B": "own"})
        assert spec.host("beta") == spec.hosts["*"]

    def test_a_sentence_about_a_problem_is_one_line_of_printable_text(self):
        """Keys come from the user, and may contain cursor movements or line breaks."""
        for problem in problems_in(changed(**{"a\nb": 1, "\x1b[2J": 2, "half \ud800": 3})):
            assert problem.sentence().isprintable()


# --- from a file ---------------------------------------------------------------------------------

_AS_JSON = """
{"name": "job", "cluster": {"chief": 1, "worker": ["alpha:2222", "beta"]}, "command": ["python", "train.py"],
 "env": {"SEED": 7, "MODE": "on"}, "restart": {"max": 0, "backoff": ["1s", 60]}, "legacy_keras": false}
"""
_AS_YAML = """\
# the same
name: job
cluster:
  chief: 1
  worker: [alpha:2222, beta]
command:
  - python
  - train.py
env: {SEED: 7, MODE: "on"}
restart: {max: 0, backoff: [1s, 60]}
legacy_keras: false
"""
_AS_TOML = """\
name = "job"
command = ["python", "train.py"]
legacy_keras = false
cluster = {chief = 1, worker = ["alpha:2222", "beta"]}
env = {SEED = 7, MODE = "on"}
[restart]
max = 0
backoff = ["1s", 60]
"""
_TEXT_OF = {"json": _AS_JSON, "yaml": _AS_YAML, "yml": _AS_YAML, "toml": _AS_TOML}


def load(text: str | bytes, file: str = "cluster.json", **arguments: Any) -> Spec:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, file)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_spec(path, **arguments)


def load_data(data: Any = SMALLEST_LOCAL, **arguments: Any) -> Spec:
    return load(json.dumps(data), **arguments)


def refused(text: str, file: str = "cluster.json", **arguments: Any) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load(text, file, **arguments)
    return list(caught.value.problems)


class TestFormats:
    @pytest.mark.parametrize("ending", ["json", "yaml", "yml", "toml", "YAML", "Toml", "JSON"])
    def test_json_yaml_and_toml_mean_the_same(self, ending: str):
        """The suffix determines the format, in upper or lower case; editors on Windows write other line ends."""
        text = _TEXT_OF[ending.lower()]
        for written in (text, text.replace("\n", "\r\n").encode("utf-8-sig")):
            assert load(written, f"cluster.{ending}") == load(_AS_JSON)

    @pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
    def test_every_json_spec_is_a_yaml_spec(self, data: dict[str, Any]):
        """A file adds nothing to its data but a name, and what is read changes nothing and can be written again."""
        before, spec = repr(data), made({"name": "cluster", **data})
        assert spec == load(json.dumps(data)) == load(json.dumps(data), "cluster.yaml")
        assert repr(data) == before
        assert Spec(**spec.model_dump(exclude_unset=True)) == spec
        assert made(json.loads(spec.model_dump_json(exclude_unset=True))) == spec

    @pytest.mark.parametrize("word", ["12:30", "2026-11-20", "0755", "0x10", "1_000", "1:2.5", "=", "~x"])
    def test_a_yaml_word_that_is_no_json_number_stays_the_text_that_was_written(self, word: str):
        """The times, dates and octal numbers of YAML 1.1 surprise users who set environment variables."""
        text = f"cluster: {{worker: 2}}\ncommand: a\nenv:\n  A: {word}\n"
        assert load(text, "cluster.yaml").env == {"A": word}

    @pytest.mark.parametrize("word", ["true", "null", "~", "[a]"])
    def test_a_yaml_word_that_is_no_text_has_to_be_quoted_in_env(self, word: str):
        (problem,) = refused(f"cluster: {{worker: 2}}\ncommand: a\nenv: {{A: {word}}}", "cluster.yaml")
        assert (problem.where, problem.hint.partition(",")[0]) == ("env.A", "put it in quotes")

    @pytest.mark.parametrize(
        ("text", "env"),
        [
            ("roles: {worker: {env: &base {A: x, B: x}}}\nenv: {<<: *base, B: y}\n", {"A": "x", "B": "y"}),
            ("roles: {worker: {env: &e {A: x}}}\nenv: *e\n", {"A": "x"}),
        ],
    )
    def test_yaml_brings_what_an_anchor_holds(self, text: str, env: dict[str, str]):
        """Wherever it is defined; only a duplicate key within one mapping is an error."""
        assert load(f"cluster: {{worker: 1}}\ncommand: a\n{text}", "cluster.yaml").env == env

    @pytest.mark.parametrize("tagged", ['!!int ""', '!!float ""', "!!bool x", "!!timestamp x", "!!python/name:os.x ''"])
    def test_a_yaml_tag_is_refused_whatever_stands_behind_it(self, tagged: str):
        (problem,) = refused(f"cluster: {{worker: 2}}\ncommand: a\nname: {tagged}\n", "cluster.yaml")
        assert "tag" in problem.message

    @pytest.mark.parametrize(
        ("stem", "name"),
        [("My Run (2)", "My-Run-2"), ("-.hidden", "hidden"), ("x" * 80, "x" * 63), ("\u043e\u043f\u044b\u0442", "job")],
    )
    def test_the_name_is_by_default_the_stem_of_the_file(self, stem: str, name: str):
        assert load(json.dumps(SMALLEST_LOCAL), f"{stem}.json").name == name

    def test_the_command_line_goes_before_the_spec(self):
        """And the name in the spec before that of the file."""
        assert load_data(changed(name="spec")).name == "spec"
        assert load_data(changed(name="spec"), name="mine").name == "mine"
        assert load_data(command=["python", "other train.py"]).command == ("python", "other train.py")
        assert load_data({"cluster": {"worker": 1}}, command=["a"]).command == ("a",)


class TestVariables:
    ENVIRON = {"HOME": "/home/ann", "EMPTY": "", "NESTED": "${HOME}"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("fields", "found"),
        [
            ({"env": {"A": "${HOME}"}}, lambda read: read.env["A"]),
            ({"workdir": "${HOME}"}, lambda read: read.workdir),
            ({"roles": {"worker": {"env": {"A": "${HOME}"}}}}, lambda read: read.roles["worker"].env["A"]),
            ({"roles": {"worker": {"workdir": "${HOME}"}}}, lambda read: read.roles["worker"].workdir),
            ({"sidecars": {"b": {"command": "b", "env": {"A": "${HOME}"}}}}, lambda read: read.sidecars["b"].env["A"]),
            ({"hosts": {"h": {"identity_file": "${HOME}"}}}, lambda read: read.hosts["h"].identity_file),
            ({"discover": {"ps": "file:${HOME}"}}, lambda read: read.discover["ps"].removeprefix("file:")),
            ({"hosts": {"h": {"env": {"A": "${HOME}"}}}}, lambda read: read.hosts["h"].env["A"]),
        ],
    )
    def test_a_variable_is_expanded_where_machines_differ(self, fields: dict[str, Any], found: Any):
        assert found(load_data(changed(**fields), environ=self.ENVIRON)) == "/home/ann"

    def test_a_variable_is_expanded_nowhere_else(self):
        """A command belongs to its program, which may use the braces itself."""
        words = ["sh", "-c", "echo ${HOME} $${HOME} ${UNSET}"]
        read = load_data(
            changed(command=words, sidecars={"b": {"command": words}}, roles={"worker": {"command": words}}),
            environ=self.ENVIRON,
        )
        assert [read.command, read.sidecars["b"].command, read.roles["worker"].command] == [tuple(words)] * 3

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("${HOME}/data:${HOME}", "/home/ann/data:/home/ann"),
            ("a${EMPTY}b", "ab"),
            ("$${HOME}", "${HOME}"),
            ("$$${HOME}", "$${HOME}"),
            ("${NESTED}", "${HOME}"),
            ("${host:N/2} $${host:HOME}", "${host:N/2} $${host:HOME}"),
            ("$HOME ${HOME", "$HOME ${HOME"),
        ],
    )
    def test_a_variable_is_expanded_once_and_two_dollars_are_a_literal_one(self, text: str, value: str):
        assert load_data(changed(env={"A": text}), environ=self.ENVIRON).env["A"] == value

    def test_every_variable_that_is_not_set_is_a_problem_at_its_place(self):
        """Replacing it with an empty text could delete the wrong directory."""
        data = changed(env={"A": "${NO}/${NEVER}"}, hosts={"h": {"workdir": "${}"}})
        problems = refused(json.dumps(data), environ=self.ENVIRON)
        missing = [("env.A", "NO"), ("env.A", "NEVER"), ("hosts.h.workdir", "")]
        sentences = [(where, f"environment variable {name!r} is not set") for where, name in missing]
        assert [(problem.where, problem.message) for problem in problems] == sentences


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "found", "value"),
        [
            ("restart.max=0", lambda read: read.restart.max, 0),
            ('cluster.worker=["a:1","b:2"]', lambda read: read.cluster["worker"][1], Address("b", 2)),
            ("command[1]=other.py", lambda read: read.command, ("python", "other.py")),
            ("roles.worker.env.A=b=c d", lambda read: read.roles["worker"].env["A"], "b=c d"),
            ('env.A="7"', lambda read: read.env["A"], "7"),
            ("env.A=NaN", lambda read: read.env["A"], "NaN"),
            ("env.A={not json", lambda read: read.env["A"], "{not json"),
            ("legacy_keras=false", lambda read: read.legacy_keras, False),
            ("env.A=${HOME}", lambda read: read.env["A"], "/home/ann"),
        ],
    )
    def test_a_value_is_put_at_the_end_of_its_path(self, setting: str, found: Any, value: Any):
        """As JSON where possible, else as text; missing objects are created; variables are expanded."""
        settings = ["restart.max=7", "env.A=first", setting]
        assert found(load_data(settings=settings, environ={"HOME": "/home/ann"})) == value

    @pytest.mark.parametrize(
        "setting",
        [
            *("", "=", "=5", "restart.max", "[0]=x", "command[2]=x", "command.x=y", "name.x=y"),
            *("cluster[0]=x", "command[-1]=x", "cluster.worker.x=1", 'env={"A": "x", "A": "y"}'),
            pytest.param(f"command[{'9' * 5000}]=x", id="index-of-5000-digits"),
        ],
    )
    def test_a_path_that_leads_nowhere_is_refused(self, setting: str):
        """If it were ignored, the job would run with the value that was to be changed."""
        (problem,) = refused(json.dumps(changed(name="job")), settings=[setting])
        assert problem.sentence()

    @pytest.mark.parametrize("setting", ["restart.maximum=1", "restart.max=often", "cluster.worker=0"])
    def test_a_setting_is_checked_like_what_stands_in_the_file(self, setting: str):
        (problem,) = refused(json.dumps(SMALLEST_LOCAL), settings=[setting])
        assert problem.where == setting.partition("=")[0]


@pytest.mark.parametrize("value", ["sk-live-4711", ["sk-live-4711"], 4711])
def test_a_secret_that_stands_in_the_spec_is_not_repeated(value: Any) -> None:
    """Errors are shown on screens and in logs."""
    problem = the_problem_in(changed(secrets={"API_KEY": value}))
    assert problem.where == "secrets.API_KEY"
    assert "4711" not in problem.sentence()


def test_no_plugin_of_another_package_is_looked_for(tmp_path: Path) -> None:
    """By the command, in all that are installed."""
    (tmp_path / "loud.py").write_text("print('plugin')\nnew_schema_validator = lambda *_, **__: (None, None, None)\n")
    (tmp_path / "loud-1.dist-info").mkdir()
    (tmp_path / "loud-1.dist-info" / "METADATA").write_text("Name: loud\nVersion: 1\n")
    (tmp_path / "loud-1.dist-info" / "entry_points.txt").write_text("[pydantic]\nloud = loud\n")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SMALLEST_LOCAL))
    command = [sys.executable, "-m", "tflaunch", "check", str(spec)]
    told = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True)
    assert told.endswith(f"{spec}: ok\n")
    assert "plugin" not in told.splitlines()


# ---- defaults of a user and of a project


class Places:
    def __init__(self, directory: Path) -> None:
        self.user = directory / "home" / ".config" / "tflaunch" / "config.toml"
        self.project = directory / "project" / "tflaunch.toml"
        for path in (self.user, self.project):
            path.parent.mkdir(parents=True)
        self.environ = {"HOME": str(directory / "home")}

    def load(self, *settings: str, environ: dict[str, str] | None = None, **fields: Any) -> Spec:
        spec = self.project.with_name("job.json")
        spec.write_text(json.dumps({**SMALLEST_LOCAL, **fields}))
        return load_spec(spec, settings, environ=self.environ if environ is None else environ)

    def problems(self, **fields: Any) -> tuple[str, tuple[Problem, ...]]:
        with pytest.raises(SpecError) as caught:
            self.load(**fields)
        return caught.value.source, caught.value.problems


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_the_nearer_one_goes_before(places: Places):
    """From lowest to highest precedence: user, project, spec, command line. Variables are expanded once."""
    assert places.load().origins == {}
    places.user.write_text("[env]\nA = '${WHO}'\nB = '$${WHO}'\n")
    assert places.load(environ={**places.environ, "WHO": "${ann}"}).env == {"A": "${ann}", "B": "${WHO}"}
    places.user.write_text("[restart]\nmax = 1\nwindow = '1h'\nbackoff = ['2s', '4s']\n[env]\nA = 'u'\nB = 'u'\n")
    places.project.write_text("[restart]\nmax = 2\nwindow = '2h'\n[env]\nB = 'p'\nC = 'p'\n")
    spec = places.load("env.D=set", restart={"window": "3h"}, env={"C": "s", "D": "s"})
    assert (spec.restart.max, spec.restart.window, spec.restart.backoff) == (2, 10_800.0, (2.0, 4.0))
    assert spec.env == {"A": "u", "B": "p", "C": "s", "D": "set"}
    assert spec.origins == {
        "restart.max": str(places.project),
        "restart.backoff": str(places.user),
        "env.A": str(places.user),
        "env.B": str(places.project),
    }


def test_a_variable_names_another_file_or_none(places: Places, tmp_path: Path):
    places.user.write_text("workdir = 'user'")
    places.project.write_text("workdir = 'project'\n")
    other = tmp_path / "other.toml"
    other.write_text("env = {A = 'other'}")
    spec = places.load(environ={**places.environ, defaults.VARIABLE: str(other)})
    assert (spec.workdir, spec.env) == ("project", {"A": "other"})
    assert places.load(environ={**places.environ, defaults.VARIABLE: ""}).workdir is None
    with pytest.raises(SpecError, match=r"none\.toml"):
        places.load(environ={**places.environ, defaults.VARIABLE: str(tmp_path / "none.toml")})
    (tmp_path / "tflaunch").mkdir()
    (tmp_path / "tflaunch" / "config.toml").write_text("workdir = 'xdg'")
    places.project.unlink()
    assert places.load(environ={**places.environ, "XDG_CONFIG_HOME": str(tmp_path)}).workdir == "xdg"
    assert places.load(environ={**places.environ, "XDG_CONFIG_HOME": "relative"}).workdir == "user", "XDG requires this"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("[restart]\nmaximum = 1", "restart.maximum", "did you mean 'max'?"),
        ("[env]\nA = '${NOT_SET}'", "env.A", "is not set"),
        ("name = 'x'", "name", "belongs to one job"),
        ("[cluster]\nworker = 2", "cluster", "belongs to one job"),
        ("a = b", "", "is not valid TOML"),
    ],
)
def test_a_mistake_is_told_with_its_file(places: Places, text: str, where: str, words: str):
    places.project.write_text(text)
    source, (problem,) = places.problems()
    assert (source, problem.where) == (str(places.project), where)
    assert words in problem.sentence()
    places.project.write_text("nmae = 'x'\nworkdri = 'y'\n")
    assert len(places.problems()[1]) == 2, "all mistakes in a file are told at once"
    places.project.chmod(0o666)  # any local user could add a command to every job
    assert places.problems()[1][0].message == "can be written by everybody"


def test_settings_of_roles_and_hosts_hold_where_there_are_such(places: Places):
    """A site describes all its hosts in one file."""
    places.user.write_text("[hosts.h9]\npython = 'p'\n[hosts.'*'.env]\nA = '1'\n[roles.ps.env]\nB = '2'\n")
    smallest: dict[str, Any] = SMALLEST
    spec = places.load(**smallest)
    assert lint.check_spec(spec) == []
    assert spec.roles == {}
    assert spec.host("10.0.0.1").env == {"A": "1"}
    assert places.load(cluster={"chief": 1, "worker": 1, "ps": 1}).roles["ps"].env == {"B": "2"}
