"""Supervise a run from a pod: the first process of the launcher's pod, and the supervisor that it starts.

The pod may be deleted at any time, and Kubernetes makes another. That must not end the run: on TERM the first process
kills the supervisor; its tasks live on for their lease, and the next pod continues from the copy of the run directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from tflaunch import __version__, private_files
from tflaunch.client.cluster_runs import OUTCOME_NAME
from tflaunch.core.job_state import Phase
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.kubernetes import kubectl, launcher_objects
from tflaunch.kubernetes.kubectl import KubectlError
from tflaunch.plan import serialize
from tflaunch.plan.model import KubernetesPlan, Plan
from tflaunch.runtime import cluster_objects, launch
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store import journal
from tflaunch.store.run_copy import CopyError, RunCopy, unpack_copy
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory, home
from tflaunch_worker import wire

ORDER_NAME = "order.json"
"""What is to be run: the version of tflaunch that has planned it, and the plan."""
_COPY_PATIENCE = 120.0  # seconds for the pod with the copy to answer
_END_PATIENCE = 60.0  # seconds for the copy to be complete at the end
_LEAVE_PATIENCE = 10.0  # the same when this pod is deleted
_BETWEEN_TRIES = 1.0
_MOST_SUPERVISORS = 5  # that may be killed in this pod
_SUPERSEDED = 76  # exit code of a supervisor that was replaced by one in another pod


class _PodEnds(BaseException):
    """Kubernetes ends this pod."""


class _Taken(NamedTuple):
    """What this pod has taken over: the run directory, its supervisor's number, and the values of secrets."""

    path: Path
    number: int
    secrets: dict[str, str]


def supervise_in_pod(run: str, cluster: KubernetesPlan, say: Callable[[str], None]) -> int:
    """Begin or continue a run as the first process of a pod, and return the exit code of the pod.

    Args:
        run: the run's name.
        cluster: the one of this pod.
        say: shows a message.
    """
    signal.signal(signal.SIGTERM, _end_pod)
    launcher = _Launcher(run, cluster, say)
    try:
        return launcher.serve()
    except _PodEnds:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        launcher.leave()
        return 128 + signal.SIGTERM


def _end_pod(number: int, frame: FrameType | None) -> NoReturn:
    raise _PodEnds


