"""The effect of spec fields on a whole run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.specs import SMALLEST_LOCAL, tflaunch, written

pytestmark = pytest.mark.cli


def test_placeholders_are_filled_in_at_every_attempt(launch: Launch) -> None:
    """With the ports of TF_CONFIG, which differ each time."""
    script = """
        echo "{attempt} {task.name} $RANK {cluster.worker} {run}"
        echo "$TF_CONFIG" | grep -q "$(echo '{cluster.worker}' | sed 's/,/","/g')" || exit 9
        [ {attempt} = 1 ]
    """
    spec = launch.shell(script, strategy="none", env={"RANK": "{task.index}"}, restart={"backoff": ["10ms", "1s"]})
    done = launch.up(spec)
    assert done.returncode == 0, done.stderr
    run = launch.run_directory().name
    lines = [line.split() for line in (launch.log("worker:0") + launch.log("worker:1")).splitlines()]
    assert {(line[0], line[1], line[2], line[4]) for line in lines if line[0] == "1"} == {
        ("1", "worker:0", "0", run),
        ("1", "worker:1", "1", run),
    }
    assert len({line[3] for line in lines if line[0] == "1"}) == 1
    assert {line[3] for line in lines if line[0] == "0"}.isdisjoint(line[3] for line in lines if line[0] == "1")


def test_sidecars_alone_are_a_job_until_the_required_ones_have_ended(launch: Launch) -> None:
    """Sidecars that are not required are then stopped."""
    sidecars = {
        "a": {"command": ["echo", "done"], "required": True},
        "b": {"command": ["sh", "-c", "exit 0"], "required": True},
        "c": {"command": ["sleep", "1000"]},
    }
    done = launch.up(launch.spec(sidecars=sidecars))
    assert (done.returncode, done.stdout) == (0, "a | done\n")
    assert "done: 3 tasks" in done.stderr


def test_a_required_sidecar_that_fails_is_the_culprit(launch: Launch) -> None:
    """As in a job with a cluster."""
    sidecars = {"a": {"command": ["sh", "-c", "exit 7"], "required": True}, "b": {"command": ["sleep", "1000"]}}
    done = launch.up(launch.spec(sidecars=sidecars, restart={"max": 0}))
    assert done.returncode == 7
    assert "a exited with code 7" in done.stderr


def test_settings_of_every_host_hold_on_each(launch: Launch) -> None:
    """A host's own settings take precedence."""
    hosts = {"*": {"env": {"A": "all", "B": "all"}}, "localhost": {"env": {"B": "own"}}}
    done = launch.up(launch.shell("echo $A $B", workers=1, hosts=hosts))
    assert (done.returncode, done.stdout) == (0, "worker:0 | all own\n")


def test_defaults_are_shown_with_their_file(tmp_path: Path) -> None:
    """By `plan`, as text and as JSON."""
    spec = written(tmp_path, SMALLEST_LOCAL)
    beside = tmp_path / "tflaunch.toml"
    beside.write_text("[restart]\nmax = 7\n")
    places: dict[str, Any] = {"home": tmp_path, "TFLAUNCH_CONFIG": str(tmp_path / "user.toml")}
    (tmp_path / "user.toml").write_text("[env]\nSITE = 'here'\n")
    shown = json.loads(tflaunch("plan", "--json", spec, **places).stdout)
    assert shown["origins"] == {"restart.max": str(beside), "env.SITE": str(tmp_path / "user.toml")}
    assert (shown["restart"]["max"], shown["tasks"][0]["env"]["SITE"]) == (7, "here")
    assert f"  default  restart.max from {beside}\n" in tflaunch("plan", spec, **places).stdout


def test_a_mistake_in_defaults_names_their_file(tmp_path: Path) -> None:
    """Whether the mistake is in that file alone or in combination with the spec."""
    spec = written(tmp_path, SMALLEST_LOCAL)
    beside = tmp_path / "tflaunch.toml"
    beside.write_text("[restart]\nmaximum = 7\n")
    checked = tflaunch("check", spec, home=tmp_path, TFLAUNCH_CONFIG=str(beside))
    assert checked.stdout.startswith(f"{beside}: error: restart.maximum: unknown field")
    beside.write_text("[timeouts]\nheartbeat = 0.1\n")
    checked = tflaunch("check", spec, home=tmp_path, TFLAUNCH_CONFIG=str(beside))
    assert (checked.returncode, f"(from {beside})" in checked.stdout) == (2, True)
