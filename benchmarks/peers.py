"""The launchers in the comparison: where each is installed, and its command to run N tasks."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PYPI = {"honcho": "honcho==2.0.0", "supervisord": "supervisor==4.3.0", "torchrun": "torch==2.13.0"}
"""The package that provides each program."""
APT = "apt-get install --no-install-recommends {}"
POPEN = "bare Popen + wait"
SHELL = "shell script, `&` and `wait`"
TFLAUNCH = "tflaunch up"
PARALLEL = "GNU parallel"
HONCHO = "honcho"
TORCHRUN = "torchrun"


class Job(NamedTuple):
    """The work for a launcher: run `command` `tasks` times, with its files in `directory`."""

    tasks: int
    command: tuple[str, ...]
    directory: Path
    options: tuple[str, ...] = ()
    """Additional command-line options."""


class Launcher(NamedTuple):
    """One row of the tables; `program` is empty if it is not installed."""

    name: str
    program: str
    source: str
    """The command that installs it."""
    build: Callable[[str, Job], list[str]]

    def argv(self, job: Job) -> list[str]:
        """Return the command for a job. Its files are written before the clock starts."""
        return self.build(self.program, job)

    @property
    def remedy(self) -> str:
        """The note to show if it is not installed."""
        return f"not installed: `{self.source}`"


def launchers(venv: Path) -> dict[str, Launcher]:
    """Return all launchers by name."""

    def from_pypi(name: str, build: Callable[[str, Job], list[str]]) -> Launcher:
        return Launcher(name, find(name, venv), f"pip install {PYPI[name]}", build)

    rows = [
        Launcher(POPEN, sys.executable, "", _popen),
        Launcher(SHELL, "/bin/sh", "", _shell),
        Launcher("mpirun", find("mpirun"), APT.format("openmpi-bin"), _mpirun),
        Launcher(TFLAUNCH, tflaunch(), "", _tflaunch),
        from_pypi("supervisord", _supervisord),
        from_pypi(HONCHO, _honcho),
        Launcher(PARALLEL, find("parallel"), APT.format("parallel"), _parallel),
        from_pypi(TORCHRUN, _torchrun),
    ]
    return {row.name: row for row in rows}


def install(venv: Path) -> None:
    """Install missing packages into the peers' own virtual environment, apart from tflaunch's packages."""
    missing = [package for program, package in PYPI.items() if not (venv / "bin" / program).exists()]
    if not missing:
        return
    try:
        if not (venv / "bin" / "pip").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", *missing], check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{', '.join(missing)} could not be installed in {venv}: see above") from error


def versions(venv: Path) -> dict[str, str]:
    """Return the versions of the installed launchers."""
    distributions = [
        path.name.removesuffix(".dist-info") for path in venv.glob("lib/python*/site-packages/*.dist-info")
    ]
    wanted = {package.partition("==")[0] for package in PYPI.values()}
    found = dict(sorted(name.split("-", 1) for name in distributions if name.partition("-")[0] in wanted))
    for name, command in {"Open MPI": "mpirun", PARALLEL: "parallel"}.items():
        if program := find(command):
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            if match := re.search(r"\d[\w.]+", said):
                found[name] = match[0]
    return found


def find(program: str, venv: Path | None = None) -> str:
    """Return a program's absolute path, "" if there is none. PATH is not searched if a venv is given."""
    found = shutil.which(program, path=str(venv / "bin")) if venv else shutil.which(program)
    return str(Path(found).absolute()) if found else ""


def tflaunch() -> str:
    """Return the tflaunch next to this interpreter, because PATH may have an older one."""
    program = Path(sys.executable).with_name("tflaunch")
    if not program.exists():
        raise SystemExit(f"no {program}: install tflaunch for this Python (`make benchmark` does)")
    return str(program)


# The command line of each launcher.


def _popen(program: str, job: Job) -> list[str]:
    code = (
        "import subprocess\n"
        f"tasks = [subprocess.Popen({job.command!r}) for _ in range({job.tasks})]\n"
        "for task in tasks: task.wait()"
    )
    return [program, "-c", code]


def _shell(program: str, job: Job) -> list[str]:
    script = job.directory / "start.sh"
    script.write_text(f"{shlex.join(job.command)} &\n" * job.tasks + "wait\n")
    return [program, str(script)]


def _tflaunch(program: str, job: Job, **fields: object) -> list[str]:
    spec = job.directory / "job.json"
    # Without restarts, like all the peers.
    document = {"cluster": {"worker": job.tasks}, "command": job.command, "restart": {"max": 0}, **fields}
    spec.write_text(json.dumps(document))
    return [program, "up", *job.options, str(spec)]


def _honcho(program: str, job: Job) -> list[str]:
    procfile = job.directory / "Procfile"
    procfile.write_text("".join(f"task{i}: {shlex.join(job.command)}\n" for i in range(job.tasks)))
    return [program, "--no-colour", "-f", str(procfile), "-e", os.devnull, "start"]


def _mpirun(program: str, job: Job) -> list[str]:
    return [program, "--allow-run-as-root", "--oversubscribe", *job.options, "-np", str(job.tasks), *job.command]


def _parallel(program: str, job: Job) -> list[str]:
    numbers = [str(i) for i in range(job.tasks)]
    return [program, "--will-cite", f"-j{job.tasks}", "-N0", *job.options, shlex.join(job.command), ":::", *numbers]


def _torchrun(program: str, job: Job) -> list[str]:
    return torchrun(program, job.tasks, job.command, *job.options)


def torchrun(program: str, tasks: int, command: tuple[str, ...], *options: str) -> list[str]:
    """Return the command line of torchrun with its static rendezvous."""
    # The static rendezvous is torchrun's fastest: --standalone takes 0.2 s longer.
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return [program, "--no-python", *where, *options, "--nproc-per-node", str(tasks), *command]


_SUPERVISORD = """\
[unix_http_server]
file={directory}/s.sock
[supervisord]
nodaemon=true
logfile={directory}/supervisord.log
pidfile={directory}/supervisord.pid
minfds=200
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
_SUPERVISED = """\
[program:task{index}]
command={command}
autorestart=false
startsecs=0
stdout_logfile=NONE
stderr_logfile=NONE
"""


def _supervisord(program: str, job: Job) -> list[str]:
    conf = job.directory / "supervisord.conf"
    command = shlex.join(job.command)
    tasks = (_SUPERVISED.format(index=i, command=command) for i in range(job.tasks))
    conf.write_text(_SUPERVISORD.format(directory=job.directory) + "".join(tasks))
    return [program, "-c", str(conf)]
