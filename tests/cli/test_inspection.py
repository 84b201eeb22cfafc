"""`check`, `schema` and the help, through the installed command."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.launch import Launch
from support.specs import GOOD, REPOSITORY, SMALLEST_LOCAL, tflaunch
from support.terminals import Terminal
from tflaunch import __version__

VERBS = ("up", "plan", "env", "check", "schema")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory for runs; nothing here creates one."""
    return tmp_path / "home"


def test_the_specs_that_come_with_tflaunch_are_ok(home: Path):
    """What `check` says of bad ones is in test_mistakes.py."""
    paths = sorted((REPOSITORY / "cluster_specs").glob("*.json"))
    words = tflaunch("check", *paths, home=home)
    assert (words.returncode, words.stderr) == (0, "")
    assert words.stdout.splitlines() == [f"{path}: ok" for path in paths]
    as_json = tflaunch("check", paths[0], "--json", home=home)
    assert (as_json.returncode, as_json.stderr) == (0, "")
    one = {"spec": str(paths[0]), "ok": True, "problems": []}
    assert json.loads(as_json.stdout) == {"ok": True, "problems": [], "specs": [one]}


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
    @pytest.mark.parametrize("flag", ["--help", "-h"])
    def test_help_names_the_verbs_that_most_people_need_and_an_example(self, flag: str, home: Path):
        """On stdout, with exit code 0; at most 24, those before a run first."""
        assert tflaunch("--version", home=home).stdout == f"tflaunch {__version__}\n"
        shown = tflaunch(flag, home=home)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "Example:\n    tflaunch up cluster.json" in shown.stdout
        listed = re.findall(r"^  ([a-z]+) +[A-Z]", shown.stdout, re.MULTILINE)
        assert len(listed) <= 24
        assert listed[:6] == ["run", "up", "check", "doctor", "drill", "init"]
        assert shown.stdout.endswith("\nMore: tflaunch help --all\n")

    def test_without_any_word_the_help_is_shown(self, home: Path):
        shown = tflaunch(home=home)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert shown.stderr.endswith("\nMore: tflaunch help --all\n")

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
