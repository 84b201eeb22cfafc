"""`plan`, through the installed command."""

import json
from pathlib import Path

import jsonschema
import pytest

from support.specs import GOOD, SMALLEST_LOCAL, tflaunch, written

pytestmark = pytest.mark.cli


def test_plan_names_every_process_and_when_the_job_is_done(tmp_path: Path) -> None:
    """As JSON, in the documented format, and in words; no directory for runs is made."""
    path = written(tmp_path, GOOD["every-field"])
    shown = tflaunch("plan", path, "--json", home=tmp_path / "home")
    plan = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert {"name", "strategy", "tasks", "sidecars"} <= plan.keys()
    for task in plan["tasks"]:
        assert {"task", "host", "address", "argv", "workdir", "env"} <= task.keys()
        assert task["env"]["TFLAUNCH_TASK"] == task["task"]
    words = tflaunch("plan", path, home=tmp_path / "home", FORCE_COLOR="1")
    assert (words.returncode, words.stderr, "\x1b" in words.stdout) == (0, "", False)
    assert words.stdout.startswith("nightly: multi_worker_mirrored, done when all 3 tasks end with 0\n")
    for task in ("chief:0", "worker:0", "worker:1", "evaluator:0", "board"):
        assert f"\n{task} on " in words.stdout
    assert not (tmp_path / "home").exists()


def test_plan_takes_settings_a_name_and_a_command(tmp_path: Path) -> None:
    arguments = ("--set", "cluster.worker=1", "--name", "mine", "--json", "--", "python", "other.py", "--json")
    shown = tflaunch("plan", written(tmp_path, SMALLEST_LOCAL), *arguments, home=tmp_path / "home")
    plan = json.loads(shown.stdout)
    assert plan["name"] == "mine"
    assert [task["argv"] for task in plan["tasks"]] == [["python", "other.py", "--json"]]


def test_tasks_on_spare_hosts_have_the_documented_fields_too(tmp_path: Path) -> None:
    spares = {"spares": ["h3"], "hosts": {"h3": {"python": "/opt/python"}}}
    path = written(tmp_path, {"cluster": {"worker": ["h1", "h2"]}, "command": ["python", "train.py"], **spares})
    plan = json.loads(tflaunch("plan", path, "--json", home=tmp_path / "home").stdout)
    assert plan["variants"]
    jsonschema.validate(plan, json.loads(tflaunch("schema", "plan", home=tmp_path / "home").stdout))
