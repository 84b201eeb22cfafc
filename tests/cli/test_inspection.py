"""`plan`, `env`, `check`, `schema` and the help, through the installed command."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.launch import Launch
from support.rendering import MARK, SPECIAL_VARIABLES
from support.specs import GOOD, REPOSITORY, SMALLEST, SMALLEST_LOCAL, TFLAUNCH, tflaunch, written
from support.terminals import Terminal

pytestmark = pytest.mark.cli

VERBS = ("up", "plan", "env", "check", "schema")
WITH_PORTS = {"cluster": {"worker": ["localhost:20001", "localhost:20002"]}, "command": ["python", "train.py"]}
OFTEN_FORGOTTEN = {**SMALLEST, "hosts": {"gamma": {}}}
"""A spec that can run, with something to warn about."""


@contextmanager
def on_a_terminal(command: list[str]) -> Iterator[str]:
    """The output of a command when it is a terminal."""
    ours, its = pty.openpty()
    with open(ours, "rb", buffering=0) as reader, open(its, "wb", buffering=0) as terminal:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, check=True)
        yield reader.read(4096).decode()


DUMP = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)}))"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory for runs; nothing here creates one."""
    return tmp_path / "home"


class TestPlan:
    """`tflaunch plan`."""

    @pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
    def test_plan_as_json_is_one_object_on_stdout_and_nothing_on_stderr(
        self, data: dict[str, Any], tmp_path: Path, home: Path
    ):
        """With an entry for each task of the cluster, in the documented format."""
        shown = tflaunch("plan", written(tmp_path, data), "--json", home=home)
        plan = json.loads(shown.stdout)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert {"name", "strategy", "tasks", "sidecars"} <= plan.keys()
        for task in plan["tasks"]:
            assert {"task", "host", "address", "argv", "workdir", "env"} <= task.keys()
            assert task["env"]["TFLAUNCH_TASK"] == task["task"]
        assert not home.exists()

    def test_plan_shows_ports_that_are_chosen_later_as_auto(self, tmp_path: Path, home: Path):
        """In the address and in TF_CONFIG."""
        path = written(tmp_path, SMALLEST_LOCAL)
        task = json.loads(tflaunch("plan", path, "--json", home=home).stdout)["tasks"][1]
        assert task["address"] == "localhost:auto"
        assert json.loads(task["env"]["TF_CONFIG"]) == {
            "cluster": {"worker": ["localhost:auto", "localhost:auto"]},
            "task": {"type": "worker", "index": 1},
        }

    def test_plan_in_words_names_every_process_and_when_the_job_is_done(self, tmp_path: Path, home: Path):
        """For people."""
        shown = tflaunch("plan", written(tmp_path, GOOD["every-field"]), home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith("nightly: multi_worker_mirrored, done when all 3 tasks end with 0\n")
        for task in ("chief:0", "worker:0", "worker:1", "evaluator:0", "board"):
            assert f"\n{task} on " in shown.stdout

    def test_plan_takes_settings_a_name_and_a_command(self, tmp_path: Path, home: Path):
        """The same as `up`, so that it shows what `up` would do."""
        arguments = ("--set", "cluster.worker=1", "--name", "mine", "--json", "--", "python", "other.py", "--json")
        shown = tflaunch("plan", written(tmp_path, SMALLEST_LOCAL), *arguments, home=home)
        plan = json.loads(shown.stdout)
        assert plan["name"] == "mine"
        assert [task["argv"] for task in plan["tasks"]] == [["python", "other.py", "--json"]]

    def test_a_working_directory_is_relative_to_the_spec_whatever_the_shell_s_is(self, tmp_path: Path, home: Path):
        """Even if the spec's path is relative."""
        (tmp_path / "specs").mkdir()
        path = written(tmp_path / "specs", {**SMALLEST_LOCAL, "workdir": "run"})
        shown = tflaunch("plan", Path("..", path.parent.name, path.name), "--json", home=home, cwd=path.parent)
        assert Path(json.loads(shown.stdout)["tasks"][0]["workdir"]).resolve() == path.parent / "run"

    def test_a_warning_goes_to_stderr_and_the_plan_to_stdout(self, tmp_path: Path, home: Path):
        """So that the output stays JSON."""
        path = written(tmp_path, OFTEN_FORGOTTEN)
        shown = tflaunch("plan", path, "--json", home=home)
        assert shown.returncode == 0
        assert json.loads(shown.stdout)["name"] == "cluster"
        assert shown.stderr.startswith(f"tflaunch: {path}: warning: hosts.gamma: ")

    def test_a_warning_beside_an_error_is_still_called_a_warning(self, tmp_path: Path, home: Path):
        """A user fixes the errors first."""
        path = written(tmp_path, {**OFTEN_FORGOTTEN, "env": {"TF_CONFIG": "{}"}})
        shown = tflaunch("plan", path, home=home)
        error, warning = shown.stderr.splitlines()
        assert (shown.returncode, shown.stdout) == (2, "")
        assert error.startswith(f"tflaunch: {path}: env.TF_CONFIG: ")
        assert warning.startswith(f"tflaunch: {path}: warning: hosts.gamma: ")

    def test_an_empty_grpc_proxy_is_shown_where_a_task_gets_it(self, tmp_path: Path, home: Path):
        """With a proxy in this shell or in the spec; on other hosts, agents decide."""

        def planned(proxy: str = "", host: str = "localhost", **env: str) -> str | None:
            here = {name: value for name, value in os.environ.items() if not name.endswith("_proxy")}
            here |= {"TFLAUNCH_HOME": str(home), **({"https_proxy": proxy} if proxy else {})}
            path = written(tmp_path, {"cluster": {"worker": [host]}, "command": ["true"], "env": env})
            shown = subprocess.run([TFLAUNCH, "plan", path, "--json"], env=here, capture_output=True, check=True)
            return json.loads(shown.stdout)["tasks"][0]["env"].get("grpc_proxy")

        proxy = "http://proxy:3128"
        assert planned() is None
        assert planned(host="far") == planned(proxy) == planned(http_proxy=proxy) == ""
        assert planned(grpc_proxy=proxy) == proxy


class TestEnv:
    """`tflaunch env`."""

    def test_people_are_told_that_their_shell_has_changed_its_directory(self, tmp_path: Path, home: Path):
        """On a terminal; output that a script evaluates contains no such message."""
        path = written(tmp_path, {**WITH_PORTS, "workdir": "/"})
        exports = tflaunch("env", path, "worker:0", home=home).stdout
        with on_a_terminal(["sh", "-c", f"{exports}\ntrue"]) as said:
            assert "tflaunch: this shell is in / now" in said

    @staticmethod
    def environment_after(path: Path, task: str, home: Path, **variables: str) -> dict[str, Any]:
        """Return the environment of a program that is started after the exports, in a plain shell."""
        exports = tflaunch("env", path, task, home=home)
        assert (exports.returncode, exports.stderr) == (0, "")
        script = 'set -e; eval "$1"; shift; exec "$@"'
        arguments = ["sh", "-c", script, "sh", exports.stdout, sys.executable, "-c", DUMP]
        env = {**variables, "TMPDIR": str(path.parent)}
        done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def test_after_the_exports_a_program_sees_what_the_task_would_see(self, tmp_path: Path, home: Path):
        """The plan's environment and working directory, with a run and directory of its own."""
        path = written(tmp_path, WITH_PORTS)
        planned = json.loads(tflaunch("plan", path, "--json", home=home).stdout)["tasks"][1]
        seen = self.environment_after(path, "worker:1", home, http_proxy="http://proxy:3128", HOME="/home/ann")
        own = ("TFLAUNCH_RUN", "TFLAUNCH_TASK_DIR", "TFLAUNCH_PROGRESS", "TFLAUNCH_LEGACY_KERAS")
        expected = {name: value for name, value in planned["env"].items() if name not in own}
        assert {name: seen["env"].get(name) for name in expected} == expected
        assert seen["cwd"] == str(Path(planned["workdir"]).resolve())
        assert (seen["env"]["http_proxy"], seen["env"]["grpc_proxy"]) == ("http://proxy:3128", "")
        assert seen["env"]["HOME"] == "/home/ann"
        assert seen["env"]["TFLAUNCH_RUN"] == "cluster-by-hand"
        assert list(Path(seen["env"]["TFLAUNCH_TASK_DIR"]).iterdir()) == []
        assert "TFLAUNCH_PROGRESS" not in seen["env"]  # it is not read

    @pytest.mark.parametrize(
        "value",
        ["", "a b", "it's", '"', "$HOME `id` $(id)", "a\\b", "two\nlines", "a;b", "-n", "\u00e9", "auto", "#", "~"],
    )
    def test_any_value_arrives_as_it_is(self, value: str, tmp_path: Path, home: Path):
        """Quoting is tflaunch's job."""
        path = written(tmp_path, {**WITH_PORTS, "env": {"VALUE": value}})
        assert self.environment_after(path, "worker:0", home)["env"]["VALUE"] == value

    @pytest.mark.parametrize("command", [["python", "-c", "a = 1\nprint('two lines')"], ["echo", "it's", "\n", ";id"]])
    def test_any_command_can_be_shown_beside_the_exports(self, command: list[str], tmp_path: Path, home: Path):
        """As a comment: the user starts it."""
        path = written(tmp_path, {**WITH_PORTS, "command": command})
        assert self.environment_after(path, "worker:0", home)["env"]["TFLAUNCH_TASK"] == "worker:0"

    def test_a_name_that_no_shell_can_set_does_not_spoil_the_others(self, tmp_path: Path, home: Path):
        """And it is never run as a command."""
        names = ("spring.config", "A;exit 7;B", "A\nexit 8")
        path = written(tmp_path, {**WITH_PORTS, "env": {**dict.fromkeys(names, "x"), "Z": "z"}})
        assert self.environment_after(path, "worker:0", home)["env"]["Z"] == "z"

    def test_what_means_something_to_a_shell_is_left_to_env(self, tmp_path: Path, home: Path):
        """It is neither set in nor evaluated by the user's shell; the command that is shown sets it."""
        env = {name: f"a[$(touch {tmp_path}/{MARK})]" for name in SPECIAL_VARIABLES if name != "cluster"}
        path = written(tmp_path, {**WITH_PORTS, "env": env, "command": ["cat", "/proc/self/environ"]})
        exports = tflaunch("env", path, "worker:0", home=home).stdout
        script = 'set -e; eval "$1"; [ "$TMOUT$OPTIND$CDPATH" = 1 ]; eval "$2"'
        command = "\n".join(line[2:] for line in exports.partition("sets the rest:\n")[2].splitlines())
        done = subprocess.run(["bash", "-c", script, "bash", exports, command], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert {f"{name}={value}" for name, value in env.items()} <= set(done.stdout.decode().split("\0"))
        assert not (tmp_path / MARK).exists()

    def test_a_task_of_one_process_inherits_no_tf_config(self, tmp_path: Path, home: Path):
        """Not even from the shell."""
        path = written(tmp_path, {**GOOD["mirrored"], "cluster": {"worker": ["localhost:20001"]}})
        assert "TF_CONFIG" not in self.environment_after(path, "worker:0", home, TF_CONFIG="{}")["env"]

    @pytest.mark.parametrize("task", ["worker:2", "worker", "ps:0", ""])
    def test_a_task_that_is_not_there_is_answered_with_those_that_are(self, task: str, tmp_path: Path, home: Path):
        """On stderr; stdout would be executed."""
        shown = tflaunch("env", written(tmp_path, WITH_PORTS), task, home=home)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert f"there is no task {task!r}; the tasks are worker:0, worker:1" in shown.stderr

    def test_a_port_that_is_not_known_is_warned_about(self, tmp_path: Path, home: Path):
        """When started by hand, nothing chooses it."""
        shown = tflaunch("env", written(tmp_path, SMALLEST_LOCAL), "worker:0", home=home)
        assert shown.returncode == 0
        assert "warning: worker:0: its port is chosen only at the start" in shown.stderr
        assert "export TF_CONFIG=" in shown.stdout


class TestCheck:
    """`tflaunch check`; its messages about bad specs are in `test_bad_specs`."""

    @pytest.mark.parametrize("path", sorted((REPOSITORY / "cluster_specs").glob("*.json")), ids=lambda path: path.name)
    def test_a_spec_that_comes_with_tflaunch_is_ok(self, path: Path, home: Path):
        """As text and as JSON."""
        words = tflaunch("check", path, home=home)
        assert (words.returncode, words.stdout, words.stderr) == (0, f"{path}: ok\n", "")
        as_json = tflaunch("check", path, "--json", home=home)
        assert (as_json.returncode, as_json.stderr) == (0, "")
        assert json.loads(as_json.stdout) == {"ok": True, "problems": []}

    def test_a_spec_with_a_warning_can_run(self, tmp_path: Path, home: Path):
        """Exit code 0, and the warning is shown."""
        path = written(tmp_path, OFTEN_FORGOTTEN)
        words = tflaunch("check", path, home=home)
        assert (words.returncode, words.stderr) == (0, "")
        assert words.stdout.startswith(f"{path}: warning: hosts.gamma: no task runs on this host")
        found = json.loads(tflaunch("check", path, "--json", home=home).stdout)
        assert found["ok"] is True
        assert [problem["severity"] for problem in found["problems"]] == ["warning"]

    def test_a_problem_as_json_has_severity_place_message_and_hint(self, tmp_path: Path, home: Path):
        """Editors can show it at the right position."""
        path = written(tmp_path, {**SMALLEST_LOCAL, "comand": "x"})
        shown = tflaunch("check", path, "--json", home=home)
        assert shown.returncode == 2
        assert json.loads(shown.stdout)["problems"] == [
            {
                "severity": "error",
                "where": "comand",
                "message": "unknown field 'comand'",
                "hint": "did you mean 'command'?",
                "kind": "",
            }
        ]

    @pytest.mark.parametrize("key", ["two\nlines", "\x1b[2J", "half \ud800"], ids=["lines", "escape", "half"])
    def test_a_problem_in_words_is_one_line(self, key: str, tmp_path: Path, home: Path):
        """Whatever the user's text contains."""
        shown = tflaunch("check", written(tmp_path, {**SMALLEST_LOCAL, key: 1}), home=home)
        (line,) = shown.stdout.splitlines()
        assert (shown.returncode, shown.stderr) == (2, "")
        assert line.isprintable()

    def test_a_command_after_two_hyphens_is_checked_with_the_spec(self, tmp_path: Path, home: Path):
        """A spec need not have one."""
        path = written(tmp_path, {"cluster": {"worker": 2}})
        assert tflaunch("check", path, home=home).returncode == 2
        assert tflaunch("check", path, "--", "python", "train.py", home=home).returncode == 0


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> jsonschema.Draft202012Validator:
    """The schema that the command prints, which must itself be valid."""
    shown = tflaunch("schema", home=tmp_path_factory.mktemp("home"))
    assert (shown.returncode, shown.stderr) == (0, "")
    schema = json.loads(shown.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


class TestSchema:
    """`tflaunch schema`."""

    @pytest.mark.parametrize("data", GOOD.values(), ids=GOOD.keys())
    def test_the_schema_accepts_every_good_spec(self, data: dict[str, Any], validator: Any):
        """An editor must not underline what tflaunch would run."""
        assert list(validator.iter_errors(data)) == []

    @pytest.mark.parametrize("path", sorted((REPOSITORY / "cluster_specs").glob("*.json")), ids=lambda path: path.name)
    def test_the_schema_accepts_the_specs_that_come_with_tflaunch(self, path: Path, validator: Any):
        """As they are in their files."""
        assert list(validator.iter_errors(json.loads(path.read_text()))) == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"zzz": 1},
            {"roles": {"worker": {"zzz": 1}}},
            {"sidecars": {"board": {"command": "b", "zzz": 1}}},
            {"hosts": {"alpha": {"zzz": 1}}},
            {"restart": {"zzz": 1}},
            {"timeouts": {"zzz": 1}},
        ],
        ids=["spec", "roles", "sidecars", "hosts", "restart", "timeouts"],
    )
    def test_the_schema_refuses_an_unknown_field(self, fields: dict[str, Any], validator: Any):
        """Wherever the set of fields is fixed."""
        (error,) = validator.iter_errors({**SMALLEST_LOCAL, **fields})
        assert "zzz" in error.message

    @pytest.mark.parametrize(
        "fields",
        [
            {"cluster": {"worker": 0}},
            {"cluster": {"worker": []}},
            {"cluster": {"worker": [2222]}},
            {"cluster": {"worker": ["grpc://alpha:1"]}},
            {"command": []},
            {"command": [5]},
            {"strategy": "horovod"},
            {"env": {"A": None}},
            {"restart": {"backoff": [1]}},
            {"timeouts": {"grace": "soon"}},
            {"success": "worker"},
            {"legacy_keras": "true"},
            {"sidecars": {"board": {}}},
        ],
        ids=json.dumps,
    )
    def test_the_schema_refuses_what_tflaunch_refuses(self, fields: dict[str, Any], validator: Any):
        """As far as a schema can express it."""
        assert not validator.is_valid({**SMALLEST_LOCAL, **fields})

    def test_a_schema_has_a_description_for_every_field(self, validator: Any):
        """Editors show it."""
        properties = validator.schema["properties"]
        assert all(properties[name]["description"] for name in properties)
        assert validator.schema["anyOf"] == [{"required": [name]} for name in ("cluster", "discover", "sidecars")]


