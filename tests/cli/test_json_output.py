"""What commands print with --json fits the schemas that `tflaunch schema COMMAND` prints; and what `explain` says."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import click
import jsonschema
import pytest

from support.launch import PATIENCE, Launch
from tflaunch.cli.json_output import schema_of_output, with_output
from tflaunch.cli.main import tflaunch

pytestmark = pytest.mark.cli

VERBS = {*with_output(), "events"}


def fits(verb: str, ended: subprocess.CompletedProcess[str]) -> Any:
    """Return what a command has printed, which must fit its schema."""
    printed = json.loads(ended.stdout)
    jsonschema.validate(printed, schema_of_output(verb))
    return printed


def test_every_command_with_json_has_a_schema() -> None:
    context = click.Context(tflaunch)
    commands = {name: tflaunch.get_command(context, name) for name in tflaunch.list_commands(context)}
    with_json = {
        name for name, command in commands.items() if command and any(p.name == "as_json" for p in command.params)
    }
    assert with_json == VERBS
    for verb in VERBS:
        jsonschema.Draft202012Validator.check_schema(schema_of_output(verb))


def test_the_output_about_ended_runs_fits(launch: Launch) -> None:
    """An event is a record of its own line; one without a field of its kind would not fit."""
    python = ["python3", "-c", "import no_such_module"]
    failing = launch.spec("bad.json", cluster={"worker": 1}, command=python, restart={"max": 0})
    assert launch.run("up", failing, "--name", "bad").returncode == 1
    launch.succeed("up", launch.shell("true", workers=1, collect=["*"]), "--name", "good")
    assert fits("explain", launch.run("explain", "bad", "--json"))["culprit"]["traceback"]
    assert fits("ps", launch.run("ps", "bad", "--json"))["state"] == "failed"
    assert len(fits("ls", launch.run("ls", "--json"))) == 2
    records = [json.loads(line) for line in launch.run("events", "good", "--json").stdout.splitlines()]
    assert len(records) > 5
    schema = schema_of_output("events")
    for record in records:
        jsonschema.validate(record, schema)
    joined = next(record for record in records if record["kind"] == "host_joined")
    del joined["host"]
    with pytest.raises(jsonschema.ValidationError, match="'host' is a required property"):
        jsonschema.validate(joined, schema)
    assert fits("diff", launch.run("diff", "bad", "good", "--json"))
    assert len(fits("prune", launch.run("prune", "-y", "--older-than", "0s", "--keep", "0", "--json"))["removed"]) == 2


def test_the_output_about_specs_fits(launch: Launch) -> None:
    good = launch.spec("good.json", cluster={"worker": 1}, command=["true"], env={"A": 1}, secrets={"B": {"env": "C"}})
    bad = launch.spec("bad.json", cluster={"worker": 0})
    assert fits("check", launch.run("check", "--json", good))["ok"]
    assert len(fits("check", launch.run("check", "--json", good, bad))["specs"]) == 2
    assert fits("plan", launch.run("plan", "--json", good))["tasks"]
    assert fits("doctor", launch.run("doctor", "--json", good))["hosts"]
    assert fits("warm", launch.run("warm", "--json")) == []


FOUND = (
    "worker:1 exited with code 1 (FileNotFoundError: [Errno 2] No such file or directory: 'shard-1', train.py, line 5)"
)
RAISES = """
import os

def load(path):
    return open(path)

if os.environ["TFLAUNCH_TASK"] == "worker:1":
    load("shard-1")
import time; time.sleep(600)
"""


def explained(launch: Launch, *arguments: str) -> dict[str, Any]:
    """Return what `explain --json` prints."""
    shown = launch.succeed("explain", "--json", *arguments)
    loaded: dict[str, Any] = json.loads(shown.stdout)
    return loaded


def test_a_failure_is_explained_with_its_evidence(launch: Launch) -> None:
    (launch.directory / "train.py").write_text(RAISES)
    spec = launch.spec(cluster={"worker": 2}, command=["python3", "train.py"], strategy="none", restart={"max": 0})
    assert launch.up(spec).returncode == 1
    found = explained(launch)
    assert (found["state"], found["exit_code"], found["sentence"]) == ("failed", 1, FOUND)
    assert (found["also_stopped"], found["not_restarted"]) == (["worker:0"], "restart.max is 0")
    culprit = found["culprit"]
    assert (culprit["task"], culprit["host"], culprit["attempt"]) == ("worker:1", "localhost", 0)
    assert culprit["traceback"][-1] == "FileNotFoundError: [Errno 2] No such file or directory: 'shard-1'"
    assert culprit["last_lines"] == []
    for command in found["next"]:
        launch.succeed(*shlex.split(command)[1:])
    shown = launch.run("explain").stdout
    assert shown.startswith(f"{found['run']}: failed\n{FOUND}\n")
    assert "FileNotFoundError" in shown
    assert f"next: {found['next'][0]}\n" in shown


def test_a_live_run_and_one_whose_supervisor_was_killed(launch: Launch) -> None:
    """What it says to do next is done: the run is taken over, and stopped."""
    launch.detach(launch.shell("echo on; sleep 600", strategy="none", timeouts={"lease": 60}))
    launch.wait_for_log("worker:1", "on")
    assert len(fits("ps", launch.run("ps", "--json"))["tasks"]) == 2
    assert len(fits("stacks", launch.run("stacks", "--json"))["tasks"]) == 2
    alive = fits("explain", launch.run("explain", "--json"))
    assert (alive["state"], alive["exit_code"], alive["sentence"]) == ("running", None, "running")
    assert launch.run("explain").stdout.splitlines()[0] == f"{alive['run']}: running"
    supervisor = launch.supervisor()
    supervisor.kill()
    supervisor.wait(PATIENCE)
    lost = explained(launch)
    assert lost["sentence"] == "its supervisor was killed"
    resume, down = lost["next"]
    launch.succeed(*shlex.split(resume)[1:], "-d")
    launch.succeed(*shlex.split(down)[1:])
    stopped = explained(launch)
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 143)
    assert stopped["culprit"]["task"] is None


def test_what_has_just_failed_is_explained_and_shown_first(launch: Launch) -> None:
    """Unless a run has begun since: `explain` and `logs` without RUN, and `logs -f`, which is about the live one."""
    lives = launch.shell("echo lives; exec sleep 600", strategy="none")
    launch.detach(lives)
    failing = launch.spec("failing.json", cluster={"worker": 1}, command=["sh", "-c", "echo fails; exit 3"])
    assert launch.up(failing, "--set", "restart.max=0").returncode == 3
    assert explained(launch)["exit_code"] == 3
    assert [launch.run("logs", *task).stdout for task in ([], ["worker"])] == ["fails\n", "fails\n"]
    launch.wait_for_log("worker:1", "lives")
    launch.detach(lives, "--name", "later")
    launch.succeed("down", "job")
    assert explained(launch)["run"].startswith("later-")
    launch.succeed("down")
