"""`supervise`: what the batch job of a run executes. For programs, not for people."""

import functools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import click

from tflaunch import private_files
from tflaunch.cli.arguments.spec import say
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.spec_file import read_spec_file
from tflaunch.core.events import Interrupted
from tflaunch.core.job_state import Cause, Job
from tflaunch.core.states import HostPhase
from tflaunch.discovery import prepare, resolve
from tflaunch.discovery.base import NotFoundError
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, Problem, SpecError, TflaunchError
from tflaunch.features.render import slurm
from tflaunch.features.slurm import containers, jobs, lives, submission
from tflaunch.plan import placement
from tflaunch.plan.model import Plan
from tflaunch.runtime import daemon, launch
from tflaunch.runtime.run_config import RunConfig, SpecOrder
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store import journal, log_writer, run_dir
from tflaunch.store.run_dir import FUNCTION_NAME, SUPERVISOR_LOG, RunDirectory, open_run
from tflaunch_worker import function

_NONE = "(null)"
_MOST_EARLY = 60.0  # seconds by which the signal of sbatch may come before the time that it names
_LEAD_OF_TERM = r"--signal=\S*?TERM@(\d+)"
_SOON = 2.0  # seconds, in which the tasks could save already
_HEARD_EVERYWHERE = 0.5  # seconds
_JUST_NOW = 60.0  # seconds
_MOST_SAID = 16 * 1024
_CANCELLED = r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT (\S+)(?: DUE TO ([^*\n]{1,200}?))? \*\*\*"
_NEAR_LIMIT = "NEAR TIME LIMIT"
_NODE_FAILURE = "NODE FAILURE"
_NEVER = "None"
_CANCELS = "CANCEL"
_WHY = {
    "": "the job was cancelled with scancel",
    "TIME LIMIT": f"{lives.LIMIT}{{limit}} is reached (slurm.time)",
    _NEAR_LIMIT: f"{lives.LIMIT}{{limit}} will soon be reached (slurm.time)",
    "PREEMPTION": "the job was preempted by another one",
    "JOB REQUEUE": "the job was put back into the queue",
    _NODE_FAILURE: "{node} of the job has failed",
}


@click.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
def supervise(directory: Path) -> int:
    """Begin the run in DIRECTORY: its job calls this, on its first node."""
    order, run = _take_up(directory)
    spec, plan = _plan_of_allocation(order, run)
    launch.require_descriptors(len(plan.hosts), len(plan.processes()))
    if order.log_dir is not None:
        log_writer.require_own_logs(run.logs, [process.task for process in plan.processes()])
    begun = functools.partial(jobs.note_life, directory, _restart_count())
    explain = functools.partial(explain_term, directory)
    code = launch.code_for_hosts(plan)
    extras = {**order.extras, lives.EXTRA: lives.choice(spec.slurm, plan)}
    config = RunConfig(run, code, say, extras, sink=daemon.Notes, begun=begun, explain_term=explain)
    exit_code = launch.start(plan, config)
    if exit_code == EXIT_PREFLIGHT:
        _begin_elsewhere(directory, plan)
    return exit_code


