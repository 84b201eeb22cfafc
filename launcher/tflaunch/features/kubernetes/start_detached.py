"""`up -d` of a run whose tasks are in pods: its supervisor has a pod, too."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, flag_of
from tflaunch.cli.arguments.spec import say


def start_in_cluster(launching: Launching) -> int:
    """Run a plan with its supervisor in the cluster of its pods; return 0 once its tasks run, or else its exit code."""
    from tflaunch.features.kubernetes import cluster_launch
    from tflaunch.runtime import launch

    options, plan = launching.options, launching.plan
    assert plan is not None
    flags = ["--log-dir"] if options.log_dir is not None else []
    flags += [flag_of(name) for name in options.extras]
    if flags:
        raise click.UsageError(
            f"{flags[0]} needs the supervisor on this machine, and -d has it in the cluster; leave out one of them"
        )
    with launch.new_directory(plan, None, launching.suffix, launching.spec) as directory:
        exit_code = cluster_launch.start(plan, directory, say, options.quiet)
    if exit_code == 0:
        click.echo(directory.run)
    return exit_code
