"""What commands print with --json fits the schemas that `tflaunch schema COMMAND` prints."""

import json
import subprocess
from typing import Any

import click
import jsonschema
import pytest

from support.launch import Launch
from tflaunch.cli.json_output import schema_of_output, with_output
from tflaunch.cli.main import tflaunch

VERBS = {*with_output(), "events"}


def fits(verb: str, ended: subprocess.CompletedProcess[str]) -> Any:
    """Return what a command has printed, which must fit its schema."""
    printed = json.loads(ended.stdout)
    jsonschema.validate(printed, schema_of_output(verb))
    return printed


def test_every_command_with_json_has_a_schema() -> None:
    context = click.Context(tflaunch)
    commands = {name: tflaunch.get_command(context, name) for name in tflaunch.list_commands(context)}
    with_json = {name for name, each in commands.items() if each and any(p.name == "as_json" for p in each.params)}
    assert with_json == VERBS
    for verb in VERBS:
        jsonschema.Draft202012Validator.check_schema(schema_of_output(verb))


def test_the_output_about_runs_fits(launch: Launch) -> None:
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
    launch.detach(launch.shell("sleep 600"))
    assert [len(fits(verb, launch.run(verb, "--json"))["tasks"]) for verb in ("ps", "stacks")] == [2, 2]
    assert fits("explain", launch.run("explain", "--json"))["state"] == "running"
    launch.succeed("down")


def test_the_output_about_specs_fits(launch: Launch) -> None:
    good = launch.spec("good.json", cluster={"worker": 1}, command=["true"], env={"A": 1}, secrets={"B": {"env": "C"}})
    bad = launch.spec("bad.json", cluster={"worker": 0})
    assert fits("check", launch.run("check", "--json", good))["ok"]
    assert len(fits("check", launch.run("check", "--json", good, bad))["specs"]) == 2
    assert fits("plan", launch.run("plan", "--json", good))["tasks"]
    assert fits("doctor", launch.run("doctor", "--json", good))["hosts"]
    assert fits("warm", launch.run("warm", "--json")) == []
