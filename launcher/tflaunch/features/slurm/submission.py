"""Submit a run to Slurm after a check; store its order for when the job starts."""

import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from tflaunch import private_files
from tflaunch.cli.arguments.launch import Launching, LaunchOptions, check_extras
from tflaunch.client.secret_values import read_secrets
from tflaunch.clusterspec import load
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.discovery import prepare, resolve
from tflaunch.errors import EXIT_PREFLIGHT, EXIT_USAGE, Problem, SpecError, TflaunchError
from tflaunch.features.render import slurm
from tflaunch.features.render.slurm import Ending, parts_of
from tflaunch.features.slurm import containers, jobs, lives
from tflaunch.own_process import own_command
from tflaunch.plan import placeholders
from tflaunch.plan.model import Plan
from tflaunch.runtime.run_config import SpecOrder, Submitted
from tflaunch.store import log_writer
from tflaunch.store.run_dir import SUPERVISOR_LOG, RunDirectory, home
from tflaunch_worker import file_trees
from tflaunch_worker.readable import duration_words
from tflaunch_worker.signals import CATCHABLE, number_of

ENGINE = "slurm"
"""The engine that finds the nodes of a job."""

_GPUS_OF_NODE = re.compile(r"hosts\.node-\d+\.gpus")
_SCRIPT = """\
#!/bin/bash
{options}
exec {command}
"""
_SIGNAL = r"((?:[RB]+:)?)(\w+)(?:@(\d+))?"
_USUAL_LEAD = 60  # seconds, as sbatch has it
_FOR_ANOTHER = {
    "array": "would start the run several times: use --matrix",
    "wait": "lets sbatch wait: `up` does that, and `tflaunch wait`",
}
"""Options of sbatch that a run cannot have, with what serves instead."""
_OF_NODES = ("constraint", "cpus", "gpus", "gres", "mem", "nodes", "ntasks")
_LEAST_KILL_WAIT = 5.0  # seconds: slurmd waits at least so long (_rpc_terminate_job in its req.c)
_TO_NOTICE = 2.0  # seconds until the tasks of all nodes have TERM, and from KILL until their end is known
_LINUXPROC = "proctrack/linuxproc"
_OF_EACH_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - these are looked for, not used


def submit_spec(file: SpecFile, order: SpecOrder, write_function: Callable[[Path], None] | None = None) -> Submitted:
    """Submit a run of a spec, after checking what can be checked without the nodes.

    ``write_function`` writes the function that the tasks call into a new directory; None if they run commands.

    Raises:
        SpecError: the spec is invalid; lists all problems.
        TflaunchError: an option is invalid, the function cannot be written, or Slurm does not take the job.
    """
    spec, plan, warnings = _plan_on_assumed_nodes(file, order)
    ending = find_ending()
    warnings += _find_job_warnings(spec, plan, order, ending)
    placeholders.require_matrix_values(plan)
    check_extras(Launching(LaunchOptions(extras=order.extras), ENGINE, plan))
    containers.pull_image(spec, file.directory)
    read_secrets(plan.secrets)  # the job reads them again, with the environment that sbatch gives it
    logs = None if order.log_dir is None else Path(order.log_dir)
    if logs is not None:
        log_writer.require_own_logs(logs, [process.task for process in plan.processes()])
    directory = RunDirectory(plan.name, logs)
    try:
        directory.keep_spec(order.suffix, file.text.encode())
        if write_function is not None:
            write_function(directory.function)
        comment = f"{spec.slurm.get('comment', '')} {jobs.MARK}{directory.path}".strip()
        marked = spec.model_copy(update={"slurm": {**spec.slurm, "comment": comment}})
        job = _submit(directory, order, wanted(plan, marked, ending))
    except TflaunchError:
        file_trees.remove_tree(str(directory.path))  # the run never existed
        raise
    return Submitted(directory, f"job {job}", warnings)


def check_spec(file: SpecFile, order: SpecOrder) -> list[Problem]:
    """Return the obstacles of a run that Slurm knows; submit nothing.

    Raises:
        SpecError: the spec is invalid; lists all problems.
    """
    spec, plan, problems = _plan_on_assumed_nodes(file, order)
    ending = find_ending()
    parts = wanted(plan, spec, ending)
    problems += try_script(_script(parts, ["true"]), _arguments(parts))
    return problems + _find_job_warnings(spec, plan, order, ending)


def _find_job_warnings(spec: Spec, plan: Plan, order: SpecOrder, ending: Ending) -> list[Problem]:
    return [
        *find_warnings(spec.timeouts.grace, ending),
        *lives.find_warnings(spec.slurm, plan),
        *unshared_directories({"TFLAUNCH_HOME": home(), "the spec": Path(order.directory)}),
    ]


