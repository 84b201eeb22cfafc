"""When an agent samples its tasks to tell where they are."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from support.still_loop import StillLoop
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.features.hang.evidence import BETWEEN, EvidenceCollector

pytestmark = pytest.mark.unit


def test_two_samples_are_taken_with_a_pause() -> None:
    loop = StillLoop()
    collector = EvidenceCollector(cast("Loop", loop))
    answers: list[Any] = []
    began = loop.now()
    collector.ask(lambda: {"worker:0": os.getpid()}, answers.append)
    collector.ask(lambda: {"worker:0": os.getpid()}, answers.append)
    while not answers:
        loop.next()
    assert loop.now() - began == pytest.approx(BETWEEN)
    assert len(answers) == 2
    assert answers[0] is answers[1]
    assert os.getpid() in [process["pid"] for process in answers[0]["worker:0"]]
