"""The project's docker-compose.yml, started with a job of the test."""

import json
import subprocess
from pathlib import Path
from typing import Any

from support.container_engine import IMAGE, Engine
from support.specs import REPOSITORY
from support.waiting import PATIENCE

_FORGET = ("down", "--volumes", "--timeout", "0", "--remove-orphans")


class Compose:
    """A separate Compose project: containers, network, volumes, and the directory mounted as /job in the launcher."""

    def __init__(self, engine: Engine, name: str, job: Path, file: Path = REPOSITORY / "docker-compose.yml") -> None:
        """Start nothing yet.

        Args:
            engine: runs the project.
            name: name of the project.
            job: a directory, created if missing.
            file: the Compose file.
        """
        self.engine = engine
        self.job = job
        self.job.mkdir(exist_ok=True)
        self.job.chmod(0o755)  # the launcher runs as another user
        self.env = {**engine.env, "JOB": str(job), "TFLAUNCH_IMAGE": IMAGE, "IMAGE": IMAGE}
        self._label = f"label=com.docker.compose.project={name}"
        self._command = ["docker-compose", "--ansi", "never", "--project-name", name, "--file", str(file)]
        self._name = name
        self._started: list[subprocess.Popen[str]] = []

    def spec(self, name: str, **fields: Any) -> str:
        """Write a spec for the launcher, and return its path in the launcher's container."""
        (self.job / name).write_text(json.dumps(fields))
        return name

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `docker-compose ARGUMENTS`, with stderr redirected to stdout."""
        process = subprocess.Popen(
            [*self._command, *arguments],
            cwd=REPOSITORY,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out)

    def launch(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `tflaunch ARGUMENTS` in a container of its own, beside workers that outlive it."""
        return self.start("run", "--rm", "-T", "launcher", "tflaunch", *arguments)

    def containers(self, service: str) -> list[str]:
        """Return the containers of a service, in the order of their addresses."""
        found = self.engine.docker("ps", "--quiet", "--filter", self._label, "--filter", self._service(service)).split()
        return sorted(found, key=lambda one: tuple(map(int, self.engine.address(one).split("."))))

    def _service(self, name: str) -> str:
        return f"label=com.docker.compose.service={name}"

    def running(self) -> list[str]:
        return self.engine.docker("ps", "--filter", self._label, "--format", "{{.Names}}").split()

    @property
    def network(self) -> str:
        return f"{self._name}_default"

    def end(self) -> None:
        # Containers first: a client attached to one runs, and holds our pipe, as long as the container does.
        if left := self.engine.docker("ps", "--all", "--quiet", "--filter", self._label).split():
            self.engine.docker("rm", "--force", *left)
        for process in self._started:
            process.kill()
            process.communicate()
        self.run("--profile", "parameter-server", *_FORGET)
