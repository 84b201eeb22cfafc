"""Which arguments of the command line are tflaunch's own, where specs are read from, and what commands import.

Pydantic takes longer to import than most commands take to run, psutil a tenth of that. What belongs to a place where a
run can live is imported for the runs that live there.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from support.launch import Launch
from support.specs import SMALLEST, SMALLEST_LOCAL, tflaunch, written

TOML = '# two workers\nname = "mine"\ncommand = ["python", "train.py"]\n[cluster]\nworker = 2\n'
YAML = "# two workers\nname: mine\ncluster: {worker: 2}\ncommand: [python, train.py]\n"
JSON = json.dumps({"name": "mine", **SMALLEST_LOCAL})

OPEN = ("--set", "network=open")
"""Without it, `-q` shows a warning where ordinary users may not fence ports."""


class TestRun:
    @pytest.mark.parametrize("dashes", [(), ("--",)])
    def test_options_end_at_the_first_word_of_the_command(self, dashes: tuple[str, ...], tmp_path: Path):
        command = ["python", "a.py", "--name", "mnist", "-n", "8", "--chief", "-d", "--epochs", "3", "--", "x"]
        saved = tflaunch("run", "-n", "2", "--name", "mine", "--save=-", *dashes, *command, home=tmp_path)
        assert (saved.returncode, saved.stderr) == (0, "")
        assert json.loads(saved.stdout) == {"name": "mine", "cluster": {"worker": 2}, "command": command}

    def test_variables_gpus_a_limit_and_tensorboard_have_options(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """As docker has them: a variable of its own counts more than one in the file, one without a value is ours."""
        (tmp_path / "job.env").write_text("# ours\nA=1 2\n\n  B=x=y\nOURS\n")
        monkeypatch.setenv("OURS", "here")
        options = ("-n2", "--chief", "--env-file", tmp_path / "job.env", "-e", "A=3", "--gpus", "1", "--timeout", "1h")
        saved = tflaunch("run", *options, "--tensorboard", "logs", "--save=-", "python", "train.py", home=tmp_path)
        assert (saved.returncode, saved.stderr) == (0, "")
        spec = json.loads(saved.stdout)
        assert spec["env"] == {"A": "3", "B": "x=y", "OURS": "here"}
        assert spec["roles"] == {"chief": {"gpus": 1}, "worker": {"gpus": 1}}
        assert (spec["timeouts"], spec["tensorboard"]) == ({"deadline": "1h"}, "logs")

    def test_quiet_shows_output_and_failures_only(self, launch: Launch):
        """In the background, only the name of the run."""
        done = launch.succeed("run", "-q", "-d", *OPEN, "-n", 1, "sh", "-c", "echo out; sleep 0.2")
        assert (done.stdout, done.stderr) == (f"{launch.run_directory().name}\n", "")
        launch.succeed("wait")
        done = launch.succeed("run", "-q", *OPEN, "-n", 1, "echo", "out")
        assert (done.stdout, done.stderr) == ("worker:0 | out\n", "")
        failed = launch.run("run", "-q", *OPEN, "-n", 1, "sh", "-c", "exit 5", code=5)
        assert failed.stderr.startswith("tflaunch: worker:0 exited with code 5\n")

    def test_options_need_not_be_text(self, launch: Launch, tmp_path: Path):
        """Nor variables, names of files and directories: all that Linux passes on reaches the program."""
        odd = os.fsdecode(b"a\xffb")
        launch.env["HERE"] = odd
        script = 'printf %s "$1$HERE$GIVEN$(pwd)" > "$1"'
        words = ("run", "-n", 1, *OPEN, "-e", "HERE", "-e", f"GIVEN={odd}", "--set", f"workdir={tmp_path / odd}")
        (tmp_path / odd).mkdir()
        launch.succeed(*words, "sh", "-c", script, "sh", odd)
        written = (tmp_path / odd / odd).read_bytes()
        assert written == b"a\xffb" * 3 + os.fsencode(tmp_path / odd)

    @pytest.mark.parametrize(
        ("hosts", "number", "workers"),
        [
            ("h1:4,h2:4", ("-n", "5"), ["h1", "h1", "h1", "h1", "h2"]),
            ("h1:2,h2", (), ["h1", "h1", "h2"]),
            ("h1:2222,h2:2222", (), ["h1:2222", "h2:2222"]),
            ("h1:1023", ("-n", "1"), ["h1"]),
            ("h1:1024", (), ["h1:1024"]),
            ("[::1]:2", (), ["[::1]", "[::1]"]),
        ],
    )
    def test_a_small_number_behind_a_host_counts_its_workers(
        self, hosts: str, number: tuple[str, ...], workers: list[str], tmp_path: Path
    ):
        """As users of mpirun expect; it cannot be a port that an ordinary user may listen on."""
        saved = tflaunch("run", "-H", hosts, *number, "--save=-", "true", home=tmp_path)
        assert json.loads(saved.stdout)["cluster"] == {"worker": workers}
        assert ("counts workers" in saved.stderr) == (not workers[0][-4:].isdecimal())


class TestStandardInput:
    """`-` instead of a file."""

    def test_every_format_is_recognized(self, tmp_path: Path):
        for text in (JSON, YAML, TOML):
            shown = tflaunch("plan", "-", "--json", home=tmp_path, cwd=tmp_path, typed=text)
            plan = json.loads(shown.stdout)
            assert (plan["name"], Path(plan["tasks"][0]["workdir"])) == ("mine", tmp_path)
        checked = tflaunch("check", "-", home=tmp_path, typed=TOML)
        assert (checked.returncode, checked.stdout) == (0, "<stdin>: ok\n")

    def test_it_runs(self, tmp_path: Path):
        spec = json.dumps({"cluster": {"worker": 1}, "command": ["echo", "hello"]})
        done = tflaunch("up", "-", home=tmp_path, cwd=tmp_path, typed=spec)
        assert (done.returncode, done.stdout) == (0, "worker:0 | hello\n")
        (kept,) = tmp_path.glob("runs/*/spec.json")
        assert kept.read_text() == spec


class TestUsualSpec:
    """No SPEC at all."""

    def test_the_spec_in_this_directory_is_taken(self, tmp_path: Path):
        """By the commands that read one; with a command of one's own, if there is one."""
        for name, text in (("cluster.toml", TOML), ("cluster.json", JSON), ("cluster.yml", YAML)):
            path = tmp_path / name
            path.write_text(text)
            checked = tflaunch("check", home=tmp_path, cwd=tmp_path)
            assert (checked.returncode, checked.stdout) == (0, f"{name}: ok\n")
            path.unlink()
        path.write_text(YAML)
        for command in (["plan"], ["render", "--to", "slurm"]):
            with_it = tflaunch(command[0], name, *command[1:], home=tmp_path, cwd=tmp_path)
            without = tflaunch(*command, home=tmp_path, cwd=tmp_path)
            assert (without.returncode, without.stdout) == (0, with_it.stdout)
        done = tflaunch("up", "--set", "cluster.worker=1", "--", "echo", "hello", home=tmp_path, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "worker:0 | hello\n")


