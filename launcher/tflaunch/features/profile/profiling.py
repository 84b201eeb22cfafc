"""Have tasks of a run profiled, and draw the profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files
from tflaunch.client.control_client import ControlClient
from tflaunch.features.profile import flame_graph
from tflaunch_worker import fields

_PATIENCE = 60.0  # seconds after the end, which a busy host and its link may need


class TaskProfile(NamedTuple):
    """The profile of a task: sampled stacks at ``path`` with a ``flame_graph``, or the ``problem`` with it.

    ``samples``: how often its stacks were sampled; ``hottest``: the function in which the main thread was most often.
    """

    task: str
    problem: str | None
    path: str | None = None
    samples: int = 0
    hottest: str | None = None
    flame_graph: str | None = None


class Profile(NamedTuple):
    """What the tasks of a run did for some seconds."""

    run: str
    seconds: float
    tasks: Sequence[TaskProfile]


def make_profiles(directory: Path, tasks: Sequence[str], seconds: float) -> Iterator[TaskProfile]:
    """Profile tasks, by default all of roles, for ``seconds``; yield each result.

    Raises:
        TflaunchError: the supervisor refuses, has exited, or does not answer.
    """
    client = ControlClient(directory)
    try:
        client.say("profile", tasks=list(tasks), seconds=seconds)
        while (answer := client.next_answer(seconds + _PATIENCE))["kind"] != "done":
            yield _read(answer)
    finally:
        client.close()


def _read(answer: dict[str, Any]) -> TaskProfile:
    task, problem, path = (fields.text(answer, name) for name in ("task", "problem", "path"))
    if problem:
        return TaskProfile(task, problem)
    drawing = Path(path).with_suffix(".svg")
    try:
        stacks = flame_graph.read_stacks(Path(path).read_bytes().decode("utf-8"))
        private_files.write_text(drawing, flame_graph.draw(task, stacks))
    except OSError as error:
        return TaskProfile(task, f"{path}: {error.strerror}")
    except ValueError:
        return TaskProfile(task, f"{path} does not have the form of sampled stacks")
    samples, hottest = flame_graph.samples_of(stacks), flame_graph.hottest(stacks)
    return TaskProfile(task, None, path, samples=samples, hottest=hottest or None, flame_graph=str(drawing))
