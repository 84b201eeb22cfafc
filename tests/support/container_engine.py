"""A Docker engine for tests, a Debian base image, and the project's own image.

The engine that responds on this machine is used, if there is one. Otherwise root gets a private one, whose images are
kept below ~/.cache/tflaunch-tests: debootstrap and TensorFlow take minutes. It does not change the machine's firewall,
unless that forwards nothing, which an earlier engine may have caused.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.needs import need, program
from support.specs import REPOSITORY
from support.sshd import DIE_WITH_US
from support.waiting import PATIENCE, wait_until

IMAGE = "tflaunch-tests"
_BUILD_PATIENCE = 900
_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,openssh-server"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tflaunch-tests"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class Engine:
    def __init__(self, host: str | None = None) -> None:
        """Use the engine at an address, or the one that the environment names."""
        own = {} if host is None else {"DOCKER_HOST": host}
        # The builder that every engine has: BuildKit is a plug-in.
        self.env = {**os.environ, **own, "DOCKER_BUILDKIT": "0"}

    def docker(self, *arguments: str | Path, timeout: float = PATIENCE, may_fail: bool = False) -> str:
        """Run `docker ARGUMENTS`, which must succeed unless ``may_fail``, and return its output."""
        ended = subprocess.run(
            ["docker", *arguments], env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert may_fail or ended.returncode == 0, f"docker {arguments}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        return ended.stdout.strip()

    def has(self, kind: str, name: str) -> bool:
        command = ["docker", kind, "inspect", name]
        return subprocess.run(command, env=self.env, capture_output=True, check=False).returncode == 0

    def address(self, container: str) -> str:
        return self.docker("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container)


@contextmanager
def an_engine() -> Iterator[Engine]:
    """An engine with the project's image."""
    need("docker")
    with _answering_engine() as engine:
        _build(engine)
        yield engine


@contextmanager
def _answering_engine() -> Iterator[Engine]:
    running = Engine()
    if subprocess.run(["docker", "info"], env=running.env, capture_output=True, check=False).returncode == 0:
        yield running
        return
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # only one engine at a time can use its images
        directory = Path(tempfile.mkdtemp(prefix="tfl-docker-"))  # short: a socket path is limited to 107 bytes
        try:
            with _own_engine(directory) as engine:
                _tidy(engine)  # a killed test run may have left something
                yield engine
                _tidy(engine)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _own_engine(directory: Path) -> Iterator[Engine]:
    if " cgroup" not in Path("/proc/mounts").read_text():
        subprocess.run(["cgroupfs-mount"], check=True)
    host = f"unix://{directory}/docker.sock"
    data, run, pid = (str(path) for path in (_CACHE / "docker", directory / "run", directory / "pid"))
    places = ["--data-root", data, "--exec-root", run, "--pidfile", pid]
    network = ["--bridge=none", f"--iptables={_forwards_nothing()}".lower(), "--ip-forward=false"]
    log = directory / "log"
    # TERM rather than KILL if these tests die, so that it stops its containers. Its mounts are private and end with it.
    start = [*DIE_WITH_US[:-1], "TERM", "unshare", "--mount"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*start, program("dockerd"), "--host", host, *places, *network],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        _wait_for_engine(process, log)
        yield Engine(host)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _forwards_nothing() -> bool:
    rules = subprocess.run(["iptables", "-S", "FORWARD"], capture_output=True, text=True, check=False).stdout
    return "-P FORWARD DROP" in rules


def _wait_for_engine(process: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        said = log.read_text(errors="replace")
        assert process.poll() is None, f"dockerd ended: {said[-2000:]}"
        return "API listen on" in said

    wait_until(listens, otherwise="dockerd does not listen")


def _tidy(engine: Engine) -> None:
    """Remove everything but the images worth keeping."""
    if containers := engine.docker("ps", "--all", "--quiet").split():
        engine.docker("rm", "--force", "--volumes", *containers)
    for kind in ("network", "volume", "image"):
        engine.docker(kind, "prune", "--force")


def _build(engine: Engine) -> None:
    """Build the project's image as its own Compose file would, but from a base image that need not be pulled."""
    given = ["--build-arg", f"BASE={_base(engine)}", "--file", str(REPOSITORY / "docker/Dockerfile")]
    engine.docker("build", "--quiet", "--network", "host", *given, "--tag", IMAGE, REPOSITORY, timeout=_BUILD_PATIENCE)
    os.sync()  # otherwise the first test waits for gigabytes to be written


def _base(engine: Engine) -> str:
    """Return the name of an image with Debian, Python, sshd, and the certificates that this machine trusts."""
    certificates = _CERTIFICATES.read_bytes()
    name = f"{IMAGE}-base:{_SUITE}-{hashlib.sha256(certificates + _PACKAGES.encode()).hexdigest()[:12]}"
    if engine.has("image", name):
        return name
    with tempfile.TemporaryDirectory(prefix="tfl-debian-") as directory:
        root = Path(directory, "root")
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_PATIENCE, check=False)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
        place = root / _CERTIFICATES.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(certificates)
        archive = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        change = f"ENV PIP_CERT={_CERTIFICATES} PIP_DISABLE_PIP_VERSION_CHECK=1"
        subprocess.run(
            ["docker", "import", "--change", change, "-", name], env=engine.env, stdin=archive.stdout,
            capture_output=True, timeout=_BUILD_PATIENCE, check=True,
        )  # fmt: skip
        assert archive.wait(PATIENCE) == 0
    return name
