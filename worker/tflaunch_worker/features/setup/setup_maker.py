"""Make a setup in a process of its own: find it on this host, or run its commands.

They run in the directory of a build, which has a link to each entry of the code, but `.venv`: relative paths mean the
same as in the code, and what they make stays outside of it. The links go when the build is whole, as the code is that
of one run only. What was installed from there as editable is found in the code of each run (PYTHONPATH).
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import Any, Iterator, NamedTuple

from tflaunch_worker import file_trees, linux, process_ends, spawn
from tflaunch_worker.features.file_parts import hash_file, reason_of, unlink_if_there
from tflaunch_worker.features.setup import kept_setup
from tflaunch_worker.process_state import TaskSettings
from tflaunch_worker.readable import duration_words, printable

_ENVIRONMENT = ".venv"
_NOT_FOR_SETUPS = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME")
"""Variables that would lead installers out of the build, or have them find packages outside of it."""
_FOR_SETUPS = {"PIP_REQUIRE_VIRTUALENV": "1", "POETRY_VIRTUALENVS_IN_PROJECT": "true", "TFLAUNCH_TASK": ".setup"}
_WAIT = 0.1  # seconds between looks at the lock
_DIES_WITHIN = 5.0  # seconds
_PYTHON_ANSWERS = 60.0  # seconds
_MOST_LINES, _LONGEST_LINE, _MOST_TAIL = 5, 300, 16384
_LONGEST_COMMAND = 100
_ASK_VERSION = ("-S", "-E", "-c", "import sys; print(sys.version)")


class Order(NamedTuple):
    """A setup to make; ``command``: interpreter and commands; ``files``: paths."""

    command: spawn.Command
    files: tuple[str, ...]
    limit: float


class _SetupError(Exception):
    """Raised with a sentence if it cannot be made; ``log``: the file with the output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def make(order: Order, home: str, settings: TaskSettings) -> dict[str, Any]:
    """Return where a setup is, once this host has it, or why it cannot have it."""
    result = {"problem": "", "lines": [], "log": "", "first": {}, "key": "", "build": ""}
    until = time.monotonic() + order.limit
    place = home
    try:
        key = _key_of(order)
        place = os.path.join(home, kept_setup.PLACE, key)
        build = _find_or_make(order, place, settings, until)
        kept_setup.forget_old(home)
        first = _first_for_tasks(os.path.join(place, build), order.command.workdir)
    except _SetupError as error:
        lines = _last_lines(os.path.join(place, kept_setup.LOG))
        return {**result, "problem": str(error), "lines": lines, "log": error.log}
    except OSError as error:
        return {**result, "problem": reason_of(error, place)}
    return {**result, "first": first, "key": key, "build": build}


# ---- which one


def _key_of(order: Order) -> str:
    """Return the name of the setup: a hash of all that it depends on."""
    command = order.command
    python = spawn.find_program(command)
    hashes = {path: _hash_of(os.path.join(command.workdir, path)) for path in sorted(_files_of(order))}
    version = ""
    if python:
        with suppress(subprocess.SubprocessError):
            version = subprocess.check_output([python, *_ASK_VERSION], timeout=_PYTHON_ANSWERS).decode()
    facts = [command.argv[1:], hashes, python, version, os.uname().machine]
    import hashlib

    return hashlib.sha256(json.dumps(facts).encode("ascii")).hexdigest()


def _hash_of(path: str) -> str:
    with open(path, "rb") as file:
        return hash_file(file)[1]


def _files_of(order: Order) -> Iterator[str]:
    """Yield the files of a setup: the given ones and those that its commands name."""
    workdir = order.command.workdir
    for path in order.files:
        if not os.path.isfile(os.path.join(workdir, path)):
            raise _SetupError(f"`setup_files`: {path} is no file in {workdir}")
        yield path
    for text in order.command.argv[1:]:
        for word in re.split(r"[\s='\"]+", text):
            if word and not word.startswith(("/", "-")) and os.path.isfile(os.path.join(workdir, word)):
                yield word


# ---- making it


def _find_or_make(order: Order, place: str, settings: TaskSettings, until: float) -> str:
    """Return the name of the whole build, made here unless another process makes it."""
    while True:
        os.makedirs(place, mode=0o700, exist_ok=True)
        build = kept_setup.marked(place)
        if build:
            return build
        try:
            lock = kept_setup.open_lock(place)
        except FileNotFoundError:
            continue  # it has just been removed
        try:
            while (is_taken := kept_setup.take(lock, place)) is False and not kept_setup.marked(place):
                if time.monotonic() >= until or signal.sigtimedwait((signal.SIGTERM,), _WAIT):
                    raise _SetupError(f"another run has been making the same for {duration_words(order.limit)}")
            if is_taken and not kept_setup.marked(place):
                return _build(order, place, settings, until)
        finally:
            os.close(lock)


