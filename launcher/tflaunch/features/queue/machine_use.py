"""Find the runs that hold machines and GPUs: live ones, and lost ones with tasks."""

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tflaunch.client import runs
from tflaunch.client.run_location import locate_run
from tflaunch.core import policy
from tflaunch.errors import TflaunchError
from tflaunch.features.file_tree import last_change
from tflaunch.features.queue import tickets
from tflaunch.features.queue.queue_order import Shares, Verdict, decide, held_shares
from tflaunch.features.queue.tickets import Entry
from tflaunch.plan.model import Plan
from tflaunch.store import run_dir
from tflaunch.store.journal import first_record
from tflaunch_worker import linux


class MachineUse:
    """Tells again and again what runs hold, and reads none twice that has ended."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._begun: dict[str, tuple[Plan, Shares]] = {}

    def verdicts(self) -> Iterator[tuple[Entry, Verdict]]:
        """Yield the runs that wait, the oldest first, and what happens to each.

        Raises:
            TflaunchError: another user could have put runs or tickets there.
        """
        waiting = {entry.run: entry for entry in tickets.read_waiting()}
        needs = {run: entry.needs for run, entry in waiting.items()}
        if waiting:
            verdicts = decide(needs, self._holders(needs), tickets.read_slots())
            yield from zip(waiting.values(), verdicts, strict=True)

    def _holders(self, waiting: Collection[str]) -> dict[str, Shares | None]:
        """Return what each run holds that does not wait; None before its plan is recorded."""
        directory = run_dir.runs_directory()
        names = sorted(set(os.listdir(directory)).difference(self._over, waiting))
        return {name: self._held(directory / name) for name in names if not name.startswith(".")}

    def _held(self, path: Path) -> Shares | None:
        is_locked = run_dir.is_locked(path)  # before its journal is read, as it may end in between
        if not is_locked and (runs.end_of(path) is not None or not locate_run(path).has_supervisor_here):
            self._over.add(path.name)
            return {}
        try:
            if path.name not in self._begun:
                if first_record(path) is None:
                    return None if is_locked else {}
                plan = runs.plan_of(path)
                self._begun[path.name] = plan, held_shares(plan, linux.count_gpus())
            plan, shares = self._begun[path.name]
            return shares if is_locked or _may_have_tasks(path, plan) else {}
        except (TflaunchError, FileNotFoundError):
            return {}  # it is damaged, or has just been removed


def _may_have_tasks(path: Path, plan: Plan) -> bool:
    """Return whether tasks of a run without a supervisor may be alive."""
    if runs.has_agent(path):
        return True
    return not all(host.is_local for host in plan.hosts) and time.time() < last_change(path) + policy.fence(plan)
