"""Runs supervised in Kubernetes: commands run there, or here after the run's end."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tflaunch.client.run_location import RunLocation
from tflaunch.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, SupervisedElsewhereError, TflaunchError
from tflaunch.features.kubernetes import cluster_runs
from tflaunch.features.kubernetes.cluster_runs import Executed, LauncherState, Whereabouts
from tflaunch.features.kubernetes.kubectl import KubectlError, KubernetesPlan

_THERE = ("ps", "logs", "attach", "wait", "down", "events", "explain", "stacks", "restart", "kill", "exec")
"""The commands that run beside the supervisor."""
_UNTIL_END = ("attach", "wait", "down")
"""Those of them that end with the run."""
_KILLED = 137
_BETWEEN_LOOKS = 1.0  # seconds
_SETTLE = 15.0  # seconds between the end of a run and that of its Job


def find_kubernetes_run(directory: Path) -> RunLocation | None:
    """Return the location of a run supervised in a cluster; None if it has come home."""
    cluster = cluster_runs.read_note(directory)
    return None if cluster is None else KubernetesRun(directory, cluster)


class KubernetesRun(RunLocation):
    """A run supervised in a cluster; until it has ended, only its spec is here."""

    has_supervisor_here = False
    has_files_here = False

    def __init__(self, directory: Path, cluster: KubernetesPlan) -> None:
        super().__init__(directory)
        self.cluster = cluster

    def is_live(self) -> bool:
        """Return True: until its files are here, it may have a supervisor."""
        return True

    def describe_run(self) -> dict[str, Any]:
        """Return the state that `ls` shows without asking Kubernetes."""
        return {"state": "elsewhere"}

    def stop_run(self, grace: float | None, say: Callable[[str], None], stop_begun: Callable[[], int]) -> int:
        """Stop it there; files that were brought home do not have to be stopped again."""
        arguments = ["down", self.directory.name, *([] if grace is None else [f"--timeout={grace:g}"])]
        return self.run_verb(arguments, say, lambda: 0)

    def run_verb(self, arguments: Sequence[str], say: Callable[[str], None], run_here: Callable[[], int]) -> int:
        """Run a command in its pod, or here once the ended run's files are here."""
        return _Command(self, list(arguments), say, run_here).run()


class _Command:
    """A command about a run, until it has run somewhere."""

    def __init__(
        self, run: KubernetesRun, arguments: list[str], say: Callable[[str], None], run_here: Callable[[], int]
    ) -> None:
        self._directory = run.directory
        self._cluster = run.cluster
        self._arguments = arguments
        self._verb = arguments[0]
        self._say = say
        self._run_here = run_here
        self._told = ""
        self._code: int | None = None
        self._settled_at = 0.0

    def run(self) -> int:
        while True:
            state = self._look()
            if state is None:
                pass  # Kubernetes does not answer at present
            elif state.where in (Whereabouts.KEPT, Whereabouts.OVER):
                return self._end_here(state)
            elif state.where is Whereabouts.DELETED:
                cluster_runs.remove_note(self._directory)
                name = self._directory.name
                message = f"the Job of run {name} was deleted, and with it all that the run had in the cluster"
                raise TflaunchError(message, EXIT_INTERNAL)
            elif self._verb not in _THERE:
                raise SupervisedElsewhereError(self._directory)
            elif state.where is Whereabouts.STARTING and self._verb == "down":
                return self._withdraw(f"stopped {self._directory.name}")
            elif state.where is Whereabouts.STARTING:
                self._tell(f"the launcher does not run: {state.reason}")
            elif self._code is None or time.monotonic() >= self._settled_at:
                done = self._execute(state.pod)
                if not done.failure and (self._verb not in _UNTIL_END or done.exit_code == EXIT_INTERRUPTED):
                    return done.exit_code
                self._note_end(done)
            time.sleep(_BETWEEN_LOOKS)

    def _execute(self, pod: str) -> Executed:
        """Run it in the supervisor's pod; what `exec` runs cannot be repeated."""
        is_exec = self._verb == "exec"
        done = cluster_runs.execute(self._cluster, pod, self._arguments, takes_input=is_exec)
        if is_exec and done.failure:
            raise TflaunchError(f"the launcher's pod has ended, or cannot be reached: {done.failure}", EXIT_INTERNAL)
        return done

    def _end_here(self, state: LauncherState) -> int:
        """Bring a run that has ended home, and return the exit code of the command."""
        if state.where is Whereabouts.OVER and self._verb == "down":
            return self._withdraw(f"deleted the Job of {self._directory.name}, which has ended")
        cluster_runs.bring_home(self._directory, self._cluster, state, self._say)
        if self._code is None:
            return self._run_here()
        # That of kubectl is not the run's: it can be 0 when its connection was lost.
        return self._code if self._verb == "down" or state.exit_code is None else state.exit_code

    def _look(self) -> LauncherState | None:
        """Return the supervisor's state; None if the command is to wait for Kubernetes."""
        try:
            state = cluster_runs.look_at(self._cluster, self._directory.name)
            if state.stuck:
                cluster_runs.delete_pod(self._cluster, state.stuck)
            return state
        except KubectlError as error:
            message = f"Kubernetes does not say where run {self._directory.name} is: {error}"
            if self._verb not in _UNTIL_END:
                raise TflaunchError(message, EXIT_INTERNAL) from None
            self._tell(f"{message}; still trying")
            return None

    def _note_end(self, done: Executed) -> None:
        """Note whether a command has ended with the run or with the supervisor's pod."""
        if done.failure or done.exit_code == _KILLED:
            self._code = None
            self._tell("the launcher's pod has ended, or cannot be reached; waiting for the next one")
            return
        self._code, self._settled_at = done.exit_code, time.monotonic() + _SETTLE

    def _tell(self, message: str) -> None:
        if message != self._told:
            self._say(message)
        self._told = message

    def _withdraw(self, done: str) -> int:
        """Delete the objects of an unsupervised run; its tasks get TERM from Kubernetes."""
        cluster_runs.delete(self._directory, self._cluster, self._say)
        cluster_runs.remove_note(self._directory)
        self._say(done)
        return 0
