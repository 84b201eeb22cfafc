"""The memory of tasks: from the agent that measures it to when it will be full, and what people read."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.job_history import HERE, History, mirrored
from support.joined_host import joined_host
from support.played_agent import PlayedAgent
from support.still_loop import StillLoop
from support.ungreeted_run import supervision
from tflaunch.core.annotations import Annotation, MemoryGrew
from tflaunch.features.memory.memory_growth import HostVitals, MemoryGrowth, VitalsMonitor, seconds_left, watch_memory
from tflaunch.features.metrics.metrics import families
from tflaunch.records import read_record
from tflaunch.tui import layout
from tflaunch_worker.features.memory.memory_reports import MemoryService

GROWS = MemoryGrew(HERE, "worker:1", 0, 10 * 2.0**20, 7200.0)
MIB, GIB, HOUR = 2.0**20, 2**30, 3600.0


def said(history: History, *annotations: Annotation) -> list[str]:
    """Return the messages about annotations that come now."""
    before, messages = history.job, [line for annotation in annotations for line in history.told(annotation)]
    assert history.job is before
    return messages


def shown(history: History) -> tuple[dict[str, Any], str]:
    """Return the tasks of the status, and how `ps` shows it."""
    current = history.status()
    return {task.task: task for task in current.tasks}, layout.table(current, 200, history.now)


def test_memory_that_grows_is_shown_with_when_it_is_full() -> None:
    history = mirrored(2)
    sentence = "the memory of worker:1 grows by 600 MiB per minute: out of memory in about 2 h"
    assert said(history, GROWS, GROWS._replace(left=7000.0)) == [f"warning: {sentence}"]
    tasks, text = shown(history)
    assert tasks["worker:1"].memory_full_at == history.now + 7000
    assert sentence in text
    found = families(history.status(), 0.0)
    values = {sample.name: sample.value for family in found for sample in family.samples}
    assert values["tflaunch_task_memory_growth_bytes_per_second"] == 10 * 2**20
    assert said(history, MemoryGrew(HERE, "worker:1", 0, 0.0, 0.0)) == []
    assert shown(history)[0]["worker:1"].memory_full_at is None


@pytest.mark.parametrize(("left", "text"), [(12.0, "10 s"), (300.0, "5 min"), (5400.0, "2 h"), (40_000.0, "11 h")])
def test_predictions_are_rounded_and_none_is_of_an_earlier_attempt(left: float, text: str) -> None:
    history = mirrored(2)
    assert said(history, GROWS._replace(attempt=7)) == []
    assert "FULL IN" not in shown(history)[1]
    assert said(history, GROWS._replace(left=left))[0].endswith(f"in about {text}")
    history.ends("worker:1", 0)
    assert "FULL IN" not in shown(history)[1]


# ---- the supervisor's side


def test_the_monitor_predicts_when_memory_is_full() -> None:
    """By the growth of each task and the room of its host; not again every two seconds."""
    history, events = mirrored(2), list[Annotation]()
    session: Any = PlayedAgent()
    session.ours = lambda theirs: theirs  # their clocks agree
    session.has_started = lambda *_: True

    def put(annotation: Annotation) -> None:
        events.append(annotation)
        history.happens(annotation)
        monitor.take_annotations(history.known)

    mailbox = SimpleNamespace(now=lambda: history.now, put=put)
    monitor = VitalsMonitor(supervision(history.job, Path(), mailbox, {HERE: session}))
    old = {"attempt": 5, "rss": GIB}
    session.tell(1, time=3.0, room=GIB, tasks={"worker:0": old, "worker:9": old})
    assert events == [], "of an attempt and a task that are not known"
    for count in range(1, 121):
        history.now += 2
        sizes = {"worker:0": GIB, "worker:1": GIB + 40 * 2**20 * count}
        tasks = {task: {"attempt": 0, "rss": size} for task, size in sizes.items()}
        monitor.watch(history.job, history.now)
        session.tell(1, time=history.now, room=10 * GIB, tasks=tasks)
    (event,) = events
    assert isinstance(event, MemoryGrew)
    assert event.task == "worker:1"
    assert event.rate == pytest.approx(20 * 2**20, rel=0.1)
    assert event.left == pytest.approx(10 * GIB / (20 * 2**20), rel=0.1)


def test_the_tasks_of_a_host_fill_its_memory_together() -> None:
    assert MemoryGrowth().rate(2000 * MIB) is None
    assert [seconds_left(1000, [2.0, 3.0]), seconds_left(1e9, [1.0]), seconds_left(1000, [])] == [200, None, None]


@pytest.mark.parametrize("known", [{"attempt": 0}, {"attempt": 0, "rss": -1}, "text"])
def test_a_malformed_measurement_ends_the_link(known: object) -> None:
    with pytest.raises(ValueError, match="must"):
        read_record(HostVitals, {"tasks": {"worker:0": known}})


# ---- the agent's side


def reporter(pids: dict[str, int]) -> tuple[StillLoop, MemoryService, list[dict[str, Any]]]:
    """Return a service that measures these tasks, its loop, and what it has told so far."""
    loop, told = StillLoop(), list[dict[str, Any]]()
    service = MemoryService(cast("Any", SimpleNamespace(loop=loop, link=SimpleNamespace(has_unsent=False))))
    service.watch_memory(cast("Any", SimpleNamespace(is_open=True, tell=lambda **known: told.append(known))), {})
    for name, pid in pids.items():
        service.begin_task(cast("Any", SimpleNamespace(name=name, attempt=2, pid=pid)), cast("Any", None))
    return loop, service, told


def test_the_agent_measures_its_tasks_until_they_are_gone() -> None:
    loop, measuring, told = reporter({"sidecar": os.getpid()})
    for _ in range(3):
        loop.next()
    known = [read_record(HostVitals, each).tasks["sidecar"] for each in told]
    assert [each.attempt for each in known] == [2] * 3
    assert all(each.rss > 2**20 for each in known)
    measuring.end_task("sidecar")
    loop.next()
    assert len(told) == 3
    assert loop.timers == []


def test_the_agent_says_which_task_has_grown() -> None:
    program = "import sys; keep = []\nfor _ in sys.stdin: keep.append(bytearray(b'x') * 100_000_000); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        loop, measuring, _ = reporter({"worker:0": os.getpid(), "worker:1": child.pid})
        for _ in range(6):
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()
            loop.next()
        assert measuring.growth().startswith("worker:1 had grown from ")
        assert measuring.growth().endswith(" in 50 s")
        child.stdin.close()


def first_rate(size: Callable[[float], float], room: float, seconds: float) -> tuple[float, float] | None:
    """Return when steady growth is found first in these seconds, and its rate; None if it is not."""
    growth = MemoryGrowth()
    for at in map(float, range(0, int(seconds), 10)):
        growth.add(at, size(at))
        rate = growth.rate(room - (size(at) - size(0.0)))
        if rate is not None:
            return at, rate
    return None


def noisy(spread: float) -> Callable[[], float]:
    """Return a source of noise with this spread in bytes."""
    chance = random.Random(7)
    return lambda: chance.gauss(0.0, spread)


@pytest.mark.parametrize(("per_minute", "room"), [(60, 2000), (600, 8000), (10, 2400)])
def test_a_leak_is_found_long_before_memory_is_full(per_minute: float, room: float) -> None:
    """Before a sixth of the time has passed, and its rate is right within a tenth."""
    noise = noisy(2 * MIB)
    found = first_rate(lambda at: 500 * MIB + per_minute * MIB * at / 60 + noise(), room * MIB, 4 * HOUR)
    assert found is not None
    at, rate = found
    assert at < max(room / per_minute * 60 / 6, 200)
    assert rate == pytest.approx(per_minute * MIB / 60, rel=0.1)


@pytest.mark.parametrize(
    "size",
    [
        lambda at: 500 * MIB + 3000 * MIB * (1 - 2.718 ** (-at / 120)),  # starts, ever slower
        lambda at: 500 * MIB + min(at, 50) * 40 * MIB,  # loads its data
        lambda at: 500 * MIB + 400 * MIB * (at // 600 % 2),  # evaluates every now and then
        lambda at: 500 * MIB + 200 * MIB * ((at / 60) ** 0.5),  # fragments
        lambda at: 2000 * MIB + 0.001 * MIB * at,  # grows, but not for days
    ],
)
def test_what_starts_or_fills_up_is_no_leak(size: Callable[[float], float]) -> None:
    noise = noisy(2 * MIB)
    assert first_rate(lambda at: size(at) + noise(), 20_000 * MIB, 2 * HOUR) is None


def test_a_leak_that_begins_later_is_found_and_one_that_has_ended_is_forgotten() -> None:
    found = first_rate(lambda at: 500 * MIB + max(at - HOUR, 0) * MIB, 4000 * MIB, 2 * HOUR)
    assert found is not None
    assert HOUR < found[0] < HOUR + 3000
    growth, rates = MemoryGrowth(), []
    for at in range(0, 3000, 10):
        growth.add(float(at), 500 * MIB + min(at, 900) * MIB)
        rates.append(growth.rate(2000 * MIB))
    assert any(rates)
    assert rates[-1] is None


def test_a_long_series_stays_short() -> None:
    series = MemoryGrowth()
    for second in range(50_000):
        series.add(float(second), second)
    points = series.points()
    assert len(points) <= 64
    assert points[0] == (0.0, 0)
    assert points[-10:] == [(float(second), second) for second in range(49_990, 50_000)]
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    assert max(gaps) < 10_000


def test_only_memory_of_tasks_that_it_was_asked_to_start_is_passed_on() -> None:
    """Of an earlier attempt, or a task of another host, nothing is judged."""
    host = joined_host()
    told: list[list[str]] = []
    watch_memory(host.session, lambda vitals, _: told.append(list(vitals.tasks)))
    for known, attempt in (("worker:0", 0), ("worker:0", 1), ("worker:1", 0)):
        host.tells("told", call=1, time=1.0, room=None, tasks={known: {"attempt": attempt, "rss": 1}})
    assert told == [["worker:0"], [], []]
    assert not host.lost()
