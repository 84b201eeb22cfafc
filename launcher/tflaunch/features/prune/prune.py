"""Find and remove what old runs have left on this machine.

A run is removed with its lock held, so that it cannot be resumed at the same time, and is renamed first, so that no
command sees half of it. Symbolic links are removed, never followed: logs that are elsewhere (`--log-dir`) stay.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from tflaunch.client import run_list, runs
from tflaunch.client.file_tree import TRASH, delete_run, delete_tree, is_directory, tree_size
from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.prune.agent_caches import Cached, find_cached
from tflaunch.plan.model import RetentionPlan
from tflaunch.store import journal, run_dir, run_lock, run_names
from tflaunch.store.journal_reader import first_and_last_record

_PRUNE_LOCK = ".prune"
_REMOVING = "removing"
_DEAD = ("lost", "unreadable", "not begun", "stopped")
PATIENCE = 86_400.0
"""Seconds for which what may still be in use is kept, whatever the retention.

These are runs that have not begun, and runs on other hosts whose supervisor was killed at an unknown time: their tasks
live until the lease ends.
"""


class OldRun(NamedTuple):
    """A run to remove.

    Attributes:
        path: its directory.
        state: as `run_list.overview` has it, ``not begun`` without a journal, or ``removing`` for one that an earlier
            prune did not finish.
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
    """A run that would be removed, were it not for a reason."""

    name: str
    reason: str


class Findings(NamedTuple):
    """What can be removed, and which runs cannot although they are old."""

    runs: list[OldRun]
    kept: list[KeptRun]
    cached: list[Cached]


class RemovedRun(NamedTuple):
    """A run that was removed, or would be; `logs_kept`: where its logs stay, if they are elsewhere."""

    run: str
    state: str
    ended: float | None
    size: int
    logs_kept: str | None


class RemovedCache(TypedDict):
    """What was removed of a cache; sizes are in bytes."""

    count: int
    size: int


class Pruned(NamedTuple):
    """What was removed, or with --dry-run would be."""

    dry_run: bool
    removed: Sequence[RemovedRun]
    caches: Mapping[str, RemovedCache]
    kept: Sequence[KeptRun]
    failures: Sequence[str]
    freed: int


class _KeptError(Exception):
    """Raised for a run that must not be removed; the message continues a sentence that begins with its name."""


# ---- finding


def find_old(retention: RetentionPlan, now: float) -> Findings:
    """Return what can be removed by age.

    Args:
        retention: which runs of each job are kept.
        now: the time in seconds since 1970.

    Raises:
        TflaunchError: the runs cannot be listed, or another user could have put runs there.
    """
    found, kept = [], []
    for path in [*_trash(), *_beyond_newest(retention.keep)]:
        try:
            old = _unfinished(path) if path.name.startswith(TRASH) else _examine(path, now)
            if old.state == _REMOVING or now - old.ended >= retention.older_than:
                found.append(old)
        except _KeptError as reason:
            if now - _last_change(path) >= retention.older_than and not runs.is_live(path):
                kept.append(KeptRun(path.name, str(reason)))
    return Findings(found, kept, find_cached(retention.older_than, now))


def find_named(names: Sequence[str], now: float) -> Findings:
    """Return exactly these runs, also damaged ones.

    Raises:
        TflaunchError: one of them does not exist, or may be alive.
    """
    known = {path.name: path for path in run_names.newest_first()}
    found = []
    for name in dict.fromkeys(names):
        if name not in known:
            remedy = "give the whole name of a run, as `tflaunch ls` shows it"
            raise TflaunchError(f"there is no run {name!r}; {remedy}", EXIT_USAGE)
        try:
            found.append(_examine(known[name], now, is_named=True))
        except _KeptError as reason:
            raise TflaunchError(f"run {name} {reason}", EXIT_USAGE) from None
    return Findings(found, [], [])


def _beyond_newest(keep: int) -> Iterator[Path]:
    """Yield the runs that are not among the newest of their job."""
    count: Counter[str] = Counter()
    for path in run_names.newest_first():
        job = run_names.job_name(path.name)
        count[job] += 1
        if count[job] > keep:
            yield path


def _examine(path: Path, now: float, is_named: bool = False) -> OldRun:
    """Return a run that may be removed.

    Raises:
        _KeptError: it must not be, at any age; by default also if it is damaged.
    """
    try:
        run_dir.open_run(path)
        if not run_names.is_run_name(path.name):
            raise _KeptError("does not have the name of a run; remove it by hand")
        written = _last_change(path)  # before the run's location is asked, which may note an answer in the directory
        _require_dead(path)
        state, ended = _end_of(path, written, now, is_named)
        logs = path / "logs"
        outside = os.readlink(logs) if logs.is_symlink() else None
        return OldRun(path, state, ended, tree_size(path), outside, written)
    except TflaunchError as error:
        raise _KeptError(f"cannot be removed: {error}") from None
    except OSError as error:
        raise _KeptError(f"cannot be removed: {error.filename}: {error.strerror}") from None


def _require_dead(path: Path, is_locked_by_us: bool = False) -> None:
    """Refuse a run if something of it is known to be alive.

    Raises:
        _KeptError: a supervisor, something elsewhere or an agent on this machine lives.
    """
    remedy = f"to end it: tflaunch down {path.name}"
    if reason := locate_run(path).reason_to_keep():
        raise _KeptError(reason)
    if not is_locked_by_us and run_lock.is_locked(path):
        raise _KeptError(f"is live; {remedy}")
    if runs.has_agent(path):
        is_from_here = os.path.lexists(path / run_dir.JOURNAL_NAME)
        remedy = remedy if is_from_here else "end it on the machine where it was started"
        raise _KeptError(f"has an agent that lives on this machine; {remedy}")


