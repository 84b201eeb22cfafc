"""Answer `tflaunch warm`: the warm servers of this host.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os

from tflaunch_worker import fields, offload
from tflaunch_worker.agent.services import Service
from tflaunch_worker.forkserver import warm_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from tflaunch_worker.agent.calls import Call


class WarmServers(Service):
    """Shows and ends the warm servers of this host."""

    CALLS: ClassVar = {"look_for_warm": {"stop": fields.flag}}

    def look_for_warm(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the warm servers of this host, which ``stop`` ends."""
        directory = warm_client.servers_directory(warm_client.home_of(self.agent.host.directory), os.environ)
        look = warm_client.stop_servers if message["stop"] else warm_client.describe_servers
        offload.run_in_fork(self.agent.loop, lambda: look(directory), lambda found: call.answer(servers=found or []))
