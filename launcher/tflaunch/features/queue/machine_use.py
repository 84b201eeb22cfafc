"""Find the runs that hold machines and GPUs: live ones, and those whose tasks may have survived their supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.errors import TflaunchError
from tflaunch.features.queue import run_queue
from tflaunch.features.queue.host_shares import Share, held_shares
from tflaunch.features.queue.queue_order import Holder
from tflaunch.plan.model import Plan
from tflaunch.store import run_lock
from tflaunch.store.journal import first_and_last_record
from tflaunch.store.run_dir import JOURNAL_NAME, runs_directory
from tflaunch_worker import linux

_FENCE = 5.0  # seconds after lease and grace until tasks of a lost supervisor are certainly dead


class MachineUse:
    """What the runs of this user hold, looked up again and again: runs that have ended are not read twice."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._shares: dict[str, dict[str, Share]] = {}

    def holders(self, waiting: Collection[str]) -> list[Holder]:
        """Return the runs that hold something, apart from those in ``waiting``.

        Raises:
            TflaunchError: the runs cannot be listed.
        """
        directory = runs_directory()
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
        skipped = self._over.union(waiting)
        found = (self._holder(directory / name) for name in names if name not in skipped and not name.startswith("."))
        return [holder for holder in found if holder is not None]

    def _holder(self, path: Path) -> Holder | None:
        is_locked = run_lock.is_locked(path)
        if not run_queue.has_begun(path):
            return Holder(path.name, None) if is_locked else None
        try:
            if path.name not in self._shares:
                if not is_locked and self._is_over(path):
                    self._over.add(path.name)
                    return None
                self._shares[path.name] = shares_of(runs.plan_of(path))
        except TflaunchError:
            return Holder(path.name, None) if is_locked and _is_being_written(path) else None
        if is_locked or self._may_have_tasks(path):
            return Holder(path.name, self._shares[path.name])
        if self._is_over(path):
            self._over.add(path.name)
        return None

    def _is_over(self, path: Path) -> bool:
        """Return whether the end of a run is recorded, or it is supervised elsewhere, such as a batch job."""
        last = first_and_last_record(path)
        return last is None or last[1]["kind"] == "ended" or not locate_run(path).has_supervisor_here

    def _may_have_tasks(self, path: Path) -> bool:
        """Return whether tasks of a run without a supervisor may be alive: its lease has not expired, for instance."""
        if self._is_over(path):
            return False
        if runs.has_agent(path):
            return True
        try:
            plan = runs.plan_of(path)
        except TflaunchError:
            return False
        if all(host.is_local for host in plan.hosts):
            return False
        return time.time() < _last_change(path) + plan.lease + plan.timeouts.grace + _FENCE


def shares_of(plan: Plan) -> dict[str, Share]:
    """Return what a plan holds of each machine when it runs."""
    return held_shares(plan, linux.count_gpus())


def _is_being_written(path: Path) -> bool:
    """Return whether the first record of a journal is not complete yet."""
    try:
        with open(path / JOURNAL_NAME, "rb") as file:
            return not file.readline().endswith(b"\n")
    except OSError:
        return False


def _last_change(path: Path) -> float:
    """Return when journal or logs were last written to."""
    files = [path / JOURNAL_NAME, *path.glob("logs/*")]
    times = []
    for file in files:
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
