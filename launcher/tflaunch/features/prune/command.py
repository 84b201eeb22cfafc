"""`prune`: remove what old runs have left."""

from __future__ import annotations

import sys
import time

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import Duration, WholeNumber, json_option, say
from tflaunch.features.prune import prune as old_runs
from tflaunch.features.prune import pruning
from tflaunch.plan.model import RetentionPlan
from tflaunch_worker.readable import duration_words

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
    if names and (keep is not None or older_than is not None):
        raise click.UsageError("give RUN, or --keep and --older-than, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError(
            "stdin is not a terminal, so there is no one to ask: add --yes, or --dry-run to only list"
        )
    staying = ""
    if names:
        found = old_runs.find_named(names, time.time())
    else:
        keep, older_than = _KEEP if keep is None else keep, _OLDER_THAN if older_than is None else older_than
        found = old_runs.find_old(RetentionPlan(keep, older_than), time.time())
        last = duration_words(older_than)
        staying = f": the newest {keep} runs of a job stay (--keep), and those of the last {last} (--older-than)"
    if not (dry_run or yes) and (found.runs or found.cached) and not pruning.is_confirmed(found, hosts):
        say("nothing was removed")
        return 0
    return pruning.remove_all(found, with_hosts=hosts, is_dry_run=dry_run, as_json=as_json, staying=staying)
