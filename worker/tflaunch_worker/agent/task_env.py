"""Compose a task's command and its environment, from the lowest layer up.

1. What the task inherits: the environment of the agent, or a bare one (`host_vars`).
2. The variables of the plan (`tflaunch.plan.task_env`), with values that only the host knows.
3. What it must not inherit is removed, secrets too, which the process gets by itself (`spawn`).
4. TF_CONFIG, the task's directory and pipe, the variables of features, our modules at the end of PYTHONPATH, the Keras
   that is installed here.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any

from tflaunch_worker import CODE_NAME, host_vars, procfs, spawn, tf_config
from tflaunch_worker.feature import features
from tflaunch_worker.inspect import interpreter

# Variables by which a plan refers to paths and values that only the host knows.
_SERVER = "TFLAUNCH_SERVER"
_CODE = "TFLAUNCH_CODE"
_CORES = "TFLAUNCH_CORES"

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class TaskEnvironments:
    """Environments of this host's tasks; ``cluster``: role to addresses on all hosts."""

    def __init__(self, directory: str) -> None:
        """Compose them for the agent with this directory, from its own environment."""
        self.cluster: dict[str, list[str]] = {}
        self._directory = directory
        self._environ = dict(os.environ)
        self._inherited = host_vars.inherited(self._environ)
        self._library = _library()
        self._packages: dict[tuple[str, ...], tuple[str, bool, str]] = {}

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        """The values that a plan may refer to on this host."""
        return {
            **self._environ,
            _SERVER: os.path.join(_PACKAGE, "training", "server.py"),
            _CODE: os.path.join(self._directory, CODE_NAME),
            _CORES: str(procfs.usable_cores()),
        }

    def expand_path(self, path: str) -> str:
        """Return a path with this host's values; raise `UnknownValueError` without one."""
        return host_vars.expand_path(path, self._known)

    def command(self, message: dict[str, Any], directory: str, progress: str) -> spawn.Command:
        """Return the command of a ``start_task`` order, for the task's own directory.

        ``progress``: the path of the attempt's pipe for progress, "" for none. Raises `UnknownValueError` for a value
        that the host does not have, or an unknown secret.
        """
        known = self._known
        env = dict(self._inherited) if message["inherit"] else host_vars.bare_environment(sys.executable)
        env.update({variable: host_vars.expand(value, known) for variable, value in message["env"].items()})
        secrets = _known_secrets(message.get("secrets") or {})
        for variable in (*message["unset"], *secrets):
            env.pop(variable, None)
        if message.get("tf_config") is not None:
            env[tf_config.NAME] = tf_config.compose(self.cluster, **message["tf_config"])
        env["TFLAUNCH_TASK_DIR"] = directory
        env["TFLAUNCH_PROGRESS"] = progress
        for variable, directories in (message.get("first") or {}).items():
            env[variable] = ":".join(filter(None, [*directories, env.get(variable, "")]))
        library = [self._library] if self._library else []  # where tflaunch is installed, tasks find it there
        for feature, declared in features().items():
            for name, variable in declared.variables.items():
                if name not in message["unset"] and not env.get(name):
                    env[name] = variable.value
                if env.get(name) == variable.value:
                    library.append(os.path.join(_PACKAGE, "features", feature, variable.modules))
        _append_to_path(env, library)
        program, *arguments = message["argv"]
        argv = [host_vars.expand_path(program, known), *(host_vars.expand(word, known) for word in arguments)]
        tensorflow = self._choose_keras(argv, env)
        if not host_vars.has_proxy(env):
            env.pop("grpc_proxy", None)
        workdir = host_vars.expand_path(message["workdir"], known)
        if "PWD" not in message["env"]:
            env["PWD"] = workdir
        modules = tuple(str(module) for module in message.get("preload", ()))
        command = spawn.Command(argv, env, workdir, modules)
        command.secrets = secrets
        command.search = message.get("search")
        command.warm = message.get("warm")
        command.unforked = message.get("unforked") or ""
        command.stop_signal = message.get("stop_signal") or signal.SIGTERM
        command.facts = {"tensorflow": tensorflow}  # what may differ silently between hosts
        return command

    def _choose_keras(self, argv: list[str], env: dict[str, str]) -> str:
        """Choose tf_keras if the plan leaves that open; return the installed TensorFlow."""
        about = (argv[0], *(env.get(name, "") for name in interpreter.LOOKED_AT))
        if about not in self._packages:
            self._packages[about] = interpreter.tensorflow(argv, env), *interpreter.legacy_keras(argv, env)
        tensorflow, is_legacy, reason = self._packages[about]
        if env.get(interpreter.CHOICE) == interpreter.LEFT_TO_THE_HOST:
            env["TF_USE_LEGACY_KERAS"], env[interpreter.CHOICE] = "1" if is_legacy else "0", reason
        return tensorflow


def _known_secrets(secrets: dict[str, str | None]) -> dict[str, str]:
    known = {name: value for name, value in secrets.items() if value is not None}
    if len(known) < len(secrets):
        missing = ", ".join(sorted(secrets.keys() - known.keys()))
        raise host_vars.UnknownValueError(f"secrets could not be read when the run was resumed: {missing}")
    return known


def _append_to_path(env: dict[str, str], directories: list[str]) -> None:
    """Let a task import from these directories, after all others of its PYTHONPATH."""
    known = [place for place in env.get("PYTHONPATH", "").split(":") if place]
    added = [place for place in directories if place not in known]
    if added:
        env["PYTHONPATH"] = ":".join(filter(None, [env.get("PYTHONPATH", ""), *added]))


def _library() -> str:
    """Return the directory of `tflaunch_worker.training` for tasks; "" if installed."""
    is_installed = os.path.exists(os.path.join(_PACKAGE, "boot.py"))  # which is not in an archive
    return "" if is_installed else os.path.dirname(_PACKAGE)
