"""`plan`, `env`, `check`, `schema` and the help, through the installed command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.launch import Launch
from support.rendering import MARK, SPECIAL_VARIABLES
from support.specs import GOOD, REPOSITORY, SMALLEST, SMALLEST_LOCAL, tflaunch, written
from support.terminals import Terminal
from tflaunch import __version__

pytestmark = pytest.mark.cli

VERBS = ("up", "plan", "env", "check", "schema")
WITH_PORTS: dict[str, Any] = {
    "cluster": {"worker": ["localhost:20001", "localhost:20002"]},
    "command": ["python", "train.py"],
}
OFTEN_FORGOTTEN = {**SMALLEST, "hosts": {"gamma": {}}}
"""A spec that can run, with something to warn about."""


DUMP = "import json, os; print(json.dumps({'cwd': os.getcwd(), 'env': dict(os.environ)}))"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory for runs; nothing here creates one."""
    return tmp_path / "home"


class TestPlan:
    """`tflaunch plan`."""

    def test_plan_names_every_process_and_when_the_job_is_done(self, tmp_path: Path, home: Path):
        """As JSON, in the documented format, and in words; no directory for runs is made."""
        path = written(tmp_path, GOOD["every-field"])
        shown = tflaunch("plan", path, "--json", home=home)
        plan = json.loads(shown.stdout)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert {"name", "strategy", "tasks", "sidecars"} <= plan.keys()
        for task in plan["tasks"]:
            assert {"task", "host", "address", "argv", "workdir", "env"} <= task.keys()
            assert task["env"]["TFLAUNCH_TASK"] == task["task"]
        words = tflaunch("plan", path, home=home, FORCE_COLOR="1")
        assert (words.returncode, words.stderr, "\x1b" in words.stdout) == (0, "", False)
        assert words.stdout.startswith("nightly: multi_worker_mirrored, done when all 3 tasks end with 0\n")
        for task in ("chief:0", "worker:0", "worker:1", "evaluator:0", "board"):
            assert f"\n{task} on " in words.stdout
        assert not home.exists()

    def test_plan_takes_settings_a_name_and_a_command(self, tmp_path: Path, home: Path):
        arguments = ("--set", "cluster.worker=1", "--name", "mine", "--json", "--", "python", "other.py", "--json")
        shown = tflaunch("plan", written(tmp_path, SMALLEST_LOCAL), *arguments, home=home)
        plan = json.loads(shown.stdout)
        assert plan["name"] == "mine"
        assert [task["argv"] for task in plan["tasks"]] == [["python", "other.py", "--json"]]

    def test_a_warning_beside_an_error_is_still_called_a_warning(self, tmp_path: Path, home: Path):
        path = written(tmp_path, {**OFTEN_FORGOTTEN, "env": {"TF_CONFIG": "{}"}})
        shown = tflaunch("plan", path, home=home)
        error, warning = shown.stderr.splitlines()
        assert (shown.returncode, shown.stdout) == (2, "")
        assert error.startswith(f"tflaunch: {path}: env.TF_CONFIG: ")
        assert warning.startswith(f"tflaunch: {path}: warning: hosts.gamma: ")


class TestEnv:
    """`tflaunch env`."""

    def test_people_are_told_that_their_shell_has_changed_its_directory(self, launch: Launch):
        """On a terminal; output that a script evaluates contains no such message."""
        spec = launch.spec(**WITH_PORTS, workdir="/")
        said, code = Terminal(launch, f"{launch.run('env', spec, 'worker:0').stdout}\ntrue").read_to_end()
        assert (code, "tflaunch: this shell is in / now" in said) == (0, True), said

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

    def test_any_value_arrives_as_it_is(self, tmp_path: Path, home: Path):
        """Quoting is tflaunch's job; a name that no shell can set spoils no other, and is never run as a command."""
        values = [
            "",
            "a b",
            "it's",
            '"',
            "$HOME `id` $(id)",
            "a\\b",
            "two\nlines",
            "a;b",
            "-n",
            "\u00e9",
            "auto",
            "#",
            "~",
        ]
        env = {f"V{number}": value for number, value in enumerate(values)}
        odd = dict.fromkeys(("spring.config", "A;exit 7;B", "A\nexit 8"), "x")
        command = ["python", "-c", "a = 1\nprint('two lines')", "it's", "\n", ";id"]  # shown in a comment
        path = written(tmp_path, {**WITH_PORTS, "env": {**odd, **env}, "command": command})
        seen = self.environment_after(path, "worker:0", home)["env"]
        assert {name: seen.get(name) for name in env} == env

    def test_what_means_something_to_a_shell_is_left_to_env(self, tmp_path: Path, home: Path):
        """It is neither set in nor evaluated by the user's shell; the command that is shown sets it."""
        env = {name: f"a[$(touch {tmp_path}/{MARK})]" for name in SPECIAL_VARIABLES if name != "cluster"}
        path = written(tmp_path, {**WITH_PORTS, "env": env, "command": ["cat", "/proc/self/environ"]})
        exports = tflaunch("env", path, "worker:0", home=home).stdout
        script = 'set -e; eval "$1"; [ "$TMOUT$OPTIND$CDPATH" = 1 ]; eval "$2"'
        command = "\n".join(line[2:] for line in exports.partition("sets the rest:\n")[2].splitlines())
        done = subprocess.run(["bash", "-c", script, "bash", exports, command], capture_output=True, check=True)
        assert {f"{name}={value}" for name, value in env.items()} <= set(done.stdout.decode().split("\0"))
        assert not (tmp_path / MARK).exists()

    def test_a_port_that_is_not_known_is_warned_about(self, tmp_path: Path, home: Path):
        shown = tflaunch("env", written(tmp_path, SMALLEST_LOCAL), "worker:0", home=home)
        assert shown.returncode == 0
        assert "warning: worker:0: its port is chosen only at the start" in shown.stderr
        assert "export TF_CONFIG=" in shown.stdout


