"""What documents state in words, where no block of commands shows it."""

from __future__ import annotations

import json
import re

import pytest

from support.launch import Launch
from support.specs import REPOSITORY
from tflaunch.clusterspec.schema import json_schema
from tflaunch.clusterspec.values import parse_duration
from tflaunch.transport.bootstrap import build_archive

pytestmark = pytest.mark.cli

DOCS = REPOSITORY / "docs"
ALONE = ("-n", "1", "--set", "strategy=none", "--set", "restart.max=0", "--")


@pytest.mark.parametrize("code", [1, 2, 3, 123])
def test_a_program_may_exit_with_any_code(launch: Launch, code: int) -> None:
    """docs/commands.md: 2 and 3 do not tell that nothing was started."""
    assert launch.run("run", *ALONE, "sh", "-c", f"exit {code}").returncode == code
    (run,) = json.loads(launch.run("ls", "--json").stdout)
    assert (run["state"], run["exit_code"]) == ("failed", code)


def test_a_wrong_spec_starts_nothing(launch: Launch) -> None:
    assert launch.run("up", launch.spec(comand=["true"])).returncode == 2
    assert json.loads(launch.run("ls", "--json").stdout) == []


def test_of_several_live_runs_one_has_to_be_named(launch: Launch) -> None:
    """docs/tutorial.md, running.md and commands.md: commands without a name take the live run, if there is one only."""
    sleeps = launch.shell("sleep 60", workers=1)
    first, second = (launch.run("up", "-d", sleeps).stdout.strip() for _ in range(2))
    refused = launch.run("ps")
    assert (refused.returncode, first in refused.stderr, second in refused.stderr) == (2, True, True)
    assert launch.run("down", second).returncode == 0
    assert launch.run("ps").stdout.startswith(first)
    assert launch.run("down").returncode == 0
    assert launch.run("ps").stdout.startswith((first, second)), "the newest, if none is live; both began in one second"


def test_the_page_of_fields_has_the_defaults_of_the_code() -> None:
    """Of time limits, restarts and what is kept."""
    page = (DOCS / "spec.md").read_text()
    parts = json_schema()["$defs"]
    (row,) = [line for line in page.splitlines() if line.startswith("| `timeouts` |")]
    shown = {name: parse_duration(text) for name, text in re.findall(r"`(\w+)` \((\w+)", row)}
    limits = {name: about.get("default") for name, about in parts["Timeouts"]["properties"].items()}
    assert shown.pop("lease") == 30
    assert shown == {name: limits[name] for name in ("connect", "grace", "heartbeat", "lost_host")}
    assert {name for name, default in limits.items() if default is None} == {*off(row), "lease"}
    assert written(page, "restart") == {"max": 3, "window": "10m", "backoff": ["1s", "1m"]}
    assert parts["Restart"]["properties"]["window"]["default"] == 600
    assert written(page, "retention") == {"keep": 10, "older_than": "30d"}
    assert parts["Retention"]["properties"]["older_than"]["default"] == 30 * 86400


def off(row: str) -> set[str]:
    """Return the fields that a row calls off by default."""
    return set(re.findall(r"`(\w+)`", row.partition("Off by default")[2]))


def written(page: str, field: str) -> dict[str, object]:
    """Return the example in the row of a field."""
    (text,) = re.findall(rf"^\| `{field}` \| `(\{{.*?\}})`", page, re.MULTILINE)
    found: dict[str, object] = json.loads(text)
    return found


def test_the_agent_is_as_small_as_the_page_says() -> None:
    assert "its agent (less than 1 MB)" in (DOCS / "ssh.md").read_text()
    assert len(build_archive().data) < 1_000_000
