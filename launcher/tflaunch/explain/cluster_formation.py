"""A cluster that does not form: which tasks do not listen, and why."""

from collections.abc import Collection
from typing import NamedTuple

from tflaunch.core import policy
from tflaunch.core.annotations import NOTHING, Annotations
from tflaunch.core.job_state import Job
from tflaunch.core.states import TaskPhase
from tflaunch.explain.wording import listed
from tflaunch.plan.model import Plan, TaskPlan

_NO_TF_CONFIG = (
    "no task has opened its port of TF_CONFIG: the program may set or drop TF_CONFIG, or be started through sudo, ssh "
    'or env -i; if its tasks need no TF_CONFIG, set "strategy": "none"'
)
_NO_SERVER = (
    "{tasks} run the same command as the chief; unless the program starts a server there, let tflaunch do it: "
    '"roles": {{"ps": {{"server": true}}, "worker": {{"server": true}}}}'
)
_SOME = (
    "the others listen and wait; {tasks} may still be loading data before making the strategy or server, or may have "
    "hung: see `tflaunch logs {run} {task}`"
)
_ALL_AGAIN = (
    "an earlier attempt's cluster had formed; {tasks} may still be loading data or a checkpoint, or may have hung: see "
    "`tflaunch stacks {run}`"
)
_SERVE = 'end the program of a server with `server.join()`, or set "server": true for its role'


class Forming(NamedTuple):
    """A cluster that has not formed in time.

    ``since`` is when its tasks were started, in seconds of the supervisor's clock; ``missing`` are the tasks that do
    not listen on their ports, ``listening`` the others.
    """

    since: float
    missing: tuple[str, ...]
    listening: tuple[str, ...]
    hint: str


def forming(job: Job, known: Annotations = NOTHING) -> Forming | None:
    """Return which tasks keep a cluster from forming; None if none is late."""
    missing = policy.waited_for(job)
    if not missing:
        return None
    others = [task.task for task in job.plan.tasks if policy.listens(job.plan, task.task) and task.task not in missing]
    return Forming(policy.all_started_at(job), tuple(missing), tuple(others), remedy(job, known))


def remedy(job: Job, known: Annotations = NOTHING) -> str:
    """Return why tasks do not listen, or the most likely remedy."""
    if does := known.start_of(job):
        return does
    missing = [job.plan.find(name) for name in policy.unopened(job)]
    without_server = _without_server(job, missing)
    if without_server and not job.formation.cluster_formed:
        return _NO_SERVER.format(tasks=listed(without_server))
    is_silent = all(not task.is_port_open for task in job.tasks.values() if policy.listens(job.plan, task.task))
    if is_silent and not job.formation.cluster_formed:
        return _NO_TF_CONFIG
    living = [task.task for task in missing if job.tasks[task.task].phase is TaskPhase.RUNNING] or [missing[0].task]
    text = _ALL_AGAIN if is_silent else _SOME
    return text.format(tasks=listed(living), run=job.run, task=living[0])


def servers_among(plan: Plan, names: Collection[str]) -> list[str]:
    """Return the tasks whose programs must not exit by themselves."""
    tasks = (task for task in plan.tasks if task.task in names)  # first, as this is asked at the end of each task
    return [task.task for task in tasks if policy.in_gang(task) and not policy.ends_by_itself(plan, task)]


def servers_ended(job: Job) -> list[str]:
    """Return a sentence about servers that have ended by themselves with 0."""
    ended = [task.task for task in job.tasks.values() if task.has_succeeded and not task.exit.was_stopped]
    return ended_sentence(servers_among(job.plan, ended)) if job.exit_code != 0 else []


def ended_sentence(servers: list[str]) -> list[str]:
    """Return a sentence about servers that have ended, with the remedy."""
    them = "it" if len(servers) == 1 else "them"
    return [f"{listed(servers)} ended with code 0, though the job still needs {them}; {_SERVE}"] if servers else []


def _without_server(job: Job, missing: list[TaskPlan]) -> list[str]:
    """Return the servers if none listens and all run the chief's command."""
    servers = [task for task in job.plan.tasks if task.role in ("worker", "ps")]
    if job.plan.strategy != "parameter_server" or any(task not in missing for task in servers):
        return []
    gang = [task for task in job.plan.tasks if task.role in ("chief", "worker", "ps")]
    commands = {task.argv[1:] or task.argv for task in gang}  # without the interpreter, which hosts differ in
    return [task.task for task in servers] if len(commands) == 1 else []
