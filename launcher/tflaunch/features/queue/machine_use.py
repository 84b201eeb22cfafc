"""Find the runs that hold machines and GPUs: live ones, and lost ones with tasks."""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.core import policy
from tflaunch.errors import TflaunchError
from tflaunch.features.queue import tickets
from tflaunch.features.queue.queue_order import Shares, held_shares
from tflaunch.plan.model import Plan
from tflaunch.store import run_dir
from tflaunch.store.journal import first_and_last_record
from tflaunch_worker import linux


class MachineUse:
    """Tells again and again what runs hold, and reads none twice that has ended."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._begun: dict[str, tuple[Plan, Shares]] = {}

    def holders(self, waiting: Collection[str]) -> dict[str, Shares | None]:
        """Return the shares held by runs not ``waiting``; None before a plan is recorded.

        Raises:
            TflaunchError: the runs cannot be listed.
        """
        directory = run_dir.runs_directory()
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            return {}
        skipped = self._over.union(waiting)
        found = {}
        for name in names:
            if name not in skipped and not name.startswith("."):
                is_locked = run_dir.is_locked(directory / name)
                shares = self._shares(directory / name, is_locked)
                if shares is not None or (is_locked and _is_beginning(directory / name)):
                    found[name] = shares
        return found

    def _shares(self, path: Path, is_locked: bool) -> Shares | None:
        """Return the shares of a run; None if it has none, or no plan yet."""
        if not tickets.has_begun(path):
            return None
        if not is_locked:
            records = first_and_last_record(path)
            if records is None:
                return None  # it is damaged, or begins just now
            if records[1]["kind"] == "ended" or not locate_run(path).has_supervisor_here:
                self._over.add(path.name)
                return None
        try:
            if path.name not in self._begun:
                plan = runs.plan_of(path)
                self._begun[path.name] = plan, held_shares(plan, linux.count_gpus())
        except TflaunchError:
            return None
        plan, shares = self._begun[path.name]
        return shares if is_locked or _may_have_tasks(path, plan) else None


def _is_beginning(path: Path) -> bool:
    """Return whether the first record of a journal is still to be written."""
    try:
        with open(path / run_dir.JOURNAL_NAME, "rb") as file:
            return not file.readline().endswith(b"\n")
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _may_have_tasks(path: Path, plan: Plan) -> bool:
    """Return whether tasks of a run without a supervisor may be alive."""
    if runs.has_agent(path):
        return True
    if all(host.is_local for host in plan.hosts):
        return False
    return time.time() < _last_change(path) + policy.fence(plan)


def _last_change(path: Path) -> float:
    times = [0.0]
    for file in (path / run_dir.JOURNAL_NAME, *path.glob("logs/*")):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)
