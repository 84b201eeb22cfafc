"""`launcher`: what pods run for a supervisor in the cluster. For programs, not for people."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import click

from tflaunch.cli._spec import say

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
    from tflaunch.plan.model import KubernetesPlan
    from tflaunch.runtime import launcher_pod

    cluster = KubernetesPlan(name, "", 0.0, namespace=namespace or None)
    return launcher_pod.supervise_in_pod(run, cluster, say)


@launcher.command("await-start")
@click.argument("run")
@click.option("--quiet", is_flag=True)
def await_start(run: str, quiet: bool) -> int:
    """Show the messages of RUN until its tasks run; exit with 0 then, or with the exit code of the run."""
    from tflaunch.client import follow
    from tflaunch.client.observer import Observer
    from tflaunch.store.journal_reader import first_record
    from tflaunch.store.run_dir import JOURNAL_NAME, runs_directory

    path = runs_directory() / run
    while not (path / JOURNAL_NAME).exists() or first_record(path) is None:
        time.sleep(_BETWEEN_LOOKS)  # the pod, and this with it, ends if the run cannot begin
    return follow.until_running(Observer(path), say, quiet) or 0


@launcher.command("hold-copy")
def hold_copy() -> None:
    """Keep the pod with the copy of the run directory running, until TERM."""
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while signal.sigwait(wanted) == signal.SIGCHLD:
        _reap()


@launcher.command("put-copy")
def put_copy() -> None:
    """Store the first content of the copy."""
    from tflaunch.store import run_copy

    state, secrets = _places()
    run_copy.put_copy(state, secrets, sys.stdin.buffer)


@launcher.command("take-copy")
def take_copy() -> None:
    """Write the copy, and the values of secrets, for a supervisor that takes it over."""
    from tflaunch.store import run_copy

    state, secrets = _places()
    run_copy.take_copy(state, secrets, sys.stdout.buffer)


@launcher.command("read-copy")
def read_copy() -> None:
    """Write the copy."""
    from tflaunch.store import run_copy

    run_copy.take_copy(_places()[0], None, sys.stdout.buffer)


@launcher.command("take-changes")
@click.argument("number", type=int)
def take_changes(number: int) -> None:
    """Apply the changes of the supervisor with NUMBER."""
    from tflaunch.store import run_copy

    run_copy.take_changes(_places()[0], number, sys.stdin.buffer, sys.stdout.buffer)


def _places() -> tuple[Path, Path]:
    from tflaunch.kubernetes import launcher_objects

    state, secrets = (os.environ[name] for name in (launcher_objects.STATE_VARIABLE, launcher_objects.SECRETS_VARIABLE))
    return Path(state), Path(secrets) / "secrets.json"


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # no child is left
