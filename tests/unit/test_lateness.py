"""Which task is late in collectives, and why: from measurements as agents send them."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tflaunch.core.vitals import TaskLoad, TaskVitals, TaskWaits
from tflaunch.explain.lateness import Lateness, LateTask

pytestmark = pytest.mark.unit

EVERY = 2.0  # seconds between two messages of an agent
SAMPLES = 30  # of connections between two messages


class Training:
    """Tasks in synchronous steps of one second; ``gets``: what a task gets from its host, if not the usual."""

    def __init__(self, workers: int = 3, **gets: dict[str, Any]) -> None:
        self.tasks = [f"worker:{index}" for index in range(workers)]
        self.gets = gets
        self.lateness = Lateness()
        self.now = 0.0
        self.counts = dict.fromkeys(self.tasks, (0, 0))
        self.loads = dict.fromkeys(self.tasks, TaskLoad(0.0, 0.0, 0, 0.0, 0))
        self.add({})

    def add(self, waits: dict[str, list[float]], has_delays: bool = True) -> LateTask | None:
        """Let the agents tell of the last two seconds.

        ``waits``: milliseconds for which others waited for a task; ``has_delays``: whether all threads were visited.
        """
        self.now += EVERY
        for task in self.tasks:
            lasted = waits.get(task, [])
            samples, pending = self.counts[task]
            self.counts[task] = samples + SAMPLES, pending + round(sum(lasted) / 1000 / EVERY * SAMPLES)
            gets = {
                "cpu": 1.0,
                "delay": 0.02,
                "faults": 0,
                "throttled": 0.0,
                "nice": 0,
                "rtt": 60,
                **self.gets.get(task, {}),
            }
            load = self.loads[task]
            self.loads[task] = TaskLoad(
                load.cpu + gets["cpu"] * EVERY,
                None if gets["delay"] is None else (load.delay or 0) + gets["delay"] * EVERY,
                load.faults + int(gets["faults"] * EVERY),
                load.throttled + gets["throttled"] * EVERY,
                gets["nice"],
            )
            known = TaskWaits(
                *self.counts[task],
                tuple(lasted),
                gets["rtt"],
                int(self.now * gets.get("resent", 0)),
                int(self.now * 500),
            )
            told = self.loads[task] if has_delays else self.loads[task]._replace(delay=None)
            self.lateness.add(self.now, TaskVitals(task, 0, 2**20, told, known, ()))
        return self.lateness.late()

    def until_found(self, waits: dict[str, list[float]]) -> tuple[LateTask, int]:
        """Repeat the same steps until a task is found, at most 40 times; return it, and the number of steps."""
        for number in range(40):
            found = self.add(waits)
            if found is not None:
                return found, round((number + 1) * EVERY)
        raise AssertionError("no task was found")


SLOW = {"worker:1": [333.0, 333.0], "worker:0": [12.0], "worker:2": [16.0, 12.0]}


@pytest.mark.parametrize(
    ("gets", "reason"),
    [
        ({"throttled": 0.3, "delay": 0.5}, "its cgroup limits its CPU, and stopped it 30% of the time"),
        ({"faults": 500}, "its memory is short (500 major page faults per second)"),
        ({"delay": 0.4}, "it gets less CPU than the others: its threads wait 0.4 s per second for one"),
        (
            {"delay": 0.4, "nice": 10},
            "it gets less CPU than the others: its threads wait 0.4 s per second for one, as its nice value is 10",
        ),
        ({"rtt": 40_000}, "its network is slow (round trips of 40 ms)"),
        ({"resent": 8}, "its network loses packets (8 sent again per second)"),
        ({"cpu": 1.5}, "it computes 1.5 times as long as the others: more work, or a slower device"),
        ({"delay": None}, "it uses no more CPU than the others: it waits for its input, or in its own code"),
    ],
)
def test_a_late_task_is_found_with_its_reason(gets: dict[str, Any], reason: str) -> None:
    """Within 20 steps; it is the last one in each of them."""
    found, steps = Training(**{"worker:1": gets}).until_found(SLOW)
    assert (found.task, found.reason) == ("worker:1", reason)
    assert found.is_idle == reason.startswith("it uses no more")
    assert found.share == pytest.approx(0.333, abs=0.05)
    assert steps <= 20


def test_a_short_wait_for_a_cpu_is_not_the_reason() -> None:
    """It does not explain why the others wait so long."""
    found, _ = Training(**{"worker:1": {"delay": 0.14}}).until_found(SLOW)
    assert found.is_idle


def test_waits_for_a_cpu_may_be_measured_less_often() -> None:
    """The agent visits all threads only now and then, as that costs more."""
    training = Training()
    for number in range(20):
        training.gets = {name: {"delay": 0.02 if name != "worker:1" else 0.4} for name in training.tasks}
        found = training.add(SLOW, has_delays=number % 4 == 0)
        if found is not None:
            break
    assert found is not None
    assert found.reason == "it gets less CPU than the others: its threads wait 0.4 s per second for one"


def test_a_busy_host_is_not_the_reason_if_the_others_are_as_busy() -> None:
    """They wait for CPUs as long as the late task."""
    busy = {f"worker:{index}": {"delay": 0.5} for index in range(3)}
    found, _ = Training(**busy).until_found(SLOW)
    assert found.is_idle


@pytest.mark.parametrize(("workers", "spread"), [(2, 0.3), (3, 0.05), (8, 1.0)])
def test_by_chance_nobody_is_late(workers: int, spread: float) -> None:
    """In 1000 steps (nightly: 10,000) whose length varies for each task, so that each is the last one now and then."""
    chance = random.Random(f"{workers} {spread}")
    training, alarms = Training(workers), 0
    for _ in range(5000 if os.environ.get("TFLAUNCH_TEST_LONG") else 500):
        waits: dict[str, list[float]] = {}
        for _ in range(2):
            lasted = {task: 1000 * chance.expovariate(1 / spread) / 2 for task in training.tasks}
            first, second, *_ = sorted(lasted, key=lambda task: -lasted[task])
            waits.setdefault(first, []).append(min(lasted[first] - lasted[second], 900.0))
        alarms += training.add(waits) is not None
    assert alarms == 0


def test_one_long_step_accuses_nobody() -> None:
    """Such as that in which the chief saves a checkpoint, every now and then."""
    training = Training()
    for number in range(200):
        saves = number % 10 == 0
        assert training.add({"worker:0": [1900.0] if saves else [], "worker:1": [9.0], "worker:2": [12.0]}) is None


def test_short_waits_are_not_worth_a_word() -> None:
    """Less than a tenth of the time, even if it is always the same task."""
    training = Training()
    assert all(training.add({"worker:1": [60.0, 60.0]}) is None for _ in range(100))


def test_a_task_that_has_caught_up_is_late_no_more() -> None:
    """Only after half a minute, so that the message does not come and go."""
    training = Training()
    training.until_found(SLOW)
    for _ in range(5):
        training.add({})
        assert training.lateness.is_still_late("worker:1")
    for _ in range(10):
        training.add({})
    assert not training.lateness.is_still_late("worker:1")


def test_the_last_task_that_runs_is_not_judged() -> None:
    """The others may have ended while it was late."""
    training = Training()
    for _ in range(20):
        training.add(SLOW)
    training.lateness.forget({"worker:1"})
    assert training.lateness.is_still_late("worker:1")


def test_nothing_is_said_while_a_task_is_not_measured() -> None:
    """One host is silent, or a task has only begun."""
    training = Training()
    training.lateness.forget({"worker:1", "worker:2"})
    for _ in range(3):
        assert training.add(SLOW) is None
    assert Lateness().late() is None


def test_a_restarted_task_is_measured_anew() -> None:
    """What the attempt before has used does not count."""
    training = Training()
    for _ in range(30):
        training.add(SLOW)
    begun = TaskVitals("worker:0", 1, 2**20, TaskLoad(0.0, 0.0, 0, 0.0, 0), TaskWaits(0, 0, (), None, None), ())
    training.lateness.add(training.now + 1, begun)
    assert training.lateness.late() is None
