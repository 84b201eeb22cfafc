"""What an agent tells about tasks that it was not asked to start."""

from __future__ import annotations

import pytest

from support.joined_host import joined_host
from tflaunch.features.hang.evidence_collector import gather_evidence

pytestmark = pytest.mark.unit


def test_only_evidence_of_tasks_that_it_was_asked_to_start_is_passed_on() -> None:
    host = joined_host()
    told: list[str] = []
    ended: list[bool] = []
    for call, known, attempt in ((2, "worker:0", 0), (3, "worker:0", 1), (4, "worker:1", 0)):
        gather_evidence(host.session, lambda found: told.append(found.task), ended.append)
        about = {"task": known, "attempt": attempt, "silence": None, "progress": None, "processes": []}
        host.tells("told", call=call, **about)
        host.tells("answered", call=call)
    assert (told, ended) == (["worker:0"], [True] * 3)
    assert not host.lost()
