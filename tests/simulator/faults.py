"""Faults outside the programs: of hosts, links, users and the supervisor."""

from __future__ import annotations

import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simulator.case import Fault, Moment
from simulator.links import TO_AGENT, TO_SUPERVISOR
from tflaunch.core import policy
from tflaunch.core.events import Interrupted, JobHung, RestartRequested, StopRequested
from tflaunch.core.job_state import Phase
from tflaunch.core.states import TaskPhase
from tflaunch_worker import wire

if TYPE_CHECKING:
    from simulator.file_system import Disk
    from simulator.history import History
    from simulator.hosts import SimHost

_LIES = (
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff" * 64,
    b"\0\0\0\x02\0\0\0\0[]",
    wire.encode({"kind": "task_exited", "seq": 1}),
    wire.encode({"kind": "task_gone", "seq": 2**60, "task": "worker:0", "attempt": 0}),
    wire.encode({"kind": "output", "task": "worker:0", "attempt": 2**40, "offset": 0, "times": [[0, 1.0]]}, b"a lie"),
    wire.encode({"kind": "output_lost", "task": "nobody", "attempt": 0, "offset": 0, "size": 7}),
    wire.encode({"kind": "file_left", "task": "../worker:0", "attempt": 0, "name": "/etc/passwd", "size": 7}),
    wire.encode({"kind": "alive", "sent": "now", "time": None, "obeyed": -1}),
    wire.encode({"kind": "greeted", "protocol": 1}),
)
"""Each is refused by the border at which it arrives; the fuzzers try others there."""
HANGS_AT = "train.py, line 7"
"""Where all tasks hang that do."""
_LOSE_WORDS = {
    "cut", "half_open", "late_hello", "lie", "kill_agent", "kill_guard_and_agent", "kill_everything", "kill_guard",
    "take_away", "drain", "end_node", "end_service", "power_off", "flap", "stick", "half_logged", "half_written",
    "freeze_supervisor", "kill_supervisor",
}  # fmt: skip
"""Faults after which an agent may end before all its messages were received."""
_TAIL = 1.0  # seconds for which the effect of a disturbance lasts
_APART = 0.45  # seconds between the first and the last TERM of an end from outside
_YOUNG = 1.0  # seconds: an answer that is late in a younger link may be the only one that tells a host's clock


class Cell(NamedTuple):
    """What coverage counts: a fault of a kind, after a step of the supervisor in a phase of the job."""

    phase: str
    event: str
    kind: str


