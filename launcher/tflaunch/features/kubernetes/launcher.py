"""`launcher`: what the pod of a supervisor in the cluster runs. For programs, not for people."""

from __future__ import annotations

import sys
import time

import click

from tflaunch.cli.arguments.spec import say

_BETWEEN_LOOKS = 0.2  # seconds


@click.group(hidden=True)
def launcher() -> None:
    """Do the parts of a run whose supervisor is in a Kubernetes cluster."""


@launcher.command()
@click.argument("run")
@click.argument("name")
@click.argument("namespace")
def supervise(run: str, name: str, namespace: str) -> int:
    """Supervise RUN, whose Service is NAME, as the first process of a pod."""
    from tflaunch.features.kubernetes import launcher_pod
    from tflaunch.features.kubernetes.cluster import KubernetesPlan

    cluster = KubernetesPlan(name, "", 0.0, namespace=namespace or None)
    return launcher_pod.supervise_in_pod(run, cluster, say)


@launcher.command("await-start")
@click.argument("run")
@click.option("--quiet", is_flag=True)
def await_start(run: str, quiet: bool) -> int:
    """Show the messages of RUN until its tasks run; exit with 0 then, or with the exit code of the run."""
    from tflaunch.client import follow
    from tflaunch.client.observer import Observer
    from tflaunch.store.journal import first_record
    from tflaunch.store.run_dir import JOURNAL_NAME, runs_directory

    path = runs_directory() / run
    while not (path / JOURNAL_NAME).exists() or first_record(path) is None:
        time.sleep(_BETWEEN_LOOKS)  # the pod, and this with it, ends if the run cannot begin
    return follow.until_running(Observer(path), say, quiet) or 0


@launcher.command()
@click.argument("run")
def send(run: str) -> None:
    """Write the directory of RUN, which has ended, as an archive."""
    from tflaunch.features.kubernetes.run_archive import write_archive
    from tflaunch.store.run_dir import runs_directory

    write_archive(runs_directory() / run, sys.stdout.buffer)
