"""The options of `run` and `init` for the tasks of a cluster and their hosts."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from tflaunch.cli.arguments.spec import WholeNumber, add_options, say
from tflaunch.clusterspec.values import FIRST_PORT, HostSlots, InvalidValueError, read_host_slots, split_address

_PYTHON = re.compile(r"python[\d.]*")

_OPTIONS = (
    click.option(
        "-n", "--workers", "--worker", "workers", type=WholeNumber(0), metavar="N",
        help="Number of workers; default: one per host.",
    ),
    click.option(
        "-H", "--hosts", metavar="H1,H2",
        help="Hosts, in the order in which they are filled; h1:4 is 4 workers on h1. Default: this machine.",
    ),
    click.option("--ps", type=WholeNumber(0), default=0, metavar="N", help="Number of parameter servers."),
    click.option("--chief", is_flag=True, help="Add a chief, on the first host."),
    click.option("--evaluator", is_flag=True, help="Add an evaluator, on the first host."),
)  # fmt: skip


class ClusterOptions(NamedTuple):
    """The values of the options."""

    workers: int | None = None
    hosts: str | None = None
    ps: int = 0
    chief: bool = False
    evaluator: bool = False


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which receives their values as ``roles``."""

    @functools.wraps(command)
    def with_roles(**values: Any) -> Any:
        roles = ClusterOptions(**{name: values.pop(name) for name in ClusterOptions._fields})
        return command(roles=roles, **values)

    return add_options(with_roles, _OPTIONS)


def cluster_of(roles: ClusterOptions) -> dict[str, Any]:
    """Return the `cluster` of a spec; report numbers of `-H` that count workers.

    Raises:
        click.UsageError: the cluster could not train, or a host would get no worker.
    """
    slots = host_slots(roles.hosts or "")
    if counted := [f"{number} on {host}" for host, number in slots if number is not None]:
        say(f"-H: a number below {FIRST_PORT} counts workers: {', '.join(counted)}")
    room = sum(count or 1 for _, count in slots)
    number = max(room, 1) if roles.workers is None else roles.workers
    if not number:
        raise click.UsageError("-n 0 leaves nothing that trains; ask for one worker at least.")
    if roles.ps and not roles.chief:
        raise click.UsageError("--ps needs a chief, which drives parameter servers and workers; add --chief.")
    if counted and number > room:
        remedy = f"leave out -n, or raise a number in -H, such as {slots[0][0]}:{(slots[0][1] or 1) + number - room}"
        raise click.UsageError(f"-n {number} is more workers than the {room} that -H has room for; {remedy}.")
    wanted = {"chief": int(roles.chief), "worker": number, "ps": roles.ps, "evaluator": int(roles.evaluator)}
    if not slots:
        return {role: count for role, count in wanted.items() if count}
    hosts = [host for host, _ in slots]
    placed = {role: [hosts[index % len(hosts)] for index in range(count)] for role, count in wanted.items()}
    if counted:
        placed["worker"] = [host for host, count in slots for _ in range(count or 1)][:number]
    else:
        shares = [number // len(hosts) + (index < number % len(hosts)) for index in range(len(hosts))]
        placed["worker"] = [host for host, share in zip(hosts, shares, strict=True) for _ in range(share)]
    return {role: names for role, names in placed.items() if names}


def host_slots(text: str) -> list[HostSlots]:
    """Parse -H: `h1:4` is 4 workers on h1, as in mpirun, but `h1:2222` is a port.

    Raises:
        click.UsageError: a host would get no worker.
    """
    found = []
    for word in filter(None, map(str.strip, text.split(","))):
        host, _ = split_address(word)
        if host.isdecimal():
            raise click.UsageError(
                f"-H {word} begins with a number, not a host; for {host} workers here, write -n {host}."
            )
        try:
            found.append(read_host_slots(word))
        except InvalidValueError as error:
            raise click.UsageError(f"-H {error}.") from None
    return found


def name_from(command: Sequence[str]) -> str:
    """Return a job name from the command: the script's rather than its interpreter's."""
    from tflaunch.clusterspec import load

    words = [word for word in command if not word.startswith("-")]
    if len(words) > 1 and _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
    return load.job_name_from(Path(words[0]).stem if words else "")
