"""What a failure says: who is to blame, and whether to try again. Pure."""

from tflaunch.core.events import TaskExited
from tflaunch.core.job_state import Cause, Culprit, Job
from tflaunch.core.policy import all_started_at, gang_tasks, trainers, waits_for_lost_hosts
from tflaunch.core.restart_budget import ALIKE, QUICK, Answer, Failure, Reached, decide_restart
from tflaunch.core.states import TaskState
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_TIMEOUT
from tflaunch_worker import OUTPUT_SIGNATURE, USAGE_ERROR
from tflaunch_worker.readable import signal_name

_ABORT, _KILL, _TERM = 6, 9, 15

_ABORT_OF_LOADER = 127  # glibc's exit code without memory for a new thread (_dl_fatal_printf)

_FROM_OUTSIDE = (1, 2, _KILL, _TERM)  # HUP, INT, KILL, TERM

_ERRORS_OF_PEERS = frozenset(
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "TimeoutError", "BrokenPipeError"}
    | {"ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError"}
)
"""Ends of the names of exceptions caused by a peer or the network; if all tasks raise one, a restart may still help."""

_LASTING = frozenset({"ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", USAGE_ERROR})
"""Names of failures that depend on the host's files and the command alone."""

_IMPORT_ERROR = "ImportError"  # not the one of a module that is missing, which is the same in any process

_PREEMPTED = (42, 128 + _TERM)  # exit codes of PreemptionCheckpointHandler (failure_handling_util.py)

_LAST_SIGNAL = 64

_HANGS = 2  # at one place in a row, without progress in between; each costs as long as its limit

_PLAIN_CODES = frozenset(range(1, 256)) - frozenset(range(129, 129 + _LAST_SIGNAL))  # no shell codes for signals


def is_preemption(code: int | None, number: int | None) -> bool:
    """Whether a task was preempted, by its exit code or a TERM from outside."""
    return code in _PREEMPTED or number == _TERM


def is_start_failure(job: Job, task: str) -> bool:
    """Whether the exit of a task is an ordinary error of its program during start-up.

    A failing import or a wrong argument will fail again in the same way. Start-up is over when the cluster has
    formed, when a task of the gang has begun to train, or `WARN_AFTER` after the last task has started for a program
    that never opens its ports: it may have a cluster of its own. A checkpoint says nothing: it may be that of an
    earlier run.
    """
    ended = job.tasks[task].exit
    reached = [job.tasks[each.task].reached for each in gang_tasks(job)]
    has_begun = job.formation.cluster_formed or job.formation.is_past_start
    is_over = has_begun or any(each.step or each.epoch for each in reached)
    return ended.code in _PLAIN_CODES and ended.code not in _PREEMPTED and not is_over


def why_hopeless(job: Job, task: str) -> str:
    """Return why a program would fail again on the same host; "" if it may not."""
    if is_start_failure(job, task):
        return "it failed during start-up, so a retry would fail too"
    failure = job.tasks[task].exit.failure
    kind = failure.partition(" at ")[0]
    if kind == "KeyboardInterrupt":
        return "it was interrupted (KeyboardInterrupt)"
    return f"a retry on the same host would fail too: {failure}" if kind in _LASTING else ""


def forked_from(task: TaskState, event: TaskExited) -> str:
    """Return the modules that a task was forked with if they may have ended it, or "".

    A fork lacks what the import may have started, and has its libraries loaded in another order. That shows at once, by
    a signal from its own process or while it imports the rest. Who kills it from outside has another reason.
    """
    has_begun = task.is_port_open or event.step or event.epoch
    if not task.is_forked or event.was_told or has_begun:
        return ""
    is_killed = event.signal is not None and event.signal not in _FROM_OUTSIDE
    is_crash = is_killed or event.code == _ABORT_OF_LOADER
    return task.preload if is_crash or event.failure.partition(" at ")[0] == _IMPORT_ERROR else ""


def why_unforked(culprit: Culprit) -> str:
    """Return why no task of a job is forked after this end of one."""
    if culprit.signal is not None:
        ended = signal_name(culprit.signal)
    else:
        ended = f"code {culprit.code}" if culprit.code == _ABORT_OF_LOADER else culprit.failure
    return (
        f"{culprit.name} ended with {ended} after it was forked from a process that had imported {culprit.forked_from}"
    )