def test_runs_are_listed_by_state_number_and_time(launch: Launch) -> None:
    for program in ("true", "false", "true"):
        launch.run("run", "-q", *OPEN, "-n", 1, "--name", program, "--set", "restart.max=0", program)
    launch.run("run", "-q", "-d", *OPEN, "-n", 1, "--name", "sleep", "sleep", 1000)

    def names(*options: object) -> list[str]:
        return [run["name"] for run in json.loads(launch.run("ls", "--json", *options).stdout)]

    assert names() == ["sleep", "true", "false", "true"]
    assert names("-n", 2) == ["sleep", "true"]
    assert names("--state", "live") == ["sleep"]
    assert names("--state", "succeeded", "--state", "failed", "-n", 2) == ["true", "false"]
    assert names("--since", "1h", "--state", "failed") == ["false"]
    assert launch.run("ls", "--since", "2099-01-01").stderr == "tflaunch: no such runs\n"
    launch.succeed("down", "sleep")


def test_json_of_many_specs_says_which_problem_is_whose(tmp_path: Path):
    """In addition to the fields of a single spec; a mistake in any of them gives exit code 2."""
    good = written(tmp_path, {**SMALLEST, "hosts": {"gamma": {}}}, "good.json")
    bad, none = written(tmp_path, {**SMALLEST, "nmae": "x"}, "bad.json"), tmp_path / "none.json"
    checked = tflaunch("check", "--json", good, bad, home=tmp_path)
    found = json.loads(checked.stdout)
    assert (checked.returncode, found["ok"]) == (2, False)
    assert [(each["spec"], each["ok"]) for each in found["specs"]] == [(str(good), True), (str(bad), False)]
    assert [problem for each in found["specs"] for problem in each["problems"]] == found["problems"]
    (warning,) = found["specs"][0]["problems"]
    assert (warning["severity"], warning["where"]) == ("warning", "hosts.gamma")
    assert tflaunch("check", good, home=tmp_path).returncode == 0
    lines = tflaunch("check", good, bad, none, home=tmp_path).stdout.splitlines()
    assert [*dict.fromkeys(line.partition(": ")[0] for line in lines)] == [str(good), str(bad), str(none)]


