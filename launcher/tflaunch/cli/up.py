"""`up`: run a spec, follow it or let it go, or take over a lost run."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tflaunch.cli.arguments import spec as arguments
from tflaunch.cli.arguments.launch import (
    Launching,
    LaunchOptions,
    check_extras,
    engine_option,
    feature_options,
    flag_of,
    launch_options,
    settings_of,
)
from tflaunch.cli.arguments.select import complete_runs
from tflaunch.client import control_client, runs
from tflaunch.client.follow import Follower, watch_to_end
from tflaunch.client.observer import Observer
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import TflaunchError
from tflaunch.feature import engines, load
from tflaunch.interruptible import handle_signals
from tflaunch.runtime.run_config import RunConfig
from tflaunch.tui.screen import Screen
from tflaunch_worker import signals

if TYPE_CHECKING:
    from tflaunch.clusterspec.spec_file import SpecFile
    from tflaunch.runtime.run_config import SpecOrder
    from tflaunch.store.log_sink import OutputSink


@click.command(cls=arguments.CommandAfterDashes)
@click.argument("spec", required=False, type=click.Path(readable=False, path_type=Path))
@arguments.file_option
@arguments.command_argument
@arguments.set_option
@launch_options
@engine_option
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_runs,
    help="Take over RUN, whose supervisor was killed, instead of starting SPEC.",
)
def up(
    spec: Path | None,
    command: tuple[str, ...],
    settings: tuple[str, ...],
    options: LaunchOptions,
    engine: str | None,
    resume: str | None,
) -> int:
    """Validate SPEC, run its tasks until the job ends, and leave nothing behind.

    The exit code is the job's: 0, or that of the task that failed first. Ctrl-C ends the tasks with
    time to save; a second one kills them. COMMAND, after --, replaces the spec's. A SPEC `-` is read from
    standard input; without SPEC, it is the cluster.json, .yaml, .yml or .toml in this directory.

    With -d the job outlives this terminal and a logout. The name of the run is printed; ps, logs, attach, wait
    and down work on it from anywhere.

    A supervisor that was killed can be replaced while the lease of its agents runs (timeouts.lease): with
    --resume the job goes on, and its tasks never notice.

    \b
    Example:
      tflaunch up cluster.json --set restart.max=0 -- python train.py --epochs 2
      tflaunch up --resume cluster-20260102-030405-6789
    """
    if resume is not None:
        with_it = [flag_of(name) for name, option in feature_options().items() if option.goes_with_resume]
        taken = (spec, command, settings, options.name, options.log_dir, engine, options.settings)
        if any(taken) or not all(feature_options()[name].goes_with_resume for name in options.extras):
            *words, last = ["-d", "-q", "-v", *with_it]
            raise click.UsageError(
                f"write tflaunch up --resume {resume}: --resume takes the rest from the run itself; "
                f"only {', '.join(words)} and {last} go with it"
            )
        return take_over(resume, options)
    return start_spec(
        arguments.read_file(spec or arguments.usual_spec()), settings, Launching(options, engine), command
    )


def start_spec(file: SpecFile, settings: tuple[str, ...], launching: Launching, command: tuple[str, ...] = ()) -> int:
    """Run a spec, here or by an engine; return tflaunch's exit code."""
    check_extras(launching)
    options, engine = launching.options, launching.engine
    settings += settings_of(launching)
    if engine is not None and engines()[engine].submit:
        from tflaunch.runtime.run_config import SpecOrder

        logs = None if options.log_dir is None else str(options.log_dir.absolute())
        about = (options.name, command, logs, options.preflight, options.extras)
        return _submit(file, SpecOrder(str(file.directory.absolute()), file.suffix, settings, *about), launching)
    from tflaunch.discovery import prepare

    plan, warnings = prepare.plan_spec(file, settings, options.name, command, is_detached=options.outlives_terminal)
    arguments.warn(file.source, warnings)
    plan = plan._replace(preflight=options.preflight)
    return start(launching._replace(plan=plan, suffix=file.suffix, spec=file.text.encode()))


def _submit(file: SpecFile, order: SpecOrder, launching: Launching) -> int:
    """Submit a run to an engine, and follow it unless detached; return its exit code."""
    options = launching.options
    submitted = load(engines()[launching.engine or ""].submit)(file, order)
    arguments.warn(file.source, submitted.warnings)
    directory = submitted.directory
    if not options.quiet:
        arguments.say(f"run {directory.run} is {submitted.name}")
    if options.detach:
        click.echo(directory.run)
        return 0
    return follow_run(locate_run(directory.path), options.verbose, options.quiet, options.fold)


def start(launching: Launching) -> int:
    """Run a plan; return tflaunch's exit code."""
    from tflaunch.runtime import launch

    check_extras(launching)
    options, plan = launching.options, launching.plan
    assert plan is not None
    others = [engine.detach for engine in engines().values() if options.detach and engine.field == plan.host_maker]
    others += [feature_options()[name].start for name in options.extras]
    for place in filter(None, others):
        return int(load(place)(launching))
    code = launch.code_for_hosts(plan)
    with launch.new_directory(plan, options.log_dir, launching.suffix, launching.spec) as directory:
        sink = _screen(options)
        config = RunConfig(directory, code, arguments.say, options.extras, options.detach, options.quiet, sink=sink)
        exit_code = launch.start(plan, config)
    if options.detach and exit_code == 0:
        click.echo(directory.run)
    return exit_code


def _screen(options: LaunchOptions) -> Callable[[Sequence[str]], OutputSink]:
    return functools.partial(Screen, is_verbose=options.verbose, is_quiet=options.quiet, is_folding=options.fold)


def take_over(name: str, options: LaunchOptions) -> int:
    """Continue a run whose supervisor was killed."""
    from tflaunch.runtime import launch

    path = runs.find_run(name)
    code = launch.take_over(path, arguments.say, options.extras, options.detach, sink=_screen(options))
    if options.detach and code == 0:
        click.echo(path.name)
    return code


def follow_run(location: RunLocation, is_verbose: bool, is_quiet: bool, is_folding: bool | None) -> int:
    """Show a run as `up` does, until it has ended; return its exit code.

    Ctrl-C stops it, or takes it out of its queue.
    """

    def watch(observer: Observer) -> int:
        screen = Screen(observer.tasks, is_verbose, is_quiet, is_folding)
        try:
            return Follower(observer, screen).run(None)
        finally:
            screen.close()

    with interrupts_stop([location.directory]) as interrupts:
        try:
            code = watch_to_end(location, arguments.say, watch)
        except TflaunchError as error:
            if not interrupts:
                raise
            arguments.say(str(error))
            code = error.exit_code
    return 128 + interrupts[0] if interrupts and code != 0 else code


@contextmanager
def interrupts_stop(directories: Sequence[Path]) -> Iterator[list[int]]:
    """Make Ctrl-C and `signals.ENDING` stop runs as in `up`; yield those that came.

    The last run is stopped first, so that none of them begins because another one has ended.
    """
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not signals.asks_more(number, seen):
            return
        for directory in reversed(directories):
            control_client.request_stop(directory, 0 if len(seen) > 1 else None, number)

    with handle_signals((signal.SIGINT, *signals.ENDING), stop):
        yield seen
