"""Which runs go on after the time limit of their job."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.job_history import History, mirrored
from support.ungreeted_run import supervision
from tflaunch.core.events import Interrupted
from tflaunch.core.restart_budget import Reached
from tflaunch.features.history.history_recorder import HistoryWriter
from tflaunch.features.slurm import jobs, lives
from tflaunch.features.slurm.location import SlurmRun
from tflaunch.store.history import Figures, Moment
from tflaunch.store.run_dir import HISTORY_NAME

NOTHING = Reached()


def ended(directory: Path, reached: Reached = NOTHING, why: str = "the time limit of 1:00 is reached") -> History:
    """Return a job that Slurm has ended; its tasks have the directory as theirs, and have come so far."""
    history = mirrored()
    tasks = [task._replace(workdir=str(directory), argv=("train", "--out=model")) for task in history.job.plan.tasks]
    history.job = history.job._replace(plan=history.job.plan._replace(tasks=tuple(tasks)))
    history.happens(Interrupted(15, why))
    for name in ("worker:0", "worker:1"):
        history.job = history.job.with_task(history.job.tasks[name]._replace(reached=reached))
    jobs.note_job(directory, "17")
    jobs.note_life(directory, 0)
    return history


def verdict(directory: Path, history: History, options: dict[str, str] | None = None, most: int = 3) -> str:
    """Return what the run says of it at its end."""
    plan: Any = SimpleNamespace(restart=SimpleNamespace(max=most))
    extras = {lives.EXTRA: lives.choice(options or {}, plan)}
    run: Any = SimpleNamespace(job=history.job)
    found = lives.PastLimit(supervision(history.job, directory, extras=extras)).finish(run)
    return "" if found is None else "\n".join(found.notes)


def test_it_goes_on_with_a_checkpoint(tmp_path: Path) -> None:
    """Wherever the program has written it, with a number or not."""
    history = ended(tmp_path, Reached(step=5))
    assert "have written no checkpoint" in verdict(tmp_path, history)
    assert "goes back" in verdict(tmp_path, history, {"requeue": "at_limit"}, most=0)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "latest.weights.h5").touch()
    assert verdict(tmp_path, history) == "job 17 goes back into the queue, to go on from there"


@pytest.mark.parametrize(
    ("options", "most", "reason"),
    [({"requeue": ""}, 3, "slurm.requeue is set"), ({"no-requeue": ""}, 3, "slurm.no-requeue"), ({}, 0, "restart.max")],
)
def test_it_ends_as_the_user_has_said(tmp_path: Path, options: dict[str, str], most: int, reason: str) -> None:
    history = ended(tmp_path)
    said = verdict(tmp_path, history, options, most)
    assert reason in said
    plan = history.job.plan._replace(restart=history.job.plan.restart._replace(max=most))
    (warning,) = lives.find_warnings(options, plan)
    assert reason in warning.message
    assert 'write "slurm": {"requeue": "at_limit"}' in said


@pytest.mark.parametrize(
    ("earlier", "reached", "goes_on"),
    [
        (Reached(step=500), Reached(step=900), True),
        (Reached(step=500), Reached(step=499), False),
        (Reached(step=500, checkpoint=400), Reached(step=100, checkpoint=410), True),
        (Reached(), Reached(), False),
    ],
)
def test_each_life_must_come_further(tmp_path: Path, earlier: Reached, reached: Reached, goes_on: bool) -> None:
    """Also than those before the last one, which another failure may have ended."""
    for number, past in ((1, earlier), (2, Reached())):
        (tmp_path / f"earlier-{number}").mkdir()
        (tmp_path / f"earlier-{number}" / "reached.json").write_text(json.dumps(past))
    said = verdict(tmp_path, ended(tmp_path, reached), {"requeue": "at_limit"})
    assert ("goes back" in said) is goes_on
    assert goes_on or f"it did not get beyond {earlier or 'its start'}" in said


def test_a_life_must_begin_where_another_has_come_to(tmp_path: Path) -> None:
    """Or it reads nothing, however far it comes; a checkpoint may be as old as an epoch."""
    (tmp_path / "earlier-1").mkdir()
    (tmp_path / "earlier-1" / "reached.json").write_text(json.dumps(Reached(step=1000)))
    history = ended(tmp_path, Reached(step=1010))
    writer = HistoryWriter(tmp_path)
    for step in (30.0, 900.0):
        writer.add(Moment(step, {"worker:0": Figures(step)}))
    assert "it began anew in this job; let" in verdict(tmp_path, history, {"requeue": "at_limit"})
    (tmp_path / HISTORY_NAME).write_text((tmp_path / HISTORY_NAME).read_text().replace("[30.0,null", "[510.0,null"))
    assert "goes back" in verdict(tmp_path, history, {"requeue": "at_limit"})


def test_lives_are_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_job", lambda _: None)
    jobs.note_job(tmp_path, "17")
    for number in (1, 2):
        (tmp_path / f"earlier-{number}").mkdir()
    (tmp_path / "earlier-1" / "reached.json").write_text("[5, 0, 0]")
    said = [why for _, why in SlurmRun(tmp_path, "17").earlier_executions()]
    restarts = "Slurm started the job again (restart"
    assert said == [f"{restarts} 1, after its time limit)", f"{restarts} 2)"]


def test_another_end_is_none_of_its_business(tmp_path: Path) -> None:
    assert not verdict(tmp_path, ended(tmp_path, why="the job was cancelled with scancel"))