def failure_of_gang(job: Job, culprit: Culprit) -> Failure:
    """Return the failure of an attempt of the gang, for its budget."""
    reached = Reached()
    for task in job.plan.tasks:
        reached = reached.furthest(job.tasks[task.task].reached)
    if culprit.forked_from:
        return Failure("", is_free=True, reached=reached, is_ours=True)
    if culprit.cause is Cause.TASK:
        is_free = is_preemption(culprit.code, culprit.signal)
        failure = job.tasks[culprit.name].exit.failure
        kind, what = _kind(culprit, failure, is_quick=job.failed_at - all_started_at(job) < QUICK)
        # Where a chief trains alone, no other task can show at once that all fail alike.
        is_alone = culprit.name == "chief:0" and job.plan.strategy == "parameter_server"
        return Failure(kind, is_free, reached, what, most=2 if is_alone and is_own_error(failure) else ALIKE)
    if culprit.cause is Cause.TIME and culprit.failure:
        return Failure(f"hang at {culprit.failure}", False, reached, f"a hang at {culprit.failure}", most=_HANGS)
    kind = culprit.name if culprit.cause is Cause.TIME else ""
    is_free = culprit.cause is Cause.DRAIN or (culprit.cause is Cause.HOST and waits_for_lost_hosts(job))
    return Failure(kind, is_free, reached, f"timeouts.{kind}" if kind else "")


def failure_of_task(job: Job, culprit: Culprit, event: TaskExited, lived: float) -> Failure:
    """Return the failure of a task that restarts alone, for its budget.

    The others continue to train, so a failure that takes longer than the window to recur is not counted.
    """
    if culprit.forked_from:
        return Failure("", is_free=True, is_ours=True)
    kind, what = _kind(event, event.failure, is_quick=lived < QUICK)
    is_rare = lived >= job.plan.restart.window
    is_free = is_preemption(event.code, event.signal)
    return Failure("" if is_rare else kind, is_free, Reached(event.step, event.epoch), what)


def _kind(end: Culprit | TaskExited, failure: str, is_quick: bool) -> tuple[str, str]:
    """Return how the budget and users name a failure of a program.

    It leaves out the task's name: if all tasks fail alike, the first one differs from attempt to attempt. A kill
    from outside is not the program's failure, but one that always comes soon after the start may be.
    """
    if end.signal is None:
        return f"exit {end.code} {failure}", failure if is_raised(failure) else f"exit code {end.code}"
    evidence = end.message if isinstance(end, Culprit) else end.evidence
    is_own = end.signal not in _FROM_OUTSIDE or bool(evidence)
    return f"signal {end.signal}" if is_own or is_quick else "", signal_name(end.signal)


def is_raised(failure: str) -> bool:
    """Whether a failure signature is that of an exception."""
    return bool(failure) and not failure.startswith(OUTPUT_SIGNATURE)


def failure_of_all(job: Job) -> str:
    """Return the exception that all tasks raised at the same line; "" if none."""
    failures = {job.tasks[task.task].exit.failure for task in trainers(job.plan)}
    if len(failures) != 1 or len(trainers(job.plan)) < 2:
        return ""
    failure = failures.pop()
    return failure if is_own_error(failure) else ""


def is_own_error(failure: str) -> bool:
    """Whether a program raised an exception that no peer has caused."""
    return is_raised(failure) and not is_error_of_peer(failure.partition(" at ")[0])


def is_error_of_peer(kind: str) -> bool:
    """Whether an exception, by its name, is one that a peer or the network causes."""
    return kind.endswith(tuple(_ERRORS_OF_PEERS))


def may_have_lost_peer(culprit: Culprit) -> bool:
    """Whether a task ended like TensorFlow or JAX without a peer's answer."""
    return (culprit.code, culprit.signal) in ((1, None), (None, _ABORT)) and not is_own_error(culprit.failure)


def exit_code(culprit: Culprit, has_started: bool) -> int:
    """Return tflaunch's exit code for a job that ended because of ``culprit``."""
    if culprit.signal is not None:
        return 128 + culprit.signal
    if culprit.cause is Cause.TIME:
        return EXIT_TIMEOUT
    if culprit.code is None:
        return EXIT_INTERNAL if has_started else EXIT_PREFLIGHT
    # 124 and 125 have a meaning of their own in tflaunch; a program that exits with them has merely failed.
    return 1 if culprit.code in (EXIT_TIMEOUT, EXIT_INTERNAL) else culprit.code


def decide(job: Job, culprit: Culprit, now: float) -> Answer:
    """Return whether another attempt of the gang follows, whose tasks have all ended."""
    budget = job.restarts.budget
    if left := job.unended():
        return Answer(budget, None, f"{', '.join(task.task for task in left)} may still run")
    if culprit.cause is Cause.TASK and not culprit.forked_from:
        if hopeless := why_hopeless(job, culprit.name):
            return Answer(budget, None, hopeless)
        if job.plan.restart.max and (alike := failure_of_all(job)):
            return Answer(budget, None, f"every task failed alike, so a restart would fail too: {alike}")
    return decide_restart(budget, job.plan.restart, failure_of_gang(job, culprit), now, job.run)