def _require_unchanged(old: OldRun) -> None:
    """Refuse a run that was resumed, and has ended again, after it was found.

    Raises:
        _KeptError: it was written to.
    """
    if _last_change(old.path) != old.written:
        raise _KeptError("has changed in the meantime")


def _end_of(path: Path, written: float, now: float, is_named: bool) -> tuple[str, float]:
    """Return the state of a run without a supervisor, and when it ended or was last written to.

    Raises:
        _KeptError: it may be starting, may have tasks elsewhere, or is damaged and not named.
    """
    is_recent = now - written < PATIENCE
    entry = run_list.entry_of(path)
    state = entry["state"]
    is_over = entry["exit_code"] is not None
    if not is_over and state not in _DEAD:
        raise _KeptError(f"is live; to end it: tflaunch down {path.name}")
    if state == "unreadable" and not is_named:
        raise _KeptError(f"is damaged: {_damage(path)}; to remove it: tflaunch prune {path.name}")
    if state in ("unreadable", "not begun") and is_recent:
        what = "is damaged" if state == "unreadable" else "has not begun"
        raise _KeptError(f"{what}, and was written to within a day, so it may be alive")
    if state == "lost" and is_recent and (hosts := _other_hosts(path)):
        remedy = f"to end them: tflaunch down {path.name}"
        raise _KeptError(f"may have live tasks on {', '.join(hosts)}, as its supervisor was killed; {remedy}")
    if is_over and (records := first_and_last_record(path)):
        return state, float(records[1]["time"])
    return state, written


def _damage(path: Path) -> str:
    """Return why a run's journal cannot be read."""
    try:
        journal.read_job(path)
    except TflaunchError as error:
        return str(error)
    return f"{path / run_dir.JOURNAL_NAME} has no usable first or last record"


def _other_hosts(path: Path) -> list[str]:
    """Return the hosts of a run other than this machine, where its tasks may outlive their supervisor."""
    found = first_and_last_record(path)
    hosts: list[dict[str, Any]] = found[0]["plan"]["hosts"] if found is not None else []
    return [host["host"] for host in hosts if not host["is_local"]]


def _last_change(path: Path) -> float:
    """Return when a run was last written to, apart from what read-only commands write."""
    changed_by_looking = (run_lock.LOCK_NAME, *locate_run(path).changed_by_looking)
    files = [entry for entry in path.glob("*") if not is_directory(entry)]
    found = [*files, *path.glob("agents/*/*"), *path.glob("logs/*")]
    times = [entry.lstat().st_mtime for entry in found if not entry.name.startswith(changed_by_looking)]
    return max(times, default=path.lstat().st_mtime)


def _trash() -> list[Path]:
    """Return what earlier prunes did not finish to remove."""
    return [path for path in sorted(run_dir.runs_directory().glob(f"{TRASH}*")) if is_directory(path)]


def _unfinished(path: Path) -> OldRun:
    """Return a run that an earlier prune did not finish to remove.

    Raises:
        _KeptError: it contains what must not be removed.
    """
    try:
        changed = path.lstat().st_mtime
        return OldRun(path, _REMOVING, changed, tree_size(path), None, changed)
    except TflaunchError as error:
        raise _KeptError(f"cannot be removed: {error}") from None


# ---- removing


@contextmanager
def only_prune() -> Iterator[None]:
    """Keep every other prune of this user waiting inside the context: none meets what another has half removed.

    Raises:
        TflaunchError: the lock cannot be taken.
    """
    path = run_dir.runs_directory() / _PRUNE_LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        yield  # there are no runs
        return
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}", EXIT_INTERNAL) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # no limit: the user waits for it, and can press Ctrl-C
        yield
    finally:
        os.close(lock)


def apply_retention(job: str, retention: RetentionPlan, now: float) -> list[OldRun]:
    """Remove the old runs of a job, and return them. What cannot be removed is left to `tflaunch prune`.

    Args:
        job: the job's name.
        retention: which of its runs are kept.
        now: the time in seconds since 1970.
    """
    removed = []
    with only_prune():
        for path in run_names.may_be_too_old(job, retention, now):
            try:
                old = _examine(path, now)
                if now - old.ended >= retention.older_than:
                    remove_run(old)
                    removed.append(old)
            except (_KeptError, TflaunchError):
                continue
    return removed


def remove_run(old: OldRun, with_hosts: bool = False) -> None:
    """Remove a run, and kill what a killed agent of it has left.

    Args:
        old: the run.
        with_hosts: also remove the copies of its code on other hosts, and keep it if one of them fails.

    Raises:
        TflaunchError: it lives again, has changed, or cannot be removed.
    """
    if old.path.name.startswith(TRASH):
        delete_tree(old.path)
        return
    lock = run_lock.take_lock(old.path)
    try:
        _require_dead(old.path, is_locked_by_us=True)
        _require_unchanged(old)
        if with_hosts:
            from tflaunch.features.prune import host_code  # connecting to hosts is rare

            host_code.remove_code(old.path)
        runs.kill_orphans(old.path)
        delete_run(old.path)
    except _KeptError as reason:
        raise TflaunchError(f"run {old.name} {reason}", EXIT_INTERNAL) from None
    except OSError as error:
        raise TflaunchError(f"run {old.name}: {error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    finally:
        os.close(lock)
