"""Ask a run's supervisor to stop the run, or to restart or signal tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import locate_run
from tflaunch.client.runs import NoSupervisorError
from tflaunch.core import policy


def request_stop(directory: Path, grace: float | None, number: int | None = None) -> None:
    """Request the end of a run, without waiting for it.

    ``grace``: seconds between TERM and KILL, None for the spec's value; ``number``: the signal by which the user asks
    for it in a terminal that follows the run.

    Raises:
        TflaunchError: the supervisor does not answer.
    """
    try:
        ControlClient(directory).ask("stop", grace=grace, signal=number)
    except NoSupervisorError:  # it has just ended, or has not begun
        locate_run(directory).stop_unsupervised(grace)


def request_restart(directory: Path, tasks: Sequence[str]) -> list[str]:
    """Restart tasks, by default all that train; return those that cannot alone.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    plan = runs.plan_of(directory)
    try:
        ControlClient(directory).ask("restart", tasks=list(tasks))
    except NoSupervisorError:
        raise NoSupervisorError(directory, f"; `tflaunch rerun {directory.name}` runs it again") from None
    return [task for task in tasks if not policy.can_be_restarted_alone(plan, plan.find(task))]


def request_signal(directory: Path, number: int, tasks: Sequence[str]) -> list[str]:
    """Have a signal sent to tasks, and return those that were running.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    answer = ControlClient(directory).ask("signal", tasks=list(tasks), signal=number)
    return [str(task) for task in answer.get("tasks", tasks)]
