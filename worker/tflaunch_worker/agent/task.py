"""One attempt of a task: from the fork until its last process has exited."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Callable, Optional, Protocol

from tflaunch_worker import linux, process_ends, procfs, spawn
from tflaunch_worker.agent.last_output import LastOutput
from tflaunch_worker.agent.progress import Progress
from tflaunch_worker.agent.task_output import Stream
from tflaunch_worker.agent.task_processes import SUCCESS_PATIENCE, TaskProcesses
from tflaunch_worker.event_loop import Loop, Timer
from tflaunch_worker.process_state import TaskSettings


class Pending(Protocol):
    """A start that is under way."""

    def cancel(self) -> None:
        """Let no program run, and call nothing."""


Starter = Callable[[spawn.Command, Callable[[spawn.Child], None], Callable[[], None]], Optional[Pending]]
"""Starts a task in another way than by executing its command, as `services.Service.start_task` does."""


class Listener(Protocol):
    """Receives the events of a task, and asks the host's features about it."""

    def say(self, kind: str, **fields: object) -> None:
        """Report an event to the supervisor."""

    def has_output(self, stream: Stream) -> None:
        """Handle a stream that has new output."""

    def bring_files(self, task: Task, brought: Callable[[], None]) -> None:
        """Send the launcher the files that a task has left; then call ``brought``."""

    def find_checkpoint(self, command: spawn.Command, since: float, found: Callable[[int], None]) -> None:
        """Call ``found`` with the number of a command's newest checkpoint, or 0."""

    def has_gone(self, task: Task) -> None:
        """Handle that the last process of a task is dead."""

    def explain_kill(self, pid: int) -> str:
        """Return why a process was killed, "" if unknown."""

    def look_at_hang(self, task: Task, looked: Callable[[], None]) -> None:
        """Call ``looked`` once all have looked at a task that hangs, and it may be ended."""


_READ = 256 * 1024
_MOST_READS = 16  # a child that keeps writing must not delay the report of the exit
_LOOK_AGAIN = 0.02  # seconds
_MOST_LOOKS = 10  # a process that has cleared its environment for good cannot be found
_HAS_BEGUN = 0.3  # seconds; one that is forked while others get TERM may not get it
_DIES_WITHIN = 2.0  # seconds; what lives for longer after KILL waits in the kernel: a dead disk, a frozen cgroup
_MORE_LOOKS = 250  # 5 s: a process may take long to execute another program on a busy machine


