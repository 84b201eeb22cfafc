"""Supervise one run in this process, from its first agent or its recovery to the final summary."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tflaunch.core import policy, replay, step
from tflaunch.core.events import HostLost, Interrupted, StopRequested
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, TflaunchError, no_room
from tflaunch.explain import status, summary, wording
from tflaunch.mailbox import Mailbox
from tflaunch.plan.model import Plan
from tflaunch.runtime import wiring
from tflaunch.runtime.loop import Run
from tflaunch.runtime.run_config import RunConfig
from tflaunch.runtime.wiring import Runtime
from tflaunch.store import run_names, run_queue
from tflaunch.transport.base import AgentConnector, Link

_INTERRUPTED = 128 + signal.SIGINT
_RECORD_PATIENCE = 5.0  # seconds at the end of a short run
_LAST_PATIENCE = 0.8  # seconds after the third signal
_PATIENCE = 3.0  # seconds for a reader that takes nothing, after a signal


def execute(plan: Plan, config: RunConfig, connectors: Mapping[str, AgentConnector], links: Mapping[str, Link]) -> int:
    """Run a plan to its end and return tflaunch's exit code.

    Args:
        plan: the plan.
        config: how the run is supervised.
        connectors: how to reach the agent of each host.
        links: agents that are already started.
    """
    mailbox = Mailbox()
    job = step.begin_job(config.directory.run, plan, mailbox.now())

    def begin(run: Run, runtime: Runtime) -> None:
        record = threading.Thread(target=_record, args=(config.directory.path, plan), daemon=True)
        record.start()
        run.execute(links)
        record.join(_RECORD_PATIENCE)

    return _supervise(job, config, connectors, mailbox, begin)


def _record(path: Path, plan: Plan) -> None:
    """Describe what the run is made of, while its agents start."""
    from tflaunch.features.records import run_record

    run_record.write(path, plan)


def resume(
    records: Sequence[dict[str, Any]],
    config: RunConfig,
    connectors: Mapping[str, AgentConnector],
    stop: StopRequested | None = None,
) -> int:
    """Take over a run whose supervisor was killed, and return tflaunch's exit code.

    Args:
        records: the run's journal.
        config: how the run is supervised.
        connectors: how to reach the agent of each host.
        stop: if given, end the run at once.
    """
    job = replay.first_job(records[0])
    earlier = 1 + sum(record["kind"] == "supervisor" for record in records)
    mailbox = Mailbox()

    def go_on(run: Run, runtime: Runtime) -> None:
        run.recall(records[1:])
        if runtime.notifier is not None:
            runtime.notifier.recall(list(records[1:]))
        if stop is not None:
            mailbox.put(stop)
        run.resume()

    return _supervise(job, config, connectors, mailbox, go_on, earlier, len(records))


def _supervise(
    job: Job,
    config: RunConfig,
    connectors: Mapping[str, AgentConnector],
    mailbox: Mailbox,
    serve: Callable[[Run, Runtime], None],
    fencing: int = 0,
    records: int = 0,
) -> int:
    """Open the runtime, let ``serve`` run the job to its end, and return tflaunch's exit code."""
    signals: list[int] = []
    code: int | None = None

    def patience() -> float | None:
        """Return the seconds to wait for a stalled reader: unlimited, unless interrupted or failed."""
        return _PATIENCE if signals or code is None else None

    try:
        with ExitStack() as early:
            early.enter_context(_ignored_ctrl_z(job.plan.lease, lambda text: mailbox.call(lambda: config.say(text))))
            early.enter_context(_signals_to(mailbox, signals))  # before the journal begins, so that it also has the end
            with wiring.open_runtime(job, config, connectors, mailbox, patience, fencing, records) as runtime:
                run = Run(job, runtime.collaborators)
                with early.pop_all():
                    try:
                        serve(run, runtime)
                    except (OSError, RuntimeError, MemoryError) as error:
                        _end_without_room(run, runtime, error)
                        raise
                    if runtime.collector is not None:
                        runtime.collector.close()
                    collected, missing = _collect_files(run, config, mailbox)
                code = _last_words(run, runtime, collected, missing)
    except KeyboardInterrupt:  # raised while waiting for the output's reader
        return code or _INTERRUPTED
    _remove_old_runs(job.plan, config)
    _wake_queue()
    return code


def _end_without_room(run: Run, runtime: Runtime, error: Exception) -> None:
    """If an error says that there is no room for what supervises tasks, end them, record why, and raise that."""
    if sentence := no_room(error):
        job, now = run.job, runtime.collaborators.mailbox.now()
        for host, session in runtime.collaborators.sessions.items():
            session.leave()
            lost = HostLost(host, sentence, is_faulty=True)  # it is not tried again
            job, actions = step.step(job, lost, now)
            runtime.journal.record(lost, actions, now)
        runtime.journal.settle()
        code = job.exit_code or EXIT_INTERNAL
        runtime.journal.record_end(code, [sentence], "failed")
        raise TflaunchError(sentence, code) from None