class Faults:
    def __init__(self, history: History) -> None:
        self._history = history
        self._world = history.world
        self._hosts = list(history.hosts.values())
        self._far = [host for host in self._hosts if not host.is_local]
        self._plan = history.plan
        self._oracle = history.oracle
        self._waiting: defaultdict[Moment, list[Fault]] = defaultdict(list)
        self._random = self._world.random
        self._latest = Moment("", "")
        self._half_open_at = float("-inf")
        self.moments: set[Moment] = set()
        """The steps of the supervisors, each once."""
        self.cells: Counter[Cell] = Counter()
        """How often a fault was injected, by its kind and the last step before it."""
        self.orphaned: set[str] = set()
        """The hosts on which guard and agent were killed together."""

    def schedule(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            if fault.after is not None:
                self._waiting[fault.after].append(fault)
            else:
                self._world.at(fault.at or 0.0, partial(self._happens, fault))

    def stepped(self, moment: Moment) -> None:
        """Record a step of the supervisor, and inject what has waited for it, within a moment."""
        self.moments.add(moment)
        self._latest = moment
        for fault in self._waiting.pop(moment, ()):
            delay = random.Random(f"delay {fault.number}").choice((0.0, 0.001, 0.05, 0.5))
            self._world.after(delay, partial(self._happens, fault))

    def _happens(self, fault: Fault) -> None:
        if self._history.is_over:
            return
        self._random = random.Random(f"{self._history.case.seed} {fault.number} {fault.kind}")
        before = self._world.faults.total()
        self._oracle.may_lose_words |= fault.kind in _LOSE_WORDS
        getattr(self, fault.kind)()
        if self._world.faults.total() > before:
            self.cells[Cell(*self._latest, fault.kind)] += 1

    # ---- what they share

    def _within(self, least: float, most: float) -> float:
        return self._random.uniform(least, most)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _until(self, seconds: float, undo: Callable[[], None]) -> None:
        """Undo a fault later; it disturbs until then and a little longer."""
        self._disturb(seconds + _TAIL)
        self._world.after(seconds, undo)

    def _disturb(self, seconds: float) -> None:
        self._oracle.blur()
        self._oracle.disturbances += 1
        self._world.after(seconds, self._calm)

    def _calm(self) -> None:
        self._oracle.disturbances -= 1

    def _any(self) -> SimHost:
        return self._random.choice(self._hosts)

    def _any_far(self) -> SimHost:
        return self._random.choice(self._far)

    def _loses(self, kind: str, host: SimHost) -> None:
        """A host is lost: the cause of later failures, if the gang needs it."""
        job = self._history.run.job
        there = [task for task in job.plan.on_host(host.name) if policy.in_gang(task)]
        is_needed = any(not policy.restarts_alone(job.plan, task) for task in there)
        is_done = any(job.tasks[task.task].exit.code == 0 for task in there)
        is_clear = host.agent is not None and self._world.now > host.shaken_until
        if job.phase is Phase.RUNNING and is_needed and not is_done and is_clear:
            self._oracle.cause(kind, host.name, host.name)
        else:
            self._disturb(policy.fence(self._plan))

    def _shakes(self, host: SimHost, seconds: float) -> None:
        host.shaken_until = self._world.now + seconds + 4 * self._plan.timeouts.heartbeat

    def _spoil(self, host: SimHost, kind: str, flag: str, least: float, most: float) -> None:
        """Something is wrong with a host for a while."""
        self._world.fault(kind, host.name)
        setattr(host, flag, True)
        self._until(self._within(least, most), lambda: setattr(host, flag, False))

    # ---- links

    def slow(self) -> None:
        host = self._any_far()
        host.slowness = self._within(0.05, 1.0)
        self._world.fault("slow link", host.name, f"{host.slowness:.2f} s")
        self._oracle.may_misdate(3 * host.slowness)
        self._until(self._within(1, 15), lambda: setattr(host, "slowness", 0.0))

    def cut(self) -> None:
        """The network is cut: for less than the lease, for longer, or for about as long."""
        host, lease = self._any_far(), self._plan.lease
        if host.is_cut or not host.is_up or host.has_orphans:
            return
        draw = self._random.random()
        if draw < 0.4:
            seconds, kind = self._within(0.1, max(0.45 * lease - 3, 0.2)), "cut, short"
        elif draw < 0.8:
            seconds, kind = self._within(lease + 1, 3 * lease + 30), "cut, longer than the lease"
        else:
            seconds, kind = self._within(0.5 * lease, lease + 20), "cut, about the lease"
        self._world.fault(kind, host.name, f"{seconds:.2f} s")
        host.cut(True)
        if kind == "cut, longer than the lease":
            self._loses("host", host)
        elif kind == "cut, about the lease":
            self._disturb(seconds + lease + 15)
        else:
            self._shakes(host, seconds)
        if any(self._world.now - wire.opened_at < _YOUNG for wire in host.live_wires()):
            self._oracle.may_misdate(seconds)
        self._world.after(seconds, lambda: host.cut(False))

    def half_open(self) -> None:
        """A link is dead in one direction; others work."""
        host = self._any_far()
        self._shakes(host, 0)
        self._half_open_at = self._world.now
        for link in host.live_wires():
            direction = self._random.choice((TO_AGENT, TO_SUPERVISOR))
            self._world.fault("half-open link", host.name, ("to its agent", "from its agent")[direction])
            link.cut(direction)

    def reset(self) -> None:
        host = self._any_far()
        self._shakes(host, 0)
        for link in host.live_wires():
            self._world.fault("link reset", host.name)
            link.reset()

    def late_hello(self) -> None:
        """A connection that was given up arrives late, or a second time: its greeting is an old one."""
        host = self._any_far()
        hello = host.latest_hello
        if hello and host.is_reachable and host.agent is not None and not host.agent.has_ended:
            self._world.fault("late connection", host.name)
            self._shakes(host, 0)
            end = host.connect()
            end.sendall(hello)
            self._world.after(self._within(0.1, 3), end.close)

    def lie(self) -> None:
        """A host sends something that no agent sends, once: after three times it would be given up."""
        host = self._any()
        if host.has_lied or host.agent is None or host.agent.has_ended or not self._plan.lease:
            return  # without a lease, its tasks end with the link
        for link in host.live_wires():
            if not link.agent.is_closed and not link.agent.is_amid:
                host.has_lied = True
                self._disturb(policy.fence(self._plan))
                self._world.fault("lie", host.name)
                link.agent.sendall(self._random.choice(_LIES))

    # ---- hosts

    def kill_agent(self) -> None:
        host = self._any()
        if host.agent is None or host.agent.has_ended:
            return
        self._world.fault("agent killed", host.name)
        self._loses("host", host)
        host.kill_agent()

    def kill_guard_and_agent(self) -> None:
        """Kill -9 of both at once, where tasks have started other processes."""
        self._kill_together(self._any())

    def kill_everything(self) -> None:
        """`pkill -9 -f tflaunch` on this machine: supervisor, guard and agent at once."""
        here = [host for host in self._hosts if host.is_local]
        if here:
            self._kill_together(here[0])
        self.kill_supervisor()

    def _kill_together(self, host: SimHost) -> None:
        # Where no sweep is possible until the fence has passed, nothing can be promised (docs/limits.md).
        if host.agent is None or host.agent.has_ended or not host.is_reachable or host.is_refusing:
            return
        for process in host.living():
            if process.parent is None and process.program is not None and self._chance(0.7):
                process.program.leave_child()
        self._world.fault("guard and agent killed", host.name)
        self._loses("host", host)
        self.orphaned.add(host.name)
        host.kill_guard_and_agent()

    def kill_guard(self) -> None:
        """Kill -9 of a guard: the kernel tells its agent, which stops its tasks and exits."""
        host = self._any()
        # As for guard and agent: where no sweep is possible, nothing can be promised.
        if host.agent is None or host.agent.agent is None or not host.is_reachable or host.is_refusing:
            return
        self._world.fault("guard killed", host.name)
        self._disturb(policy.fence(self._plan))
        self.orphaned.add(host.name)
        host.agent.lose_guard()

    def take_away(self) -> None:
        """A queue takes a host away: its agent gets TERM, and KILL later; another allocation may come."""
        host = self._any_far()
        if host.agent is None or host.agent.agent is None or host.has_orphans:
            return
        seconds = self._within(0.5, 10)
        self._world.fault("host taken away", host.name, f"{seconds:.1f} s")
        self._disturb(seconds + policy.fence(self._plan))
        host.agent.drain()
        self._world.after(seconds, self._is_taken, host)

    def _is_taken(self, host: SimHost) -> None:
        if host.is_up:
            host.power_off()
            if self._chance(0.8):
                self._world.after(self._within(1, 60), host.power_on)

    def drain(self) -> None:
        host = self._any()
        if host.agent is None or host.agent.agent is None:
            return
        self._world.fault("drain", host.name)
        self._loses("drain", host)
        host.agent.drain()

    def end_node(self) -> None:
        """A node is shut down: its tasks and its agent get TERM, one soon after the other."""
        host = self._any()
        if host.agent is not None and host.agent.agent is not None:
            self._world.fault("node ended", host.name)
            self._end_from_outside([host], host.agent.drain)

    def end_service(self) -> None:
        """A service is stopped: tasks and tflaunch get TERM, one soon after the other."""
        self._world.fault("service ended")
        self._end_from_outside(self._hosts, lambda: self._press(signal.SIGTERM))

    def _end_from_outside(self, hosts: Iterable[SimHost], tell: Callable[[], None]) -> None:
        self._disturb(policy.fence(self._plan))
        lead = self._within(-_APART, _APART)
        self._world.after(max(lead, 0.0), tell)
        for process in [process for host in hosts for process in host.living()]:
            self._world.after(max(-lead, 0.0), partial(process.receive, signal.SIGTERM))

    def power_off(self) -> None:
        host = self._any_far()
        if not host.is_up:
            return
        seconds = self._within(2, 90) if self._chance(0.8) else 1e9
        self._world.fault("power off", host.name, f"{seconds:.1f} s" if seconds < 1e9 else "until the end")
        self._loses("host", host)
        host.power_off()
        if seconds < 1e9:
            self._world.after(seconds, host.power_on)

    def flap(self) -> None:
        """A host is cut off again and again, for shorter and longer than the fence, and is back in between."""
        host = self._any_far()
        if host.is_cut or not host.is_up or host.has_orphans:
            return
        self._world.fault("host flaps", host.name)
        until = self._world.now
        for _ in range(self._random.randrange(2, 7)):
            until += self._within(0.5, 30)
            self._world.at(until, lambda: host.cut(True))
            until += self._within(0.5, 2.5 * policy.fence(self._plan))
            self._world.at(until, lambda: host.cut(False))
        self._disturb(until - self._world.now + 2 * policy.fence(self._plan))

    def refuse(self) -> None:
        if not (host := self._any_far()).has_orphans:
            self._spoil(host, "logins refused", "is_refusing", 1, 40)

    def full_disk(self) -> None:
        """There is no room for output."""
        host = self._any()
        self._fill(host.disk, "full disk", host.name)

    def no_inodes(self) -> None:
        """No file can be created; those that are open can still be written."""
        disk = self._any().disk
        self._world.fault("no inodes")
        disk.has_inodes = False
        self._empty_later(lambda: setattr(disk, "has_inodes", True))

    def _fill(self, disk: Disk, *about: str) -> None:
        """A disk has hardly any space for a while."""
        taken = disk.room - self._random.randrange(3000)
        disk.room -= taken
        self._world.fault(*about)

        def empty() -> None:
            disk.room += taken

        self._empty_later(empty)

    def _empty_later(self, empty: Callable[[], None]) -> None:
        """A disk is full until then; the job ends if code is to be copied there."""
        seconds = self._within(0.5, 20)
        if self._history.code is None:
            self._world.after(seconds, empty)
        else:
            self._until(seconds, empty)

    def slow_disk(self) -> None:
        """Each write to the disk takes long: a spool's, or that of the logs."""
        host = self._any()
        self._world.fault("slow disk", host.name)
        host.disk.seconds = self._within(0.02, 0.3)
        lasts = self._within(1, 15)
        host.slow_until = self._world.now + lasts
        self._oracle.may_misdate(lasts)
        self._until(lasts, lambda: setattr(host.disk, "seconds", 0.0))

    def refuse_ports(self) -> None:
        self._spoil(self._any(), "ports refused", "refuses_ports", 0.1, 10)

    def bad_names(self) -> None:
        """A resolver misleads."""
        self._spoil(self._any_far(), "bad names", "has_bad_names", 0.1, 10)

    def closed_ports(self) -> None:
        """A firewall blocks all connections, incoming or outgoing."""
        self._spoil(self._any_far(), "closed ports", "has_closed_ports", 0.1, 10)

    def refuse_files(self) -> None:
        """The user's code cannot be synced to the host."""
        self._spoil(self._any_far(), "files refused", "refuses_files", 0.1, 10)

    def slow_death(self) -> None:
        host = self._any()
        self._world.fault("slow to die", host.name)
        host.is_slow_to_die = True
        self._oracle.blur()

    def stick(self) -> None:
        """Signals do nothing on a host, as if all processes there waited for a dead disk, or its agent lied."""
        host = self._any()
        if host.is_stuck or not host.is_up:
            return
        seconds = self._random.choice((self._within(1, 20), self._within(0.5, 3) * policy.fence(self._plan), 500.0))
        self._world.fault("stuck", host.name, f"{seconds:.1f} s")
        host.is_stuck = True
        self._until(seconds, host.unstick)

    def freeze_agent(self) -> None:
        host = self._any()
        if host.agent is not None:
            self._world.fault("agent frozen", host.name)
            seconds = self._within(0.1, 2.5)
            host.agent.loop.frozen_until = self._world.now + seconds
            self._oracle.may_misdate(seconds)
            self._disturb(seconds + _TAIL)

    def queue(self) -> None:
        """A scheduler has no host to give for a while, and says why; one that runs already stays."""
        host = self._any_far()
        seconds = self._within(1, 60)
        self._world.fault("host queued", host.name, f"{seconds:.1f} s")
        host.queued_until = self._world.now + seconds
        self._disturb(seconds + policy.fence(self._plan))

    def set_clock(self) -> None:
        seconds = self._within(-1, 1) * self._random.choice((60.0, 86400.0, 40 * 86400.0))
        host = self._any()
        self._world.fault("clock set", host.name, f"by {seconds:.0f} s")
        host.wall_ahead += seconds

    # ---- users, and the supervisor

    def set_supervisors_clock(self) -> None:
        seconds = self._within(-1, 1) * 86400
        self._world.fault("supervisor's clock set", f"by {seconds:.0f} s")
        self._history.set_clock(seconds)

    def stop_reading(self) -> None:
        """The user presses Ctrl-S, or the program that reads the output is stopped."""
        seconds = self._within(1, 60)
        self._world.fault("screen not read", f"{seconds:.1f} s")
        self._history.reader.pause(seconds)

    def fill_logs(self) -> None:
        """There is no room for the logs."""
        self._fill(self._history.machine.disk, "full disk under the logs")

    def half_logged(self) -> None:
        """Kill -9 of tflaunch in the middle of a write to a log."""
        self._world.fault("supervisor killed while it logs")
        self._history.die_while_logging(self._random.random())

    def edit_code(self) -> None:
        """The user saves a file that may be on its way to a host."""
        if self._history.code is not None:
            self._world.fault("code edited", self._history.code.edit())
            self._disturb(1e9)  # a host that is reached later, and lacks the file, cannot get what was offered

    def interrupt(self) -> None:
        self._press(signal.SIGINT)

    def terminate(self) -> None:
        self._press(signal.SIGTERM)

    def interrupt_twice(self) -> None:
        self._press(signal.SIGINT)
        self._world.after(self._within(0.01, 5), lambda: self._press(signal.SIGINT))

    def stop(self) -> None:
        """`tflaunch down` in another terminal."""
        grace = self._within(0.1, 5) if self._chance(0.7) else 0.0
        self._world.fault("down", f"{grace:.1f} s")
        self._history.mailbox.put(StopRequested(grace))

    def restart(self) -> None:
        """`tflaunch restart` in another terminal: of one task, or of all that train."""
        job = self._history.run.job
        task = self._random.choice(("", *job.tasks))
        self._world.fault("restart", task or "all")
        self._history.mailbox.put(RestartRequested(task))

    def hung(self) -> None:
        """The watch of silences says that an attempt hangs, rightly or not: this one, or the one before."""
        attempt = max(self._history.run.job.attempt - self._random.choice((0, 0, 0, 1)), 0)
        place = self._random.choice(("", HANGS_AT, HANGS_AT, "data.py, line 40"))
        self._world.fault("hang told", attempt, place)
        self._history.mailbox.put(JobHung(attempt, "no output", place))

    def _press(self, number: int) -> None:
        self._world.fault("Ctrl-C" if number == signal.SIGINT else "TERM")
        self._history.mailbox.put(Interrupted(int(number)))

    def freeze_supervisor(self) -> None:
        """The supervisor gets no CPU time, or its laptop sleeps."""
        seconds = self._within(0.1, 3) if self._chance(0.7) else self._within(3, 100)
        self._world.fault("supervisor frozen", f"{seconds:.1f} s")
        self._history.freeze(seconds)
        self._disturb(seconds + self._plan.lease + 15)

    def half_written(self) -> None:
        """Kill -9 of tflaunch in the middle of a write to the journal."""
        self._world.fault("supervisor killed while it writes")
        self._history.journal.torn_at = self._random.random()

    def kill_supervisor(self) -> None:
        self._world.fault("supervisor killed")
        self._history.kill_supervisor()

    def supervisor_is_away(self, seconds: float, is_early: bool) -> None:
        """Until another one takes over; if that is early, no task may notice.

        An agent without a task ends earlier than its lease, and one that hears nothing has begun to wait before.
        """
        may_be_idle = any(task.phase is TaskPhase.STARTING for task in self._history.run.job.tasks.values())
        is_deaf = self._world.now - self._half_open_at < self._plan.lease
        if not is_early or may_be_idle or is_deaf or self._history.run.job.phase is not Phase.RUNNING:
            self._disturb(seconds + self._plan.lease + 15)
        for host in self._hosts:
            self._shakes(host, seconds)


def _shares(table: str) -> dict[str, float]:
    """Return how often each kind is drawn, from a table of pairs."""
    words = table.split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))


KINDS_OF_FAR = _shares("""
    slow 2  cut 4  half_open 1  reset 1  power_off 2  refuse 0.7  bad_names 0.2  closed_ports 0.2  refuse_files 0.2
""")
"""Faults of hosts that are not this machine, and how often each is drawn."""
KINDS = _shares("""
    kill_agent 1  kill_guard_and_agent 1  kill_everything 0.7  drain 1  full_disk 1  refuse_ports 0.3  slow_death 0.3
    freeze_agent 1  interrupt 0.5  terminate 0.3  interrupt_twice 0.5  stop 0.3  restart 0.5  freeze_supervisor 0.7
    kill_supervisor 1.5
""")
"""Faults of all hosts, of users and of the supervisor."""
RARER_KINDS = _shares("""
    kill_guard 1  no_inodes 0.5  slow_disk 0.5  half_written 1  lie 1  set_clock 0.7  set_supervisors_clock 0.3
    stop_reading 0.7  fill_logs 0.7  stick 1  half_logged 1
""")
"""Faults of all hosts, of which some histories have one beside the others."""
RARER_KINDS_OF_FAR = _shares("late_hello 1  take_away 1  queue 1  edit_code 1  flap 1")
"""The same, of hosts that are not this machine."""
