"""Why tasks do not listen on their ports in time, from their stacks."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core import policy
from tflaunch.core.events import HostJoined, PortsHeld, TaskStarted, TimePassed
from tflaunch.core.measures import Progress
from tflaunch.explain.status import StatusInputs, status
from tflaunch.features.hang import late_start
from tflaunch.features.hang.evidence import Evidence, Frame, Process, Thread

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


@pytest.mark.parametrize(
    ("strategy", "frames", "cpu", "step", "words"),
    [
        ("multi_worker_mirrored", IMPORTS, 0.9, None, "worker:0, worker:1 still import tensorflow (0.9 CPUs): that"),
        ("multi_worker_mirrored", IMPORTS, 0.0, None, "worker:0, worker:1 still import tensorflow: that takes minutes"),
        ("parameter_server", IMPORTS, 0.5, None, "chief:0, worker:0, ps:0 still import tensorflow (0.5 CPUs)"),
        (
            "multi_worker_mirrored",
            READS,
            0.9,
            None,
            "worker:0, worker:1 have not made a strategy or server yet: works (0.9 CPUs) (data.py, line 40)",
        ),
        ("parameter_server", READS, 0.9, None, "chief:0, worker:0, ps:0 have not made a strategy or"),
        ("multi_worker_mirrored", TRAINS, 0.9, None, "no task has opened its port of TF_CONFIG"),
        ("multi_worker_mirrored", READS, 0.9, 7, "no task has opened its port of TF_CONFIG"),
        ("parameter_server", TRAINS, 0.0, None, "worker:0, ps:0 run the same command as the chief"),
    ],
)
def test_a_program_is_not_doubted_before_it_has_come_to_its_strategy(
    strategy: str, frames: tuple[Frame, ...], cpu: float, step: int | None, words: str
) -> None:
    """Importing and loading data take as long as they take; only who trains may ignore TF_CONFIG."""
    assert late(strategy, frames, cpu, step).startswith(words)
