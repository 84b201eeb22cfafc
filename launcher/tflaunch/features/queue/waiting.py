"""The process of runs that wait: it begins each when its machines are free.

A run of `up --queue` has one, and the runs of `up --matrix` have one together. It forks a supervisor for each. All
these processes decide alike, one at a time (`tickets.deciding`), and each begins only its own runs. A run that has just
begun has its lock, but no journal: until that says what it holds, no other run begins.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import interrupts
from tflaunch.errors import EXIT_INTERNAL, TflaunchError, describe_os_error
from tflaunch.features.queue import tickets
from tflaunch.features.queue.machine_use import MachineUse
from tflaunch.features.queue.queue_order import wanted_shares, with_devices
from tflaunch.plan.model import Plan
from tflaunch.runtime import daemon, launch
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store import run_dir
from tflaunch_worker import linux, signals
from tflaunch_worker.readable import signal_name

_NEXT, _BEHIND = 0.1, 3.0  # seconds between two looks, of the process of the next run, and of one behind it
_OF_A_LOOK = 10  # a pause is at least ten times as long as a look, which takes 5 ms if 1,000 runs wait
_ENDING = [signal.SIGINT, *signals.ENDING]


class Turn(NamedTuple):
    """A run that waits for its turn, with its own values of `--matrix` in its plan."""

    directory: run_dir.RunDirectory
    plan: Plan


def wait(turns: Sequence[Turn], extras: Mapping[str, Any], begun: Callable[[], None]) -> int:
    """Queue runs, begin each in its turn, and return 0 when none waits any more.

    ``begun`` is called when they are in the queue.

    Raises:
        TflaunchError: this process was to end, or has failed; those that still wait are refused.
    """
    came = interrupts.interrupt_at_end()
    try:
        gpus = linux.count_gpus()
        runs = [(turn.directory.path, wanted_shares(turn.plan, gpus), turn.plan.matrix) for turn in turns]
        waiter = _Waiter(turns, extras, tickets.issue(runs)[0])  # a descriptor that stays open holds its lock
        begun()
        waiter.run()
        return 0
    except KeyboardInterrupt:
        number = came[0] if came else signal.SIGINT
        refusal = tickets.Refusal(f"it was ended by {signal_name(number)} while it waited", 128 + number)
    except (OSError, TflaunchError) as error:
        refusal = tickets.Refusal(_sentence(error), EXIT_INTERNAL)
    for turn in turns:
        if os.path.lexists(turn.directory.path / tickets.QUEUED):
            tickets.refuse(turn.directory.path, refusal)
    raise TflaunchError(*refusal)


class _Waiter:
    """Begins the runs of a ticket."""

    def __init__(self, turns: Sequence[Turn], extras: Mapping[str, Any], ticket: Path) -> None:
        self._turns = {turn.directory.run: turn for turn in turns}
        self._extras = extras
        self._ticket = ticket
        self._use = MachineUse()

    def run(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors that end become no zombies
        while True:
            began = time.process_time()  # not that of a process that is stopped
            with tickets.deciding():
                signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # no run is left half begun
                pauses = self._look()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            if not pauses:
                break
            time.sleep(max(min(pauses), _OF_A_LOOK * (time.process_time() - began)))
        self._ticket.unlink(missing_ok=True)

    def _look(self) -> list[float]:
        """Begin the runs whose turn it is; return the others' seconds until a new look."""
        pauses = []
        for entry, verdict in self._use.verdicts():
            if entry.ticket != self._ticket.name:
                continue
            if verdict.obstacles or not self._begin(self._turns[entry.run], verdict.devices):
                pauses.append(_BEHIND if any(obstacle.is_ahead for obstacle in verdict.obstacles) else _NEXT)
        return pauses

    def _begin(self, turn: Turn, devices: Mapping[str, Sequence[str]]) -> bool:
        """Supervise a run in a fork; return whether it has left the queue."""
        path = turn.directory.path
        try:
            lock = run_dir.take_lock(path)
        except TflaunchError:
            return False  # `prune` looks at it, for instance
        if tickets.claim(path, tickets.BEGINS) and not os.fork():
            os.setsid()
            daemon.be_supervisor(path, lambda _: self._supervise(turn, devices, lock), kept=[lock])
        os.close(lock)
        return True

    def _supervise(self, turn: Turn, devices: Mapping[str, Sequence[str]], lock: int) -> int:
        path = turn.directory.path
        try:
            plan = with_devices(turn.plan, devices)
            config = RunConfig(
                turn.directory,
                launch.code_for_hosts(plan),
                daemon.Notes().say,
                extras=self._extras,
                sink=daemon.Notes,
                begun=lambda: tickets.leave(path),
                lock=lock,
            )
            return launch.start(plan, config)
        except (TflaunchError, OSError, ValueError) as error:
            if not tickets.has_begun(path):
                code = error.exit_code if isinstance(error, TflaunchError) else EXIT_INTERNAL
                tickets.refuse(path, tickets.Refusal(_sentence(error), code))
            raise


def _sentence(error: Exception) -> str:
    return describe_os_error(error) if isinstance(error, OSError) else str(error)
