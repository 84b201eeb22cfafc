"""`down`: stop runs."""

import functools
import time
from pathlib import Path

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import Duration, say
from tflaunch.client import runs
from tflaunch.client.control_client import ControlClient
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import locate_run
from tflaunch.core.events import StopRequested
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain import summary
from tflaunch.explain.status import state_of_run
from tflaunch.store import run_dir
from tflaunch_worker.readable import duration_words

_MOMENT = 3.0  # seconds after which it says what it waits for


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "-t",
    "--timeout",
    "grace",
    type=Duration("30s"),
    metavar="GRACE",
    help="Time to save, before KILL; default: the spec's.",
)
@click.option("--all", "everything", is_flag=True, help="Stop all live runs.")
def down(run: str | None, grace: float | None, everything: bool) -> int:
    """Stop RUN and wait until all its processes are gone.

    RUN is the name of a run or job, or a prefix of one: the live run is stopped. Its tasks get the spec's stop_signal
    (TERM), and KILL after GRACE (such as 30s; 0 kills at once). A run whose supervisor was killed is taken over to be
    ended. Stopping a run that has ended is not an error.

    \b
    Example:
      tflaunch down -t 30s
    """
    if everything and run is not None:
        raise click.UsageError("give a RUN or --all, not both")
    known = run_dir.newest_first()
    if everything:  # those that wait first, else they would begin
        found = [path for path in known if locate_run(path).begins_after_others()]
        may_live = (runs.Outcome.LIVE, runs.Outcome.LOST)
        found += [path for path in known if path not in found and runs.outcome_of(path) in may_live]
    else:
        found = [runs.find_run(run)] if known or run is not None else []
    if not found:
        say("nothing runs")
    code = 0
    for path in found:
        try:
            stop_begun = functools.partial(_end_begun, path, grace)
            code = locate_run(run_dir.open_run(path)).stop_run(grace, say, stop_begun) or code
        except TflaunchError as error:
            if not everything:
                raise
            say(str(error))  # continue with the other runs
            code = error.exit_code
    return code


def _end_begun(path: Path, grace: float | None) -> int:
    """Stop a run that has begun here; return 125 if something may still run, else 0."""
    was_live, code = _stop_live(path, grace)
    end = runs.end_of(path)
    if end is None or end.exit_code == EXIT_INTERNAL:
        return _end_replayed(path, grace, was_live, code)
    is_stopped = was_live and end.state == "stopped"
    say(f"stopped {path.name}" if is_stopped else f"run {path.name} has ended with exit code {end.exit_code}")
    return 0  # what may still run makes the exit code 125


def _stop_live(path: Path, grace: float | None) -> tuple[bool, int | None]:
    """Stop a run, wait for its end; return whether it lived, and the exit code."""
    try:
        client = ControlClient(path)
    except runs.NoSupervisorError:
        runs.kill_orphans(path)
        return False, None
    code: int | None = None
    patience: float | None = _MOMENT
    try:
        client.say("stop", grace=grace)
        client.say("follow")  # before it can have ended: a full disk may keep its end from the journal
        client.next_answer()
        until = time.monotonic() + _MOMENT
        while (message := client.hear(patience)) is None or message["kind"] != "ended":
            if patience is not None and time.monotonic() >= until:
                patience, plan = None, runs.plan_of(path)  # no limit: its tasks have their grace, and then get KILL
                wait = duration_words(plan.timeouts.grace if grace is None else grace)
                say(f"stopping {path.name}: sent {plan.stop_signal}, waiting up to {wait} for its tasks to save")
        code = message.get("exit_code")
    except runs.NoSupervisorError:
        pass  # it has exited, and has recorded the end before that, unless it was killed
    except KeyboardInterrupt:
        say(f"{path.name} goes on stopping; `tflaunch wait {path.name}` waits for its end")
        raise
    finally:
        client.close()
    run_dir.wait_for_end(path)  # it tells the end before it exits
    return True, code


def _end_replayed(path: Path, grace: float | None, was_live: bool, code: int | None) -> int:
    """End a run by its whole journal: it is lost, or may have left something."""
    observer, location = Observer(path), locate_run(path)
    observer.catch_up()
    job = observer.job
    if observer.exit_code is not None or code is not None or job.phase is Phase.ENDED:
        code = next((each for each in (observer.exit_code, code) if each is not None), job.exit_code)
        is_stopped = was_live and state_of_run(job, code) == "stopped"
        say(f"stopped {path.name}" if is_stopped else f"run {path.name} has ended with exit code {code}")
        for sentence in summary.unended(job):
            say(sentence)
    elif job.plan.lease == 0:
        for seen in runs.look_at_hosts(path).values():  # which kills what killed agents have left there
            if seen.tasks is None:
                say(f"tasks may still run on {seen.host}: {seen.reason}")
        say(f"run {path.name} ended when its supervisor was killed")
    elif not location.has_supervisor_here:
        location.stop_unsupervised(grace)
        say(f"run {path.name} ended with {location.supervisor}")
    else:
        from tflaunch.runtime import launch

        stop = StopRequested(job.plan.timeouts.grace if grace is None else grace)
        code = launch.take_over(path, say, stop=stop)
        return EXIT_INTERNAL if code == EXIT_INTERNAL else 0  # its summary has told what may still run
    return EXIT_INTERNAL if job.unended() else 0
