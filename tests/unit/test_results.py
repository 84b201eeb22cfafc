"""The summary's line about what tasks have written beside a copy of the code."""

from __future__ import annotations

from typing import Any

import pytest

from support.job_history import Willing
from support.specs import clustered
from tflaunch.core.events import FilesSynced, TaskExited, TaskGone
from tflaunch.explain import summary

pytestmark = pytest.mark.unit


def last_line(exit_code: int = 0, **fields: Any) -> str:
    """Return the end of the summary of a job that ran on h1, to which the code was copied."""
    job = Willing(clustered({"worker": ["h1"]}, restart={"max": 0}, strategy="none", **fields))
    if "sync" in fields:
        job.happens(FilesSynced("h1", "/home/ann/.local/state/tflaunch/runs/run/agents/h1/code"))
    job.happens(TaskExited("h1", "worker:0", 0, exit_code, None, 1.0), TaskGone("h1", "worker:0", 0))
    assert job.job.exit_code == exit_code
    return summary.summary(job.job, "/logs", lambda *_: []).split("\n")[-1]


@pytest.mark.parametrize("exit_code", [0, 7])
def test_results_beside_the_copied_code_are_told_with_a_command(exit_code: int) -> None:
    """Whether the job has succeeded or not; it reaches all hosts, however the run did."""
    assert last_line(exit_code, sync={}).endswith("beside the copied code; next: tflaunch fetch run PATH…")


@pytest.mark.parametrize("fields", [{}, {"sync": {}, "workdir": "/data"}])
def test_nothing_is_said_of_files_that_are_elsewhere(fields: dict[str, Any]) -> None:
    """The tasks ran beside the user's own files, or in another directory."""
    assert "relative paths" not in last_line(**fields)
