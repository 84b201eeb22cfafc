"""`launcher`: supervise a run from a pod; its first process starts the supervisor.

The pod may be deleted at any time, and Kubernetes makes another. If the run directory is on a volume, that must not end
the run: on TERM the first process kills the supervisor; its tasks live on for their lease, and the next pod resumes the
run. Without a volume the directory is gone with the pod, and the next one begins the job again.
"""

import io
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from tflaunch import __version__, interrupts, private_files
from tflaunch.cli.arguments.spec import say
from tflaunch.client import follow
from tflaunch.client.observer import Observer
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.kubernetes import cluster_objects, kubectl
from tflaunch.features.kubernetes.run_archive import unpack_archive, write_archive
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.runtime import launch
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store import journal, run_dir
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory, runs_directory
from tflaunch_worker import signals, wire
from tflaunch_worker.feature import describe_error

_BETWEEN_LOOKS = 0.2  # seconds
_API_PATIENCE = 120.0  # seconds for Kubernetes to answer
_BETWEEN_TRIES = 1.0
_MOST_STARTS = 3  # of supervisors that end soon, one after the other
_SOON = 60.0  # seconds
_LONGEST_SAID = 2000  # characters


class _Order(NamedTuple):
    """A run to start: its plan, secret values, and an archive of spec and code."""

    plan: Plan
    secrets: dict[str, str]
    files: bytes


@click.group(hidden=True)
def launcher() -> None:
    """Serve runs whose supervisor is in a Kubernetes cluster: verbs for programs."""


@launcher.command()
@click.argument("run")
@click.argument("name")
@click.argument("namespace")
def supervise(run: str, name: str, namespace: str) -> int:
    """Supervise RUN, whose Service is NAME, as the first process of a pod."""
    first = _Launcher(run, kubectl.KubernetesPlan(name, "", 0.0, namespace=namespace or None))
    for number in (signal.SIGINT, *signals.ENDING):  # an image may have chosen another one (STOPSIGNAL)
        signal.signal(number, lambda *_: first.leave())
    return first.serve()


@launcher.command("await-start")
@click.argument("run")
@click.option("--quiet", is_flag=True)
def await_start(run: str, quiet: bool) -> int:
    """Show RUN's messages until its tasks run; exit with 0, or with its exit code."""
    path = runs_directory() / run
    while not (path / JOURNAL_NAME).exists() or journal.first_record(path) is None:
        time.sleep(_BETWEEN_LOOKS)  # the pod, and this with it, ends if the run cannot begin
    return follow.until_running(Observer(path), say, quiet) or 0


@launcher.command()
@click.argument("run")
def send(run: str) -> None:
    """Write the directory of RUN, which has ended, as an archive."""
    write_archive(runs_directory() / run, sys.stdout.buffer)


