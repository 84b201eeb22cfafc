"""How a training scales: what limits it, from figures alone, and how that is shown."""

from __future__ import annotations

from typing import Any

import pytest

from tflaunch.features.bench import scaling, scaling_table
from tflaunch.features.bench.scaling import HostUse, Limit, Measured, TaskUse
from tflaunch.features.hang.evidence import Evidence, Frame, Process, Thread

pytestmark = pytest.mark.unit

LIBRARY = "/venv/lib/python3.11/site-packages/tensorflow/python"
EXECUTE = Frame(f"{LIBRARY}/eager/execute.py", 53, "quick_execute")
NEXT = Frame(f"{LIBRARY}/data/ops/iterator_ops.py", 700, "_next_internal")
CALL_PYTHON = Frame(f"{LIBRARY}/ops/script_ops.py", 269, "FuncRegistry.__call__")
TRAIN, DATA = Frame("/code/train.py", 28, "<module>"), Frame("/code/data.py", 40, "batches")

WELL = TaskUse("worker:0", "a", cpu=0.9, cpu_wait=0.0, input=0.0, own=0.05)
WORKERS = (WELL, WELL._replace(task="worker:1", host="b"))
HOSTS = (HostUse("a", 4.0, 0.9, 0.0), HostUse("b", 4.0, 0.9, 0.0))


def measured(workers: int = 2, speed: float = 10.0, **about: Any) -> Measured:
    """Return a run that was measured for ten seconds, with nothing that limits it."""
    tasks, hosts = (WORKERS, HOSTS) if workers > 1 else (WORKERS[:1], HOSTS[:1])
    usual = Measured(workers, f"job-{workers}w-1", speed * 10, 10.0, 5.0, None, None, True, tasks, hosts)
    return usual._replace(**about)


BASE = measured(1)


def both(**about: Any) -> tuple[TaskUse, ...]:
    """Return two tasks with the same use."""
    return tuple(task._replace(**about) for task in WORKERS)


@pytest.mark.parametrize(
    ("run", "limit", "said"),
    [
        (measured(), Limit.NONE, "0.9 cores each"),
        (
            measured(tasks=both(input=0.8, place="data.py, line 4")),
            Limit.INPUT,
            "make it in Python (data.py, line 4) 80%",
        ),
        (measured(tasks=both(own=0.7, place="train.py, line 9")), Limit.INPUT, "outside TensorFlow (train.py, line 9)"),
        (measured(tasks=both(cpu=0.1)), Limit.INPUT, "0.1 cores in use each, and not for each other"),
        (
            measured(tasks=both(host="a", cpu=1.9), hosts=(HostUse("a", 4.0, 3.8, 0.0),)),
            Limit.CPU,
            "worker:0, worker:1 use 3.8 of 4 cores of a, which they share",
        ),
        (
            measured(tasks=both(host="a", cpu_wait=0.8), hosts=(HostUse("a", 4.0, 1.8, 2.1),)),
            Limit.CPU,
            "other programs use 2.1 of 4 cores of a, and the run 1.8",
        ),
        (measured(speed=3.0), Limit.COMMUNICATION, "a step takes 3.33 times as long with 2 workers as with 1"),
        (
            measured(tasks=(WELL, WORKERS[1]._replace(input=0.9, place="data.py, line 4"))),
            Limit.STRAGGLERS,
            "worker:1 waits for its input (data.py, line 4) 95% of the time, the others 5%",
        ),
        (
            measured(tasks=(WELL, WORKERS[1]._replace(cpu=0.5, cpu_wait=1.5))),
            Limit.STRAGGLERS,
            "worker:1 on b waits for a core that it does not get",
        ),
        (measured(training=4.0), Limit.START, "the first step came after 5 s, and the whole training takes 4 s"),
        (measured(start_up=60.0), Limit.START, "50 steps take 5 s"),
    ],
)
def test_what_limits_a_run_follows_from_what_its_tasks_did(run: Measured, limit: Limit, said: str) -> None:
    found = scaling.find_limit(run, BASE, 50)
    assert found.limit is limit, found
    assert said in found.reason
    assert found.advice