class Task:
    """A running attempt, including its stop ladder."""

    def __init__(
        self,
        command: spawn.Command,
        stream: Stream,
        processes: TaskProcesses,
        progress: Progress | None,
        loop: Loop,
        listener: Listener,
    ) -> None:
        self.name = stream.task
        self.attempt = stream.attempt
        self.pid = 0
        self.is_gone = False
        self.last_output = LastOutput()
        self.spoke_at: float | None = None
        self.command = command
        self._stream = stream
        self._loop = loop
        self._listener = listener
        self._progress = progress
        self._pending: Pending | None = None
        self._child: spawn.Child | None = None
        self._pidfd: int | None = None
        self.has_exited = False
        self._exit: dict[str, object] = {}
        self._suspended = ""
        self._waits_until = 0.0
        self._worked = 0.0
        self._has_failed = False
        self._is_ending = False
        self._began_at = 0.0
        self._looks = 0
        self._has_started: bool | None = None
        self._kill_at: float | None = None
        self._kill_timer: Timer | None = None
        self._term_timer: Timer | None = None
        self._lingering: Timer | None = None
        self._clean_until: float | None = None
        self._processes = processes

    def start(self, settings: TaskSettings, starter: Starter | None = None) -> None:
        """Start the attempt, or have it started; the listener gets the result."""
        if starter is None:
            # Deferred until this batch of orders is prepared: after a fork, each page that the agent writes is copied.
            self._pending = self._loop.call_at(self._loop.now(), lambda: self._start_process(settings))
        else:
            fall_back = lambda: self._start_process(settings)  # noqa: E731
            self._pending = starter(self.command, self._on_started, fall_back)

    def _start_process(self, settings: TaskSettings) -> None:
        try:
            self._on_started(spawn.start_process(self.command, settings))
        except OSError as error:
            self._pending = None
            remedy = "; raise `ulimit -u`, or pids.max of its cgroup" if error.errno == errno.EAGAIN else ""
            self._say("task_not_started", code=spawn.NOT_EXECUTABLE, reason=f"no process: {error.strerror}{remedy}")
            self._end()

    def _on_started(self, started: spawn.Child) -> None:
        self._pending = None
        self._child = started
        self._began_at = time.time()
        self.pid = started.pid
        self._processes.begin(self.pid)
        self._loop.watch(self._child.output, self._read_output)
        self._loop.watch(self._child.start_report, self._read_start_report)
        self._pidfd = linux.open_pidfd(self.pid)
        # Urgent: the order in which tasks exit decides who is the culprit, so exits are read before output.
        if self._pidfd is not None:
            self._loop.watch(self._pidfd, self._reap, urgent=True)

    def check_exit(self) -> None:
        """Check whether the process has exited: at each SIGCHLD, without pidfds."""
        if self._pidfd is None and self.pid and not self.has_exited and procfs.is_zombie(self.pid):
            self._reap()

    # ---- the stop ladder

    def stop(self, grace: float, with_stacks: bool = False, term_in: float = 0.0) -> None:
        """Send the stop signal, and KILL ``grace`` seconds later (0: at once). Idempotent.

        ``with_stacks``: the task hangs; dump its stacks instead of sending that. ``term_in``: seconds until
        it is sent, unless `note_told` says before that the task has got it.
        """
        if self.is_gone:
            return
        if self._pending is not None:
            self._stop_pending(self.command.stop_signal if grace > 0 else signal.SIGKILL)
            return
        grace = 0 if self._waits_until else grace  # nothing is left but what ends with it anyway
        kill_at = self._loop.now() + grace
        if self._kill_at is None:
            self._suspended = self._processes.find_suspended()  # before CONT and KILL, which end that state
        if self._kill_at is None and grace > 0:
            if with_stacks:
                self._listener.look_at_hang(self, self._abort)
            elif term_in > 0:
                self._term_timer = self._loop.call_at(self._loop.now() + min(term_in, grace / 2), self._terminate)
            else:
                self._terminate()
        # A later request may shorten the grace, never extend it: a second Ctrl-C is meant.
        if self._kill_at is None or kill_at < self._kill_at:
            self._kill_at = kill_at
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            self._kill_timer = self._loop.call_at(kill_at, self._kill)
        if grace <= 0:
            self._kill()

    def _terminate(self) -> None:
        self.signal(self.command.stop_signal)
        self.signal(signal.SIGCONT)  # a stopped process acts on it only after it is continued

    def note_told(self, number: int) -> None:
        """Cancel the stop signal if the task got it just now and had not only begun."""
        has_it = number == self.command.stop_signal and time.time() - self._began_at > _HAS_BEGUN
        if self._term_timer is not None and has_it:
            self._term_timer.cancel()

    def _stop_pending(self, number: int) -> None:
        """Cancel a task that has no process yet; report it as killed by the signal."""
        assert self._pending is not None
        self._pending.cancel()
        self._pending = None
        self.has_exited = True
        self._say("task_exited", code=None, signal=int(number), at=self._loop.now(), was_told=True, evidence="")
        self._end()

    def _abort(self) -> None:
        """Make the program write its stacks and die.

        Python's faulthandler, which is enabled in every task (PYTHONFAULTHANDLER), writes the stacks of all threads on
        SIGABRT, even while the interpreter is blocked in C code.
        """
        if not (self.is_gone or self.has_exited):
            linux.forbid_core_file(self.pid)  # it has gigabytes with TensorFlow
            for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped process acts only after it is continued
                linux.kill(self.pid, None, number)

    def _kill(self) -> None:
        if self.has_exited:
            self._settle()
        else:  # its exit, which KILL causes, is read by `_reap`, and that settles
            self._kill_members(self._processes.look()[0])
        # KILL takes effect when the process returns from the kernel: not while it waits in state D for a dead disk, nor
        # in a frozen cgroup. Nothing more can be done then, but it must be said why the host cannot be used again.
        if self._lingering is None and not self.is_gone:
            self._lingering = self._loop.call_at(self._loop.now() + _DIES_WITHIN, self._report_lingering)

    def _kill_members(self, members: list[int]) -> None:
        # Helpers that remove shared memory wait for the death of their program: killed with it, they would leave
        # segments in /dev/shm until the machine starts again. So they live on for a moment, and are killed after it.
        if self._clean_until is None:
            self._clean_until = self._loop.now() + process_ends.CLEAN_UP
        if self._processes.kill(members, spares_cleaners=self._loop.now() < self._clean_until):
            self._loop.call_at(min(self._clean_until, self._loop.now() + process_ends.YOUNG), self._settle)

    def _report_lingering(self) -> None:
        """Report a process that has not ended after KILL: nothing here can end it."""
        if not self.is_gone:
            living = [pid for pid in self._processes.look()[0] if not process_ends.is_cleaner(pid)]
            reason = procfs.describe_wait(living[0]) if living else ""
            if reason:  # else it has ended
                self._say("task_lingers", pid=living[0], reason=reason)

    def signal(self, number: int) -> None:
        """Signal each process of the task once: its group at one instant, then others."""
        if not self.pid or self.is_gone:
            return
        now = procfs.clock()
        group = self._processes.signal_group(number)
        # Later: to find the others takes milliseconds, and the groups of other tasks are to be signalled before.
        self._loop.call_at(self._loop.now(), lambda: self._processes.signal_others(number, group, now))

    # ---- output

    def _read_output(self) -> None:
        if self._take_output() == 0:
            self._close_output()

    def _take_output(self) -> int | None:
        """Move data to the stream; return its size, 0 at the end, None if none is there."""
        assert self._child is not None
        try:
            data = os.read(self._child.output, _READ)
        except BlockingIOError:
            return None
        if data:
            self.last_output.note(data)
            self.spoke_at = self._loop.now()
            self._stream.append(data)
            self._listener.has_output(self._stream)
        return len(data)

    def _take_last_output(self) -> None:
        """Read what an exited program has left in the pipe, before its exit is reported."""
        assert self._child is not None
        for _ in range(_MOST_READS):
            if self._child.output < 0 or not self._take_output():
                return

    def _close_output(self) -> None:
        assert self._child is not None
        if self._child.output >= 0:
            self._loop.forget(self._child.output)
            os.close(self._child.output)
            self._child.output = -1

    # ---- progress

    def progress(self) -> dict[str, object]:
        """Return the reported progress (`ProgressStats.known`), or that in Keras' output."""
        reported = {} if self._progress is None else self._progress.known()
        return reported or self.last_output.progress_at(self._loop.now())

    def _reached(self) -> dict[str, object]:
        if self._progress is not None:
            self._progress.read_rest()
        known = self.progress()
        counts = {name: int(value) for name in ("step", "epoch") if isinstance(value := known.get(name), (int, float))}
        return {**counts, "metrics": known.get("metrics") or {}}

    # ---- start and end

    def _read_start_report(self) -> None:
        assert self._child is not None
        if self._has_started is not None:
            return
        try:
            report = os.read(self._child.start_report, 100)
        except BlockingIOError:
            report = b""  # it has died, and the process that forked it has not closed its end yet
        self._loop.forget(self._child.start_report)
        os.close(self._child.start_report)
        failure = spawn.describe_start_failure(report, self.command)
        self._has_started = failure is None
        if failure is None:
            about = {"pid": self.pid, "at": self._loop.now(), "preload": self.command.preload}
            self._say("task_started", **about, **self.command.facts)
        else:
            self._say("task_not_started", code=failure[0], reason=failure[1])

    def _reap(self) -> None:
        """Report the exit of the process at once, then look for others of its session."""
        exited_at = self._loop.now()  # it determines the order of exits on several hosts
        self._read_start_report()
        # The zombie stays until its group is signalled below: until it is reaped, no other process gets its pid.
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # no limit: it has exited
        assert status is not None  # without WNOHANG
        code = status.si_status if status.si_code == os.CLD_EXITED else None
        number = status.si_status if code is None else None
        was_told = self._kill_at is not None
        # What a success leaves behind may be writing its last file; after a failure it would only hinder the restart.
        if code == 0 and not was_told:
            self._waits_until = exited_at + SUCCESS_PATIENCE
            self._loop.call_at(self._waits_until, self._settle)
        elif self._kill_at is None or self._loop.now() >= self._kill_at:
            self._kill_members(self._processes.look()[0])  # before its pid can be reused
        _, _, usage = os.wait4(self.pid, 0)  # no limit: it has exited
        self._processes.note_reaped()
        self._worked = usage.ru_utime + usage.ru_stime  # with that of the children that it has waited for
        self.has_exited = True
        if self._pidfd is not None:
            self._loop.forget(self._pidfd)
            os.close(self._pidfd)
        if self._has_started:
            evidence = self._listener.explain_kill(self.pid) if number == signal.SIGKILL and not was_told else ""
            self._take_last_output()
            about = {"at": exited_at, "was_told": was_told, "evidence": evidence, "suspended": self._suspended}
            self._has_failed = code != 0
            failure = self.last_output.failure() if self._has_failed else ""
            self._exit = {"code": code, "signal": number, "failure": failure, **about, **self._reached()}
        # A failure is reported at once, as peers fail because of it within milliseconds; whether a success is one
        # is known only when it is clear what has been left in the background.
        if code != 0 or was_told:
            self._report_exit([])
        self._settle()

    def _report_exit(self, members: list[int]) -> None:
        """Report the exit, once, with the ``members`` that a success has left behind."""
        if not self._exit:
            return
        told, self._exit = self._exit, {}
        if self._kill_at is None:
            has_trained = bool(told.get("step") or told.get("epoch"))
            told.update(self._processes.describe_left(members, self.command.argv, self._worked, has_trained))
        self._say("task_exited", **told)

    def _settle(self) -> None:
        """End the attempt when no process is left; until then, wait for the next death."""
        if self.is_gone or not self.has_exited:
            return
        members, unknown = self._processes.look()
        # While a process executes another program, the kernel has unmapped its old memory and not yet the new: its
        # /proc/PID/environ is empty for that moment, and nothing shows whose it is. So an end is not believed before
        # such processes have been looked at again; only one that really is between two programs is worth 5 s.
        most = _MORE_LOOKS if any(map(procfs.is_between_programs, unknown)) else _MOST_LOOKS
        if not members and unknown and self._looks < most:
            self._looks += 1
            self._loop.call_at(self._loop.now() + _LOOK_AGAIN, self._settle)
            return
        # After a success, what is left may be writing its last file: it gets `SUCCESS_PATIENCE` to end by itself.
        if members and self._kill_at is None and self._loop.now() < self._waits_until:
            self._processes.when_dead(members, self._loop, self._settle)
            return
        self._report_exit(members)
        if not members:
            self._end()
            return
        # A task that is being stopped keeps its grace even when its leader has gone: children may still save.
        if self._kill_at is None or self._loop.now() >= self._kill_at:
            self._kill_members(members)
        self._processes.when_dead(members, self._loop, self._settle)

    def _end(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._child is not None and self._child.output >= 0:
            while self._take_output():
                pass
            self._close_output()
        if self._is_ending:
            return
        self._is_ending = True
        self._stream.finish()
        self._listener.has_output(self._stream)
        self._listener.bring_files(self, self._find_checkpoint)

    def _find_checkpoint(self) -> None:
        if self._has_failed:
            self._listener.find_checkpoint(self.command, self._began_at, self._gone)
        else:
            self._gone(0)

    def _gone(self, checkpoint: int) -> None:
        """Report that nothing is left; ``checkpoint``: the newest one, 0 for none."""
        self.is_gone = True
        if self._lingering is not None:
            self._lingering.cancel()
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._say("task_gone", **({"checkpoint": checkpoint} if checkpoint else {}))
        self._listener.has_gone(self)

    def _say(self, kind: str, **fields: object) -> None:
        self._listener.say(kind, task=self.name, attempt=self.attempt, **fields)
