"""Where the files are that tasks have written to relative paths on hosts."""

from __future__ import annotations

import shlex

from tflaunch.core.job_state import Job
from tflaunch.explain.wording import counted
from tflaunch.plan import attempts
from tflaunch.plan.model import CODE_DIRECTORY, HostPlan

_SHOWN = 8


def where_results_are(job: Job) -> list[str]:
    """Return, per host whose tasks ran in a copy of the user's code, a command that fetches the copy.

    Files that a task writes to a relative path are in that copy. Hosts that report a directory with unprintable
    characters are left out, and so are all if the spec says what is fetched (`collect`).
    """
    if job.plan.kubernetes is not None:
        is_lost = not job.plan.collect and any(host.code for host in job.hosts.values())
        return ["what was written to relative paths is deleted with the pods; `collect` brings files here"] * is_lost
    lines = []
    moved = attempts.moved(job.original, job.places)
    for host in () if job.plan.collect else job.original.hosts:
        code = job.hosts[host.host].code
        in_copy = any(process.workdir.startswith(CODE_DIRECTORY) for process in moved.on_host(host.host))
        if in_copy and code.startswith("/") and code.isprintable():
            lines.append(f"  {_command(host, code, f'{job.run}-{host.host}')}")
    if not lines:
        return []
    more = [f"  and {counted(len(lines) - _SHOWN, 'host')} more"] if len(lines) > _SHOWN else []
    return ["what was written to relative paths is on the hosts, beside the copied code; to copy it here:"] + (
        lines[:_SHOWN] + more
    )


def _command(host: HostPlan, code: str, target: str) -> str:
    """Return the command that fetches a host's directory, or its location if no command is known."""
    if host.docker is not None:
        return shlex.join(["docker", "cp", f"{host.docker}:{code}", target])
    if host.engine is not None:
        return f"{host.host}: {code}"
    user, at, address = (host.ssh or host.host).rpartition("@")
    name, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or name.endswith(":"):  # no port, or an IPv6 address
        name, port = address, ""
    name = f"[{name.strip('[]')}]" if ":" in name else name
    options = [*(["-P", port] if port else []), *(["-i", host.identity_file] if host.identity_file else [])]
    return shlex.join(["scp", "-r", *options, f"{user}{at}{name}:{code}", target])
