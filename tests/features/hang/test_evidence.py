"""Evidence of where tasks are: when an agent takes it, what is accepted, and why tasks do not listen in time."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from support.job_history import HERE, History
from support.joined_host import joined_host
from support.specs import clustered
from support.still_loop import StillLoop
from tflaunch.core import policy
from tflaunch.core.events import HostJoined, PortsHeld, TaskStarted, TimePassed
from tflaunch.core.measures import Progress
from tflaunch.explain.status import StatusInputs, status
from tflaunch.features.hang import late_start
from tflaunch.features.hang.evidence import Evidence, Frame, Process, Thread
from tflaunch.features.hang.evidence_collector import gather_evidence
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.features.hang.evidence import BETWEEN, EvidenceCollector

pytestmark = pytest.mark.unit

LIBRARY = "/venv/lib/python3.11/site-packages/tensorflow"
LOAD = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
IMPORTS = (LOAD, Frame(f"{LIBRARY}/python/__init__.py", 36, "<module>"), LOAD, Frame("/code/train.py", 1, "<module>"))
READS = (Frame("/code/data.py", 40, "read"), Frame("/code/train.py", 9, "<module>"))
TRAINS = (Frame(f"{LIBRARY}/python/eager/execute.py", 53, "quick_execute"), Frame("/code/train.py", 28, "<module>"))


def late(strategy: str, frames: tuple[Frame, ...], cpu: float = 0.0, step: int | None = None) -> str:
    """Return the hint about a job whose tasks, which all stand there, have not listened for a minute."""
    cluster = {"worker": 2} if strategy == "multi_worker_mirrored" else {"chief": 1, "ps": 1, "worker": 1}
    history = History(clustered(cluster, strategy=strategy)).happens(HostJoined(HERE))
    names = [task.task for task in history.job.plan.tasks]
    history.happens(PortsHeld(HERE, {name: 20000 + number for number, name in enumerate(names)}))
    history.happens(*(TaskStarted(HERE, name, 0, 1, 0.0) for name in names))
    history.now += policy.WARN_AFTER
    history.happens(TimePassed())
    threads = (Thread(7, "S", "futex_do_wait", "", False, frames),)
    progress = None if step is None else Progress(step, None, None, None, None, {}, 1.0)
    found = {
        name: Evidence(name, 0, None, progress, (Process(7, "python", "S", cpu, "", threads, ()),)) for name in names
    }
    return late_start.explain(history.job, status(history.job, StatusInputs(0.0, "", True, history.now)), found)


SERVERS, MIRRORED = "parameter_server", "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("strategy", "frames", "cpu", "step", "words"),
    [
        (MIRRORED, IMPORTS, 0.9, None, "worker:0, worker:1 still import tensorflow (0.9 CPUs): that"),
        (MIRRORED, IMPORTS, 0.0, None, "worker:0, worker:1 still import tensorflow: that takes minutes"),
        (SERVERS, IMPORTS, 0.5, None, "chief:0, worker:0, ps:0 still import tensorflow (0.5 CPUs)"),
        (MIRRORED, READS, 0.9, None,
         "worker:0, worker:1 have not made a strategy or server yet: works (0.9 CPUs) (data.py, line 40)"),
        (SERVERS, READS, 0.9, None, "chief:0, worker:0, ps:0 have not made a strategy or"),
        (MIRRORED, TRAINS, 0.9, None, "no task has opened its port of TF_CONFIG"),
        (MIRRORED, READS, 0.9, 7, "no task has opened its port of TF_CONFIG"),
        (SERVERS, TRAINS, 0.0, None, "worker:0, ps:0 run the same command as the chief"),
    ],
)  # fmt: skip
def test_a_program_is_not_doubted_before_it_has_come_to_its_strategy(
    strategy: str, frames: tuple[Frame, ...], cpu: float, step: int | None, words: str
) -> None:
    """Importing and loading data take as long as they take; only who trains may ignore TF_CONFIG."""
    assert late(strategy, frames, cpu, step).startswith(words)


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
