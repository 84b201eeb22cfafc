"""What makes the hosts of some specs, instead of looking for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.plan.model import Plan


class HostMaker(Protocol):
    """Makes a host for each task of a spec, and deletes them when the run has ended."""

    def find_problems(self, spec: Spec) -> list[Problem]:
        """Return the problems of a spec whose tasks are to run there."""

    def place_tasks(self, spec: Spec) -> Spec:
        """Return the spec with the host of each task, which does not exist yet."""

    def plan_hosts(self, spec: Spec, plan: Plan) -> Plan:
        """Return the plan of a spec, with how its hosts are made."""

    def create_hosts(self, plan: Plan, run: str) -> Plan:
        """Make the hosts of a run, or raise TflaunchError; return the plan with them."""

    def deleted_after(self, plan: Plan, run: str, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Delete the hosts of a run on exit; ``say`` shows a message to the user."""

    def connectors_for(self, plan: Plan, run: str) -> dict[str, Any]:
        """Return the `AgentConnector` of each host."""