def _plan_on_assumed_nodes(file: SpecFile, order: SpecOrder) -> tuple[Spec, Plan, list[Problem]]:
    """Return a spec on placeholder nodes, its plan, warnings; raise as `check_spec`."""
    spec = slurm.with_gpus_of_job(_on_assumed_nodes(file, order))
    if problems := _refused_fields(spec, file.directory):
        raise SpecError(file.source, problems)
    try:
        warnings = prepare.check_spec(file.source, file.directory, containers.without_image(spec))
    except SpecError as error:
        raise SpecError(error.source, _in_words_of_job(spec, error.problems)) from None
    return spec, prepare.make_plan(file.directory, spec), _in_words_of_job(spec, warnings)


def _refused_fields(spec: Spec, directory: Path) -> list[Problem]:
    problems = list(containers.find_problems(spec, directory))
    if spec.spares:
        message = "are hosts that the spec names, and `--on slurm` runs on nodes that have tasks from the start"
        problems.append(Problem.error("spares", message, "remove it"))
    for name in _FOR_ANOTHER.keys() & spec.slurm.keys():
        message, _, hint = _FOR_ANOTHER[name].partition(": ")
        problems.append(Problem.error(f"slurm.{name}", message, f"remove it: {hint}"))
    return problems


def _in_words_of_job(spec: Spec, problems: Sequence[Problem]) -> list[Problem]:
    """Return GPU problems of placeholder nodes as problems of job options, each once."""
    said = (
        problem._replace(
            where="slurm.gpus-per-node" if "gpus-per-node" in spec.slurm else "slurm.gres",
            message=f"on a node, {problem.message}",
            hint=f"{problem.hint}, or ask for more nodes",
        )
        if _GPUS_OF_NODE.fullmatch(problem.where)
        else problem
        for problem in problems
    )
    return list(dict.fromkeys(said))


def _on_assumed_nodes(file: SpecFile, order: SpecOrder) -> Spec:
    """Return the spec with placeholder nodes, since the real ones are not known yet."""
    spec = load_spec(file, order)
    if spec.pool not in (None, ENGINE):
        message = f"is {spec.pool!r}, and --on slurm takes the nodes that Slurm gives"
        raise SpecError(file.source, [Problem("error", "hosts.discover", message, "remove one of them")])
    spec = resolve.with_hosts(file.source, spec.model_copy(update={"pool": None}), file.directory, is_offline=True)
    if problems := list(problems_of_parts(spec)):
        raise SpecError(file.source, problems)
    numbers = itertools.count(1)

    def on_nodes(_: int, part: Spec) -> Spec:
        return slurm.onto(part, [f"node-{next(numbers)}" for _ in range(slurm.nodes_wanted(part))])

    return placed(spec, on_nodes)


def load_spec(file: SpecFile, order: SpecOrder) -> Spec:
    """Return a spec with its order's changes and ``slurm.signal`` as `stop_signal`.

    Slurm sends it to steps, here those of the agents, or to the batch script, which is the supervisor.
    """
    spec = load.load_spec(file, order.settings, order.name, order.command, os.environ)
    asked = re.fullmatch(_SIGNAL, spec.slurm.get("signal", ""))
    if asked is None:
        return spec
    flag, name, early = asked.groups()
    changes: dict[str, Any] = {
        "slurm": {**spec.slurm, "signal": f"{'R' if 'R' in (flag or '') else ''}B:TERM@{early or _USUAL_LEAD}"}
    }
    number = int(name) if name.isdecimal() else number_of(name)
    if "stop_signal" not in spec.model_fields_set and number in CATCHABLE:
        changes["stop_signal"] = Signals(number).name.removeprefix("SIG")
    return spec.model_copy(update=changes)


def _submit(directory: RunDirectory, order: SpecOrder, parts: Sequence[Mapping[str, str]]) -> str:
    """Submit a run with its parts' options, the supervisor's first; return the job ID."""
    private_files.write_text(directory.path / jobs.ORDER_NAME, json.dumps(order._asdict()))
    first, *others = parts
    ours = {"output": str(directory.path / SUPERVISOR_LOG).replace("%", "%%"), "open-mode": "append"}
    command = own_command("supervise", str(directory.path))
    parts = [{**ours, **first}, *others]
    text = _script(parts, command)
    private_files.write_text(directory.path / jobs.SCRIPT_NAME, text)
    try:
        job = jobs.run_command("sbatch", *_arguments(parts), "--parsable", given=text).strip().partition(";")[0]
    except jobs.SlurmError as error:
        problem = refusal(error)
        code = EXIT_USAGE if isinstance(error, jobs.BadOptionError) else EXIT_PREFLIGHT
        raise TflaunchError(f"{problem.message}; {problem.hint}", code) from None
    jobs.note_job(directory.path, job)
    return job


def _script(parts: Sequence[Mapping[str, str]], command: Sequence[str]) -> str:
    options = ["\n".join(f"#SBATCH {option}" for option in slurm.as_options(part)) for part in parts]
    return _SCRIPT.format(options="\n#SBATCH hetjob\n".join(options), command=shlex.join(command))


