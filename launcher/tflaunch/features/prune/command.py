"""`prune`: remove what old runs have left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from tflaunch import records
from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import WholeNumber, json_option, say, seconds_in
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch_worker.readable import age_words

if TYPE_CHECKING:
    from tflaunch.features.prune.agent_caches import Cached
    from tflaunch.features.prune.prune import Findings, OldRun, Pruned

_KEEP = 10
_OLDER_THAN = "7d"
_KINDS = {
    "code": "cached files of synced code",
    "agent": "cached agents of other versions",
    "compiled": "caches of earlier versions",
}


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
@click.option("--keep", type=WholeNumber(0), metavar="N", help=f"Keep the newest N runs of each job; default: {_KEEP}.")
@click.option(
    "--older-than",
    metavar="TIME",
    help=f"Remove only runs that ended at least this long ago, such as 12h or 30d; default: {_OLDER_THAN}.",
)
@click.option("--hosts", is_flag=True, help="Also remove the copies of synced code on the hosts of these runs.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed, with sizes.")
@click.option(
    "-y", "--yes", "-f", "--force", "yes", is_flag=True, help="Do not ask; needed where stdin is not a terminal."
)
@json_option
def prune(
    names: tuple[str, ...],
    keep: int | None,
    older_than: str | None,
    hosts: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove the directories of old runs on this machine: journals, plans, logs and synced code.

    The newest runs of each job stay (--keep), and those that ended recently (--older-than). With RUN exactly these runs
    are removed; give their whole names. A run that is live, waits in Slurm's queue or may have live tasks is never
    removed. Logs that are elsewhere because of --log-dir stay. A damaged run is listed with the reason, and removed
    only by its name.

    Without RUN, the caches of agents on this machine are pruned, too: synced code that no run has used for that time,
    and at least for a day, and agents of other versions of tflaunch that were stored before.

    With --hosts, the copies of code (`sync`) that these runs have left on other hosts are removed, with everything that
    tasks have written beside them. A run is kept while one of its hosts cannot be reached.

    \b
    Example:
      tflaunch prune --dry-run
      tflaunch prune --keep 3 --older-than 30d --yes
      tflaunch prune train-20260102-030405-6789
    """
    from tflaunch.features.prune import prune as pruning

    if names and (keep is not None or older_than is not None):
        raise click.UsageError("give RUN, or --keep and --older-than, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError(
            "stdin is not a terminal, so there is no one to ask: add --yes, or --dry-run to only list"
        )
    now, staying = time.time(), ""
    if names:
        found = pruning.find_named(names, now)
    else:
        from tflaunch.plan.model import RetentionPlan

        keep, older_than = _KEEP if keep is None else keep, older_than or _OLDER_THAN
        found = pruning.find_old(RetentionPlan(keep, _seconds(older_than)), now)
        staying = f": the newest {keep} runs of a job stay (--keep), and those of the last {older_than} (--older-than)"
    if not (dry_run or yes) and (found.runs or found.cached) and not _is_confirmed(found, hosts, now):
        say("nothing was removed")
        return 0
    report = _Report(found, hosts, dry_run, as_json, now)
    if dry_run:
        report.all_removed()
    else:
        with pruning.only_prune():
            report.remove()
    return report.end(staying)


def _seconds(text: str) -> float:
    seconds = seconds_in(text)
    if seconds is None:
        message = f"--older-than {text!r} is not a valid duration; write for example 12h or 30d"
        raise TflaunchError(message, EXIT_USAGE)
    return seconds