class TestHelp:
    """Help, and invalid command lines."""

    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_names_the_verbs_that_most_people_need_and_an_example(self, flag: str, home: Path):
        """On stdout, with exit code 0; at most 24, those before a run first."""
        shown = tflaunch(flag, home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "Example:\n    tflaunch up cluster.json" in shown.stdout
        listed = re.findall(r"^  ([a-z]+) +[A-Z]", shown.stdout, re.MULTILINE)
        assert len(listed) <= 24
        assert listed[:5] == ["init", "run", "up", "check", "doctor"]
        assert shown.stdout.endswith("\nMore: tflaunch help --all\n")

    @pytest.mark.parametrize(
        ("files", "steps"),
        [
            ((), ""),
            (("a.py", "b.py", "c.py", "d.py"), ""),
            (("a.py", "b.py"), "tflaunch run -n 2 python a.py  Run a.py on two workers."),
            (("model.py",), "tflaunch run -n 2 python model.py  Run model.py on two workers."),
            (("a.py", "train.py"), "tflaunch run -n 2 python train.py  Run train.py on two workers."),
            (("train.py", "cluster.yaml"), "tflaunch up  Run cluster.yaml."),
            (("cluster.json", "cluster.toml"), "tflaunch up cluster.json  Run cluster.json."),
        ],
    )
    def test_without_any_word_the_first_steps_are_shown(self, files: tuple[str, ...], steps: str, tmp_path: Path):
        """What could be run in this directory, after the help."""
        for name in files:
            (tmp_path / name).touch()
        shown = tflaunch(home=tmp_path, cwd=tmp_path)
        assert (shown.returncode, shown.stdout) == (2, "")
        _, _, told = shown.stderr.partition("More: tflaunch help --all\n")
        assert (f"Here:\n  {steps}\n" if steps else "") in told
        assert bool(told.strip()) == bool(steps)

    def test_help_names_every_verb_if_all_are_wanted(self, home: Path):
        """The rest of them last."""
        shown = tflaunch("help", "--all", home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert all(f"\n  {verb} " in shown.stdout for verb in VERBS)
        assert "\nMore:\n" in shown.stdout

    @pytest.mark.parametrize("verb", VERBS)
    def test_the_help_of_every_verb_has_an_example_of_it(self, verb: str, home: Path):
        """One that can be pasted."""
        shown = tflaunch(verb, "--help", home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith(f"Usage: tflaunch {verb} ")
        _, _, example = shown.stdout.partition("Example:\n")
        assert f"tflaunch {verb}" in example

    def test_the_version_is_that_of_the_package(self, home: Path):
        """`tflaunch 1.2.3`."""
        from tflaunch import __version__

        shown = tflaunch("--version", home=home)
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"tflaunch {__version__}\n", "")

    @pytest.mark.parametrize(
        "arguments",
        [(), ("fly",), ("up",), ("check", "--jsn", "x"), ("env", "x"), ("plan", "x", "--set"), ("schema", "x")],
        ids=["nothing", "no-verb", "no-spec", "no-option", "no-task", "no-value", "too-much"],
    )
    def test_a_bad_command_line_exits_with_2_and_says_so_on_stderr(self, arguments: tuple[str, ...], home: Path):
        """And nothing on stdout."""
        shown = tflaunch(*arguments, home=home)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert "Usage: tflaunch" in shown.stderr or shown.stderr.startswith("Error: ")

    def test_output_is_without_colour(self, tmp_path: Path, home: Path):
        """It is not a terminal."""
        shown = tflaunch("plan", written(tmp_path, SMALLEST_LOCAL), home=home, FORCE_COLOR="1")
        assert "\x1b" not in shown.stdout + shown.stderr


def test_tables_fit_the_terminal_and_are_whole_in_a_pipe(launch: Launch) -> None:
    """Whatever a program reports."""
    names = ["accuracy", "validation_accuracy", "learning_rate", "loss"]
    metrics = json.dumps({"step": 7, "metrics": dict.fromkeys(names, 0.123456)})
    script = f"echo '{metrics}' > $TFLAUNCH_PROGRESS; echo reported; exec sleep 600"
    assert launch.run("up", "-d", launch.shell(script, strategy="none")).returncode == 0
    launch.wait_for_log("worker:1", "reported")
    shown, code = Terminal(launch, "stty cols 80; tflaunch ps; tflaunch ls").read_to_end()
    assert (code, max(map(len, shown.splitlines())) <= 80) == (0, True), shown
    assert max(map(len, launch.run("ps").stdout.splitlines())) > 80
    launch.run("down")
