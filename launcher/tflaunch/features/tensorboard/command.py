"""`tensorboard`: show the event files of a run, even after its end."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import WholeNumber, say
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.features.port_holder import LOOPBACK, listen_on_first
from tflaunch.install_command import command_for_package
from tflaunch.interrupts import interrupt_at_end
from tflaunch.plan import tensorboard as planned
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.plan.tensorboard import APART, PROGRAM, USUAL_PORT
from tflaunch_worker import host_vars, linux
from tflaunch_worker.agent.network import listening_sockets
from tflaunch_worker.readable import exit_words

_PROBE = "import importlib.util; sys.exit(importlib.util.find_spec('tensorboard') is None)"
_POLL_INTERVAL = 0.1  # seconds
_STOP_TIMEOUT = 5.0  # seconds from TERM to KILL


@click.command()
@run_argument
@click.option(
    "--port", type=WholeNumber(1, 65535), metavar="N", help="Port on localhost; default: 6006 if it is free, else any."
)
def tensorboard(run: str | None, port: int | None) -> int:
    """Run TensorBoard on this machine for RUN until Ctrl-C, and print its URL.

    RUN is the name of a run or job, or a prefix of one: the live run is used, or else the newest. It may have ended.
    The event files are those of the spec's "tensorboard". TensorBoard is that of the tasks' Python on this machine, or
    else that of tflaunch's own Python.

    \b
    Example:
      tflaunch tensorboard mnist-20260102-030405-6789 --port 7000
    """
    directory = runs.find_run(run)
    plan = runs.plan_of(directory)
    process = planned.tensorboard_of(plan)
    if process is None:
        remedy = 'write "tensorboard": "logs/" into the spec of the next run, or use `tensorboard --logdir DIR`'
        raise TflaunchError(f"the spec of {directory.name} names no event files: {remedy}", EXIT_USAGE)
    program, workdir, logdir = _board_here(plan, process)
    python = _python_with_tensorboard([program, sys.executable], workdir)
    return _serve([python, "-c", PROGRAM, "--logdir", logdir, "--host", LOOPBACK], workdir, port)


def _board_here(plan: Plan, process: TaskPlan) -> tuple[str, str, str]:
    """Return local interpreter, directory and logdir of a run's TensorBoard.

    Raises:
        TflaunchError: the event files are not on this machine.
    """
    host = plan.host(process.host)
    python, logdir = process.argv[0], process.argv[process.argv.index("--logdir") + 1]
    try:
        workdir = host_vars.expand_path(process.workdir, os.environ)
        logdir = host_vars.expand_path(logdir, os.environ)
        python = host_vars.expand_path(python, os.environ) if host.is_local else sys.executable
    except host_vars.UnknownValueError:
        workdir = ""
    if "://" in logdir:
        return python, workdir if os.path.isdir(workdir) else os.getcwd(), logdir
    if not os.path.isdir(workdir) or not (host.is_local or os.path.isdir(os.path.join(workdir, logdir))):
        where = "their working directory is gone" if host.is_local else f"they are on {host.host}"
        remedy = "copy them here and use `tensorboard --logdir DIR`, or write them to a shared directory or a bucket"
        raise TflaunchError(f"the event files of {plan.name} are not on this machine: {where}; {remedy}", EXIT_USAGE)
    return python, workdir, logdir


def _python_with_tensorboard(candidates: list[str], workdir: str) -> str:
    """Return the first one that has TensorBoard; raise `TflaunchError` without one."""
    pythons = [python for candidate in dict.fromkeys(candidates) if (python := shutil.which(candidate))]
    for python in pythons:
        # no limit: the user waits for it, and can press Ctrl-C
        probe = subprocess.run([python, "-c", APART + _PROBE], cwd=workdir, stdin=subprocess.DEVNULL, check=False)
        if probe.returncode == 0:
            return python
    listed, command = " or ".join(dict.fromkeys(candidates)), command_for_package("tensorboard", pythons[0])
    raise TflaunchError(f"there is no TensorBoard for {listed}: {command}", EXIT_USAGE)


def _serve(argv: list[str], workdir: str, wanted: int | None) -> int:
    """Run TensorBoard until a signal arrives; return the exit code of the command.

    ``argv`` has no port, and ``wanted`` is the one that the user requests.

    Raises:
        TflaunchError: TensorBoard exited by itself, or the requested port is not free.
    """
    with listen_on_first((USUAL_PORT, 0) if wanted is None else (wanted,)) as probe:
        port = probe.getsockname()[1]
    process: subprocess.Popen[bytes] | None = None
    came = interrupt_at_end()  # in place of that of the command line, for which Ctrl-C is a failure
    try:
        process = subprocess.Popen(
            [*argv, "--port", str(port)],
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,  # a signal reaches all of it, and no signal of ours
            preexec_fn=lambda: linux.die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - there is one thread
        )
        is_told = False
        while process.poll() is None:
            if not is_told and port in listening_sockets.ports_of(process.pid):
                say(f"TensorBoard: http://localhost:{port}/ (Ctrl-C stops it)")
                is_told = True
            time.sleep(_POLL_INTERVAL)
        code = process.returncode
    except KeyboardInterrupt:
        return 128 + came[0] if came else 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):  # all of its group are gone
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):  # KILL is next
                    process.wait(_STOP_TIMEOUT)
    raise TflaunchError(f"TensorBoard {exit_words(code)}", EXIT_INTERNAL)