def _is_confirmed(found: Findings, with_hosts: bool, now: float) -> bool:
    """List what is to be removed and ask, on stderr.

    Raises:
        TflaunchError: the user gives up, by Ctrl-C or Ctrl-D.
    """
    from tflaunch.explain import figures

    for line in _listing(found, with_hosts, now):
        click.echo(line, err=True)
    total = sum(run.size for run in found.runs) + sum(cached.size for cached in found.cached)
    try:
        return click.confirm(f"Remove this, {figures.memory(total)}?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise TflaunchError("nothing was removed", 130) from None


def _listing(found: Findings, with_hosts: bool, now: float) -> list[str]:
    return [_described(run, with_hosts, now) for run in found.runs] + [
        _counted(kind, [cached for cached in found.cached if cached.kind == kind])
        for kind in _KINDS
        if any(cached.kind == kind for cached in found.cached)
    ]


def _described(run: OldRun, with_hosts: bool, now: float) -> str:
    from tflaunch.explain import figures
    from tflaunch.features.prune import host_code

    stays = f", its logs in {run.logs} stay" if run.logs is not None else ""
    hosts = host_code.hosts_with_code(run.path) if with_hosts else []
    copies = f", its code on {', '.join(hosts)}" if hosts else ""
    return f"{run.name}  {run.state} {age_words(now - run.ended)}, {figures.memory(run.size)}{copies}{stays}"


def _counted(kind: str, cached: list[Cached]) -> str:
    from tflaunch.explain import figures

    return f"{_KINDS[kind]}: {len(cached)}, {figures.memory(sum(each.size for each in cached))}"


class _Report:
    """What was removed, and what was not; printed as it happens, or as JSON at the end."""

    def __init__(self, found: Findings, with_hosts: bool, is_dry_run: bool, as_json: bool, now: float) -> None:
        self._found = found
        self._with_hosts = with_hosts
        self._is_dry_run = is_dry_run
        self._as_json = as_json
        self._now = now
        self._runs: list[OldRun] = []
        self._cached: list[Cached] = []
        self._failures: list[str] = []

    def all_removed(self) -> None:
        """Record everything as removed, for a dry run."""
        self._runs, self._cached = self._found.runs, self._found.cached
        self._print(*(f"would remove {line}" for line in _listing(self._found, self._with_hosts, self._now)))

    def remove(self) -> None:
        """Remove everything that can be removed, one after the other."""
        from tflaunch.features.prune import agent_caches
        from tflaunch.features.prune import prune as pruning

        for run in self._found.runs:
            line = _described(run, self._with_hosts, self._now)
            if self._tried(partial(pruning.remove_run, run, self._with_hosts)):
                self._runs.append(run)
                self._print(f"removed {line}")
        for cached in self._found.cached:
            if self._tried(partial(agent_caches.remove_cached, cached)):
                self._cached.append(cached)
        for kind in _KINDS:
            if of_kind := [cached for cached in self._cached if cached.kind == kind]:
                self._print(f"removed {_counted(kind, of_kind)}")

    def end(self, staying: str) -> int:
        """Print what was not removed, and the total, or ``staying`` if that is all; return the exit code."""
        freed = sum(run.size for run in self._runs) + sum(cached.size for cached in self._cached)
        for kept in self._found.kept:
            self._print(f"kept {kept.name}, which {kept.reason}")
        if self._as_json:
            click.echo(json.dumps(records.as_json(self._all(freed)), indent=2))
        else:
            from tflaunch.explain import figures

            verb = "would be freed" if self._is_dry_run else "freed"
            is_any = self._runs or self._cached
            self._print(f"{figures.memory(freed)} {verb}" if is_any else f"nothing to remove{staying}")
        return EXIT_INTERNAL if self._failures else 0

    def _tried(self, remove: Callable[[], bool | None]) -> bool:
        """Call a function that removes something, and report a failure, which does not stop the rest."""
        try:
            return remove() is not False
        except TflaunchError as error:
            self._failures.append(str(error))
            say(str(error))
            return False

    def _all(self, freed: int) -> Pruned:
        from tflaunch.features.prune.prune import Pruned, RemovedCache, RemovedRun

        removed = [RemovedRun(run.name, run.state, run.ended, run.size, run.logs) for run in self._runs]
        caches = {
            kind: RemovedCache(count=len(sizes), size=sum(sizes))
            for kind in _KINDS
            for sizes in [[cached.size for cached in self._cached if cached.kind == kind]]
        }
        return Pruned(self._is_dry_run, removed, caches, self._found.kept, self._failures, freed)

    def _print(self, *lines: str) -> None:
        if not self._as_json:
            for line in lines:
                click.echo(line)
