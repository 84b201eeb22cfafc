"""Reaching the hosts of a plan: all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.hosts.link import Link, LinkError
from tflaunch.hosts.local import LocalLink
from tflaunch.plan import Plan


class Directory(Protocol):
    """What is needed of a run directory."""

    run: str

    def agent_directory(self, host: str) -> Path:
        """Make and return a private directory for the agent of a host."""


def reach(plan: Plan, directory: Directory) -> dict[str, Link]:
    """Return a link to an agent on every host of the plan. The agents may still be starting.

    Raises:
        TflaunchError: a host could not be reached; no agent is left on the others.
    """
    links: dict[str, Link] = {}
    for host in plan.hosts():
        try:
            links[host] = LocalLink(directory.agent_directory(host), directory.run)
        except LinkError as error:
            for link in links.values():
                link.close()
            raise TflaunchError(f"{host}: {error}", EXIT_INTERNAL) from None
    return links
