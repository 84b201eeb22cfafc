"""Limits of partition and nodes, as Slurm shows them, that keep jobs from running."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.features.render import slurm
from tflaunch.features.render.slurm import Ending
from tflaunch.features.slurm import jobs
from tflaunch.features.slurm.jobs import BadOptionError, NodeSize, NoSlurmError, SlurmError
from tflaunch_worker.readable import duration_words

_LEAST_KILL_WAIT = 5.0  # seconds: slurmd waits at least so long (_rpc_terminate_job in its req.c)
_TO_NOTICE = 2.0  # seconds until the tasks of all nodes have TERM, and from KILL until their end is known
_GPUS = "gpus-per-node"
_SOURCES = {
    "nodes": "cluster",
    "time": "timeouts.deadline",
    "cpus-per-task": "container.resources.cpu",
    "mem": "container.resources.memory",
    _GPUS: "container.resources.gpu",
}
"""Fields of a spec that options of sbatch come from, unless they are in its ``slurm``."""
_LINUXPROC = "proctrack/linuxproc"
_OF_EACH_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - these are looked for, not used
_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def find_ending() -> Ending:
    """Return how this Slurm ends jobs; the usual way if it cannot be asked."""
    try:
        config = jobs.show("config")
    except SlurmError:
        return slurm.USUAL_ENDING
    kill_wait = config.get("KillWait", "")
    seconds = max(float(kill_wait), _LEAST_KILL_WAIT) if kill_wait.isdecimal() else slurm.USUAL_ENDING.kill_wait
    return Ending(seconds, config.get("ProctrackType") == _LINUXPROC)


def find_problems(wanted: Mapping[str, str], spec: Spec, roles: Collection[str], ending: Ending) -> list[Problem]:
    """Return the known obstacles of a job; [] if Slurm cannot be asked.

    ``wanted`` are the options of sbatch for the job, or for the part of it that has these roles of the spec.
    """
    try:
        found = [*_problems_of_partition(wanted), *_short_grace(spec.timeouts.grace, ending)]
    except SlurmError:
        return []
    return [problem._replace(where=_place_in(spec, roles, problem.where)) for problem in found]


def _place_in(spec: Spec, roles: Collection[str], where: str) -> str:
    """Return the field of a spec that an option of sbatch comes from."""
    option = where.removeprefix("slurm.")
    if option in spec.slurm or option not in _SOURCES:
        return where
    if option == _GPUS and "gres" in spec.slurm:
        return "slurm.gres"
    field = _SOURCES[option]
    settings = {role: spec.roles[role] for role in roles if role in spec.roles}
    for role, own in settings.items():
        if field.rpartition(".")[2] in own.resources.model_fields_set:
            return field.replace("container", f"roles.{role}")
    user = next((role for role, own in settings.items() if own.gpus), None)
    is_counted = option == _GPUS and user is not None and spec.container.resources.gpu is None
    return f"roles.{user}.gpus" if is_counted else field


def try_script(script: str) -> list[Problem]:
    """Return problems for which Slurm would refuse a script or never start it, or []."""
    try:
        jobs.run_command("sbatch", "--test-only", given=script)
    except NoSlurmError as error:
        return [Problem.error("", str(error), "run this on a login node of a Slurm cluster")]
    except BadOptionError as error:
        return [Problem.error("slurm", f"sbatch does not take an option: {error}", "correct it")]
    except SlurmError as error:
        return [Problem.error("slurm", f"Slurm would not start the job: {error}", "ask for less, or for other nodes")]
    return []


def unshared_directories(directories: Mapping[str, Path]) -> list[Problem]:
    """Return warnings on directories, by their names, that nodes usually do not share."""
    hint = "use a directory that all nodes share"
    return [
        Problem.warning(name, f"{path} is in {place}, which usually is another directory on each node", hint)
        for name, path in directories.items()
        for place in _OF_EACH_NODE
        if path.resolve().is_relative_to(place)
    ]


def _problems_of_partition(wanted: Mapping[str, str]) -> Iterator[Problem]:
    name = wanted.get("partition", "")
    names = jobs.run_command("sinfo", "--noheader", "--format=%P").split()
    partitions = {each.rstrip("*"): each.endswith("*") for each in names}
    if "," in name or not partitions:
        return  # the job takes the first of several that fits
    if name and name not in partitions:
        known = f"name one of these: {', '.join(partitions)}"
        yield Problem.error("slurm.partition", f"there is no partition {name!r}", known)
        return
    chosen = name or next((each for each, is_default in partitions.items() if is_default), "")
    if not chosen:
        hint = f"name one of these: {', '.join(partitions)}"
        yield Problem.error("slurm.partition", "is missing, and this Slurm has no default partition", hint)
        return
    partition = jobs.show("partition", chosen)
    if partition.get("State", "UP") != "UP":
        message = f"partition {chosen} is {partition['State']}"
        yield Problem.error("slurm.partition", message, "choose another one, or wait until it is up")
    yield from _beyond_partition(wanted, chosen, partition)
    yield from _beyond_nodes(wanted, chosen, jobs.show_nodes(chosen))


def _beyond_partition(wanted: Mapping[str, str], name: str, partition: Mapping[str, str]) -> Iterator[Problem]:
    limits = [int(partition[field]) for field in ("MaxNodes", "TotalNodes") if partition.get(field, "").isdecimal()]
    nodes = wanted.get("nodes", "").partition("-")[0]
    if limits and nodes.isdecimal() and int(nodes) > min(limits):
        message = f"the job wants {nodes} nodes, and partition {name} gives at most {min(limits)}"
        yield Problem.error("slurm.nodes", message, "give fewer hosts in cluster, or numbers of tasks and fewer nodes")
    most, asked = (slurm.seconds_in(time) for time in (partition.get("MaxTime", ""), wanted.get("time", "")))
    if most < asked and "time" in wanted:
        message = f"the job wants {wanted['time']}, and partition {name} gives at most {partition['MaxTime']}"
        yield Problem.error(
            "slurm.time", message, "ask for less, or for another partition (timeouts.deadline sets it, too)"
        )


def _beyond_nodes(wanted: Mapping[str, str], name: str, nodes: list[NodeSize]) -> Iterator[Problem]:
    """Compare what the tasks of a node want with the largest node."""
    if not nodes:
        return
    tasks = int(wanted["ntasks-per-node"]) if wanted.get("ntasks-per-node", "").isdecimal() else 1
    cpus = wanted.get("cpus-per-task", "1")
    memory, unit = wanted.get("mem", "")[:-1], wanted.get("mem", "")[-1:]
    gpus = slurm.gpus_per_node(wanted)
    needs = (
        (
            "slurm.cpus-per-task",
            tasks * int(cpus) if cpus.isdecimal() else 0,
            max(node.cpus for node in nodes),
            "cores",
        ),
        ("slurm.gpus-per-node", gpus or 0, max(node.gpus for node in nodes), "GPUs"),
        (
            "slurm.mem",
            int(int(memory) * _MEGABYTES[unit]) if memory.isdecimal() and unit in _MEGABYTES else 0,
            max(node.memory for node in nodes),
            "MB of memory",
        ),
    )
    for place, needed, most, what in needs:
        if needed > most:
            message = f"the tasks of a node want {needed} {what}, and the nodes of partition {name} have at most {most}"
            yield Problem.error(place, message, "ask for less, for more nodes (slurm.nodes), or for another partition")


def _short_grace(grace: float, ending: Ending) -> list[Problem]:
    if grace <= ending.kill_wait - _TO_NOTICE:
        return []
    message = (
        f"is {duration_words(grace)}, and Slurm kills {duration_words(ending.kill_wait)} after TERM (KillWait) when a "
        "job is cancelled, preempted or put back into the queue"
    )
    return [
        Problem.warning("timeouts.grace", message, "save in less, or end the run with `tflaunch down`, which waits")
    ]
