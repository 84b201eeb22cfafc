"""Run the installed command as a user does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from support import waiting
from support.processes import command_of, processes_with, without_forks
from support.specs import TFLAUNCH
from tflaunch_worker.features import program_source

PATIENCE = waiting.PATIENCE
LONG = bool(os.environ.get("TFLAUNCH_TEST_LONG"))
"""Whether tests also run what repeats a promise that another run already checks; `make nightly` sets it."""
_CHOSEN = os.environ.get("TFLAUNCH_TEST_PRELOAD")
PRELOADED = None if _CHOSEN is None else [name for name in _CHOSEN.split(",") if name]
"""Modules to preload for every Python task: what the tests check must hold with preloading, too.

Without the variable, tasks start as they do by default; if it is empty, every one by itself. ``auto`` is the default
also where tests would share an import.
"""
SHARED = ["tensorflow"] if PRELOADED is None else PRELOADED
"""Modules to preload where a test checks what becomes of a training, not how its processes are created: importing
TensorFlow once for all of them takes a fraction of the time. `make nightly` runs these tests without.
"""
WARM = "10m"
"""How long a server with what was preloaded waits for a later test."""
WARM_DIRECTORY = "TFLAUNCH_WARM_DIR"
"""Variable with the directory of such servers."""


class Launch:
    """An environment for running tflaunch, with its own working directory and home."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "TFLAUNCH_HOME": str(self.home), "PATH": path}
        self.prefix: list[str] = []
        """Arguments that precede the command, to run it elsewhere."""
        self.preload = PRELOADED
        """Modules that `up` preloads where all commands are Python's; None for what the spec says."""
        self.limits: dict[str, float] = {}
        """Time limits of specs that set no others."""
        self.started: list[subprocess.Popen[str]] = []

    def spec(self, name: str = "job.json", **fields: Any) -> Path:
        path = self.directory / name
        if self.limits:
            fields["timeouts"] = {**self.limits, **fields.get("timeouts", {})}
        path.write_text(json.dumps(fields))
        return path

    def shell(self, script: str, workers: int = 2, **fields: Any) -> Path:
        return self.spec(**{"cluster": {"worker": workers}, "command": ["sh", "-c", script], **fields})

    def start(self, *arguments: object, until: str = "", count: int = 1, **options: Any) -> subprocess.Popen[str]:
        """Start `tflaunch ARGUMENTS`, and wait until its stdout contains ``until`` at least ``count`` times."""
        process = subprocess.Popen(
            [*self.prefix, str(TFLAUNCH), *self._preloading(list(map(str, arguments)))],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.started.append(process)
        if until:
            read_until(process, until, count)
        return process

    def install(self, program: str, script: str) -> None:
        """Have a script found before any other program of this name."""
        path = self.directory / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        self.env["PATH"] = f"{path.parent}:{self.env['PATH']}"

    def paste(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the shell into which it is pasted."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def run(self, *arguments: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run `tflaunch ARGUMENTS` and wait for its end, with this exit code if one is given."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        assert code in (None, process.returncode), err + out
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def succeed(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run(*arguments, code=0)

    def up(self, spec: Path, *arguments: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return self.run("up", spec, *arguments, code=code)

    def detach(self, *arguments: object) -> str:
        """Run `tflaunch up -d`, which must succeed, and return the run's name."""
        return self.succeed("up", "-d", *arguments).stdout.strip()

    def share_imports(self, servers: Path) -> None:
        """Let all runs share an import of TensorFlow, which servers in a directory keep."""
        self.preload = SHARED
        self.env[WARM_DIRECTORY] = str(servers)

    def run_directory(self) -> Path:
        (path,) = (self.home / "runs").iterdir()
        return path

    def log(self, task: str) -> str:
        return (self.run_directory() / "logs" / f"{task.replace(':', '-')}.log").read_text()

    def journal(self) -> list[dict[str, Any]]:
        text = (self.run_directory() / "events.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may not be complete

    def records(self, kind: str = "", **fields: object) -> list[dict[str, Any]]:
        """Return the journals' records of a kind with these fields; none while there is no run yet."""
        written = [path.read_text() for path in self.home.glob("runs/*/events.jsonl")]
        lines = [json.loads(line) for text in written for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if kind in ("", line["kind"]) and fields.items() <= line.items()]

    def survivors(self) -> list[psutil.Process]:
        """Return every process with this home in its environment, tasks included, but no server for later tests."""
        others = {os.getpid()}
        if WARM_DIRECTORY in self.env:
            from tflaunch_worker.features.preload import warm_client  # only the tests of a feature need it

            others.update(server["pid"] for server in warm_client.living_servers(self.env[WARM_DIRECTORY]).values())
        return [process for process in processes_with("TFLAUNCH_HOME", str(self.home)) if process.pid not in others]

    def end(self) -> None:
        """Kill the processes that a failed test left."""
        for process in self.survivors():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.started:
            started.kill()
            started.communicate()

    def status(self, *arguments: object) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.succeed("ps", "--json", *arguments).stdout)
        return loaded

    def kill_supervisor(self) -> None:
        """Kill the detached supervisor as the kernel's OOM killer would; no other command may be running."""
        found = self.supervisor()
        found.kill()
        found.wait(PATIENCE)

    def supervisor(self, without: subprocess.Popen[str] | None = None) -> psutil.Process:
        """Return the detached supervisor; no other command may be running, or only ``without``, which is left out."""
        others = [] if without is None else [without.pid]
        commands = [process for process in self.survivors() if _is_command(process) and process.pid not in others]
        (found,) = without_forks(commands)
        return found

    def _preloading(self, arguments: list[str]) -> list[str]:
        """Return arguments with which `up` preloads modules, if there are any and all commands are Python's."""
        path = Path(arguments[1]) if self.preload is not None and arguments[0] == "up" and len(arguments) > 1 else None
        if path is None or path.suffix != ".json" or not path.is_file():
            return arguments
        spec = json.loads(path.read_text())
        if "deadline" in spec.get("timeouts", {}):
            return arguments  # imports may take longer
        commands = [spec.get("command"), *(role.get("command") for role in spec.get("roles", {}).values())]
        if "--" in arguments or any(isinstance(words, str) or not _is_python(words) for words in commands if words):
            return arguments
        warm = ["--set", f"warm={WARM}"] if WARM_DIRECTORY in self.env and self.preload != ["auto"] else []
        return ["up", "--set", f"preload={json.dumps(self.preload)}", *warm, *arguments[1:]]

    def wait_for_log(self, task: str, words: str, count: int = 1, run: str = "") -> None:
        """Wait until the log of a task contains ``words`` ``count`` times, as `tflaunch logs -f` shows it."""
        following = self.start("logs", "-f", *filter(None, [run]), task)
        read_until(following, words, count)
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=PATIENCE)


@contextmanager
def clean_launch(directory: Path) -> Iterator[Launch]:
    """Run tflaunch in a directory, and check at the end that no process is left."""
    place = Launch(directory)
    try:
        yield place
        assert not (left := place.survivors()), f"left running: {left}"
    finally:
        place.end()


def _is_python(command: list[str]) -> bool:
    return not program_source.check_command(command)


def _is_command(process: psutil.Process) -> bool:
    """Return whether a process is a `tflaunch` of these tests; a task's `sleep` may just have ended."""
    return str(TFLAUNCH) in command_of(process)


def wait_for_end(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the end of a command, with this exit code; return the rest of its stdout and stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err + out
    return out, err


def read_errors_until(process: subprocess.Popen[str], words: str) -> str:
    """Read a running command's stderr until a line contains ``words``; return that line."""
    assert process.stderr is not None
    text = ""
    while words not in (line := process.stderr.readline()):
        text += line
        assert line, f"it ended after {text!r}"
    return line


def read_until(process: subprocess.Popen[str], words: str, count: int = 1) -> str:
    """Read a running command's stdout until it contains ``words`` at least ``count`` times."""
    assert process.stdout is not None
    text = ""
    while text.count(words) < count:
        line = process.stdout.readline()
        assert line, f"it ended after {text!r}: {process.stderr.read() if process.stderr else ''}"
        text += line
    return text
