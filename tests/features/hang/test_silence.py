"""When a silent job is noticed, and when it is ended: real watch, core and rules; played agents and time."""

from pathlib import Path
from typing import Any

import pytest

from features.hang.played_job import HOUR, MINUTE, Does, Task, World
from support.job_history import HERE, History, Willing, mirrored, parameter_server
from support.specs import clustered
from tflaunch.core.events import (
    BreakpointLeft,
    BreakpointReached,
    CheckpointCopied,
    HostLeaving,
    JobHung,
    LinkLost,
    LinkRestored,
    StopRequested,
    TaskExited,
    TaskGone,
)
from tflaunch.core.states import Progress
from tflaunch.features.hang.silence import SilenceRecord, Stage, limits, stage_of

STEPS = Does(20 * MINUTE, every=1.0, step=100)
"""A minute for the first step would be a stage of its own; this one has passed it."""


@pytest.mark.parametrize(
    ("program", "noticed", "ended"),
    [
        # A step a second: a silence between steps is noticed after two minutes, and ends the job after fifteen.
        ([Does(MINUTE, every=5.0), STEPS, Does(1.0)], 21 + 2, 21 + 15),
        # A minute between steps: three and ten times that are longer.
        ([Does(MINUTE, every=5.0), Does(20 * MINUTE, every=2 * MINUTE, step=100), Does(1.0)], 21 + 6, 21 + 20),
        # What comes before the first step has an hour, whatever lines there were before.
        ([Does(MINUTE, every=5.0), Does(1.0)], 1 + 10, 1 + 60),
    ],
)
def test_a_hang_is_noticed_and_ended(tmp_path: Path, program: list[Does], noticed: float, ended: float) -> None:
    world = World(tmp_path, mirrored(), Task(*program), Task(*program[:-1], Does(1.0, line=7)))
    (first, noticed_at), (second, ended_at) = world.go_on(3 * HOUR)
    assert (first, second) == ("noticed", "ended")
    assert noticed <= noticed_at < noticed + 1
    assert ended <= ended_at < ended + 1.5
    hung = next(mail for _, mail in world.said if isinstance(mail, JobHung))
    assert hung.place == "train.py, line 7"


MOVES = {
    "computes": Does(1.0, cpu=0.03),
    "downloads": Does(1.0, traffic=5000.0),
    "has a GPU at work": Does(1.0, gpu=50.0),
    "is in a debugger": Does(1.0, state="t"),
    "is stopped": Does(1.0, state="T"),
}


@pytest.mark.parametrize("what", MOVES)
def test_a_task_that_moves_or_is_held_is_never_ended(tmp_path: Path, what: str) -> None:
    """Though all have been silent for half a day before their first step; it is noticed once."""
    world = World(tmp_path, mirrored(), Task(Does(MINUTE, every=5.0), Does(1.0)), Task(MOVES[what]))
    assert [name for name, _ in world.go_on(12 * HOUR)] == ["noticed"]


@pytest.mark.parametrize(("role", "ends"), [("evaluator", False), ("sidecar", True)])
def test_a_job_may_wait_for_an_evaluator_but_not_for_a_sidecar_that_does_not_listen(
    tmp_path: Path, role: str, ends: bool
) -> None:
    job = History(clustered({"worker": 2, "evaluator": 1})).start()
    waits = Task(Does(MINUTE, every=5.0), Does(1.0))
    world = World(tmp_path, job, waits, waits, Task(Does(1.0, cpu=0.5)), roles={"evaluator:0": role})
    assert ("ended" in dict(world.go_on(3 * HOUR))) is ends


def test_tasks_that_compute_end_after_an_hour_without_a_step(tmp_path: Path) -> None:
    """So do those that wait in NCCL; an evaluation between epochs, or in the user's own code, may take any time."""
    spins = Does(1.0, cpu=1.0, gpu=100.0)
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), STEPS, spins) for _ in "01"])
    assert 60 < dict(world.go_on(3 * HOUR))["ended"] - 21 < 80
    own = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), STEPS, spins._replace(line=7)) for _ in "01"])
    assert "ended" not in dict(own.go_on(3 * HOUR))
    assert stage_of(world.history.job, [Progress(100, 1, 2, 100, None, {}, 1.0)]) is Stage.EPOCHS


def test_a_notice_ends_when_a_task_ends(tmp_path: Path) -> None:
    """The others go on, until they are silent for too long again."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(15 * MINUTE)
    world.happens(TaskExited(HERE, "worker:1", 0, 0, None, world.time), TaskGone(HERE, "worker:1", 0))
    world.go_on(MINUTE)
    assert [mail.sentence == "" for _, mail in world.said] == [False, True]


HOLDS_UP = {
    "breakpoint": (BreakpointReached(HERE, "worker:1", 0, "a.py", 1, "f"), BreakpointLeft(HERE, "worker:1", 0)),
    "lost link": (LinkLost(HERE, "no route"), LinkRestored(HERE, False)),
}


@pytest.mark.parametrize("how", HOLDS_UP)
@pytest.mark.parametrize("supervisors", [1, 2])
def test_what_holds_up_a_job_suspends_its_limits(tmp_path: Path, how: str, supervisors: int) -> None:
    """A notice is taken back at once, also that of an earlier supervisor; afterwards the limits begin again in full."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(HOUR - MINUTE)
    if supervisors > 1:
        world.take_over()
    began, ended = HOLDS_UP[how]
    assert world.noticed()
    world.happens(began)
    assert not world.noticed()
    world.happens(ended)
    assert not world.noticed()
    assert "ended" not in dict(world.go_on(59 * MINUTE))
    assert "ended" in dict(world.go_on(5 * MINUTE))


