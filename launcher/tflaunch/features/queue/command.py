"""`queue`: show the runs that wait."""

import time

import click

from tflaunch.cli.arguments.spec import WholeNumber, json_option, print_json, say
from tflaunch.client.run_location import locate_run
from tflaunch.features.queue import location, tickets
from tflaunch.features.queue.location import QueuedRun
from tflaunch.store import run_dir


@click.command()
@click.option(
    "--slots",
    type=WholeNumber(1, tickets.MOST_SLOTS),
    metavar="N",
    help="From now on, allow N runs without GPUs of their own at once on a host.",
)
@json_option
def queue(slots: int | None, as_json: bool) -> None:
    """List the runs of `up --queue`, the next one first, and what each waits for.

    A run begins when no other run of yours holds one of its hosts. Runs that say how many GPUs they need (`gpus` of a
    role or host) share a host as long as it has enough of them. Of other runs, only one is on a host at a time, or as
    many as --slots allows. The oldest begins first: a later one overtakes it only if they share no host.

    `tflaunch down RUN` takes a run out of the queue.

    \b
    Example:
      tflaunch queue
      tflaunch queue --slots 4
    """
    if slots is not None:
        tickets.write_slots(slots)
    entries = location.overview()
    if as_json:
        print_json(entries)
        return
    locations = [locate_run(path) for path in run_dir.newest_first()]
    waits = [each.describe_wait() for each in locations if not isinstance(each, QueuedRun)]
    elsewhere = [sentence for sentence in waits if sentence]  # of the queues of engines, such as Slurm
    if entries:
        click.echo(location.table(entries, time.time()), nl=False)
    for sentence in elsewhere:
        say(sentence)
    if not entries and not elsewhere:
        say("no run waits")
