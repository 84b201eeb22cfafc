"""Where the files are that tasks have written to relative paths on hosts."""

from __future__ import annotations

from tflaunch.core.job_state import Job
from tflaunch.plan import attempts
from tflaunch.plan.model import CODE_DIRECTORY

_FIRST = "what was written to relative paths is"


def where_results_are(job: Job) -> list[str]:
    """Return a line about what tasks have written beside a copy of the user's code, if any of them ran in one.

    There is none if the spec says what is fetched (`collect`).
    """
    if job.plan.collect:
        return []
    if job.plan.made_hosts is not None:
        is_lost = any(host.code for host in job.hosts.values())
        return [f"{_FIRST} deleted with the pods; `collect` brings files here"] * is_lost
    moved = attempts.moved(job.original, job.places)
    with_code = [host.host for host in job.original.hosts if job.hosts[host.host].code]
    in_copy = [each for host in with_code for each in moved.on_host(host) if each.workdir.startswith(CODE_DIRECTORY)]
    return [f"{_FIRST} on the hosts, beside the copied code; next: tflaunch fetch {job.run} PATH…"] * bool(in_copy)