PROGRAM = """
import os, sys
del sys.argv[0]
from tflaunch.cli.main import run_command_line
code = run_command_line()
slow = {"paramiko", "psutil", "pydantic", "pydantic_core", "yaml"}
imported = {name.partition(".")[0] for name in sys.modules} & slow
elsewhere = {
    *("tflaunch.features.slurm.jobs", "tflaunch.features.slurm.location"),
    *("tflaunch.features.kubernetes.kubectl", "tflaunch.features.kubernetes.location"),
    "tflaunch.features.queue.location",
}
imported |= sys.modules.keys() & elsewhere
open("imported", "w").write(" ".join(sorted(imported)))
sys.exit(code)
"""


def imported_by(launch: Launch, *arguments: object) -> tuple[int, str]:
    """Return a command's exit code, and the slow packages and places that it imported."""
    launch.prefix = [sys.executable, "-c", PROGRAM]
    code = launch.run(*arguments).returncode
    launch.prefix = []
    return code, (launch.directory / "imported").read_text()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A directory with a run that has ended."""
    place = Launch(tmp_path_factory.mktemp("ended"))
    place.succeed("up", place.shell("echo hello", workers=1))
    return place


WITHOUT_SPEC = (
    "--version, ls, ps --json, logs --since 1h30m, events, wait, attach, down -t 1m, report --dry-run, "
    "prune --dry-run --keep 0 --older-than 0s"
)


@pytest.mark.parametrize("command", WITHOUT_SPEC.split(", "))
def test_a_command_that_reads_no_spec_imports_none_of_them(ended: Launch, command: str):
    """Whether or not the command succeeds; only `report` describes this machine, which psutil knows."""
    code, imported = imported_by(ended, *command.split())
    assert code in (0, 2)
    assert imported == ("psutil" if command.startswith("report") else "")


def test_a_live_run_is_watched_and_ended_without_pydantic(launch: Launch):
    launch.detach(launch.shell("echo hello; exec sleep 600", workers=1))
    for verb in ("ps", "down", "wait"):
        assert imported_by(launch, verb)[1] == "", verb


@pytest.mark.parametrize("verb", ["plan", "check", "up"])
def test_a_command_that_reads_a_spec_imports_no_more_than_its_format_needs(launch: Launch, verb: str):
    assert imported_by(launch, verb, launch.shell("true", workers=1)) == (0, "pydantic pydantic_core")
