"""Collecting files while the tasks run, beside the thread that supervises them."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.job_history import HERE, mirrored
from tflaunch.core import step
from tflaunch.features.files.collector import Collector
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.loop import Collaborators, Run

pytestmark = pytest.mark.unit

PATIENCE = 60


class Gate(dict[str, Any]):
    """Sessions that a thread finds only once the gate is open."""

    def __init__(self) -> None:
        super().__init__({HERE: SimpleNamespace(calls=SimpleNamespace(begin=lambda *_, **__: None))})
        self.entered, self.is_open = threading.Event(), threading.Event()

    def __getitem__(self, host: str) -> Any:
        """Return a session whose host never answers."""
        self.entered.set()
        assert self.is_open.wait(PATIENCE)
        return super().__getitem__(host)


def test_a_collection_that_begins_as_the_run_ends_does_not_block_it(tmp_path: Path) -> None:
    mailbox, sessions, history = Mailbox(), Gate(), mirrored(collect=["out/*"])
    config = SimpleNamespace(directory=SimpleNamespace(path=tmp_path / "run"), extras={"collect_every": 0.0})
    supervision: Any = SimpleNamespace(config=config, job=history.job, sessions=sessions, mailbox=mailbox)
    collector = Collector(supervision)
    collector.watch(history.job, mailbox.now())
    while not sessions.entered.is_set():
        mailbox.take(mailbox.now() + 0.01)
    mailbox.call(sessions.is_open.set)  # which waits for this thread, as what the agent is asked does
    parts: Any = Collaborators(mailbox, *[None] * 5)  # type: ignore[arg-type]
    run = Run(step.begin_job("run", history.job.original, mailbox.now()), parts)
    ending = threading.Thread(target=collector.finish, args=(run,), daemon=True)
    ending.start()
    ending.join(PATIENCE)
    assert not ending.is_alive()
