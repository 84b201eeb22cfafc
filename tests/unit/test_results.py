"""The summary's list of task results, with the commands that copy them here."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from support.job_history import Willing
from support.specs import clustered
from tflaunch.core.events import FilesSynced, TaskExited, TaskGone
from tflaunch.explain import summary

pytestmark = pytest.mark.unit

CODE = "/home/ann/.local/state/tflaunch/runs/run/agents/h1/code"


def summary_lines(code: str = CODE, exit_code: int = 0, **host: Any) -> list[str]:
    """Return the summary of a job that ran on h1, to which the code was copied."""
    job = Willing(clustered({"worker": ["h1"]}, hosts={"h1": host}, sync={}, restart={"max": 0}, strategy="none"))
    job.happens(FilesSynced("h1", code))
    job.happens(TaskExited("h1", "worker:0", 0, exit_code, None, 1.0), TaskGone("h1", "worker:0", 0))
    assert job.job.exit_code == exit_code
    return summary.summary(job.job, "/logs", lambda *_: []).split("\n")


@pytest.mark.parametrize("exit_code", [0, 7])
def test_results_beside_the_copied_code_are_told_with_a_command(exit_code: int) -> None:
    """Whether the job has succeeded or not."""
    title, command = summary_lines(exit_code=exit_code)[-2:]
    assert title == "what was written to relative paths is on the hosts, beside the copied code; to copy it here:"
    assert command == f"  scp -r h1:{CODE} run-h1"


@pytest.mark.parametrize(
    ("host", "command"),
    [
        ({"ssh": "ann@10.0.0.1:2222"}, ["scp", "-r", "-P", "2222", f"ann@10.0.0.1:{CODE}", "run-h1"]),
        ({"ssh": "bob@h9", "identity_file": "/keys/a b"}, ["scp", "-r", "-i", "/keys/a b", f"bob@h9:{CODE}", "run-h1"]),
        ({"docker": "box"}, ["docker", "cp", f"box:{CODE}", "run-h1"]),
    ],
)
def test_the_command_reaches_the_host_as_tflaunch_did(host: dict[str, Any], command: list[str]) -> None:
    """With the same user, port and key, or through the container engine."""
    assert shlex.split(summary_lines(**host)[-1]) == command


@pytest.mark.parametrize("code", ["", "relative", "/a\nb", "/a\x1b[2J"])
def test_a_place_that_cannot_be_one_is_not_told(code: str) -> None:
    """The host reports the path."""
    assert not [line for line in summary_lines(code) if "copy" in line or "scp" in line]


def test_a_command_can_be_pasted_whatever_the_place() -> None:
    """A shell parses it as one argument."""
    assert shlex.split(summary_lines("/a b/$(id); x")[-1]) == ["scp", "-r", "h1:/a b/$(id); x", "run-h1"]


def test_nothing_is_said_without_sync() -> None:
    """Then the tasks ran beside the user's own files."""
    job = Willing(clustered({"worker": ["h1"]}, strategy="none"))
    job.happens(TaskExited("h1", "worker:0", 0, 0, None, 1.0), TaskGone("h1", "worker:0", 0))
    assert "copy" not in summary.summary(job.job, "/logs", lambda *_: [])
