"""`fetch`: fetch files from the working directories of an ended run."""

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.files.collect import Collection
from tflaunch.features.files.file_patterns import is_pattern
from tflaunch.store.journal import read_job


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
def fetch(run: str | None, paths: tuple[str, ...]) -> int:
    """Fetch what matches PATH from RUN's tasks on all hosts into the run's directory.

    PATH is relative to the working directories; * and ? match within a name, ** any number of directories, and a
    directory matches everything in it. Without PATH, it is the spec's "collect". Without RUN, it is the live or newest
    run; then the first PATH has a / or *, such as logs/.
    Only files whose content differs from what is here are transferred, and an interrupted transfer is continued.

    \b
    Example:
      tflaunch fetch mnist 'outputs/**/*.keras'
    """
    if run and set(run) & set("/*?"):  # no run has such a name
        paths, run = (run, *paths), None
    directory = runs.find_run(run)
    for path in paths:
        if not is_pattern(path):
            remedy = "write it relative to that directory, such as 'outputs/**'"
            raise TflaunchError(f"{path!r} is not a path below the working directory; {remedy}", EXIT_USAGE)
    _, job = read_job(directory)
    patterns = paths or job.plan.collect
    if not patterns:
        raise TflaunchError(f"the spec of {directory.name} has no `collect`: name a PATH, such as 'logs'", EXIT_USAGE)
    if runs.is_live(directory) or runs.has_agent(directory):
        raise TflaunchError(f"{directory.name} has not ended; its files can be fetched then", EXIT_USAGE)
    collection = Collection(directory, job, patterns)
    collection.wait()  # no limit: the user waits for it, and can press Ctrl-C
    done, failed = collection.summary()
    for sentence in [*done, *failed]:
        say(sentence)
    return EXIT_INTERNAL if failed else 0
