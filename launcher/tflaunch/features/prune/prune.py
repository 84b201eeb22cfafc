"""Find and remove old runs on this machine, and their copies on hosts.

A run is removed with its lock held, so that it cannot be resumed at the same time, and is renamed first, so that no
command sees half of it. Symbolic links are removed, never followed: logs that are elsewhere (`--log-dir`) stay.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tflaunch.client import run_list, runs
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.explain import wording
from tflaunch.features.file_tree import TRASH, delete_run, delete_tree, is_directory, last_change, tree_size
from tflaunch.features.prune import drills
from tflaunch.features.prune.agent_caches import PATIENCE, Cached, find_cached, remove_cached
from tflaunch.features.rpc import ask_hosts
from tflaunch.plan.model import Plan, RetentionPlan
from tflaunch.runtime.watchers import Watcher
from tflaunch.store import journal, run_dir

_REMOVING = "removing"
_DEAD = ("lost", "unreadable", "not begun", "stopped")
_HOST_PATIENCE = 60.0  # seconds to delete a tree, which may be on a slow disk


class OldRun(NamedTuple):
    """A run to remove.

    Attributes:
        path: its directory.
        state: as `run_list.overview` has it, or ``removing`` for one that an earlier prune did not finish.
        ended: when it ended or was last written to, in seconds since 1970.
        size: bytes on the disk.
        logs: the directory of its logs if that is elsewhere and stays.
        written: time of the last change, to notice another one.
    """

    path: Path
    state: str
    ended: float
    size: int
    logs: str | None
    written: float

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.name.removeprefix(TRASH)


class KeptRun(NamedTuple):
    """A run that would be removed, were it not for a reason: a clause after its name."""

    name: str
    reason: str


class Findings(NamedTuple):
    """What can be removed, and which runs cannot although they are old."""

    runs: list[OldRun]
    kept: list[KeptRun]
    cached: list[Cached]


def find_old(retention: RetentionPlan, now: float, job: str | None = None) -> Findings:
    """Find old runs, of one ``job`` or all, and caches; ``now``: seconds since 1970.

    Raises:
        TflaunchError: the runs cannot be listed, or another user could have put runs there.
    """
    old_runs, kept = [], []
    unfinished = [path for path in sorted(run_dir.runs_directory().glob(f"{TRASH}*")) if is_directory(path)]
    left = drills.left_runs() if job is None else []
    for path in dict.fromkeys((*unfinished, *left, *_may_be_too_old(retention, now, job))):
        with suppress(FileNotFoundError):  # another prune has just removed it
            examined = _examine(path, now)
            is_due = path in left or path in unfinished
            if isinstance(examined, OldRun):
                if is_due or now - examined.ended >= retention.older_than:
                    old_runs.append(examined)
            elif is_due or (now - last_change(path) >= retention.older_than and not runs.is_live(path)):
                kept.append(examined)
    return Findings(old_runs, kept, find_cached(retention.older_than, now) if job is None else [])


def _may_be_too_old(retention: RetentionPlan, now: float, job: str | None) -> Iterator[Path]:
    """Yield runs that are not among the newest of their job and began before then.

    Their names tell; to find out when they ended takes milliseconds for each.
    """
    latest = time.strftime("%Y%m%d%H%M%S", time.localtime(max(now - retention.older_than, 0)))
    count: Counter[str] = Counter()
    for path in run_dir.newest_first() if job is None else run_dir.newest_of_job(job):
        of_job = run_dir.job_name(path.name)
        count[of_job] += 1
        if count[of_job] > retention.keep and run_dir.start_of(path.name) <= latest:
            yield path


def remove_left_of_drills(now: float) -> None:
    """Remove the runs and copies of killed drills, as far as that is possible."""
    for path in drills.left_runs():
        with suppress(TflaunchError):  # `tflaunch prune` says why
            if isinstance(old := _examine(path, now), OldRun):
                remove_run(old, with_hosts=True)
    for cached in find_cached(math.inf, now):  # of any age are drills only
        with suppress(TflaunchError):
            remove_cached(cached)


def find_named(names: Sequence[str], now: float) -> Findings:
    """Return exactly these runs, also damaged ones.

    Raises:
        TflaunchError: one of them does not exist, or may be alive.
    """
    existing = {path.name: path for path in run_dir.newest_first()}
    named = []
    for name in dict.fromkeys(names):
        if name not in existing:
            remedy = "give the whole name of a run, as `tflaunch ls` shows it"
            raise TflaunchError(f"there is no run {name!r}; {remedy}", EXIT_USAGE)
        examined = _examine(existing[name], now, is_named=True)
        if isinstance(examined, KeptRun):
            raise TflaunchError(f"run {name} {examined.reason}", EXIT_USAGE)
        named.append(examined)
    return Findings(named, [], [])


def _examine(path: Path, now: float, is_named: bool = False) -> OldRun | KeptRun:
    """Return a run that may be removed, or why it is kept."""
    try:
        written = last_change(path)  # before the run's location is asked, which may note an answer in the directory
        if path.name.startswith(TRASH):
            return OldRun(path, _REMOVING, written, tree_size(path), None, written)
        run_dir.open_run(path)
        if not run_dir.is_run_name(path.name):
            return KeptRun(path.name, "does not have the name of a run; remove it by hand")
        entry = run_list.entry_of(path)
        if reason := _reason_to_keep(path, entry, now - written < PATIENCE, is_named):
            return KeptRun(path.name, reason)
        logs = path / "logs"
        outside = os.readlink(logs) if logs.is_symlink() else None
        return OldRun(path, entry.state, entry.ended or written, tree_size(path), outside, written)
    except TflaunchError as error:
        return KeptRun(path.name, f"cannot be removed: {error}")
    except OSError as error:
        return KeptRun(path.name, f"cannot be removed: {error.filename}: {error.strerror}")


def _reason_to_keep(path: Path, entry: run_list.RunEntry, is_recent: bool, is_named: bool) -> str | None:
    """Return why a run must stay: it lives, may have live tasks, or is damaged.

    When the supervisor of a lost run was killed is not recorded, and its tasks live until the lease ends.
    """
    state, down = entry.state, f"tflaunch down {path.name}"
    if reason := locate_run(path).reason_to_keep():
        return reason
    if run_dir.is_locked(path) or (entry.exit_code is None and state not in _DEAD):
        return f"is live; to end it: {down}"
    if runs.has_agent(path):
        has_begun = os.path.lexists(path / run_dir.JOURNAL_NAME)
        remedy = f"to end it: {down}" if has_begun else "end it on the machine where it was started"
        return f"has an agent that lives on this machine; {remedy}"
    if state == "unreadable" and not is_named:
        return f"is damaged: {_damage(path)}; to remove it: tflaunch prune {path.name}"
    if state in ("unreadable", "not begun") and is_recent:
        what = "is damaged" if state == "unreadable" else "has not begun"
        return f"{what}, and was written to within a day, so it may be alive"
    others = [host.host for host in runs.plan_of(path).hosts if not host.is_local] if state == "lost" else []
    if others and is_recent:
        return f"may have live tasks on {', '.join(others)}, as its supervisor was killed; to end them: {down}"
    return None


def _damage(path: Path) -> str:
    try:
        journal.read_job(path)
    except TflaunchError as error:
        return str(error)
    return f"{path / run_dir.JOURNAL_NAME} has no usable first or last record"


def apply_retention(job: str, retention: RetentionPlan, now: float) -> list[OldRun]:
    """Remove and return the old runs of a job, but not the one that has just ended."""
    removed = []
    for old in find_old(retention._replace(keep=max(retention.keep, 1)), now, job).runs:
        with suppress(TflaunchError):  # `tflaunch prune` says why
            remove_run(old)
            removed.append(old)
    return removed


def remove_run(old: OldRun, with_hosts: bool = False) -> None:
    """Remove a run, and kill what a killed agent of it has left.

    ``with_hosts``: also remove the copies of its code on other hosts, and keep it if one of them fails.

    Raises:
        TflaunchError: it lives again, has changed, or cannot be removed.
    """
    if old.path.name.startswith(TRASH):
        delete_tree(old.path)
        return
    try:
        lock = run_dir.take_lock(old.path)
    except TflaunchError:
        if is_directory(old.path):
            raise
        return  # another prune has just removed it
    try:
        lives = locate_run(old.path).reason_to_keep() or runs.has_agent(old.path)
        if lives or last_change(old.path) != old.written:  # it was resumed, and has perhaps ended again
            raise TflaunchError(f"run {old.name} has changed in the meantime", EXIT_INTERNAL)
        if with_hosts:
            _remove_copies(old.path)
        runs.kill_orphans(old.path)
        delete_run(old.path)
    except OSError as error:
        raise TflaunchError(f"run {old.name}: {error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    finally:
        os.close(lock)


def hosts_with_copies(path: Path) -> list[str]:
    """Return the hosts with copies of a run's code or checkpoints."""
    try:
        return _hosts_of(runs.plan_of(path))
    except TflaunchError:
        return []


def _hosts_of(plan: Plan) -> list[str]:
    has_copies = plan.sync is not None or plan.checkpoints is not None
    return [host.host for host in plan.hosts if has_copies and not host.is_like_here]


def _remove_copies(path: Path) -> None:
    """Remove a run's copies on all hosts, or raise an error that names the rest."""
    plan = runs.plan_of(path)
    if hosts := _hosts_of(plan):
        _, problems = ask_hosts(plan, path, hosts, lambda agent, _: agent.call("remove_code", _HOST_PATIENCE))
        if problems:
            raise TflaunchError(f"its code stays on {'; '.join(problems)}", EXIT_INTERNAL)


class Retention(Watcher):
    """Removes runs that are too old."""

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Remove them, and say how many."""
        plan = self.job.original
        try:
            removed = apply_retention(plan.name, plan.retention, time.time())
        except TflaunchError:
            return  # `tflaunch prune` says why
        if removed:
            say(f"removed {wording.counted(len(removed), 'old run')} of {plan.name} (`retention` of the spec)")
