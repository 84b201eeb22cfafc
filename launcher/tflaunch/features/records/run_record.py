"""Record the code, packages, interpreter and machine of a run.

No interpreter is started for it, and git only where the code is in a repository.
"""

import glob
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tflaunch import __version__, private_files
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.run_dir import PATCH_NAME, RECORD_NAME
from tflaunch_worker import linux, procfs
from tflaunch_worker.inspect import interpreter

MOST_PATCH = 16 * 1024 * 1024
"""Maximum bytes of a patch that is kept."""

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_GIT_PATIENCE = 30.0  # seconds for a command, on a slow disk
_END_PATIENCE = 5.0  # seconds at the end of a short run
_MOST_FILES = 1000
_MOST_HASHED = 16 * 1024 * 1024  # bytes of a file


class Recorder(Watcher):
    """Writes the record of a run in a thread of its own."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin while agents start: later, it would delay the first tasks."""
        about = (self.supervision.config.directory.path, self.job.original)
        self._thread = threading.Thread(target=write, args=about, daemon=True)
        self._thread.start()

    def finish(self, run: Run) -> None:
        """Wait until the record is written."""
        if self._thread is not None:
            self._thread.join(_END_PATIENCE)


def describe(plan: Plan) -> tuple[dict[str, Any], bytes]:
    """Return the record of a plan that runs now, and the patch of its code."""
    task = next((task for task in plan.processes() if plan.host(task.host).is_like_here), None)
    code, patch = _code(plan, task)
    return {"tflaunch": __version__, **_python(task), "code": code, "machine": _machine()}, patch


def write(path: Path, plan: Plan) -> None:
    """Write the record of a plan into a run's directory."""
    about, patch = describe(plan)
    with suppress(OSError):  # `tflaunch diff` says that the run has no record
        if patch:
            private_files.write_text(path / PATCH_NAME, patch.decode("utf-8", "surrogateescape"))
        private_files.write_text(path / RECORD_NAME, json.dumps(about, indent=2) + "\n")


# ---- packages and machine


def _python(task: TaskPlan | None) -> dict[str, Any]:
    """Return interpreter and packages of a task on this machine."""
    env = {**os.environ, **(task.env if task is not None else {})}
    python = None if task is None else interpreter.find_python(task.argv[0], env)
    if python is None:
        return {"python": "", "interpreter": "", "packages": {}}
    return {"python": _version(python), "interpreter": python, "packages": _find_packages(python, env)}


def _find_packages(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the packages that an interpreter would import."""
    packages = {}
    for directory in reversed(interpreter.package_directories(python, env)):  # of two, the first is imported
        for path in glob.glob(os.path.join(glob.escape(directory), "*-*.dist-info")):
            name, _, version = os.path.basename(path).removesuffix(".dist-info").partition("-")
            packages[name.lower().replace("_", "-").replace(".", "-")] = version
    return packages


def _version(python: str) -> str:
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return platform.python_version()
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    settings = interpreter.environment_settings(prefix) or {}
    version = settings.get("version", "")
    return version or interpreter.directory_name(python, settings)[len("python") :].rstrip("*")


def _machine() -> dict[str, Any]:
    paths = sorted(glob.glob(f"{linux.NVIDIA_GPUS}/*/information"))
    models = [model for path in paths for model in _values_in(path, "Model:")]
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": next(iter(_values_in("/proc/cpuinfo", "model name")), ""),
        "cores": procfs.usable_cores(),
        "memory": procfs.memory().get("total"),
        "gpus": linux.count_gpus(),
        **({"gpu_models": models} if models else {}),
    }


def _values_in(path: str, name: str) -> list[str]:
    lines = (procfs.read(path) or "").splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


# ---- code


def _code(plan: Plan, task: TaskPlan | None) -> tuple[dict[str, Any], bytes]:
    place = plan.sync.directory if plan.sync is not None else None if task is None else task.workdir
    directory = Path(place or ".").absolute()
    programs = {} if task is None else _programs(plan, directory)
    repository = next((each for each in (directory, *directory.parents) if (each / ".git").exists()), None)
    if repository is None:
        return {"directory": str(directory), "programs": programs}, b""
    commit = _git(repository, "rev-parse", "--verify", "HEAD").decode("ascii", "replace").strip()
    without_secrets = ("--", ".", *_secret_files(plan, repository))
    how = ("--binary", "--no-ext-diff", "--no-textconv")
    patch = _git(repository, "diff", *how, commit, *without_secrets) if commit else b""
    others = _git(repository, "ls-files", "-z", "--others", "--exclude-standard", *without_secrets).split(b"\0")[:-1]
    about = {
        "directory": str(repository),
        "commit": commit,
        "patch": hashlib.sha256(patch).hexdigest() if patch else "",
        "untracked": {
            os.fsdecode(name): _hash(repository / os.fsdecode(name)) for name in sorted(others)[:_MOST_FILES]
        },
        "programs": programs,
    }
    return about, patch if len(patch) <= MOST_PATCH else b""


def _secret_files(plan: Plan, repository: Path) -> list[str]:
    paths = [Path(source.file).expanduser() for source in plan.secrets.values() if source.file is not None]
    inside = [path for path in paths if path.is_relative_to(repository)]
    return [f":(exclude,literal){path.relative_to(repository)}" for path in inside]


def _programs(plan: Plan, directory: Path) -> dict[str, str]:
    words = dict.fromkeys(word for process in plan.processes() for word in process.argv[1:] if len(word) < _MOST_FILES)
    return {word: digest for word in words if "\n" not in word and (digest := _hash(directory / word))}


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file, its size if it is large, else ""."""
    try:
        if not path.is_file():
            return ""
        size = path.stat().st_size
        return f"{size} bytes" if size > _MOST_HASHED else hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


def _git(directory: Path, *arguments: str) -> bytes:
    """Return the output of a read-only command of git, empty if it fails."""
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [*_GIT, "-C", str(directory), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout
