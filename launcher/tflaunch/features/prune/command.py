"""`prune`: remove old runs, and report it as it happens, or as JSON at the end."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypedDict

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import Duration, WholeNumber, json_option, print_json, say
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, TflaunchError
from tflaunch.explain.wording import memory
from tflaunch.features.prune.agent_caches import KINDS, Cached, remove_cached
from tflaunch.features.prune.prune import Findings, KeptRun, OldRun, find_named, find_old, hosts_with_copies, remove_run
from tflaunch.plan.model import RetentionPlan
from tflaunch_worker.readable import age_words, duration_words

_KEEP = 10
_OLDER_THAN = 7 * 86400.0  # seconds


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_runs)
@click.option("--keep", type=WholeNumber(0), metavar="N", help=f"Keep the newest N runs of each job; default: {_KEEP}.")
@click.option(
    "--older-than",
    type=Duration("12h or 30d"),
    metavar="TIME",
    help="Remove only runs that ended at least this long ago, such as 12h or 30d; default: 7d.",
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
    older_than: float | None,
    hosts: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove old runs on this machine: journals, plans, logs and synced code.

    The newest runs of each job stay (--keep), and those that ended recently (--older-than). With RUN exactly these runs
    are removed; give their whole names. A run that is live, waits in Slurm's queue or may have live tasks is never
    removed. Logs that are elsewhere because of --log-dir stay. A damaged run is listed with the reason, and removed
    only by its name.

    Without RUN, the caches of this machine are pruned, too: synced code, images and what `setup` has made that no run
    has used for that time, and at least for a day, and agents of other versions that were stored before; so are the
    directories that `drill --keep` has kept. What a killed drill has left goes at once, with its runs.

    With --hosts, the copies of code (`sync`) that these runs have left on other hosts are removed, with everything that
    tasks have written beside them. A run is kept while one of its hosts cannot be reached.

    \b
    Example:
      tflaunch prune --dry-run
      tflaunch prune --keep 3 --older-than 30d --yes
      tflaunch prune train-20260102-030405-6789
    """
    if names and (keep is not None or older_than is not None):
        raise click.UsageError("give RUN, or --keep and --older-than, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError(
            "stdin is not a terminal, so there is no one to ask: add --yes, or --dry-run to only list"
        )
    staying = ""
    if names:
        found = find_named(names, time.time())
    else:
        keep, older_than = _KEEP if keep is None else keep, _OLDER_THAN if older_than is None else older_than
        found = find_old(RetentionPlan(keep, older_than), time.time())
        last = duration_words(older_than)
        staying = f": the newest {keep} runs of a job stay (--keep), and those of the last {last} (--older-than)"
    if not (dry_run or yes) and (found.runs or found.cached) and not is_confirmed(found, hosts):
        say("nothing was removed")
        return 0
    return remove_all(found, with_hosts=hosts, is_dry_run=dry_run, as_json=as_json, staying=staying)


class RemovedRun(NamedTuple):
    """A run that was removed, or would be; ``logs_kept``: where its logs stay."""

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
        raise TflaunchError("nothing was removed", EXIT_INTERRUPTED) from None


def remove_all(found: Findings, *, with_hosts: bool, is_dry_run: bool, as_json: bool, staying: str) -> int:
    """Remove what can be removed, or only list it, and return the exit code.

    ``staying`` says why the rest stays, for the case that there is nothing to remove.
    """
    removed: list[OldRun] = []
    failures: list[str] = []
    show: Callable[[str], None] = (lambda _: None) if as_json else click.echo
    verb = "would remove" if is_dry_run else "removed"
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
        print_json(pruned)
    return EXIT_INTERNAL if failures else 0


def _is_done(remove: Callable[[], bool | None], failures: list[str]) -> bool:
    """Remove something; a failure is said and noted, and does not stop the rest."""
    try:
        return remove() is not False
    except TflaunchError as error:
        failures.append(str(error))
        say(str(error))
        return False


def _described(run: OldRun, with_hosts: bool) -> str:
    stays = f", its logs in {run.logs} stay" if run.logs is not None else ""
    hosts = hosts_with_copies(run.path) if with_hosts else []
    copies = f", its code on {', '.join(hosts)}" if hosts else ""
    return f"{run.name}  {run.state} {age_words(time.time() - run.ended)}, {memory(run.size)}{copies}{stays}"


def _by_kind(cached: Sequence[Cached]) -> dict[str, RemovedCache]:
    sizes = {kind: [each.size for each in cached if each.kind == kind] for kind in KINDS}
    return {kind: RemovedCache(count=len(of_kind), size=sum(of_kind)) for kind, of_kind in sizes.items()}


def _counted(cached: Sequence[Cached]) -> Iterator[str]:
    for kind, removed in _by_kind(cached).items():
        if removed["count"]:
            yield f"{KINDS[kind][1]}: {removed['count']}, {memory(removed['size'])}"


def _size(runs: Sequence[OldRun], cached: Sequence[Cached]) -> int:
    return sum(run.size for run in runs) + sum(each.size for each in cached)
