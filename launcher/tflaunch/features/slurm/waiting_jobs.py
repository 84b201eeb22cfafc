"""Share one answer of Slurm about waiting jobs among terminals, to spare Slurm."""

import fcntl
import os
import re
import time

from tflaunch.features.slurm import jobs
from tflaunch.store import run_dir

_NAME = "slurm-jobs"  # of the last answer, below TFLAUNCH_HOME
_ANSWER = "--Format=JobID:20,State:30,RestartCnt:9,Partition:199,Reason:199"
_LINE = re.compile(r"(\d+) +([A-Z_]+) +(\d+) +(\S+) +(\S+) *")


def find_job(job: str, age: float) -> jobs.SlurmJob | None:
    """Return a job's state; if it waits, a shared one, at most ``age`` seconds old.

    Raises:
        SlurmError: Slurm cannot be queried.
    """
    for line in _waiting(age).splitlines():
        found = _LINE.fullmatch(line)
        if found is not None and found[1] == job:
            return jobs.SlurmJob(found[2], found[5], "", int(found[3]), 0, partition=found[4])
    return jobs.find_job(job)


def _waiting(age: float) -> str:
    try:
        descriptor = os.open(run_dir.home() / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # no limit: the query of another terminal has one
            if 0 < time.time() - os.fstat(descriptor).st_mtime <= age:  # below 0, clocks of machines differ
                return file.read()
            said = jobs.run_command("squeue", f"--user={os.getuid()}", "--noheader", "--states=PENDING", _ANSWER)
            file.truncate(0)
            file.write(said)
            return said
    except OSError:  # of a file system without locks, for instance
        return ""