def test_workers_that_compete_for_the_cores_of_one_host_are_no_stragglers() -> None:
    """Chance decides which of them waits more."""
    tasks = (WELL._replace(cpu_wait=0.1), WORKERS[1]._replace(host="a", cpu_wait=2.0))
    found = scaling.find_limit(measured(tasks=tasks, hosts=(HostUse("a", 2.0, 1.8, 0.1),)), BASE, 50)
    assert found.limit is Limit.CPU


def test_a_task_whose_stacks_cannot_be_read_makes_no_straggler_of_another() -> None:
    """What it did is unknown, not nothing."""
    tasks = (WELL._replace(input=None, own=None), WORKERS[1]._replace(input=0.9, place="data.py, line 4"))
    found = scaling.find_limit(measured(tasks=tasks), BASE, 50)
    assert found.limit is Limit.INPUT


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_workers_that_wait_may_wait_for_each_other(is_synchronous: bool) -> None:
    """Unless one worker alone is as slow; and with parameter servers, it waits for those."""
    run = measured(speed=20.0, tasks=both(cpu=0.1), is_synchronous=is_synchronous)
    found = scaling.find_limit(run, run if is_synchronous else BASE, 50)
    assert (found.limit, "for their input or for each other" in found.reason) == (Limit.NONE, True)


def test_a_short_start_is_not_what_limits_a_training_of_unknown_length() -> None:
    assert scaling.find_limit(measured(1, start_up=20.0), BASE, 50).limit is Limit.NONE


@pytest.mark.parametrize(
    ("first", "last", "value", "kind"),
    [(32, 64, 0.9, "weak"), (64, 64, 0.45, "strong"), (32, 40, 0.5625, ""), (None, None, None, "")],
)
def test_efficiency_is_that_of_a_worker(
    first: float | None, last: float | None, value: float | None, kind: str
) -> None:
    """In examples per second, relative to the run with the fewest workers."""
    runs = [measured(1, examples=first), measured(2, 9.0, examples=last)]
    found = scaling.efficiency(runs[1], runs[0])
    assert found.value == (None if value is None else pytest.approx(value))
    assert (found.weak, found.strong) == (pytest.approx(0.9), pytest.approx(0.45))
    assert scaling.scaling_of(runs) == kind


def test_a_step_of_parameter_servers_is_one_of_a_single_worker() -> None:
    runs = [measured(1, is_synchronous=False), measured(2, 18.0, is_synchronous=False)]
    assert scaling.efficiency(runs[1], runs[0]).value == pytest.approx(0.9)


def sample(*threads: tuple[Frame, ...]) -> Evidence:
    """Return a sample of the stacks of a process."""
    found = tuple(Thread(number, "S", "", "", True, frames) for number, frames in enumerate(threads, 7))
    return Evidence("worker:0", 0, None, None, (Process(7, "python", "S", 0.0, "", found, ()),))


def test_samples_of_stacks_tell_input_and_own_code_from_tensorflow() -> None:
    """A generator counts while it runs; a thread of TensorFlow has no Python stack otherwise."""
    in_step, in_next, in_loop = (EXECUTE, TRAIN), (EXECUTE, NEXT, TRAIN), (TRAIN,)
    samples = [sample(in_step), sample(in_next), sample(in_step, (DATA, CALL_PYTHON)), sample(in_loop)]
    assert scaling.shares_of(samples * 3) == (0.5, 0.25, "train.py, line 28")
    assert scaling.shares_of([*samples, *[sample(())] * 20]) is None


def test_the_table_shows_both_efficiencies_if_the_batch_is_unknown() -> None:
    runs = [BASE, measured(2, 9.0)]
    efficiencies = [scaling.efficiency(run, BASE) for run in runs]
    findings = [scaling.find_limit(run, BASE, 50) for run in runs]
    assert scaling_table.table_of(runs, [each._replace(value=None) for each in efficiencies], findings) == [
        "WORKERS  STEPS/S  WEAK  STRONG  CORES  START-UP  LIMITED BY",
        "      1    10.00  100%    100%  0.9/4       5 s  none found",
        "      2    9.000   90%     45%  1.8/8       5 s  none found",
    ]


def test_the_plot_shows_what_is_missing_to_the_ideal() -> None:
    runs = [BASE, measured(2)]
    lines = scaling_table.plot_of(runs, [10.0, 20.0], [10.0, 15.0], "examples/s")
    assert lines[1:] == [f"1  {'█' * 20:<40}  10.00", f"2  {'█' * 30 + '░' * 10}  15.00"]