class _Launcher:
    """The first process of the pod."""

    def __init__(self, run: str, cluster: KubernetesPlan, say: Callable[[str], None]) -> None:
        self._run = run
        self._cluster = cluster
        self._say = say
        self._names = launcher_objects.names_of(cluster)
        self._taken: _Taken | None = None
        self._supervisor = 0

    def serve(self) -> int:
        """Supervise the run until it has ended, and return its exit code."""
        try:
            _require_kubectl()
            taken = self._taken = self._take_over()
            plan = _ordered(taken.path)
        except TflaunchError as error:
            return self._finish(error.exit_code, str(error))
        os.environ.update(taken.secrets)  # the plan reads them from there
        for _ in range(_MOST_SUPERVISORS):
            code, said = 0, ""
            if _end_of(taken.path) is None:
                code = self._supervise(taken, plan)
            if code == _SUPERSEDED:
                return EXIT_INTERNAL  # Kubernetes ignores how a pod ends that was replaced
            ended = _end_of(taken.path)
            if ended is None and code >= 0 and not (taken.path / JOURNAL_NAME).exists():
                ended, said = code, "the run did not begin; `kubectl logs` of its Job says why"
            if ended is not None:
                return self._finish(ended, said)
            self._say("the supervisor has ended unexpectedly; another takes over")
            time.sleep(_BETWEEN_TRIES)
        return self._finish(EXIT_INTERNAL, f"{_MOST_SUPERVISORS} supervisors ended unexpectedly")

    def leave(self) -> None:
        """Kill the supervisor, so that its tasks do not end with this pod, and complete the copy."""
        if self._supervisor:
            os.kill(self._supervisor, signal.SIGKILL)
            os.waitpid(self._supervisor, 0)
        if self._taken is not None:
            self._complete_copy(self._taken, _LEAVE_PATIENCE)

    def _take_over(self) -> _Taken:
        """Get the run directory from its copy.

        Raises:
            TflaunchError: there is no copy.
        """
        command = self._in_copy("take-copy")
        path, end = home() / "runs" / self._run, time.monotonic() + _COPY_PATIENCE
        private_files.make_directories(path.parent)
        while True:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                head = wire.parse(process.stdout.readline())
                unpack_copy(process.stdout, path.parent, self._run)
                if process.wait() == 0:
                    os.chmod(path, 0o700)
                    return _Taken(path, int(head["number"]), dict(head["secrets"]))
            except (CopyError, ValueError, LookupError):
                pass  # the output is incomplete; the reason is in its errors
            process.kill()
            _, errors = process.communicate()
            if time.monotonic() >= end:
                why = errors.decode("utf-8", "replace").strip().removeprefix("tflaunch: ")
                raise TflaunchError(f"the files of run {self._run} are lost: {why}", EXIT_INTERNAL)
            time.sleep(_BETWEEN_TRIES)

    def _supervise(self, taken: _Taken, plan: Plan) -> int:
        """Run a supervisor in another process; return its exit code, if a signal killed it a negative number."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._supervisor = os.fork()
        if self._supervisor == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _be_supervisor(taken, plan, self._copy_command(taken), self._say)
        while True:  # also reap what commands that were run in this container have left
            pid, status = os.wait()
            if pid == self._supervisor:
                self._supervisor = 0
                return os.waitstatus_to_exitcode(status)

    def _finish(self, code: int, said: str) -> int:
        """Delete what the run has in the cluster, complete the copy, and keep Kubernetes from starting another pod."""
        if said:
            self._say(said)
        try:
            cluster_objects.delete_objects(self._cluster, self._run)
        except KubectlError as error:
            self._say(f"warning: the pods of {self._run} were not deleted: {error}")
        if self._taken is not None:
            outcome = {"exit_code": code, "said": said}
            private_files.write_text(self._taken.path / OUTCOME_NAME, json.dumps(outcome))
            if not self._complete_copy(self._taken, _END_PATIENCE):
                self._say("warning: the end of the run could not be copied; `kubectl logs` of its Job has the output")
        if code:
            no_more = '--patch={"spec":{"backoffLimit":0}}'
            try:
                kubectl.run_kubectl(self._cluster, "patch", "job", self._names.job, "--type=merge", no_more)
            except KubectlError as error:
                self._say(f"warning: Job {self._names.job} will try again: {error}")
        return code

    def _complete_copy(self, taken: _Taken, patience: float) -> bool:
        copy = RunCopy(taken.path, self._copy_command(taken), self._say, _nothing)
        end = time.monotonic() + patience
        while not (is_complete := copy.push()) and not copy.is_superseded and time.monotonic() < end:
            time.sleep(_BETWEEN_TRIES)
        copy.close()
        return is_complete

    def _copy_command(self, taken: _Taken) -> list[str]:
        return self._in_copy("take-changes", str(taken.number))

    def _in_copy(self, *words: str) -> list[str]:
        return [*kubectl.exec_command(self._cluster, self._names.copy_pod), "tflaunch", "launcher", *words]


def _be_supervisor(taken: _Taken, plan: Plan, command: list[str], say: Callable[[str], None]) -> NoReturn:
    code = EXIT_INTERNAL
    try:
        copy = RunCopy(taken.path, command, say, lambda: os._exit(_SUPERSEDED))
        copy.start()
        if (taken.path / JOURNAL_NAME).exists():
            code = launch.take_over(taken.path, say, written=copy.push_journal)
        else:
            directory = RunDirectory.existing(taken.path, taken.path / "logs")
            private_files.make_directories(directory.logs)
            code_files = launch.code_for_hosts(plan, taken.path)
            code = launch.start(plan, RunConfig(directory, code_files, say, written=copy.push_journal))
    except TflaunchError as error:
        say(str(error))
        code = error.exit_code
    except BaseException:  # noqa: BLE001 - the only place that can report it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _require_kubectl() -> None:
    if shutil.which("kubectl") is None:
        message = "the launcher's image has no kubectl; name an image that has it as kubernetes.launcher_image"
        raise TflaunchError(message, EXIT_PREFLIGHT)


def _ordered(path: Path) -> Plan:
    """Return the plan that was ordered.

    Raises:
        TflaunchError: another version of tflaunch has made it.
    """
    order = wire.parse((path / ORDER_NAME).read_bytes(), max_values=1 << 24)
    if order["version"] != __version__:
        message = (
            f"the image of the launcher has tflaunch {__version__}, and the run was planned by {order['version']};"
            " use an image with that version as kubernetes.launcher_image"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)
    return serialize.from_json(order["plan"])


def _end_of(path: Path) -> int | None:
    """Return the exit code of a run, None if it has not ended."""
    if not (path / JOURNAL_NAME).exists():
        return None
    records, job = journal.read_job(path)
    if records[-1]["kind"] == "ended":
        return int(records[-1]["exit_code"])
    return job.exit_code if job.phase is Phase.ENDED else None


def _nothing() -> None:
    """Do nothing."""
