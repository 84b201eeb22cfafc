"""`down`, `restart`, `kill`: change what runs do."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli.loading import say, seconds_in
from tflaunch.cli.naming import choose, complete_runs, plan_of, run_and_tasks_argument
from tflaunch.errors import EXIT_USAGE, TflaunchError

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan

_SHOWN = 8


@click.command(short_help="End a run.")
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-t", "--timeout", "grace", metavar="GRACE", help="Time between TERM and KILL; default: the spec's.")
@click.option("--all", "everything", is_flag=True, help="End all live runs.")
def down(run: str | None, grace: str | None, everything: bool) -> int:
    """End RUN and wait until nothing of it is left. To end one that has ended already is no mistake.

    RUN is the name of a run or job, or its beginning: the live one is ended. Its tasks get TERM, and KILL after
    GRACE (such as 30s; 0 kills at once). A run whose supervisor was killed is taken over to be ended.

    \b
    Example:
      tflaunch down -t 30s
    """
    from tflaunch.client import runs

    if everything and run is not None:
        raise click.UsageError("give a RUN or --all, not both")
    seconds = None if grace is None else _seconds(grace)
    known = runs.newest_first()
    if everything:
        found = [path for path in known if _may_live(path)]
    else:
        found = [runs.find(run)] if known or run is not None else []
    if not found:
        say("nothing runs")
    code = 0
    for path in found:
        try:
            _end(path, seconds)
        except TflaunchError as error:
            if not everything:
                raise
            say(str(error))  # the others are ended all the same
            code = error.exit_code
    return code


def _may_live(path: Path) -> bool:
    """Whether a run may have tasks: it is live, or nobody has seen its end."""
    from tflaunch.client import runs
    from tflaunch.store.journal_reader import ends

    found = ends(path)
    return runs.is_live(path) or (found is not None and found[1]["kind"] != "ended")


def ask_to_end(path: Path, grace: float | None) -> None:
    """Have a run ended, without waiting for it.

    Args:
        path: the run's directory.
        grace: seconds between TERM and KILL, None for the spec's.
    """
    from tflaunch.client.control_client import ControlClient, NoSupervisor
    from tflaunch.slurm import batch

    try:
        ControlClient(path).ask("stop", grace=grace)
    except NoSupervisor:  # it has ended meanwhile, or a job has not begun
        batch.cancel(path)


def _end(path: Path, grace: float | None) -> None:
    from tflaunch.client.observer import Observer, Outcome
    from tflaunch.core.job_state import Phase
    from tflaunch.explain.status import state_of_run
    from tflaunch.slurm import batch
    from tflaunch.store.run_dir import open_run

    open_run(path)
    if batch.not_begun(path):
        batch.cancel(path)
        say(f"run {path.name} was cancelled before it began")
        return
    observer = Observer(path)
    observer.catch_up()
    was_live = observer.outcome is Outcome.LIVE
    if was_live:
        ask_to_end(path, grace)
    while observer.outcome is Outcome.LIVE:
        observer.wait()
        observer.catch_up()
    if observer.exit_code is not None or observer.job.phase is Phase.ENDED:
        code = observer.job.exit_code if observer.exit_code is None else observer.exit_code
        is_stopped = was_live and state_of_run(observer.job, code) == "stopped"
        say(f"stopped {path.name}" if is_stopped else f"run {path.name} has ended with exit code {code}")
    elif observer.job.plan.lease == 0:
        from tflaunch.client.status import unheard_hosts

        for sentence in unheard_hosts(observer):
            say(f"tasks may still run on {sentence}")
        say(f"run {path.name} ended when its supervisor was killed")
    elif batch.job_of(path) is not None:
        batch.cancel(path)
        say(f"run {path.name} ended with its job of Slurm")
    else:
        from tflaunch.core.events import StopAsked
        from tflaunch.runtime import launch

        default = observer.job.plan.timeouts.grace
        launch.take_over(path, launch.Manner(say), StopAsked(default if grace is None else grace))


def _seconds(text: str) -> float:
    seconds = seconds_in(text)
    if seconds is None:
        raise TflaunchError(f"-t {text!r} is no duration; write seconds, or text such as 30s or 2m", EXIT_USAGE)
    return seconds


@click.command(short_help="Start tasks of a live run anew.")
@run_and_tasks_argument
def restart(words: tuple[str, ...]) -> None:
    """Start TASKs of RUN anew; without TASK all that train.

    An evaluator, a sidecar and a worker of a parameter_server job start alone; with any other task all that train
    do. They get TERM and the spec's grace to save first. It costs nothing of the restart budget.

    \b
    Example:
      tflaunch restart evaluator
    """
    from tflaunch.plan import selectors

    directory, wanted = choose(words)
    plan = plan_of(directory)
    tasks = selectors.choose(plan, wanted) if wanted else []
    _ask(directory, "restart", tasks=tasks)
    say(f"restarting {_restarted(plan, tasks)} of {directory.name}")


def _restarted(plan: Plan, tasks: list[str]) -> str:
    """What starts again when these tasks are asked for: with a task of the gang, all tasks that train."""
    from tflaunch.core import policy

    bound = [task for task in tasks if not policy.restarts_alone(plan, plan.find(task))]
    if tasks and not bound:
        return _listed(tasks)
    return "all tasks that train" + (f" ({_listed(bound)} cannot restart alone)" if bound else "")


def _listed(tasks: list[str]) -> str:
    return ", ".join(tasks) if len(tasks) <= _SHOWN else f"{', '.join(tasks[:_SHOWN])} and {len(tasks) - _SHOWN} more"


@click.command(short_help="Send a signal to tasks.")
@click.option("-s", "--signal", "name", default="TERM", metavar="SIGNAL", help="Its name or number; default: TERM.")
@run_and_tasks_argument
def kill(name: str, words: tuple[str, ...]) -> None:
    """Send a signal to TASKs of RUN, and let the rules decide what follows.

    \b
    Example:
      tflaunch kill -s USR1 worker:0
    """
    from tflaunch.plan import selectors

    number = _signal(name)
    directory, wanted = choose(words)
    if not wanted:
        raise click.UsageError("Missing argument 'TASK': worker, worker:1, worker:0-3 or host=NAME.")
    tasks = selectors.choose(plan_of(directory), wanted)
    answer = _ask(directory, "signal", tasks=tasks, signal=number)
    say(f"sent {signal.Signals(number).name} to {_listed(answer.get('tasks', tasks))} of {directory.name}")


def _signal(name: str) -> int:
    try:
        if name.isdigit():
            return int(signal.Signals(int(name)))
        return int(signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"])
    except (KeyError, ValueError):
        raise TflaunchError(f"-s {name!r} is no signal; write TERM, KILL, USR1 or a number", EXIT_USAGE) from None


def _ask(directory: Path, kind: str, **fields: object) -> dict[str, Any]:
    """Ask the supervisor of a run for something, and return its answer.

    Raises:
        TflaunchError: it refuses, or there is none.
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