class _Launcher:
    """The first process of the pod."""

    def __init__(self, run: str, cluster: kubectl.KubernetesPlan) -> None:
        self._run = run
        self._cluster = cluster
        self._path = runs_directory() / run
        self._supervisor = 0

    def serve(self) -> int:
        """Supervise the run to its end, keep its directory a while, return its exit code."""
        if shutil.which("kubectl") is None:
            say("the launcher's image has no kubectl; name an image that has it as kubernetes.launcher_image")
            return EXIT_PREFLIGHT
        try:
            order = _read_order(Path(os.environ[cluster_objects.ORDER_VARIABLE]))
            marks = self._marks()
            if (ended := marks.get(cluster_objects.EXIT_CODE_MARK)) is not None:
                code = int(ended)  # the pod before this one was to keep the directory
                since = float(marks[cluster_objects.ENDED_MARK])
            else:
                self._prepare(order, is_begun=cluster_objects.BEGUN_MARK in marks)
                os.environ.update(order.secrets)  # the plan reads them from there
                code, said = self._supervise_to_the_end(order.plan)
                since = self._finish(code, said)
        except TflaunchError as error:
            self._finish(error.exit_code, str(error))
            return error.exit_code
        except kubectl.KubectlError as error:
            self._finish(EXIT_INTERNAL, f"Kubernetes does not answer the launcher: {error}")
            return EXIT_INTERNAL
        self._keep_directory(since + kubectl.cluster_of(order.plan).keep)
        return code

    def leave(self) -> NoReturn:
        """Kill the supervisor and exit: without a resume, tasks end with their lease."""
        if self._supervisor:
            os.kill(self._supervisor, signal.SIGKILL)
        os._exit(128 + signal.SIGTERM)

    def _marks(self) -> dict[str, Any]:
        """Return the Job's annotations, through which pods of a launcher share state."""
        job = cluster_objects.launcher_name(self._cluster)

        def ask() -> dict[str, Any]:
            found = kubectl.run_for_json(self._cluster, "get", "job", job)
            with kubectl.readable_answer():
                return dict(found["metadata"].get("annotations") or {})

        return kubectl.insist(ask, _API_PATIENCE)

    def _mark(self, **patch: object) -> None:
        job = cluster_objects.launcher_name(self._cluster)
        words = ("patch", "job", job, "--type=merge", f"--patch={json.dumps(patch)}")
        kubectl.insist(lambda: kubectl.run_kubectl(self._cluster, *words), _API_PATIENCE)

    def _prepare(self, order: _Order, *, is_begun: bool) -> None:
        """Make the run directory, unless it is there already."""
        if (self._path / JOURNAL_NAME).exists():
            return
        if is_begun:
            say(
                f"the pod that supervised {self._run} is gone, and the run directory with it (kubernetes.run_volume"
                " would keep it): the job begins again, from its checkpoints"
            )
            # A pod that is being deleted is not used any more, so no task of before can be beside its next attempt.
            cluster_objects.delete_objects(self._cluster, self._run, "pods")
        try:
            unpack_archive(io.BytesIO(order.files), self._path)
        except OSError as error:
            where = f"{error.filename}: {error.strerror}"
            message = (
                f"the run directory cannot be made: {where}; user {os.getuid()} of the image must be able to write"
            )
            raise TflaunchError(message, EXIT_PREFLIGHT) from None
        annotations = {cluster_objects.BEGUN_MARK: f"{time.time():.0f}"}
        self._mark(metadata={"annotations": annotations})

    def _supervise_to_the_end(self, plan: Plan) -> tuple[int, str]:
        """Supervise the run; return its exit code, and the error if it did not begin."""
        starts, last_words = 0, ""
        while starts < _MOST_STARTS and (ended := _end_of(self._path)) is None:
            if last_words:
                say(f"the supervisor has ended unexpectedly ({last_words}); another takes over")
                time.sleep(_BETWEEN_TRIES)
            begun = time.monotonic()
            code, last_words = self._supervise(plan)
            if code >= 0 and not (self._path / JOURNAL_NAME).exists():
                return code, last_words
            starts = starts + 1 if time.monotonic() - begun < _SOON else 0
        if (ended := _end_of(self._path)) is not None:
            return ended, ""
        return EXIT_INTERNAL, f"the supervisor has ended at each of {_MOST_STARTS} starts; the last: {last_words}"

    def _supervise(self, plan: Plan) -> tuple[int, str]:
        """Run a supervisor; return its exit code, negative for a signal, and last words."""
        while run_dir.is_locked(self._path):  # by a pod before this one, on a node that does not answer
            time.sleep(_BETWEEN_TRIES)
        sys.stdout.flush()
        sys.stderr.flush()
        said, writer = os.pipe()
        self._supervisor = os.fork()
        if self._supervisor == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            interrupts.interrupt_at_end()
            _be_supervisor(self._path, plan, writer)
        os.close(writer)
        while True:  # also reap what commands that were run in this container have left
            pid, status = os.wait()  # no limit: the pod lives as long as its supervisor
            if pid == self._supervisor:
                self._supervisor = 0
                os.set_blocking(said, False)  # a child of the supervisor may have its end, too
                with open(said, "rb") as file:
                    words = (file.read(_LONGEST_SAID) or b"").decode(errors="replace")
                code = os.waitstatus_to_exitcode(status)
                return code, words or (f"exit code {code}" if code >= 0 else signal.Signals(-code).name)

    def _finish(self, code: int, said: str) -> float:
        """Delete the run's objects, record its end in the Job, and return the time."""
        if said:
            say(said)
        try:
            cluster_objects.delete_objects(self._cluster, self._run)
        except kubectl.KubectlError as error:
            say(f"warning: the pods of {self._run} were not deleted: {error}")
        now = time.time()
        annotations = {
            cluster_objects.EXIT_CODE_MARK: str(code),
            cluster_objects.ENDED_MARK: f"{now:.0f}",
            cluster_objects.SAID_MARK: said[:_LONGEST_SAID],
        }
        # Kubernetes would start another pod for an exit code that is not 0.
        spec = {"spec": {"backoffLimit": 0}} if code else {}
        try:
            self._mark(metadata={"annotations": annotations}, **spec)
        except kubectl.KubectlError as error:
            say(f"warning: Job {cluster_objects.launcher_name(self._cluster)} does not show the end: {error}")
        return now

    def _keep_directory(self, until: float) -> None:
        """Keep this pod for the command that copies the directory and deletes the Job."""
        while (self._path / JOURNAL_NAME).exists() and time.time() < until:
            time.sleep(_BETWEEN_TRIES)


def _be_supervisor(path: Path, plan: Plan, last_words: int) -> NoReturn:
    """Supervise the run in this process, and exit; an error goes to ``last_words``."""
    code = EXIT_INTERNAL
    try:
        if (path / JOURNAL_NAME).exists():
            code = launch.take_over(path, say)
        else:
            directory = RunDirectory.existing(path, path / "logs")
            private_files.make_directories(directory.logs)
            code = launch.start(plan, RunConfig(directory, launch.code_for_hosts(plan, path), say))
    except TflaunchError as error:
        say(str(error))
        os.write(last_words, str(error).encode()[:_LONGEST_SAID])
        code = error.exit_code
    except BaseException as error:  # noqa: BLE001 - the only place that can report it
        sys.excepthook(*sys.exc_info())
        os.write(last_words, describe_error(error).encode()[:_LONGEST_SAID])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read_order(directory: Path) -> _Order:
    """Decode an order, or raise `TflaunchError` if it is of another version."""
    whole = b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]*")))
    head, _, files = whole.partition(b"\n")
    order = wire.parse(head, max_values=1 << 24)
    if order["version"] != __version__:
        message = (
            f"the image of the launcher has tflaunch {__version__}, and the run was planned by {order['version']};"
            " use an image with that version as kubernetes.launcher_image"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)
    return _Order(serialize.from_json(order["plan"]), dict(order["secrets"]), files)


def _end_of(path: Path) -> int | None:
    if not (path / JOURNAL_NAME).exists():
        return None
    records, job = journal.read_job(path)
    if records[-1]["kind"] == "ended":
        return int(records[-1]["exit_code"])
    return job.exit_code if job.phase is Phase.ENDED else None
