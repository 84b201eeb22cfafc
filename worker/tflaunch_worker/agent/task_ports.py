"""Ports of this host's tasks: held, probed, then fenced, and watched until open."""

from __future__ import annotations

from typing import Any, Callable

from tflaunch_worker.agent.host import Host
from tflaunch_worker.agent.network.ports import PortTakenError
from tflaunch_worker.agent.supervisor_link import SupervisorLink


class TaskPorts:
    """Obeys the orders about ports, and tells the supervisor what happens at them."""

    def __init__(self, host: Host, link: SupervisorLink) -> None:
        self._host = host
        self._link = link
        self._watch = host.watch_ports(self._opened)
        self._attempts: dict[str, int] = {}
        host.fence.tell = lambda task, source: link.say("outsider_refused", task=task, source=source)

    # ---- before tasks start

    def hold(self, message: dict[str, Any]) -> None:
        """Hold a port for each of these tasks; open the private network if they need it."""
        if message.get("private"):
            reason = self._host.open_private_network()
            if reason:
                self._link.say("host_refused", what="network", reason=reason)
                return
        held, refused = {}, {}
        for task, port in message["ports"].items():
            try:
                held[task] = self._host.ports.hold(task, port)
            except PortTakenError as taken:
                refused[task] = str(taken)
        if refused:
            self._link.say("ports_refused", refused=refused)
        else:
            self._link.say("ports_held", ports=held, addresses=" ".join(self._host.addresses()))
            for task in held:
                self._host.task_directory(task)  # now, while the supervisor is still compiling TF_CONFIG

    def probe_peers(self, message: dict[str, Any]) -> None:
        """Listen on the tasks' ports until they start; connect to other hosts' tasks."""
        try:
            self._host.listeners.listen(message["ports"], message["run"], message["secret"], self._peer_seen)
        except OSError as error:
            failed = dict.fromkeys(message["peers"], f"this host cannot listen: {error.strerror}")
            self._link.say("peers_probed", failed=failed)
            return
        found = lambda failed: self._link.say("peers_probed", failed=failed)  # noqa: E731
        self._host.probe_peers(message, found)

    def admit(self, addresses: list[str]) -> None:
        """Let connections from these addresses reach the tasks, and no others."""
        guarded = self._host.fence.tasks
        flaw = self._host.fence.admit(addresses)
        for task in guarded:
            self._tell_unfenced(task, flaw)

    # ---- while tasks run

    def begin(self, name: str, attempt: int, message: dict[str, Any], pid: Callable[[], int]) -> None:
        """Fence and watch the port of a starting task; ``pid`` returns its process, or 0."""
        port = message["port"]
        self._attempts[name] = attempt
        if port:
            self._tell_unfenced(name, self._host.fence.guard(name, self._host.ports.holder(name)))
            self._watch.add(name, port, pid if message.get("private") else None)
        elif message.get("chooses_port"):
            self._watch.add(name, 0, pid)

    def look_soon(self) -> None:
        """See whether ports are open, since a task has written output."""
        self._watch.look_soon()

    def end(self, name: str) -> None:
        """Watch and fence the port of a task no longer: it is gone."""
        self._watch.remove(name)
        self._host.fence.leave(name)

    def _opened(self, name: str, port: int) -> None:
        self._link.say("port_opened", task=name, attempt=self._attempts[name], port=port)
        self._host.fence.note_opened(name)
        self._tell_unfenced(name, self._host.fence_gap(name, port))

    def _tell_unfenced(self, task: str, flaw: str) -> None:
        if flaw:
            self._link.say("port_unfenced", task=task, reason=flaw)

    def _peer_seen(self, source: str) -> None:
        if self._host.fence.lacks(source):
            self._link.say("peer_seen", source=source)
