"""Put runs into the local queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError, describe_os_error
from tflaunch.features.queue import queue_wake, run_queue
from tflaunch.features.queue.host_shares import wanted_shares, with_inherited_devices
from tflaunch.features.queue.run_queue import Order
from tflaunch.own_process import own_path
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch
from tflaunch.store.run_dir import RunDirectory
from tflaunch_worker import linux, process_state


def enqueue(
    plan: Plan,
    suffix: str,
    spec: bytes,
    log_directory: Path | None = None,
    extras: Mapping[str, Any] = {},
) -> RunDirectory:
    """Put a run at the end of the queue, and return its directory; it may begin at once.

    Args:
        plan: the plan of a detached run.
        suffix: the format of ``spec``, as the suffix of a file name.
        spec: what the user wrote.
        log_directory: the directory for the tasks' logs, by default inside the run directory.
        extras: as in `RunConfig`.

    Raises:
        TflaunchError: it cannot wait, or its directory or entry cannot be created.
    """
    _require_to_be_independent(plan)
    plan = with_inherited_devices(plan, os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        with launch.new_directory(plan, log_directory, suffix, spec) as directory:
            order = Order(
                plan=serialize.as_json(plan),
                logs=str(directory.logs),
                extras=dict(extras),
                directory=os.getcwd(),
                umask=process_state.read_umask(),
                environ=dict(os.environ),
                python=sys.executable,
                search_path=own_path(),
            )
            run_queue.add_entry(directory.path, order, wanted_shares(plan, linux.count_gpus()), plan.matrix)
    except OSError as error:
        raise TflaunchError(describe_os_error(error), EXIT_INTERNAL) from None
    queue_wake.ensure_dispatcher()
    return directory


def _require_to_be_independent(plan: Plan) -> None:
    """Require that a plan can be run later, by another process.

    Raises:
        TflaunchError: it cannot.
    """
    if plan.made_hosts is not None:
        raise TflaunchError("Kubernetes has a queue of its own for pods; leave out --queue and --matrix", EXIT_USAGE)
    for name, source in plan.secrets.items():
        if source.env is not None:
            message = (
                f"secrets.{name}: is read from the environment, which a run that waits has to keep on the disk; "
                'read it from a file: {"file": "PATH"}'
            )
            raise TflaunchError(message, EXIT_USAGE)
