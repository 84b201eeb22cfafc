"""Supervise one run in this process, to the final summary."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from tflaunch.core import policy, replay, step
from tflaunch.core.events import HostLost, Interrupted, StopRequested
from tflaunch.core.job_state import Job
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, TflaunchError, out_of_resources
from tflaunch.explain import status, summary
from tflaunch.interruptible import handle_signals
from tflaunch.mailbox import Mailbox
from tflaunch.plan.model import Plan
from tflaunch.runtime import wiring
from tflaunch.runtime.loop import Run
from tflaunch.runtime.run_config import RunConfig
from tflaunch.runtime.watchers import Findings
from tflaunch.transport.base import AgentConnector, Link
from tflaunch_worker import signals
from tflaunch_worker.readable import duration_words

_LAST_PATIENCE = 0.8  # seconds after the third signal
_PATIENCE = 3.0  # seconds for a reader that takes nothing, after a signal


def execute(plan: Plan, config: RunConfig, connectors: Mapping[str, AgentConnector], links: Mapping[str, Link]) -> int:
    """Run a plan; return the exit code. ``links``: agents that are already started."""
    mailbox = Mailbox()
    job = step.begin_job(config.directory.run, plan, mailbox.now())

    def begin(run: Run, runtime: wiring.Runtime) -> None:
        runtime.watchers.each(lambda watcher: watcher.begin(), TflaunchError)
        run.execute(links)

    return _supervise(job, config, connectors, mailbox, begin)


def resume(
    records: Sequence[dict[str, Any]],
    config: RunConfig,
    connectors: Mapping[str, AgentConnector],
    stop: StopRequested | None = None,
) -> int:
    """Take over a run whose supervisor was killed, and return tflaunch's exit code.

    With ``stop``, end the run at once.
    """
    job = replay.first_job(records[0])
    # Agents obey the highest number that they have seen: the supervisor before may not be dead but stopped, with its
    # machine for instance, and send orders of an hour ago when it goes on.
    earlier = 1 + sum(record["kind"] == "supervisor" for record in records)
    mailbox = Mailbox()

    def go_on(run: Run, runtime: wiring.Runtime) -> None:
        run.recall(records[1:])
        runtime.watchers.each(lambda watcher: watcher.recall(list(records[1:])))
        if stop is not None:
            mailbox.put(stop)
        run.resume()

    return _supervise(job, config, connectors, mailbox, go_on, earlier, len(records))


def _supervise(
    job: Job,
    config: RunConfig,
    connectors: Mapping[str, AgentConnector],
    mailbox: Mailbox,
    serve: Callable[[Run, wiring.Runtime], None],
    fencing: int = 0,
    records: int = 0,
) -> int:
    """Let ``serve`` run the job to its end; return tflaunch's exit code."""
    came: list[int] = []
    code: int | None = None

    def patience() -> float | None:
        """Return the seconds to wait for a stalled reader, None for no limit."""
        return _PATIENCE if came or code is None else None

    try:
        with ExitStack() as early:
            if config.explain_term is None:  # otherwise CONT may just precede TERM, as Slurm sends both
                say = config.say
                early.enter_context(_ignored_ctrl_z(job.plan.lease, lambda text: mailbox.call(lambda: say(text))))
            # Before the journal begins, so that it also has the end.
            early.enter_context(_signals_to(mailbox, came, config.explain_term))
            with wiring.open_runtime(job, config, connectors, mailbox, patience, fencing, records) as runtime:
                run = Run(job, runtime.collaborators)
                with early.pop_all():
                    try:
                        serve(run, runtime)
                    except (OSError, RuntimeError, MemoryError) as error:
                        _end_without_resources(run, runtime, error)
                        raise
                    findings = runtime.watchers.finish(run)
                code = _last_words(run, runtime, findings)
    except KeyboardInterrupt:  # raised while waiting for the output's reader
        return code or EXIT_INTERRUPTED
    runtime.watchers.follow_up(config.say)
    return code


def _end_without_resources(run: Run, runtime: wiring.Runtime, error: Exception) -> None:
    """End the tasks if an error is for want of memory or processes."""
    if sentence := out_of_resources(error):
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


def _last_words(run: Run, runtime: wiring.Runtime, findings: Findings) -> int:
    """Print how the run ended; return tflaunch's exit code."""
    runtime.journal.settle()
    exit_code = run.exit_code
    notes = [*_losses(runtime), *findings.notes]
    if notes:
        runtime.collaborators.say("\n".join(notes))
    state = status.state_of_run(run.job, exit_code)
    logs, tail = runtime.collaborators.logs, runtime.collaborators.log_sink.tail
    text = summary.summary(run.job, logs, tail, runtime.sink.shows_output, run.known)
    runtime.sink.say(text, is_failure=state == "failed")
    if findings.results:
        runtime.sink.say("\n".join(findings.results))
    runtime.watchers.each(lambda watcher: watcher.tell_end(run.job, run.known, state, [*notes, *findings.results]))
    because = summary.end_sentence(run.job, tail, run.known) if exit_code == run.job.exit_code else ""
    runtime.journal.record_end(exit_code, notes, state, summary.last_progress(run.job), because)
    runtime.service.exit_code = exit_code
    return exit_code


def _losses(runtime: wiring.Runtime) -> list[str]:
    """Return messages about output, files and records lost because the disk was full."""
    lines = runtime.collaborators.log_sink.trouble() + runtime.left_files.trouble()
    if runtime.journal.lost:
        lines.append(f"{runtime.journal.lost} records of the journal could not be written")
    return lines


@contextmanager
def _ignored_ctrl_z(lease: float, say: Callable[[str], None]) -> Iterator[None]:
    """Ignore Ctrl-Z if tasks have a ``lease``; say that they end without contact.

    SIGSTOP cannot be ignored: the message comes when the process goes on.
    """
    if not lease or signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
        yield
        return
    costs = f"the tasks end when they hear nothing for {duration_words(lease)}"
    words = {
        signal.SIGTSTP: f"Ctrl-Z is ignored, because {costs}; `tflaunch up -d` gives the prompt back",
        signal.SIGCONT: f"tflaunch was stopped and goes on; {costs}",
    }
    with handle_signals(words, lambda number, _: say(words[signal.Signals(number)])):
        yield


def _end_anyway() -> None:
    """End this process soon, whatever its other threads wait for."""
    time.sleep(_LAST_PATIENCE)
    os._exit(EXIT_INTERNAL)


@contextmanager
def _signals_to(mailbox: Mailbox, came: list[int], explain_term: Callable[[], str] | None) -> Iterator[None]:
    """Turn Ctrl-C, HUP and `signals.ENDING` into events, and append them to ``came``.

    HUP stays ignored under nohup.
    """

    def enqueue_explained(explain: Callable[[], str]) -> None:
        why = ""
        try:
            why = explain()
        finally:  # the signal is never lost
            mailbox.put(Interrupted(signal.SIGTERM, why))

    def enqueue(number: int, frame: FrameType | None) -> None:
        if not signals.asks_more(number, came):
            return
        if number == signal.SIGTERM and explain_term is not None:
            mailbox.put(Interrupted(number, is_announced=True))
            threading.Thread(target=enqueue_explained, args=(explain_term,), daemon=True).start()
        else:
            mailbox.put(Interrupted(number))
        if len(came) == policy.MOST_INTERRUPTS:  # whatever else is waited for: a disk, a thread, a command
            threading.Thread(target=_end_anyway, daemon=True).start()

    with handle_signals((signal.SIGINT, *signals.ending_here()), enqueue):
        earlier = signal.set_wakeup_fd(mailbox.wake_descriptor, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(earlier)
