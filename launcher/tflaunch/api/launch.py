"""Start runs, and find those that exist."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tflaunch.api import notebook
from tflaunch.api.functions import Call, spec_of
from tflaunch.api.runs import Run
from tflaunch.api.spec import SpecFields, SpecLike, file_of
from tflaunch.api.values import Result
from tflaunch.client import runs
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError, describe_os_error
from tflaunch.feature import engines, load
from tflaunch.runtime import launch
from tflaunch.runtime.run_config import SpecOrder, Submitted

if TYPE_CHECKING:
    from typing_extensions import Unpack


def start(  # noqa: PLR0913 - options, all of them named
    spec: SpecLike | Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    directory: str | Path | None = None,
    detach: bool = False,
    on: Literal["slurm"] | None = None,
    trust_hosts: bool = False,
    **fields: Unpack[SpecFields],
) -> Run:
    """Start a run, and return it once it has begun. Nothing is printed.

    Args:
        spec: the spec, a mapping with its fields, or the path of its file; or a function that every task calls.
        args: positional arguments of the function.
        kwargs: keyword arguments of the function.
        timeout: limit in seconds for the whole job, restarts included: ``timeouts.deadline`` of the spec.
        directory: base of relative paths in the spec; by default the directory of its file, or else the current one.
        detach: whether the run goes on when this program ends.
        on: the scheduler to submit it to, as with `tflaunch up --on`; the run may wait in its queue. Such a run is
            stopped when a ``with`` block is left, but goes on if this program is killed.
        trust_hosts: whether what a function returns or raises on other machines may be any object. Unpickling it can
            execute code of those machines here; otherwise plain data and exceptions of Python itself come from them.
        **fields: the fields of the spec, for a function; ``command`` is its interpreter, by default ``python3``.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        TflaunchError: the run cannot begin, or the function cannot be sent.
    """
    try:
        call = Call(spec, args, kwargs or {}) if callable(spec) else None
        if call is None and (args or kwargs or fields):
            wrong = ", ".join(["args"] * bool(args) + ["kwargs"] * bool(kwargs) + list(fields))
            raise TflaunchError(f"{wrong}: only a function is started with these; put fields into the spec", EXIT_USAGE)
        file = file_of(
            spec_of(spec, fields) if callable(spec) else spec, None if directory is None else Path(directory)
        )
        settings = [] if timeout is None else [f"timeouts.deadline={json.dumps(timeout)}"]
        if on is not None:
            return Run(_submit(file, settings, call, on), is_owned=not detach, trust_hosts=trust_hosts)
        plan, _ = prepare.plan_spec(file, settings, is_detached=detach)
        with launch.new_directory(plan, None, file.suffix, file.text.encode()) as run:
            if call is not None:
                call.write(run.function)
                plan = plan.with_function(run.function, call.searched)
            launch.start_supervisor(plan, run, is_owned=not detach)
    except OSError as error:
        raise TflaunchError(describe_os_error(error), EXIT_INTERNAL) from None
    return Run(run.path, is_owned=not detach, trust_hosts=trust_hosts)


def _submit(file: SpecFile, settings: Sequence[str], call: Call | None, engine: str) -> Path:
    """Submit a run to an engine, and return its directory."""
    found = engines().get(engine)
    if found is None or not found.submit:
        raise TflaunchError(f"on={engine!r}: this installation of tflaunch submits no runs to it", EXIT_USAGE)
    order = SpecOrder(str(file.directory.absolute()), file.suffix, settings)
    submitted: Submitted = load(found.submit)(file, order, None if call is None else call.write)
    return submitted.directory.path


class RunOptions(SpecFields, total=False):
    """The arguments of `start` that `run` has, too."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    timeout: float | None
    directory: str | Path | None
    on: Literal["slurm"] | None
    trust_hosts: bool


def run(
    spec: SpecLike | Callable[..., Any],
    *,
    show: bool | None = None,
    check: bool | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Run a spec to its end, or call a function in every task; return how it ended.

    Ctrl-C stops the run before it is raised.

    Args:
        spec: as in `start`.
        show: whether to print output and messages like `tflaunch up`; by default only in a notebook.
        check: whether to raise if the run does not succeed; by default only for a function.
        **options: ``args``, ``kwargs``, ``timeout``, ``directory``, ``on``, ``trust_hosts`` and fields of the spec,
            as in `start`.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        JobFailed: with ``check``, the run did not succeed.
        Exception: with ``check``, the function of the task that failed first raised this one, caused by a `JobFailed`.
        TflaunchError: the run cannot begin, or its supervisor was killed.
    """
    with start(spec, **options) as started:
        # no limit: the caller's `timeout` ends the run
        result = started.show() if (notebook.is_running() if show is None else show) else started.wait()
    return result.check() if (callable(spec) if check is None else check) else result


async def run_async(
    spec: SpecLike | Callable[..., Any], *, check: bool | None = None, **options: Unpack[RunOptions]
) -> Result:
    """Do as `run` without blocking the event loop; cancelling the task stops the run.

    Arguments and errors are those of `run`. Nothing is printed.
    """
    beginning = asyncio.ensure_future(asyncio.to_thread(functools.partial(start, spec, **options)))
    try:
        started = await asyncio.shield(beginning)
    except asyncio.CancelledError:  # its thread cannot be cancelled, so the run begins all the same
        async with await beginning:
            raise
    async with started:
        result = await started
    return result.check() if (callable(spec) if check is None else check) else result


def attach(name: str | None = None, *, trust_hosts: bool = False) -> Run:
    """Return a run that exists already; leaving a ``with`` block does not stop it.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name: the live one, else the newest; None for
            any run.
        trust_hosts: as in `start`.

    Raises:
        TflaunchError: no run matches, or several live runs do.
    """
    return Run(runs.find_run(name), trust_hosts=trust_hosts)