def _build(order: Order, place: str, settings: TaskSettings, until: float) -> str:
    """Run the commands in a new directory, and mark it; the lock is held."""
    for name in os.listdir(place):
        if name.startswith(kept_setup.BUILD):
            file_trees.remove_tree(os.path.join(place, name))
    build = kept_setup.BUILD + os.urandom(8).hex()
    work, code = os.path.join(place, build), order.command.workdir
    os.mkdir(work, 0o700)
    for name in os.listdir(code):
        if name != _ENVIRONMENT:
            os.symlink(os.path.join(code, name), os.path.join(work, name))
    env = {name: value for name, value in order.command.env.items() if name not in _NOT_FOR_SETUPS}
    env.update(_FOR_SETUPS, PWD=work)
    unlink_if_there(os.path.join(place, kept_setup.LOG))
    log = os.open(os.path.join(place, kept_setup.LOG), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for text in order.command.argv[1:]:
            os.write(log, f"$ {text}\n".encode("utf-8", "surrogateescape"))
            command = spawn.Command(["/bin/sh", "-c", _with_python(text, order.command.argv[0])], env, work)
            command.secrets = order.command.secrets
            _require_success(text, _run(command, settings, log, until, order), os.path.join(place, kept_setup.LOG))
        for name in os.listdir(work):
            path = os.path.join(work, name)
            if os.path.islink(path) and os.readlink(path) == os.path.join(code, name):
                os.unlink(path)
        linux.c_function("syncfs")(log)  # so that the mark is not all that is left when the power goes
        kept_setup.mark(place, build)
    except BaseException:
        file_trees.remove_tree(work)
        raise
    finally:
        os.close(log)
    return build


def _with_python(text: str, python: str) -> str:
    """Return a command; `python`, as its first word, becomes this host's interpreter."""
    return re.sub(r"^python3?(?=\s|$)", lambda _: shlex.quote(python), text) if "/" in python else text


def _require_success(text: str, failure: str, log: str) -> None:
    if failure:
        raise _SetupError(f"`{printable(text, _LONGEST_COMMAND)}` {failure}", log)


def _run(command: spawn.Command, settings: TaskSettings, log: int, until: float, order: Order) -> str:
    """Run one command until no process of it is left; return how it has failed, or ""."""
    agent = os.getppid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    pid, report = spawn.fork_program(command, settings, (nothing, log, log))
    os.close(nothing)
    status = None
    while status is None and os.getppid() == agent and (left := until - time.monotonic()) > 0:
        died, answer = os.waitpid(-1, os.WNOHANG)
        if died == pid:
            status = answer
        elif not died:
            signal.sigtimedwait((signal.SIGCHLD, signal.SIGTERM), min(left, _DIES_WITHIN))
    process_ends.kill_below(patience=_DIES_WITHIN)
    failure = spawn.describe_start_failure(os.read(report, 100) if status is not None else b"", command)
    os.close(report)
    if failure is not None:
        return f"did not start: {failure[1]}"
    if status is None:
        late = f"did not end within {duration_words(order.limit)} (timeouts.setup)"
        return late if os.getppid() == agent else "was ended with its run"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"failed with exit code {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""


def _last_lines(path: str) -> list[str]:
    """Return the last lines of a log, without empty ones."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _MOST_TAIL, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [printable(line, _LONGEST_LINE) for line in lines if line.strip()][-_MOST_LINES:]


# ---- what tasks get of it


def _first_for_tasks(work: str, code: str) -> dict[str, list[str]]:
    """Return what comes first in tasks' variables: programs, and editable installs."""
    environment = os.path.join(work, _ENVIRONMENT)
    programs = os.path.join(environment, "bin")
    if not os.path.isdir(programs):
        return {}
    paths: dict[str, None] = {}
    packages = os.path.join(environment, "lib", "python*", "site-packages")
    for name in ("*.pth", "__editable__*.py"):  # a list of directories, and a module that finds packages
        for path in sorted(glob.glob(os.path.join(packages, name))):
            with open(path, encoding="utf-8", errors="replace") as file:
                found = re.findall(re.escape(work) + r"(?=[/'\"\n]|$)([^'\"\n]*)", file.read())
            paths.update(dict.fromkeys(code + (each if name == "*.pth" else os.path.dirname(each)) for each in found))
    return {"PATH": [programs], **({"PYTHONPATH": list(paths)} if paths else {})}