def _arguments(parts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return options as arguments, too: variables SBATCH_… override those in a script."""
    return [word for part in parts for word in (":", *slurm.as_arguments(part))][1:]


def problems_of_parts(spec: Spec) -> Iterator[Problem]:
    """Find what keeps the roles of a spec from having different resources."""
    if spec.discover:
        for role, settings in spec.roles.items():
            if settings.resources.model_fields_set:
                message = "asks for nodes of its own, and discover finds nodes that are alike"
                yield Problem("error", f"roles.{role}.resources", message, "give numbers of tasks in cluster")
        return
    parts = parts_of(spec)
    if len(parts) > 1:
        yield from _shared_hosts(spec, parts)
        for name in spec.slurm:
            if name.startswith(_OF_NODES):
                message = "is about nodes, and roles with different resources have different nodes"
                yield Problem("error", f"slurm.{name}", message, "write what each task needs as roles.ROLE.resources")


def _shared_hosts(spec: Spec, parts: list[list[str]]) -> Iterator[Problem]:
    users: dict[str, str] = {}
    for roles in parts:
        for role in roles:
            for host in dict.fromkeys(address.host for address in spec.cluster[role] if address.host != LOCALHOST):
                other = users.setdefault(host, role)
                if other not in roles:
                    message = f"differs from that of {other}, and both have tasks on {host!r}"
                    yield Problem("error", f"roles.{role}.resources", message, "give them different hosts")


def placed(spec: Spec, place: Callable[[int, Spec], Spec]) -> Spec:
    """Return the spec with its tasks on nodes, each part as ``place(number, part)``."""
    parts = parts_of(spec)
    part_of = {address.host: n for n, roles in enumerate(parts) for role in roles for address in spec.cluster[role]}
    merged: dict[str, dict[str, Any]] = {"cluster": dict.fromkeys(spec.cluster), "hosts": {}, "sidecars": {}}
    for number, roles in enumerate(parts):
        part: dict[str, Any] = {
            "cluster": {role: spec.cluster[role] for role in roles},
            "sidecars": {name: each for name, each in spec.sidecars.items() if part_of.get(each.host, 0) == number},
        }
        found = place(number, spec.model_copy(update=part))
        for field, values in merged.items():
            values.update(getattr(found, field))
    return spec.model_copy(update={**merged, "discover": {}, "pool": None})


def wanted(plan: Plan, spec: Spec, ending: Ending) -> list[dict[str, str]]:
    """Return each part's sbatch options; arguments as in `render.slurm.wanted_of_job`."""
    parts = parts_of(spec)
    if len(parts) == 1:
        return [slurm.wanted_of_job(plan, spec, plan.processes(), ending)]
    nodes = [{task.host for task in plan.tasks if task.role in roles} for roles in parts]
    there = [[each for each in plan.processes() if each.host in some] for some in nodes]
    return [slurm.wanted_of_job(plan, spec, processes, ending) for processes in there]


def find_ending() -> Ending:
    """Return how this Slurm ends jobs; the usual way if it cannot be asked."""
    try:
        config = jobs.show("config")
    except jobs.SlurmError:
        return slurm.USUAL_ENDING
    kill_wait = config.get("KillWait", "")
    seconds = max(float(kill_wait), _LEAST_KILL_WAIT) if kill_wait.isdecimal() else slurm.USUAL_ENDING.kill_wait
    return Ending(seconds, config.get("ProctrackType") == _LINUXPROC)


def find_warnings(grace: float, ending: Ending) -> list[Problem]:
    """Return that Slurm kills tasks before they have saved, for ``grace`` seconds."""
    if grace <= ending.kill_wait - _TO_NOTICE:
        return []
    message = (
        f"is {duration_words(grace)}, and Slurm kills {duration_words(ending.kill_wait)} after TERM (KillWait) when a "
        "job is cancelled, preempted or put back into the queue"
    )
    hint = "save in less, or end the run with `tflaunch down`, which waits"
    return [Problem.warning("timeouts.grace", message, hint)]


def try_script(script: str, arguments: Sequence[str] = ()) -> list[Problem]:
    """Return why Slurm would refuse a script or never start it; [] if it would start."""
    try:
        jobs.run_command("sbatch", *arguments, "--test-only", given=script)
    except jobs.SlurmError as error:
        return [refusal(error)]
    return []


def refusal(error: jobs.SlurmError) -> Problem:
    """Return an error of `sbatch` as a problem of the spec, or of this machine."""
    if isinstance(error, jobs.NoSlurmError):
        return Problem.error("", str(error), "run this on a login node of a Slurm cluster, or without --on slurm")
    hint = 'correct the options of sbatch on the command line or in "slurm"'
    return Problem.error("slurm", f"Slurm does not take the job: {error}", hint)


def unshared_directories(directories: Mapping[str, Path]) -> list[Problem]:
    """Return warnings on directories, by their names, that nodes usually do not share."""
    hint = "use a directory that all nodes share"
    return [
        Problem.warning(name, f"{path} is in {place}, which usually is another directory on each node", hint)
        for name, path in directories.items()
        for place in _OF_EACH_NODE
        if path.resolve().is_relative_to(place)
    ]
