"""Begin the runs of the local queue: one process, which exits when the queue is empty.

It looks when a supervisor that it has started ends, the lock of another run is released or an entry is added, and once
a second. It can be killed at any moment (see `run_queue`): runs that have begun do not depend on it, and the end of any
run, or the next command that looks at the queue, starts another one.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tflaunch import descriptors
from tflaunch.errors import EXIT_INTERNAL, TflaunchError, describe_os_error
from tflaunch.features.queue import run_queue
from tflaunch.features.queue.host_shares import with_devices
from tflaunch.features.queue.machine_use import MachineUse
from tflaunch.features.queue.queue_order import Candidate, Holder, decide
from tflaunch.features.queue.run_queue import Entry, Order, Refusal
from tflaunch.features.records import run_record
from tflaunch.own_process import own_path, own_process
from tflaunch.plan import serialize
from tflaunch.runtime import daemon, foreground, launch
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store import run_lock
from tflaunch.store.run_dir import RunDirectory, runs_directory
from tflaunch_worker import process_state

_FOR_SUPERVISORS = (foreground, run_record)  # imported once, before the forks
_BEGIN = (
    "import json; from tflaunch.features.queue import queue_dispatcher; "
    "queue_dispatcher.begin(sys.argv[1], json.loads(sys.argv[2]))"
)
_MOST_ATTEMPTS = 3
_SHORTEST, _LONGEST = 0.02, 1.0  # seconds between two looks
_CHILD_ENDED = [signal.SIGCHLD]


def main() -> None:
    """Begin the runs of the queue until it is empty; return at once if another process does."""
    process_state.set_own_state([])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _CHILD_ENDED)  # it is waited for
    while (lock := run_queue.take_dispatcher_lock()) is not None:
        _prepare_to_fork()
        Dispatcher().run()
        os.close(lock)
        if not run_queue.read_entries()[0]:  # one that was added before the lock was free has started no dispatcher
            return


def _prepare_to_fork() -> None:
    """Keep forks from copying what they have in common."""
    gc.collect()
    gc.freeze()


# ---- dispatching


class _Child(NamedTuple):
    """A supervisor that this process has started."""

    pid: int
    holder: Holder


class Dispatcher:
    """Begins runs; the caller holds the dispatcher's lock."""

    def __init__(self) -> None:
        self._use = MachineUse()
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, _Child] = {}
        self._begun_elsewhere: dict[str, Entry] = {}
        self._attempts: Counter[str] = Counter()
        self._others: list[str] = []

    def run(self) -> None:
        """Begin runs until the queue is empty."""
        pause = _SHORTEST
        while self._look():
            pause = _SHORTEST if self._notices_change(pause) else min(2 * pause, _LONGEST)

    def _notices_change(self, pause: float) -> bool:
        """Return whether something may have been released or added within ``pause`` seconds; if so, return at once."""
        before, until = self._state(), time.monotonic() + pause
        while time.monotonic() < until:
            if signal.sigtimedwait(_CHILD_ENDED, _SHORTEST) or self._state() != before:
                return True
        return False

    def _state(self) -> list[object]:
        """Return when an entry was last added or removed, and which of the other runs are live."""
        added_at = run_queue.waiting_directory().stat().st_mtime_ns
        return [added_at, *(run_lock.is_locked(runs_directory() / run) for run in self._others)]

    def _look(self) -> bool:
        """Begin what can begin; return whether runs wait or begin."""
        while True:
            self._reap()
            self._entries, damaged = run_queue.read_entries(self._entries)
            for path in damaged:
                _refuse_damaged(path)
            if not self._entries:
                return False
            if self._begin_those_that_can():
                return True

    def _begin_those_that_can(self) -> bool:
        """Begin what can begin; return False if one of the entries is about a run that needs no beginning."""
        self._begun_elsewhere = {
            run: entry for run, entry in self._begun_elsewhere.items() if run_lock.is_locked(runs_directory() / run)
        }
        busy = self._children.keys() | self._begun_elsewhere.keys()
        waiting = [entry for entry in self._entries.values() if entry.run not in busy]
        ours = [child.holder for child in self._children.values()]
        ours += [Holder(entry.run, entry.needs) for entry in self._begun_elsewhere.values()]
        others = self._use.holders(busy.union(entry.run for entry in waiting))
        self._others = [*(holder.run for holder in others), *self._begun_elsewhere]
        candidates = (Candidate(entry.run, entry.needs) for entry in waiting)
        verdicts = decide(candidates, [*ours, *others], run_queue.read_slots())
        for entry, verdict in zip(waiting, verdicts, strict=True):
            if verdict.begins and not self._begin(entry, verdict.devices):
                return False
        return True

    def _begin(self, entry: Entry, devices: Mapping[str, tuple[str, ...]]) -> bool:
        """Start the supervisor of a run; return False if that has happened before, or is not to happen."""
        path = runs_directory() / entry.run
        if not path.is_dir() or run_queue.has_begun(path) or run_queue.read_refusal(path) is not None:
            run_queue.remove_entry(entry.run)
            return False
        if run_lock.is_locked(path):  # by what a dispatcher that was killed has started, or by what removes the run
            self._begun_elsewhere[entry.run] = entry
            return False
        pid = os.fork()
        if pid == 0:
            process_state.close_all_but([])  # the dispatcher's lock among them
            os.setsid()
            _become(path, devices)
        held = {name: share._replace(devices=devices[name]) for name, share in entry.needs.items()}
        self._children[entry.run] = _Child(pid, Holder(entry.run, held))
        return True

    def _reap(self) -> None:
        """Note which supervisors have ended; one that was killed before its run had begun is started again."""
        for run, child in list(self._children.items()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            del self._children[run]
            path = runs_directory() / run
            self._attempts[run] += 1
            if self._attempts[run] >= _MOST_ATTEMPTS and path.is_dir() and not run_queue.has_begun(path):
                how = os.waitstatus_to_exitcode(status)
                reason = f"its supervisor ended {_MOST_ATTEMPTS} times before that, the last time with {how}"
                run_queue.refuse(path, Refusal(reason, EXIT_INTERNAL))


# ---- a run that begins


def _become(path: Path, devices: Mapping[str, Sequence[str]]) -> NoReturn:
    """Turn this process into the supervisor of a run, in the environment in which `up --queue` was typed."""
    try:
        order = run_queue.read_order(path)
    except TflaunchError:
        begin(str(path), devices)  # which tells it
    if (order.python, order.search_path) != (sys.executable, own_path()):
        place, shares = str(path), json.dumps(devices)
        words = own_process(_BEGIN, place, shares, python=order.python, path=order.search_path)
        try:
            os.execve(order.python, words, order.environ)  # noqa: S606
        except OSError:
            pass  # that interpreter is gone; ours does as well
    begin(str(path), devices)


def begin(directory: str, devices: Mapping[str, Sequence[str]]) -> NoReturn:
    """Supervise a run of the queue in this process, unless that has happened; exit with its exit code."""
    path = Path(directory)
    daemon.be_supervisor(path, lambda _: _supervise(path, devices))


def _supervise(path: Path, devices: Mapping[str, Sequence[str]]) -> int:
    try:
        lock = run_lock.take_lock(path)
    except TflaunchError:
        return 0  # it has another supervisor, or has been removed
    if run_queue.has_begun(path):
        return 0
    try:
        return _start(path, devices, lock)
    except (TflaunchError, OSError, ValueError) as error:
        if not run_queue.has_begun(path):
            code = error.exit_code if isinstance(error, TflaunchError) else EXIT_INTERNAL
            run_queue.refuse(path, Refusal(_sentence(error), code))
            _leave_queue(path)
        raise


def _start(path: Path, devices: Mapping[str, Sequence[str]], lock: int) -> int:
    order = run_queue.read_order(path)
    plan = with_devices(serialize.from_json(order.plan), devices)
    _enter_environment(order)
    descriptors.require(len(plan.hosts), len(plan.processes()))
    config = RunConfig(
        RunDirectory.existing(path, Path(order.logs)),
        launch.code_for_hosts(plan),
        daemon.Notes().say,
        extras=order.extras,
        sink=daemon.notes,
        begun=lambda: _leave_queue(path),
        lock=lock,
    )
    return launch.start(plan, config)


def _enter_environment(order: Order) -> None:
    """Give this process the environment in which `up --queue` was typed.

    Raises:
        OSError: its working directory is gone.
    """
    os.environ.clear()
    os.environ.update(order.environ)
    os.umask(order.umask)
    os.chdir(order.directory)
    time.tzset()


def _leave_queue(path: Path) -> None:
    run_queue.remove_entry(path.name)


def _refuse_damaged(entry: Path) -> None:
    """Let a run that cannot begin end, so that no command waits for it."""
    run = run_queue.run_of(entry.name)
    if run and (runs_directory() / run).is_dir():
        reason = f"its entry in the queue is damaged ({entry}); start its spec again"
        run_queue.refuse(runs_directory() / run, Refusal(reason, EXIT_INTERNAL))
    if run:
        run_queue.remove_entry(run)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return describe_os_error(error)
    return str(error)