@pytest.mark.parametrize("event", [HostLeaving(HERE, "it is drained", True), StopRequested(10.0)])
def test_no_notice_outlives_a_drain_or_a_stop(tmp_path: Path, event: Any) -> None:
    """Nor is it said that the tasks go on."""
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    world.go_on(15 * MINUTE)
    assert world.noticed()
    world.happens(event)
    assert not world.noticed()
    assert len(world.go_on(MINUTE)) == 1


def test_a_notice_says_who_is_stopped_until_that_goes_on(tmp_path: Path) -> None:
    """Then the silence begins again."""
    waits = Task(Does(MINUTE, every=5.0), Does(1.0))
    stopped = Task(Does(MINUTE, every=5.0), Does(19 * MINUTE), Does(HOUR, state="T"), Does(1.0))
    world = World(tmp_path, mirrored(), waits, stopped)
    for minutes, sentence in ((12, "worker:0, worker:1 wait"), (48, "worker:1 is stopped"), (23, "")):
        world.go_on(minutes * MINUTE)
        assert world.noticed().startswith(sentence), minutes
    assert world.noticed() == ""
    assert [name for name, _ in world.go_on(55 * MINUTE)] == ["noticed"] * 4
    assert "ended" in dict(world.go_on(10 * MINUTE))


def test_a_limit_of_the_user_counts_silence_alone(tmp_path: Path) -> None:
    """0 is for never."""
    for stall, ended in ((1800.0, 1 + 30), (0, None)):
        job = mirrored(timeouts={"stall": stall})
        world = World(tmp_path, job, *[Task(Does(MINUTE, every=5.0), Does(1.0, cpu=1.0)) for _ in "01"])
        at = dict(world.go_on(5 * HOUR)).get("ended")
        assert at is None if ended is None else ended <= (at or 0) < ended + 1


def test_a_server_is_no_hang(tmp_path: Path) -> None:
    """Without a cluster and without a step, only who waits in a library for others may hang."""
    for line, is_ended in ((7, False), (40, True)):
        history = History(clustered({"worker": 1}, strategy="none")).start()
        world = World(tmp_path, history, Task(Does(MINUTE, every=5.0), Does(1.0, line=line)))
        assert ("ended" in dict(world.go_on(5 * HOUR))) is is_ended


def test_what_servers_write_is_no_sign_of_training(tmp_path: Path) -> None:
    """Those of a ParameterServerStrategy go on writing while their chief hangs."""
    serves = Task(Does(1.0, every=1.0))
    world = World(tmp_path, parameter_server(), Task(Does(MINUTE, every=5.0), STEPS, Does(1.0)), *[serves] * 3)
    assert 15 < dict(world.go_on(HOUR))["ended"] - 21 < 17


def test_a_job_of_which_nothing_is_heard_is_not_ended(tmp_path: Path) -> None:
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), STEPS, Does(1.0)) for _ in "01"])
    world.go_on(21 * MINUTE)
    world.hosts[HERE].deaf_until = float("inf")
    assert "ended" not in dict(world.go_on(5 * HOUR))


@pytest.mark.parametrize("deaf", [0.0, 140.0])
def test_a_task_may_compute_on_a_host_that_answers_slowly_or_now_and_then(tmp_path: Path, deaf: float) -> None:
    """However long the others are silent; looks that have seen it only once say nothing about it."""
    waits, computes = Task(Does(MINUTE, every=5.0), Does(1.0)), Task(Does(1.0, cpu=1.0))
    world = World(tmp_path, Willing(clustered({"worker": ["a", "b"]})), waits, computes)
    host = world.hosts["b"]
    host.delay = 0.0 if deaf else 20.0
    while world.time - world.began < 6 * HOUR:
        host.deaf_until = world.time + deaf
        assert "ended" not in dict(world.go_on(deaf + 160))


def test_a_checkpoint_that_is_copied_is_a_sign_of_life(tmp_path: Path) -> None:
    world = World(tmp_path, mirrored(), *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
    for number in range(5):
        world.go_on(9 * MINUTE)
        world.happens(CheckpointCopied(HERE, f"ckpt-{number}", number, HERE))
    assert world.go_on(0.0) == []
    assert "noticed" in dict(world.go_on(31 * MINUTE))


def test_the_next_run_begins_with_what_this_one_has_learned(tmp_path: Path) -> None:
    """Not with what another command has shown."""
    record = SilenceRecord({}, 1.0)
    for now, stage, silence in ((0, Stage.FIRST_STEP, 0), (100, Stage.FIRST_STEP, 100), (110, Stage.STEPS, 1)):
        _, _, has_news = record.note(stage, silence, now)
    assert has_news
    assert record.longest == {Stage.FIRST_STEP: 110.0}
    assert limits(Stage.FIRST_STEP, record.longest, 1.0) == (600.0, 1100.0, float("inf"))
    program = [Does(MINUTE, every=5.0), STEPS, Does(1.0)]
    World(tmp_path, mirrored(), *[Task(*program) for _ in "01"]).go_on(21 * MINUTE)
    for command, minutes in (("train", 15), ("other", 60)):
        history = History(clustered({"worker": 2}, command=[command])).start()
        world = World(tmp_path, history, *[Task(Does(MINUTE, every=5.0), Does(1.0)) for _ in "01"])
        assert minutes <= dict(world.go_on(3 * HOUR))["ended"] - 1 < minutes + 2
