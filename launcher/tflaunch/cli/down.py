"""`down`: stop runs."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import say, seconds_in
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError

if TYPE_CHECKING:
    from tflaunch.client.observer import Observer

_MOMENT = 3.0  # seconds after which it says what it waits for


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-t", "--timeout", "grace", metavar="GRACE", help="Time to save, before KILL; default: the spec's.")
@click.option("--all", "everything", is_flag=True, help="Stop all live runs.")
def down(run: str | None, grace: str | None, everything: bool) -> int:
    """Stop RUN and wait until all its processes are gone. Stopping a run that has ended is not an error.

    A run that waits in the queue of `up --queue` is taken out of it, and --all empties that queue, too.

    RUN is the name of a run or job, or a prefix of one: the live run is stopped. Its tasks get the spec's stop_signal
    (TERM), and KILL after GRACE (such as 30s; 0 kills at once). A run whose supervisor was killed is taken over to be
    ended.

    \b
    Example:
      tflaunch down -t 30s
    """
    from tflaunch.client import runs
    from tflaunch.client.run_location import locate_run
    from tflaunch.store import run_names
    from tflaunch.store.run_dir import open_run

    if everything and run is not None:
        raise click.UsageError("give a RUN or --all, not both")
    seconds = None if grace is None else _seconds(grace)
    known = run_names.newest_first()
    if everything:  # those that wait first, else they would begin
        found = [path for path in known if locate_run(path).begins_after_others()]
        found += [path for path in known if path not in found and _may_live(path)]
    else:
        found = [runs.find_run(run)] if known or run is not None else []
    if not found:
        say("nothing runs")
    code = 0
    for path in found:
        try:
            stop_begun = functools.partial(_end_begun, path, seconds)
            code = locate_run(open_run(path)).stop_run(seconds, say, stop_begun) or code
        except TflaunchError as error:
            if not everything:
                raise
            say(str(error))  # continue with the other runs
            code = error.exit_code
    return code


def _may_live(path: Path) -> bool:
    """Whether a run may still have tasks: it is live, or its end was not recorded."""
    from tflaunch.client import runs
    from tflaunch.store.journal_reader import first_and_last_record

    found = first_and_last_record(path)
    return runs.is_live(path) or (found is not None and found[1]["kind"] != "ended")


def _end_begun(path: Path, grace: float | None) -> int:
    """Stop a run that has begun, and whose files are here; return 125 if something of it may still run, else 0."""
    from tflaunch.client import requests
    from tflaunch.client.observer import Observer, Outcome
    from tflaunch.client.run_location import locate_run
    from tflaunch.core.job_state import Phase
    from tflaunch.explain import summary
    from tflaunch.explain.status import state_of_run

    observer, location = Observer(path), locate_run(path)
    observer.catch_up()
    was_live = observer.outcome is Outcome.LIVE
    if was_live:
        requests.request_stop(path, grace)
        default = observer.job.plan.timeouts.grace
        _await_end(observer, path.name, default if grace is None else grace)
    if observer.exit_code is not None or observer.job.phase is Phase.ENDED:
        code = observer.job.exit_code if observer.exit_code is None else observer.exit_code
        is_stopped = was_live and state_of_run(observer.job, code) == "stopped"
        say(f"stopped {path.name}" if is_stopped else f"run {path.name} has ended with exit code {code}")
        for sentence in summary.unended(observer.job):
            say(sentence)
    elif observer.job.plan.lease == 0:
        from tflaunch.client.status import unreachable_hosts

        for sentence in unreachable_hosts(observer):
            say(f"tasks may still run on {sentence}")
        say(f"run {path.name} ended when its supervisor was killed")
    elif not location.has_supervisor_here:
        location.stop_unsupervised(grace)
        say(f"run {path.name} ended with {location.supervisor}")
    else:
        from tflaunch.core.events import StopRequested
        from tflaunch.runtime import launch

        default = observer.job.plan.timeouts.grace
        code = launch.take_over(path, say, stop=StopRequested(default if grace is None else grace))
        return EXIT_INTERNAL if code == EXIT_INTERNAL else 0  # its summary has told what may still run
    return EXIT_INTERNAL if observer.job.unended() else 0


def _await_end(observer: Observer, run: str, grace: float) -> None:
    """Wait until a live run has ended; say so if that takes longer than a moment."""
    from tflaunch.client.observer import Outcome
    from tflaunch_worker.readable import duration_words

    told_at = time.monotonic() + _MOMENT
    try:
        while observer.outcome is Outcome.LIVE:
            observer.wait(_MOMENT)
            observer.catch_up()
            if observer.outcome is Outcome.LIVE and time.monotonic() >= told_at:
                told_at = float("inf")
                stop = observer.job.plan.stop_signal
                say(f"stopping {run}: sent {stop}, waiting up to {duration_words(grace)} for its tasks to save")
    except KeyboardInterrupt:
        say(f"{run} goes on stopping; `tflaunch wait {run}` waits for its end")
        raise


def _seconds(text: str) -> float:
    seconds = seconds_in(text)
    if seconds is None:
        raise TflaunchError(
            f"-t {text!r} is not a valid duration; write seconds, or text such as 30s or 2m", EXIT_USAGE
        )
    return seconds
