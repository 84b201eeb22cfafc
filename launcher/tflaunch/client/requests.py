"""Ask a run's supervisor to stop the run, to restart tasks, or to send them a signal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient, NoSupervisorError
from tflaunch.client.follow import lost
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import locate_run
from tflaunch.core import policy
from tflaunch.errors import EXIT_USAGE, TflaunchError


def request_stop(directory: Path, grace: float | None, number: int | None = None) -> None:
    """Request the end of a run, without waiting for it.

    Args:
        directory: the run's directory.
        grace: seconds between TERM and KILL, None for the spec's value.
        number: the signal by which the user asks for it in a terminal that follows the run.

    Raises:
        TflaunchError: the supervisor does not answer.
    """
    try:
        ControlClient(directory).ask("stop", grace=grace, signal=number)
    except NoSupervisorError:  # it has just ended, or has not begun
        locate_run(directory).stop_unsupervised(grace)


def request_restart(directory: Path, tasks: Sequence[str]) -> list[str]:
    """Have tasks restarted, or with none all that train; return those that do not restart alone.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    plan = runs.plan_of(directory)
    _ask(directory, "restart", f"; `tflaunch rerun {directory.name}` runs it again", tasks=list(tasks))
    return [task for task in tasks if not policy.can_be_restarted_alone(plan, plan.find(task))]


def request_signal(directory: Path, number: int, tasks: Sequence[str]) -> list[str]:
    """Have a signal sent to tasks, and return those that were running.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    answer = _ask(directory, "signal", tasks=list(tasks), signal=number)
    return [str(task) for task in answer.get("tasks", tasks)]


def require_live(directory: Path) -> None:
    """Require that a run has a supervisor.

    Raises:
        TflaunchError: it has none; the message says what the user can do.
    """
    if not runs.is_live(directory):
        raise why_over(directory)


def _ask(directory: Path, kind: str, remedy: str = "", **fields: object) -> dict[str, Any]:
    try:
        return ControlClient(directory).ask(kind, **fields)
    except NoSupervisorError:
        raise why_over(directory, remedy) from None


def why_over(directory: Path, remedy: str = "") -> TflaunchError:
    """Return the error for a run that has no supervisor; ``remedy`` is for one that has ended."""
    observer = Observer(directory)
    observer.catch_up()
    code = observer.exit_code
    ended = f"run {directory.name} has ended with exit code {code}{remedy}"
    return TflaunchError(lost(observer) if code is None else ended, EXIT_USAGE)
