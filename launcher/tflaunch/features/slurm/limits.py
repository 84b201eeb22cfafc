"""What Slurm says about a job before it is submitted, and about how it will end it."""

from collections.abc import Mapping
from pathlib import Path

from tflaunch.errors import Problem
from tflaunch.features.render import slurm
from tflaunch.features.render.slurm import Ending
from tflaunch.features.slurm import jobs
from tflaunch.features.slurm.jobs import NoSlurmError, SlurmError
from tflaunch_worker.readable import duration_words

_LEAST_KILL_WAIT = 5.0  # seconds: slurmd waits at least so long (_rpc_terminate_job in its req.c)
_TO_NOTICE = 2.0  # seconds until the tasks of all nodes have TERM, and from KILL until their end is known
_LINUXPROC = "proctrack/linuxproc"
_OF_EACH_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - these are looked for, not used


def find_ending() -> Ending:
    """Return how this Slurm ends jobs; the usual way if it cannot be asked."""
    try:
        config = jobs.show("config")
    except SlurmError:
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


def try_script(script: str) -> list[Problem]:
    """Return why Slurm would refuse a script or never start it; [] if it would start it."""
    try:
        jobs.run_command("sbatch", "--test-only", given=script)
    except SlurmError as error:
        return [refusal(error)]
    return []


def refusal(error: SlurmError) -> Problem:
    """Return an error of `sbatch` as a problem of the spec, or of this machine."""
    if isinstance(error, NoSlurmError):
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
