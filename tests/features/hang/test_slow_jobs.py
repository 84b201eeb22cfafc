"""Random histories of jobs that are slow in all ways that the looks can see: none is ended before it hangs."""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from features.hang.played_job import HOUR, MINUTE, Does, Task, World
from support.job_history import History, Willing, mirrored
from support.specs import clustered
from tflaunch.core.events import BreakpointLeft, BreakpointReached, Event, LinkLost, LinkRestored
from tflaunch.features.hang.silence import WINDOW, Stage, write_silences

HISTORIES = int(os.environ.get("TFLAUNCH_SLOW_JOBS", "30"))
ENDED = 20
"""One of so many histories goes on until the job hangs, and is ended."""

Way = Callable[[random.Random], Does]
COMPUTES: tuple[Way, ...] = (
    lambda chance: Does(1.0, cpu=chance.uniform(0.03, 4.0)),
    lambda chance: Does(1.0, cpu=0.01, wait=chance.uniform(0.6, 5.0)),
    lambda chance: Does(1.0, gpu=chance.uniform(6.0, 100.0)),
)
"""What tasks that wait in NCCL do, too: between steps it ends them after an hour."""
MOVES: tuple[Way, ...] = (
    *COMPUTES,
    lambda chance: Does(1.0, traffic=chance.uniform(2000.0, 1e8)),
    lambda chance: Does(1.0, line=1000, new_line=chance.uniform(1.0, 120.0)),
    lambda chance: Does(1.0, new_process=chance.uniform(1.0, 120.0)),
    lambda chance: Does(1.0, state=chance.choice("Tt")),
)
IDLE = Does(1.0, cpu=0.003, wait=0.02, traffic=200.0)
"""What measured tasks use that wait for another one."""

Disturbance = tuple[float, Callable[[World], object]]


def draw_programs(chance: random.Random, count: int) -> list[list[Does]]:
    """Return what each task does: in each silence, one of them moves."""
    programs = [[Does(chance.uniform(1, 300), every=chance.uniform(0.1, 30))] for _ in range(count)]
    first_step = chance.choice((1, 1, 3, 99))
    for number in range(1, chance.randint(2, 6)):
        mover, way = chance.randrange(count), chance.choice(MOVES)
        may_be_long = way not in COMPUTES or number <= first_step
        seconds = chance.choice((10.0, 900.0, 2500.0, 6000.0 if may_be_long else 3000.0))
        talks = Does(chance.uniform(10, 600), every=chance.uniform(0.1, 5))
        for task, program in enumerate(programs):
            program.append((way(chance) if task == mover else IDLE)._replace(seconds=seconds))
            program.append(talks._replace(step=number if number >= first_step else None))
    return programs


def draw_disturbances(chance: random.Random, history: History, length: float) -> Iterator[Disturbance]:
    """Yield what holds up hosts and supervisors, but no task for longer than the looks that must agree take."""
    for _ in range(chance.choice((0, 1, 3, 8))):
        at, task = chance.uniform(0.0, length), chance.choice(history.job.plan.tasks)
        name, host = task.task, task.host
        kind = chance.choice(("deaf", "slow", "link", "breakpoint", "supervisor"))
        lasts = chance.choice((5.0, 60.0, WINDOW - 10, WINDOW - 10))
        if kind == "deaf":
            yield at, partial(deafen, host, lasts)
        elif kind == "slow":
            yield at, partial(slow_down, host, chance.uniform(0.0, 50.0))
            yield at + 10 * lasts, partial(slow_down, host, 0.0)
        elif kind == "supervisor":
            yield at, World.take_over
        else:
            link: tuple[Event, Event] = LinkLost(host, "no route"), LinkRestored(host, False)
            debugger = BreakpointReached(host, name, 0, "a.py", 1, "f"), BreakpointLeft(host, name, 0)
            began, ended = link if kind == "link" else debugger
            yield at, partial(happen, began)
            yield at + lasts, partial(happen, ended)


def deafen(host: str, seconds: float, world: World) -> None:
    world.hosts[host].deaf_until = world.time + seconds


def slow_down(host: str, delay: float, world: World) -> None:
    world.hosts[host].delay = delay


def happen(event: Event, world: World) -> None:
    world.happens(event)


def draw_job(chance: random.Random) -> History:
    """Return a job that runs: on this machine, or on a host for each of its tasks."""
    count = chance.randint(1, 3)
    return mirrored(count) if chance.random() < 0.5 else Willing(clustered({"worker": [*"abc"[:count]]}))


def play(directory: Path, seed: int) -> None:
    """Play a history: the job goes on, then hangs in all tasks."""
    chance = random.Random(seed)
    history = draw_job(chance)
    programs = draw_programs(chance, len(history.job.tasks))
    if chance.random() < 0.5:
        write_silences(directory, history.job.plan, {stage: chance.uniform(0.1, 600.0) for stage in Stage})
    length = sum(does.seconds for does in programs[0][1:]) + min(program[0].seconds for program in programs)
    world = World(directory, history, *[Task(*program, IDLE) for program in programs])
    disturbances = sorted(draw_disturbances(chance, history, length), key=lambda each: each[0])
    for at, disturb in disturbances:
        world.go_on(max(min(world.began + at, world.began + length) - world.time, 0.0))
        disturb(world)
    told = world.go_on(max(world.began + length - world.time, 0.0))
    assert "ended" not in dict(told), f"seed {seed}"
    if seed % ENDED == 0:
        longest = max(does.seconds for does in programs[0])
        assert "ended" in dict(world.go_on(10 * (longest + 10 * MINUTE) + 2 * HOUR)), f"seed {seed}"


def test_no_job_is_ended_in_which_a_task_moves() -> None:
    """All others may wait for it for hours; `make simulate` plays many more."""
    for seed in range(HISTORIES):
        with tempfile.TemporaryDirectory() as directory:
            play(Path(directory), seed)
