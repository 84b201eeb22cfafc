"""Send requests to a run's supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.errors import EXIT_USAGE, TflaunchError

_SHOWN = 8


def shortened_list(tasks: list[str]) -> str:
    return ", ".join(tasks) if len(tasks) <= _SHOWN else f"{', '.join(tasks[:_SHOWN])} and {len(tasks) - _SHOWN} more"


def ask_supervisor(directory: Path, kind: str, **fields: object) -> dict[str, Any]:
    """Send a request to the supervisor of a run, and return its answer.

    Raises:
        TflaunchError: the supervisor refuses, or there is none.
    """
    from tflaunch.client.control_client import ControlClient, NoSupervisor
    from tflaunch.client.follow import lost
    from tflaunch.client.observer import Observer

    try:
        client = ControlClient(directory)
        return client.ask(kind, **fields)
    except NoSupervisor:
        observer = Observer(directory)
        observer.catch_up()
        code = observer.exit_code
        ended = f"run {directory.name} has ended with exit code {code}"
        raise TflaunchError(lost(observer) if code is None else ended, EXIT_USAGE) from None
