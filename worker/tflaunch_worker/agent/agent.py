"""The agent: starts, watches and stops the tasks of one run on one host.

The agent is a daemon; its supervisor is a client of its socket and may disappear. The *lease* is the time in seconds
that tasks may keep running without contact. When it expires, the agent stops the tasks with the stop ladder and exits.
With a lease of 0 no supervisor will reconnect, so the tasks are killed as soon as the connection is lost.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Callable

from tflaunch_worker import host_vars, spawn, wire
from tflaunch_worker.agent import orders
from tflaunch_worker.agent.calls import Call, Calls
from tflaunch_worker.agent.host import Host
from tflaunch_worker.agent.lease import Lease
from tflaunch_worker.agent.left_files import LeftFiles
from tflaunch_worker.agent.services import AgentParts, Services
from tflaunch_worker.agent.supervisor_link import SupervisorLink
from tflaunch_worker.agent.task import Task
from tflaunch_worker.agent.task_output import Stream
from tflaunch_worker.agent.task_ports import TaskPorts
from tflaunch_worker.event_loop import Loop, Timer
from tflaunch_worker.frames import Frames
from tflaunch_worker.inspect.usage import Figures
from tflaunch_worker.readable import duration_words

_GUARD_TELLS = 1.0  # seconds until TERM, in which the guard of a busy host can tell whether the tasks have got one


class Agent:
    """Serves one run on this host."""

    def __init__(self, loop: Loop, host: Host) -> None:
        self._loop = loop
        self._host = host
        self._link = SupervisorLink(loop, self._obey, self._link_lost)
        self._calls = Calls(self._link)
        self._left_files = LeftFiles(host.find_left_file, self._link, loop.now)
        self._ports = TaskPorts(host, self._link)
        self._tasks: dict[str, Task] = {}
        self._services = Services(AgentParts(loop, host, self._link, self._tasks), self._calls)
        loop.excuse = self._services.excuse
        self._lease = Lease(loop)
        self._lease_timer: Timer | None = None
        self._fencing = 0
        self._grace = 0.0
        self._obeyed = 0
        self._is_leaving = False
        self._was_dismissed = False
        self._orders = self._all_orders()
        self._serve = self._calls.served_by(self._services.serve)
        self._watch_lease()

    # ---- called by the agent's process

    def connect(self, connection: socket.socket) -> None:
        """Serve this client from now on."""
        self._link.connect(connection)

    def admit(self, message: dict[str, Any], frames: Frames) -> None:
        """Make the sender of this ``hello`` the supervisor, and close any earlier link."""
        if (message.get("fencing") or 0) > self._fencing:
            self._fencing = message["fencing"]
            self._link.dismiss(self.superseded())
        self._link.use(frames)
        self._obey(message, b"")

    def is_superseded(self, message: dict[str, Any]) -> bool:
        """Return whether this ``hello`` is of a supervisor that another has replaced."""
        return (message.get("fencing") or 0) < self._fencing

    def superseded(self) -> dict[str, object]:
        """Return the message for a supervisor that a newer one has replaced."""
        return {"kind": "superseded", "by": self._fencing}

    def appearance(self) -> dict[str, object]:
        """Return a snapshot of the live tasks and the lease; the supervisor stays."""
        tasks = {
            task.name: {"attempt": task.attempt, "pid": task.pid} for task in self._tasks.values() if not task.is_gone
        }
        left = max(self._lease.ends_at - self._loop.now(), 0.0) if self._lease.seconds else 0.0
        return {"kind": "seen", "tasks": tasks, "lease_left": left, "is_leaving": self._is_leaving}

    def disconnect(self) -> None:
        """Close the connection to the supervisor."""
        self._link.disconnect()

    def outlive_run(self) -> list[int]:
        """Return the pids of processes that stay for later runs, if this one has ended."""
        lists = self._services.at("outlive_run") if self._was_dismissed else []
        return [pid for pids in lists for pid in pids]

    def drain(self) -> None:
        """Stop the tasks with their grace period, then exit: the host is being drained.

        Who terminates the agent may send TERM to the tasks, too, which the guard then tells: they get one only.
        """
        self.give_up("its agent was terminated there", is_drain=True)

    def note_told(self, number: int, is_told: Callable[[int], bool]) -> None:
        """Note that tasks got a signal together with the guard; ``is_told`` takes a pid."""
        for task in self._tasks.values():
            if task.pid and is_told(task.pid):
                task.note_told(number)

    def give_up(self, reason: str, is_drain: bool = False) -> None:
        """Stop the tasks without an order and exit, and report that they are not to blame."""
        if not self._is_leaving:
            self._link.say("host_leaving", reason=reason, is_drain=is_drain)
        self._end_all(self._grace, _GUARD_TELLS if is_drain else 0.0)

    def check_exits(self) -> None:
        """Check every task for an exit, since some child may have exited."""
        for task in list(self._tasks.values()):
            task.check_exit()

    # ---- orders and calls of the supervisor

    def _all_orders(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """Return the functions for all messages but calls to features, by kind."""
        served = self._calls.served_by
        return {
            "hello": self._hello,
            "keep_alive": self._keep_alive,
            "acknowledge": self._acknowledge,
            "leave": self._leave,
            "set_cluster": lambda message: self._host.set_cluster(orders.read_cluster(message["body"])),
            "set_fence": lambda message: self._ports.admit(orders.read_addresses(message["body"])),
            "hold_ports": self._ports.hold,
            "look_up_names": self._look_up_names,
            "probe_peers": self._ports.probe_peers,
            "start_task": self._start_task,
            "import_modules": self._import_modules,
            "stop_task": self._stop_task,
            "signal_task": self._signal_task,
            "tell_call": self._calls.tell,
            "end_call": self._calls.end,
            "measure": served(self._measure),
            "watch_faults": served(self._services.watch_faults),
        }

    def _obey(self, message: dict[str, Any], body: bytes) -> None:
        kind = message["kind"]
        message["body"] = body
        try:
            known = orders.FIELDS[kind] if kind in self._orders else self._services.checks(kind)
            orders.check(message, known)
            if self._is_new(message):
                self._orders.get(kind, self._serve)(message)
        except ValueError as error:
            # A call decides nothing: it is answered. After an order that cannot be obeyed, the link ends.
            is_call = "call" in orders.FIELDS.get(kind, orders.CALL)
            if not (is_call and self._calls.refuse(message, f"{kind[:40]}: {error}")):
                self._link.refuse(f"malformed order {kind[:40]!r}: {error}")

    def _is_new(self, message: dict[str, Any]) -> bool:
        """Return whether an order is new; orders are sent again after a lost link."""
        number = message.get("order") or 0
        if 0 < number <= self._obeyed:
            return False
        self._obeyed = max(number, self._obeyed)
        return True

    def _hello(self, message: dict[str, Any]) -> None:
        if message["protocol"] != wire.PROTOCOL:
            self._link.refuse(f"this agent speaks protocol {wire.PROTOCOL}, not {message['protocol']}")
            return
        if self.is_superseded(message):
            self._link.dismiss(self.superseded())
            return
        self._fencing = message.get("fencing") or 0
        self._calls.end_all()
        self._lease.begin(message["lease"], message["clock"], message["sent"])
        self._grace = message["grace"]
        self._watch_lease()
        about: dict[str, object] = {"protocol": wire.PROTOCOL, "pid": os.getpid(), "is_leaving": self._is_leaving}
        if message.get("private"):
            self._host.open_private_network()  # why it cannot be is reported when it is needed
            about["no_way_out"] = self._host.no_way_out
        about["gpus"] = self._host.gpus
        self._link.greet(message["seen"], **about, addresses=self._host.addresses(), **self._pulse(message))

    def _keep_alive(self, message: dict[str, Any]) -> None:
        """Renew the lease; the answer shows the supervisor that the link works both ways."""
        self._lease.renew(message["sent"])
        self._link.answer("alive", **self._pulse(message))

    def _pulse(self, message: dict[str, Any]) -> dict[str, object]:
        """Return the fields common to all answers: the last order obeyed, and both clocks."""
        return {"obeyed": self._obeyed, "sent": message["sent"], "time": self._loop.now()}

    def _acknowledge(self, message: dict[str, Any]) -> None:
        self._link.forget_seen(message["seen"])
        for task, attempt, offset, is_complete in message["streams"]:
            self._link.acknowledge(task, attempt, offset, is_complete)
        self._stop_when_done()

    def _look_up_names(self, message: dict[str, Any]) -> None:
        self._host.look_up(message["names"], lambda found: self._link.say("names_resolved", found=found))

    def _start_task(self, message: dict[str, Any]) -> None:
        name, attempt = message["task"], message["attempt"]
        running = self._tasks.get(name)
        if running is not None and not running.is_gone:
            raise ValueError(f"{name} is still running attempt {running.attempt}")
        self._host.listeners.close()
        stream = self._host.stream(name, attempt)
        self._link.add(stream)
        progress = self._host.progress(lambda: self._note_report(name))
        self._services.at("read_order", message)
        try:
            command = self._host.command(name, message, progress)
        except host_vars.UnknownValueError as unknown:
            if progress is not None:
                progress.close()
            about = {"task": name, "attempt": attempt}
            self._link.say("task_not_started", **about, code=spawn.NOT_EXECUTABLE, reason=str(unknown))
            self._link.say("task_gone", **about)
            stream.finish()
            self._link.has_output(stream)
            return
        files = message.get("left_files") or {}
        self._host.forget_stale_files(name, files)
        self._left_files.want(name, files)
        task = self._host.task(command, stream, progress, self)
        self._tasks[name] = task
        self._ports.begin(name, attempt, message, lambda: task.pid)
        self._services.at("begin_task", task, command)
        self._host.start(task, self._services.start_task if self._services.find_starter(command) else None)
        if self._is_leaving:
            task.stop(self._grace)  # the order crossed our `host_leaving`; we end once no task lives

    def _import_modules(self, message: dict[str, Any]) -> None:
        self._services.at("read_order", message)
        try:
            command = self._host.command(message["task"], message, None)
        except host_vars.UnknownValueError:
            return  # reported when the task is started
        self._services.expect_task(command)

    def _stop_task(self, message: dict[str, Any]) -> None:
        task = self._tasks.get(message["task"])
        if task is not None and task.attempt == message["attempt"]:
            task.stop(message["grace"], bool(message.get("with_stacks")))
            self._services.at("stop_task", task.name)
            if message["grace"] == 0:
                self._left_files.give_up(task.name)

    def _signal_task(self, message: dict[str, Any]) -> None:
        task = self._tasks.get(message["task"])
        if task is not None and task.attempt == message["attempt"]:
            task.signal(message["signal"])

    def _measure(self, call: Call, message: dict[str, Any]) -> None:
        """Answer with the usage and the progress of the tasks."""
        self._host.measurer.ask(self._services.agent.pids, lambda figures: self._answer_measures(call, figures))

    def _answer_measures(self, call: Call, figures: Figures) -> None:
        tasks = {}
        for name, usage in figures.items():
            about = {"refused": self._host.fence.counts.get(name), "progress": self._tasks[name].progress()}
            known = {key: value for key, value in about.items() if value}
            tasks[name] = {"attempt": self._tasks[name].attempt, **usage, **known}
        call.answer(time=self._loop.now(), tasks=tasks)

    def _leave(self, message: dict[str, Any]) -> None:
        self._was_dismissed = True
        self._services.at("leave")
        self._end_all(message["grace"])

    # ---- called by tasks (implements the listener of `Task`)

    def say(self, kind: str, **fields: object) -> None:
        """Queue an event for the supervisor."""
        self._link.say(kind, **fields)

    def has_output(self, stream: Stream) -> None:
        """Schedule a stream that has new output for sending."""
        self._ports.look_soon()
        self._link.has_output(stream)

    def _note_report(self, name: str) -> None:
        if name in self._tasks:
            self._tasks[name].spoke_at = self._loop.now()

    def bring_files(self, task: Task, brought: Callable[[], None]) -> None:
        """Send the launcher the files that a task has left, and call ``brought``."""
        self._left_files.bring(task.name, task.attempt, brought)
        self._stop_when_done()

    def find_checkpoint(self, command: spawn.Command, since: float, found: Callable[[int], None]) -> None:
        """Call ``found`` with the number of a command's newest checkpoint, or 0."""
        if self._is_leaving:
            found(0)  # no restart will depend on it
        else:
            self._host.find_checkpoint(command, since, found)

    def has_gone(self, task: Task) -> None:
        """Forget a task whose last process is dead."""
        self._services.at("end_task", task.name)
        self._ports.end(task.name)
        self._stop_when_done()

    def explain_kill(self, pid: int) -> str:
        """Return why a process was killed, "" if no feature knows it."""
        return "; ".join(filter(None, self._services.at("explain_kill", pid)))

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Call ``looked`` once all features have looked at a task that hangs."""
        self._services.look_at_hang(task, looked)

    # ---- shutdown

    def _end_all(self, grace: float, term_in: float = 0.0) -> None:
        self._is_leaving = True
        for task in list(self._tasks.values()):
            task.stop(grace, term_in=term_in)
            self._services.at("stop_task", task.name)
        if grace == 0:
            self._left_files.give_up()
        self._stop_when_done()

    def _stop_when_done(self) -> None:
        """Stop the loop when no task lives and a connected supervisor has everything."""
        if self._is_leaving and not self._link.is_connected:
            self._left_files.give_up()
        has_told = not self._link.is_connected or self._link.has_heard_all
        if self._is_leaving and has_told and all(task.is_gone for task in self._tasks.values()):
            self._loop.stop()

    def _link_lost(self) -> None:
        self._calls.end_all()
        if self._lease.seconds == 0 or not self._lease.has_begun:
            self._end_all(0)
        elif self._is_leaving:
            self._stop_when_done()

    def _watch_lease(self) -> None:
        """Schedule a check of the lease; one of 0 ends with the connection."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self._lease.seconds > 0:
            self._lease_timer = self._loop.call_at(self._lease.ends_at, self._check_lease)

    def _check_lease(self) -> None:
        if not self._lease.is_over:
            self._watch_lease()
            return
        self._link.disconnect()
        self.give_up(f"no message came from the supervisor for the lease of {duration_words(self._lease.seconds)}")
