"""When an agent samples its tasks to tell where they are."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from support.still_loop import StillLoop
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.features.hang.evidence import BETWEEN, EvidenceCollector

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("between", "lasts"), [(None, BETWEEN), (0.5, 0.5)])
def test_the_pause_between_the_samples_is_as_asked(between: float | None, lasts: float) -> None:
    """And a question during another one gets the same answer."""
    loop = StillLoop()
    collector = EvidenceCollector(cast("Loop", loop))
    answers: list[Any] = []
    began = loop.now()
    collector.ask(lambda: {"worker:0": os.getpid()}, answers.append, between=between)
    collector.ask(lambda: {"worker:0": os.getpid()}, answers.append)
    while not answers:
        loop.next()
    assert loop.now() - began == pytest.approx(lasts)
    assert len(answers) == 2
    assert answers[0] is answers[1]
    assert os.getpid() in [process["pid"] for process in answers[0]["worker:0"]]