def _take_up(path: Path) -> tuple[SpecOrder, RunDirectory]:
    """Return the order in a run directory, and the directory, ready for the run.

    Files of an earlier execution of the job, before Slurm requeued it, are moved to ``earlier-N``.
    """
    open_run(path)
    try:
        order = SpecOrder(**json.loads((path / jobs.ORDER_NAME).read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise TflaunchError(f"{path} has no order for a run: {error}", EXIT_INTERNAL) from None
    if job := os.environ.get("SLURM_JOB_ID"):
        jobs.note_job(path, job)  # the run may have ended and been resubmitted by hand
    _find_output(path / SUPERVISOR_LOG)
    restarts = _restart_count()
    if restarts:
        _move_aside(path, f"{jobs.EARLIER}{restarts}", f"spec{order.suffix}")
    logs = path / "logs"
    if order.log_dir is not None:
        logs = Path(order.log_dir) / (f"restart-{restarts}" if restarts else "")
    private_files.make_directories(logs)
    if logs.parent != path and not (path / "logs").is_symlink():
        (path / "logs").symlink_to(logs)
    return order, RunDirectory.existing(path, logs)


def _find_output(log: Path) -> None:
    """Link the log to the file in which Slurm says why a job ends, if it is elsewhere."""
    output = os.readlink("/proc/self/fd/2")
    if not log.is_file() and os.path.isfile(output):
        log.unlink(missing_ok=True)
        log.symlink_to(output)


def _plan_of_allocation(order: SpecOrder, directory: RunDirectory) -> tuple[Spec, Plan]:
    path, base = directory.path / f"spec{order.suffix}", Path(order.directory)
    file = read_spec_file(path)._replace(directory=base)
    spec = submission.load_spec(file, order)
    is_whole = len(slurm.parts_of(spec)) == 1
    engine = submission.ENGINE

    def on_nodes(number: int, part: Spec) -> Spec:
        part = resolve.with_hosts(str(path), part.model_copy(update={"pool": None}), base)
        try:
            return _on_given_nodes(part, resolve.search(engine if is_whole else f"{engine}:{number}", base))
        except NotFoundError as error:
            raise SpecError(str(path), [Problem.error("", str(error), error.hint)]) from None

    spec = submission.placed(spec, on_nodes)
    spec = slurm.with_gpus_of_job(spec, _gpus_of_nodes(directory.path))
    warnings = prepare.check_spec(str(path), base, containers.without_image(spec))
    plan = containers.within_image(prepare.make_plan(base, spec), spec, base)
    plan = plan._replace(preflight=order.preflight).warned(warnings)
    if not directory.function.exists():
        return spec, plan
    searched = json.loads((directory.function / function.SEARCHED).read_text())
    return spec, plan.with_function(directory.function, searched)


def _gpus_of_nodes(directory: Path) -> dict[str, int]:
    try:
        return jobs.gpus_of_nodes(jobs.job_of(directory) or "")
    except jobs.SlurmError:
        return {}  # what the spec asks for is known


def _on_given_nodes(spec: Spec, pool: resolve.Pool) -> Spec:
    """Return the spec on a job's nodes; its own hosts stay if all are among them."""
    nodes = list(dict.fromkeys(address.host for address in pool.slots))
    named = placement.named_hosts(spec)
    if len(named) > len(nodes):
        message = f"the cluster is on {len(named)} hosts, and the job has {len(nodes)}"
        raise NotFoundError(message, "ask for more of them, or give numbers of tasks instead of hosts")
    placed = spec if set(named) <= set(nodes) else slurm.onto(spec, nodes)
    return resolve.reached(placed, pool)


def _restart_count() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _move_aside(path: Path, name: str, spec: str) -> None:
    kept = {jobs.ORDER_NAME, jobs.SCRIPT_NAME, FUNCTION_NAME, SUPERVISOR_LOG, spec, *jobs.FILES, run_dir.LOCK_NAME}
    earlier = path / name
    earlier.mkdir(mode=0o700, exist_ok=True)
    for entry in list(path.iterdir()):
        if entry.name not in kept and not entry.name.startswith(jobs.EARLIER):
            entry.rename(earlier / entry.name)


def _begin_elsewhere(directory: Path, plan: Plan) -> None:
    """Requeue the job of a run without the nodes it did not reach, if it may restart.

    Slurm itself takes minutes to notice them.
    """
    _, job = journal.read_job(directory)
    culprit, number = job.culprit, jobs.job_of(directory)
    if (
        culprit is None
        or culprit.cause is not Cause.UNREACHABLE
        or number is None
        or lives.lost(directory) >= plan.restart.max
    ):
        return
    lost = culprit.name.split(", ")
    if len(lost) == len(plan.hosts):
        return  # the fault is not the nodes'
    try:
        before = jobs.show("job", number).get("ExcNodeList", _NONE)
        lives.put_back(number)
        without = ",".join([*([] if before == _NONE else [before]), *lost])
        jobs.run_command("scontrol", "update", f"jobid={number}", f"ExcNodeList={without}")
    except jobs.SlurmError as error:
        say(f"the run cannot begin again without {culprit.name}: {error}")
    else:
        say(f"job {number} is back in the queue, to begin again without {culprit.name}")


def explain_term(directory: Path) -> str:
    """Return why Slurm sent TERM to a run's job; "" if Slurm does not say so soon.

    Its daemon writes the reason into the job's output just before it sends the signal; `scontrol` tells only later.
    A signal that the job has asked for with ``--signal`` looks there as one of scancel, but the job then goes on.
    """
    try:
        job = jobs.find_job(jobs.job_of(directory) or "", patience=_SOON)
        output = (directory / SUPERVISOR_LOG).read_bytes()[-_MOST_SAID:].decode("utf-8", "replace")
        leads = re.findall(_LEAD_OF_TERM, (directory / jobs.SCRIPT_NAME).read_text("utf-8", "replace"))
    except (jobs.SlurmError, OSError):
        return ""
    said = [reason for at, reason in re.findall(_CANCELLED, output) if jobs.seconds_until(at) > -_JUST_NOW]
    lead = float(leads[-1] if leads else 0) + _MOST_EARLY
    is_near = job is not None and job.is_running and job.seconds_left <= lead
    reason = _NEAR_LIMIT if is_near else said[-1] if said else None
    if said and not is_near:  # the agents get it, too: tasks that hear it from Slurm must not hear it from us before
        time.sleep(_HEARD_EVERYWHERE)
    if reason is None:
        return ""
    reason = reason.partition(",")[0]  # what follows is where to look
    limit = "" if job is None else f" of {job.time_limit}"
    failed = jobs.failed_nodes(job, _SOON) if job is not None and reason == _NODE_FAILURE else ""
    why = _WHY.get(reason, f"Slurm ends the job: {reason.lower()}")
    return why.format(limit=limit, node=f"node {failed}" if failed else "a node")


def explain_preemption(directory: Path) -> str:
    """Return a sentence if a run's job is preempted for good, else ""."""
    try:
        job = jobs.show("job", jobs.job_of(directory) or "")
        if job.get("PreemptTime", _NEVER) == _NEVER:
            return ""
        comes_back = job.get("Requeue") != "0" and (
            jobs.show("partition", job.get("Partition", "")).get("PreemptMode") != _CANCELS
        )
    except jobs.SlurmError:
        return ""
    return "" if comes_back else _WHY["PREEMPTION"]


class GraceTime(Watcher):
    """Asks Slurm when the first host of a run is being emptied."""

    def __init__(self, supervision: Supervision) -> None:
        self._directory = supervision.config.directory.path
        self._mailbox = supervision.mailbox
        self._is_emptied = False

    def watch(self, job: Job, now: float) -> None:
        """Ask at the first of the hosts that are emptied together."""
        was_emptied, self._is_emptied = (
            self._is_emptied,
            any(host.phase is HostPhase.LEAVING and host.is_drained for host in job.hosts.values()),
        )
        if self._is_emptied and not was_emptied:
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        if why := explain_preemption(self._directory):
            self._mailbox.put(Interrupted(signal.SIGTERM, why))