def _remove_old_runs(plan: Plan, config: RunConfig) -> None:
    """Remove the job's runs that are too old, and say how many."""
    try:
        now = time.time()
        if not run_names.may_be_too_old(plan.name, plan.retention, now):
            return
        from tflaunch.features.prune import prune  # most runs have no old ones before them

        removed = prune.apply_retention(plan.name, plan.retention, now)
    except TflaunchError:
        return  # `tflaunch prune` says why
    if removed:
        config.say(f"removed {wording.counted(len(removed), 'old run')} of {plan.name} (`retention` of the spec)")


def _wake_queue() -> None:
    """Start a dispatcher if runs wait for the end of this one, and the dispatcher was killed."""
    if not run_queue.has_entries():
        return
    from tflaunch.runtime import queue_wake  # most runs have none waiting

    try:
        queue_wake.ensure_dispatcher()
    except TflaunchError:
        pass  # the next command that looks at the queue says why


def _collect_files(run: Run, config: RunConfig, mailbox: Mailbox) -> tuple[list[str], list[str]]:
    """Fetch what the spec wants from the working directories; return what was fetched, and what was not."""
    job = run.job
    if not (job.plan.collect and job.has_started):
        return [], []
    from tflaunch.features.files.collect import Collection  # most runs fetch nothing

    collection = Collection(config.directory.path, job, job.plan.collect, lambda: mailbox.call(lambda: None))
    if run.is_cut_short or not run.serve_until(lambda: collection.is_over):
        collection.cancel()
    return collection.summary()


def _last_words(run: Run, runtime: Runtime, collected: list[str], missing: list[str]) -> int:
    """Print how the run ended, and return tflaunch's exit code.

    ``collected`` and ``missing``: what was fetched from the working directories, and what was not.
    """
    runtime.journal.tell_removal(runtime.sink.say)
    runtime.journal.settle()
    notes, exit_code = _result(run, runtime)
    notes += missing
    if notes:
        runtime.collaborators.say("\n".join(notes))
    has_failed = status.state_of_run(run.job, exit_code) == "failed"
    runtime.sink.say(_summary(run, runtime), is_failure=has_failed)
    if collected:
        runtime.sink.say("\n".join(collected))
    if runtime.notifier is not None:
        from tflaunch.features.notify.notifier import end_of  # with `notify` only

        state, logs = status.state_of_run(run.job, exit_code), Path(runtime.collaborators.logs)
        runtime.notifier.notify(end_of(run.job, state, logs, [*notes, *collected]))
        runtime.notifier.close()
    state, progress = status.state_of_run(run.job, exit_code), summary.last_progress(run.job)
    runtime.journal.record_end(exit_code, notes, state, progress)
    runtime.service.end(exit_code)
    return exit_code


def _result(run: Run, runtime: Runtime) -> tuple[list[str], int]:
    """Return the notes on lost data and on a drill's outcome, and the exit code."""
    notes, injector = _losses(runtime), runtime.injector
    exit_code = run.exit_code
    if injector is not None:
        notes += injector.report(exit_code)
        if exit_code == 0 and not injector.is_done:
            exit_code = EXIT_INTERNAL  # a drill that injected nothing must not look like one that passed
    return notes, exit_code


def _summary(run: Run, runtime: Runtime) -> str:
    return summary.summary(
        run.job, runtime.collaborators.logs, runtime.collaborators.log_sink.tail, runtime.sink.shows_output
    )


def _losses(runtime: Runtime) -> list[str]:
    """Return messages about output, files and records lost because the disk was full."""
    lines = runtime.collaborators.log_sink.trouble() + runtime.left_files.trouble()
    if runtime.journal.lost:
        lines.append(f"{runtime.journal.lost} records of the journal could not be written")
    return lines


@contextmanager
def _ignored_ctrl_z(lease: float, say: Callable[[str], None]) -> Iterator[None]:
    """Ignore Ctrl-Z where tasks end when they hear nothing of their supervisor for the ``lease``; tell what that costs.

    SIGSTOP cannot be ignored: it is told when the process goes on.
    """
    if not lease or signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        yield
        return
    costs = f"the tasks end when they hear nothing for {lease:g} s"
    words = {
        signal.SIGTSTP: f"Ctrl-Z is ignored, because {costs}; `tflaunch up -d` gives the prompt back",
        signal.SIGCONT: f"tflaunch was stopped and goes on; {costs}",
    }
    earlier = {number: signal.signal(number, lambda got, _: say(words[signal.Signals(got)])) for number in words}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _end_anyway() -> None:
    """End this process soon, whatever its other threads wait for."""
    time.sleep(_LAST_PATIENCE)
    os._exit(EXIT_INTERNAL)


@contextmanager
def _signals_to(mailbox: Mailbox, came: list[int]) -> Iterator[None]:
    """Turn Ctrl-C, TERM and HUP into events and append them to ``came``; HUP stays ignored under nohup."""

    def enqueue(number: int, frame: FrameType | None) -> None:
        came.append(number)
        mailbox.put(Interrupted(number))
        if len(came) == policy.MOST_INTERRUPTS:  # whatever else is waited for: a disk, a thread, a command
            threading.Thread(target=_end_anyway, daemon=True).start()

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    earlier = {number: signal.signal(number, enqueue) for number in wanted}
    earlier_wake = signal.set_wakeup_fd(mailbox.wake_descriptor, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_wake)
        for number, handler in earlier.items():
            signal.signal(number, handler)
