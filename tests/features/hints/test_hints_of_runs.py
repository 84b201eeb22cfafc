"""Hints in what users read of a run that has failed."""

from __future__ import annotations

from typing import Any

import pytest

from support.job_history import History, mirrored
from support.specs import MACHINE, planned
from tflaunch.core.annotations import NOTHING
from tflaunch.core.job_state import Cause, Culprit
from tflaunch.explain import summary
from tflaunch.explain.hints import Facts, find_hint

pytestmark = pytest.mark.unit

HEAD = "Traceback (most recent call last):"
ON_H1 = MACHINE._replace(local_names=frozenset({"h1"}))
TWO_HOSTS = {
    "cluster": {"worker": ["h1:1", "h2:2"]},
    "command": ["python", "train.py"],
    "hosts": {"h2": {"python": "/opt/py/bin/python"}},
}


def test_a_module_missing_elsewhere_is_told_with_host_and_interpreter() -> None:
    job = History(planned(TWO_HOSTS, ON_H1)).job
    log = [HEAD, '  File "train.py", line 1, in <module>', "ModuleNotFoundError: No module named 'tensorflow'"]
    here, there = (summary.hint_for(job, task, lambda *_: log) for task in ("worker:0", "worker:1"))
    assert here == (
        "tensorflow is not installed for python: python -m pip install it, or if it is your own module, set "
        "`env.PYTHONPATH` to its directory"
    )
    assert there == (
        "tensorflow is not installed for /opt/py/bin/python on h2: install it there, or set hosts.h2.python to a "
        "Python that has it; `sync` copies modules of your own"
    )
    culprit = Culprit(Cause.TASK, "worker:1", 0, 1, None, "", host="h2")
    text = summary.summary(job._replace(culprit=culprit, exit_code=1), "/logs", lambda *_: log)
    assert "\ntraceback of worker:1 (/opt/py/bin/python on h2):\n" in text


def test_of_tasks_that_blame_each_other_the_one_that_names_a_cause_is_believed() -> None:
    """The first to exit may only have heard of it."""
    history = mirrored(2, restart={"max": 0}).ends("worker:0", 1).ends("worker:1", 1)
    heard = "UnavailableError: Collective ops is aborted by: Error reported from /job:worker/replica:0/task:1: failed"
    cause = "InternalError: Collective ops is aborted by: NCCL: invalid usage"
    frame = '  File "train.py", line 9, in <module>'
    logs = {"worker:0": [HEAD, frame, heard], "worker:1": [HEAD, frame, cause]}
    hint = summary.failure(history.job, lambda task, _: logs[task], history.known).hint or ""
    assert hint.startswith("worker:1 tells the cause: two tasks use one GPU")


def test_a_tensorboard_that_is_not_installed() -> None:
    """How to install it, as no summary tells of a sidecar."""
    said = ["ImportError: Error while finding module specification for 'tensorboard.main' (ModuleNotFoundError: …)"]
    hint = find_hint(said, Facts("none", "tensorboard"))
    assert hint is not None
    assert "install tensorboard" in hint


@pytest.mark.parametrize(
    ("earlier", "words"),
    [
        ({"code": None, "signal": 9}, "the tasks continued from different steps"),
        ({"code": 1, "failure": "InternalError at train.py:9"}, "the tasks do not run the same steps"),
    ],
)
def test_what_an_attempt_began_with_is_not_blamed_for_what_recurs(earlier: dict[str, Any], words: str) -> None:
    history = mirrored(2, restart={"max": 1, "backoff": [1, 1]})
    history.ends("worker:0", **earlier).ends("worker:1", None, 9).wait().start()
    history.ends("worker:0", 1, failure="InternalError at train.py:7").ends("worker:1", None, 9)
    said = "InternalError: Collective instance 104 expected type 0 and data_type 1 but got type 1 and data_type 1"
    hint = summary.failure(history.job, lambda *_: [HEAD, '  File "train.py", line 7, in fit', said], NOTHING).hint
    assert (hint or "").startswith(words)
