"""Start runs, and find those that exist."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tflaunch.api.runs import Run
from tflaunch.api.spec import SpecLike, file_of
from tflaunch.api.values import Result
from tflaunch.client import runs
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.errors import TflaunchError
from tflaunch.runtime import launch, plan_cache, supervisor_process


def start(
    spec: SpecLike,
    *,
    timeout: float | None = None,
    directory: str | Path | None = None,
    detach: bool = False,
    on: Literal["slurm"] | None = None,
) -> Run:
    """Start a run, and return it once it has begun. Nothing is printed.

    Args:
        spec: the spec, a mapping with its fields, or the path of its file.
        timeout: limit in seconds for the whole job, restarts included: ``timeouts.deadline`` of the spec.
        directory: base of relative paths in the spec; by default the directory of its file, or else the current one.
        detach: whether the run goes on when this program ends.
        on: the scheduler to submit it to, as with `tflaunch up --on`; the run may wait in its queue. Such a run is
            stopped when a ``with`` block is left, but goes on if this program is killed.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        TflaunchError: the run cannot begin.
    """
    file = file_of(spec, None if directory is None else Path(directory))
    settings = [] if timeout is None else [f"timeouts.deadline={json.dumps(timeout)}"]
    if on is not None:
        return Run(_submit(file, settings), is_owned=not detach)
    plan = plan_cache.plan_spec(file, settings, is_detached=detach).plan
    run = launch.make_directory(plan, None, file.suffix, file.text.encode())
    try:
        supervisor_process.start(plan, run, is_owned=not detach)
    except TflaunchError:
        shutil.rmtree(run.path, ignore_errors=True)  # nothing has run, and the message says why
        raise
    return Run(run.path, is_owned=not detach)


def _submit(file: SpecFile, settings: Sequence[str]) -> Path:
    """Submit a run to Slurm, and return its directory."""
    from tflaunch.runtime import slurm_submission
    from tflaunch.runtime.slurm_submission import Order

    order = Order(str(file.directory.absolute()), file.suffix, settings)
    return slurm_submission.submit_spec(file, order).directory.path


def run(
    spec: SpecLike,
    *,
    timeout: float | None = None,
    directory: str | Path | None = None,
    on: Literal["slurm"] | None = None,
    show: bool = False,
    check: bool = False,
) -> Result:
    """Run a spec to its end, and return how it ended. Ctrl-C stops the run before it is raised.

    Args:
        spec: as in `start`.
        timeout: as in `start`.
        directory: as in `start`.
        on: as in `start`.
        show: whether to print output and messages like `tflaunch up`.
        check: whether to raise if the run does not succeed.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        JobFailed: with ``check``, the run did not succeed.
        TflaunchError: the run cannot begin, or its supervisor was killed.
    """
    with start(spec, timeout=timeout, directory=directory, on=on) as started:
        result = started.show() if show else started.wait()
    return result.check() if check else result


async def run_async(spec: SpecLike, *, timeout: float | None = None, directory: str | Path | None = None) -> Result:
    """Run a spec to its end without blocking the event loop; if the task is cancelled, the run is stopped.

    Args and errors are those of `start`.
    """
    async with await asyncio.to_thread(start, spec, timeout=timeout, directory=directory) as started:
        return await started


def attach(name: str | None = None) -> Run:
    """Return a run that exists already; leaving a ``with`` block does not stop it.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name: the live one, else the newest; None for
            any run.

    Raises:
        TflaunchError: no run matches, or several live runs do.
    """
    return Run(runs.find_run(name))