class TestCheck:
    """`tflaunch check`; its messages about bad specs are in test_mistakes.py."""

    def test_the_specs_that_come_with_tflaunch_are_ok(self, home: Path):
        paths = sorted((REPOSITORY / "cluster_specs").glob("*.json"))
        words = tflaunch("check", *paths, home=home)
        assert (words.returncode, words.stderr) == (0, "")
        assert words.stdout.splitlines() == [f"{path}: ok" for path in paths]
        as_json = tflaunch("check", paths[0], "--json", home=home)
        assert (as_json.returncode, as_json.stderr) == (0, "")
        assert json.loads(as_json.stdout) == {"ok": True, "problems": []}

    def test_a_spec_with_a_warning_can_run(self, tmp_path: Path, home: Path):
        path = written(tmp_path, OFTEN_FORGOTTEN)
        words = tflaunch("check", path, home=home)
        assert (words.returncode, words.stderr) == (0, "")
        assert words.stdout.startswith(f"{path}: warning: hosts.gamma: no task runs on this host")
        found = json.loads(tflaunch("check", path, "--json", home=home).stdout)
        assert found["ok"] is True
        assert [problem["severity"] for problem in found["problems"]] == ["warning"]

    def test_a_problem_as_json_has_severity_place_message_and_hint(self, tmp_path: Path, home: Path):
        path = written(tmp_path, {**SMALLEST_LOCAL, "comand": "x"})
        shown = tflaunch("check", path, "--json", home=home)
        assert shown.returncode == 2
        words = {"message": "unknown field 'comand'", "hint": "did you mean 'command'?"}
        problem = {"severity": "error", "where": "comand", **words, "kind": ""}
        assert json.loads(shown.stdout)["problems"] == [problem]


def test_the_schema_accepts_what_tflaunch_runs_and_refuses_what_it_refuses(home: Path):
    """An editor must not underline what is right, such as the specs that come with tflaunch."""
    shown = tflaunch("schema", home=home)
    assert (shown.returncode, shown.stderr) == (0, "")
    schema = json.loads(shown.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = sorted((REPOSITORY / "cluster_specs").glob("*.json"))
    good = GOOD | {path.name: json.loads(path.read_text()) for path in files}
    assert [name for name, data in good.items() if not validator.is_valid(data)] == []
    wrong: list[dict[str, Any]] = [
        *({"zzz": 1}, {"roles": {"worker": {"zzz": 1}}}, {"hosts": {"alpha": {"zzz": 1}}}, {"sidecars": {"board": {}}}),
        *({"cluster": {"worker": worker}} for worker in (0, [], [2222], ["grpc://alpha:1"])),
        *({"command": [5]}, {"strategy": "horovod"}, {"env": {"A": None}}, {"timeouts": {"grace": "soon"}}),
    ]
    assert [fields for fields in wrong if validator.is_valid({**SMALLEST_LOCAL, **fields})] == []


class TestHelp:
    """Help, and invalid command lines."""

    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_names_the_verbs_that_most_people_need_and_an_example(self, flag: str, home: Path):
        """On stdout, with exit code 0; at most 24, those before a run first."""
        assert tflaunch("--version", home=home).stdout == f"tflaunch {__version__}\n"
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
            (("a.py", "b.py"), "tflaunch run -n 2 python a.py  Run a.py on two workers."),
            (("a.py", "train.py"), "tflaunch run -n 2 python train.py  Run train.py on two workers."),
            (("cluster.json", "cluster.toml"), "tflaunch up cluster.json  Run cluster.json."),
        ],
    )
    def test_without_any_word_the_first_steps_are_shown(self, files: tuple[str, ...], steps: str, tmp_path: Path):
        for name in files:
            (tmp_path / name).touch()
        shown = tflaunch(home=tmp_path, cwd=tmp_path)
        assert (shown.returncode, shown.stdout) == (2, "")
        _, _, told = shown.stderr.partition("More: tflaunch help --all\n")
        assert (f"Here:\n  {steps}\n" if steps else "") in told
        assert bool(told.strip()) == bool(steps)

    def test_help_names_every_verb_if_all_are_wanted(self, home: Path):
        shown = tflaunch("help", "--all", home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert all(f"\n  {verb} " in shown.stdout for verb in VERBS)
        assert "\nMore:\n" in shown.stdout


def test_tables_fit_the_terminal_and_are_whole_in_a_pipe(launch: Launch) -> None:
    names = ["accuracy", "validation_accuracy", "learning_rate", "loss"]
    metrics = json.dumps({"step": 7, "metrics": dict.fromkeys(names, 0.123456)})
    script = f"echo '{metrics}' > $TFLAUNCH_PROGRESS; echo reported; exec sleep 600"
    launch.detach(launch.shell(script, strategy="none"))
    launch.wait_for_log("worker:1", "reported")
    shown, code = Terminal(launch, "stty cols 80; tflaunch ps; tflaunch ls").read_to_end()
    assert (code, max(map(len, shown.splitlines())) <= 80) == (0, True), shown
    assert max(map(len, launch.run("ps").stdout.splitlines())) > 80
    launch.run("down")
