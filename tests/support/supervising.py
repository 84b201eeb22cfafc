"""What the watchers of a run get, for tests of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tflaunch.core.job_state import Job
from tflaunch.runtime.run_config import RunConfig
from tflaunch.runtime.watchers import Supervision
from tflaunch.store.run_dir import RunDirectory


def supervision(
    job: Job,
    directory: Path,
    mailbox: Any = None,
    sessions: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
    journal: Any = None,
    **config: Any,
) -> Supervision:
    """Return the supervision of a job whose run has this directory; nobody asks for its status, or measures."""
    settings = RunConfig(RunDirectory.existing(directory, directory / "logs"), None, say, **config)

    def nobody(*_: object) -> Any:
        raise AssertionError("a watcher has asked for the status")

    return Supervision(
        job, settings, journal, mailbox, sessions or {}, say, nobody, lambda _: None, has_taken_over=False
    )
