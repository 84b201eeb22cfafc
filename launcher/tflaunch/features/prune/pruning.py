"""Remove old runs and caches, and report it as it happens, or as JSON at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypedDict

import click

from tflaunch import records
from tflaunch.cli.arguments.spec import say
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.explain.wording import memory
from tflaunch.features.prune.agent_caches import Cached, remove_cached
from tflaunch.features.prune.prune import Findings, KeptRun, OldRun, hosts_with_copies, only_prune, remove_run
from tflaunch_worker.readable import age_words

_KINDS = {
    "code": "cached files of synced code",
    "agent": "cached agents of other versions",
    "compiled": "caches of earlier versions",
}


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


def is_confirmed(found: Findings, with_hosts: bool) -> bool:
    """List what can be removed and ask, on stderr.

    Raises:
        TflaunchError: the user gives up, by Ctrl-C or Ctrl-D.
    """
    for line in (*(_described(run, with_hosts) for run in found.runs), *_counted(found.cached)):
        click.echo(line, err=True)
    try:
        return click.confirm(f"Remove this, {memory(_size(found.runs, found.cached))}?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise TflaunchError("nothing was removed", 130) from None


def remove_all(found: Findings, *, with_hosts: bool, is_dry_run: bool, as_json: bool, staying: str) -> int:
    """Remove what can be removed, or only list it, and return the exit code.

    ``staying`` says why the rest stays, for the case that there is nothing to remove.
    """
    removed: list[OldRun] = []
    failures: list[str] = []
    show = _show_nothing if as_json else click.echo
    verb = "would remove" if is_dry_run else "removed"
    with nullcontext() if is_dry_run else only_prune():
        for run in found.runs:
            line = _described(run, with_hosts)
            if is_dry_run or _is_done(partial(remove_run, run, with_hosts), failures):
                removed.append(run)
                show(f"{verb} {line}")
        cached = [each for each in found.cached if is_dry_run or _is_done(partial(remove_cached, each), failures)]
    for line in _counted(cached):
        show(f"{verb} {line}")
    for kept in found.kept:
        show(f"kept {kept.name}, which {kept.reason}")
    freed = _size(removed, cached)
    done = "would be freed" if is_dry_run else "freed"
    show(f"{memory(freed)} {done}" if removed or cached else f"nothing to remove{staying}")
    if as_json:
        gone = [RemovedRun(run.name, run.state, run.ended, run.size, run.logs) for run in removed]
        pruned = Pruned(is_dry_run, gone, _by_kind(cached), found.kept, failures, freed)
        click.echo(json.dumps(records.as_json(pruned), indent=2))
    return EXIT_INTERNAL if failures else 0


def _is_done(remove: Callable[[], bool | None], failures: list[str]) -> bool:
    """Remove something; a failure is said and noted, and does not stop the rest."""
    try:
        return remove() is not False
    except TflaunchError as error:
        failures.append(str(error))
        say(str(error))
        return False


def _show_nothing(line: str) -> None:
    """Print no line where JSON is printed."""


def _described(run: OldRun, with_hosts: bool) -> str:
    stays = f", its logs in {run.logs} stay" if run.logs is not None else ""
    hosts = hosts_with_copies(run.path) if with_hosts else []
    copies = f", its code on {', '.join(hosts)}" if hosts else ""
    return f"{run.name}  {run.state} {age_words(time.time() - run.ended)}, {memory(run.size)}{copies}{stays}"


def _by_kind(cached: Sequence[Cached]) -> dict[str, RemovedCache]:
    sizes = {kind: [each.size for each in cached if each.kind == kind] for kind in _KINDS}
    return {kind: RemovedCache(count=len(of_kind), size=sum(of_kind)) for kind, of_kind in sizes.items()}


def _counted(cached: Sequence[Cached]) -> Iterator[str]:
    for kind, removed in _by_kind(cached).items():
        if removed["count"]:
            yield f"{_KINDS[kind]}: {removed['count']}, {memory(removed['size'])}"


def _size(runs: Sequence[OldRun], cached: Sequence[Cached]) -> int:
    return sum(run.size for run in runs) + sum(each.size for each in cached)
