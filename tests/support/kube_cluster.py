"""A Kubernetes of the tests' own: one node, in namespaces of its own on this machine.

It is 1.20, the newest version that can be built from packages of Debian. That takes 8 minutes on two cores, once: the
programs and images are kept below ~/.cache/tflaunch-tests. The cluster itself is new each time, and starts in half a
minute.
"""

import fcntl
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from typing_extensions import Self

from support.kube.launcher_image import make_launcher_image
from support.launch import LONG
from support.needs import lack, need
from support.sshd import DIE_WITH_US
from support.waiting import PATIENCE, wait_until

IMAGE = "lab/python:1"
LAUNCHER_IMAGE = "lab/tflaunch:1"
_HERE = Path(__file__).parent / "kube"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tflaunch-tests" / "kube"
_BUILT = ("bin/.done", "images/pause.tar", "images/python.tar")
_BUILD_PATIENCE = 3600
_PORT = 16443
_LOGIND = "org.freedesktop.login1.Manager"
_GROUPS = "tflaunch-kube"
_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")


def need_kubernetes() -> None:
    """Require what the cluster is made of: built before, or built now in the tests of a night."""
    need("kubernetes")
    if all((_CACHE / name).exists() for name in _BUILT):
        return
    if not LONG:
        lack("kubernetes", "TFLAUNCH_TEST_LONG=1 make test-kubernetes, which builds it once, in some 10 minutes")
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "build.log").open("wb") as log:
        command = ["bash", str(_HERE / "build.sh"), str(_CACHE)]
        done = subprocess.run(command, stdout=log, stderr=log, timeout=_BUILD_PATIENCE, check=False)
    if done.returncode != 0:
        lack("kubernetes", f"see {_CACHE / 'build.log'}")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for the clusters of other test runs on this machine: their addresses are the same."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Kube:
    def __init__(self, directory: Path) -> None:
        """Prepare it; `with` starts it. ``directory`` is for its state."""
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []
        config = directory / "pki" / "admin.conf"
        self.env = {"KUBECONFIG": str(config), "PATH": f"{_CACHE / 'bin'}:{os.environ['PATH']}"}

    def __enter__(self) -> Self:
        (self._directory / "log").mkdir(parents=True)
        (self._directory / "images").mkdir()
        make_launcher_image(_CACHE, self._directory / "images" / "tflaunch.tar", LAUNCHER_IMAGE)
        Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)  # in its namespace, its own is mounted there
        self._run("bash", _HERE / "certificates.sh", self._directory / "pki", _PORT)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for group in _own_groups():
            self.wait_until(functools.partial(_is_removed, group), f"{group} was not removed")

    def _start(self) -> None:
        for group in _own_groups():
            group.mkdir(exist_ok=True)
            if "cpuset" in group.parts:
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((group.parent / name).read_text())
        join = "".join(f"echo $$ >{group}/cgroup.procs; " for group in _own_groups())
        namespaces = "unshare -C -m -n -p -u -i --fork --kill-child=KILL --mount-proc"
        node = f'{join} exec {namespaces} bash "$0" "$@"'
        self._spawn("node", "bash", "-c", node, _HERE / "node.sh", self._directory, _CACHE, _HERE)
        self.wait_until(lambda: self._init() is not None, "the node did not start")
        self._spawn("relay", sys.executable, _HERE / "relay.py", _PORT, self._init(), 6443)
        self.wait_until(self._is_ready, f"no node is ready: see {self._directory / 'log'}")

    def _init(self) -> int | None:
        """Return the pid of process 1 of the node, once it is in its own network."""
        here = Path("/proc/self/ns/net").readlink()
        for child in psutil.Process(self._started[0].pid).children():
            if Path(f"/proc/{child.pid}/ns/net").readlink() != here:
                return child.pid
        return None

    def _is_ready(self) -> bool:
        has_node = " Ready" in self.kubectl("get", "nodes", may_fail=True)
        answers = self.kubectl("get", "--raw", "/api/v1/nodes/node-0/proxy/healthz", may_fail=True) == "ok"
        has_user = bool(self.kubectl("get", "serviceaccount", "default", "--output=name", may_fail=True))
        return has_node and answers and has_user and (self._directory / ".images").exists()

    def kubectl(self, *arguments: str, given: str = "", may_fail: bool = False) -> str:
        """Run `kubectl ARGUMENTS`, which must succeed unless ``may_fail``, and return its output."""
        done = subprocess.run(
            [_CACHE / "bin" / "kubectl", *arguments],
            env={**os.environ, **self.env}, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert may_fail or done.returncode == 0, f"kubectl {arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    @contextmanager
    def without(self, program: str) -> Iterator[None]:
        """Stop a program of the cluster, such as kube-apiserver or kubelet."""
        (process,) = (each for each in self._processes() if each.name() == program)
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def shutting_down(self) -> Iterator[None]:
        """Have the node shut down gracefully, which is called off in the end."""
        bus = f"--bus=unix:path={self._directory}/dbus.sock"
        tell = ("dbus-send", bus, "--type=signal", "/org/freedesktop/login1", f"{_LOGIND}.PrepareForShutdown")
        self._run(*tell, "boolean:true")
        try:
            yield
        finally:
            self._run(*tell, "boolean:false")

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Drain the node of the pods of runs."""
        self.kubectl("drain", "node-0", "--force", "--pod-selector=tflaunch/run")
        try:
            yield
        finally:
            self.kubectl("uncordon", "node-0")

    def wait_until_empty(self, namespace: str = "default") -> None:
        kinds = "jobs,pods,statefulsets,services,controllerrevisions,serviceaccounts,roles,rolebindings,secrets"

        def is_empty() -> bool:
            selector = "--selector=app.kubernetes.io/managed-by=tflaunch"
            return not self.kubectl("get", kinds, selector, f"--namespace={namespace}", "--output=name")

        self.wait_until(is_empty, f"left in {namespace}: {self.kubectl('get', 'all', f'--namespace={namespace}')}")

    def _processes(self) -> list[psutil.Process]:
        return psutil.Process(self._started[0].pid).children(recursive=True)

    @staticmethod
    def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
        wait_until(is_so, otherwise=otherwise)

    def _spawn(self, name: str, *command: object) -> None:
        with (self._directory / "log" / f"{name}.log").open("wb") as log:
            words = [*DIE_WITH_US, *map(str, command)]
            self._started.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    @staticmethod
    def _run(*command: object) -> None:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr


def _own_groups() -> Sequence[Path]:
    """Return the cgroups of the node, below those of this process."""
    found: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.removeprefix("name=").split(",")
        found += [Path(f"/sys/fs/cgroup/{name}{path}") / _GROUPS for name in names if name in _CONTROLLERS]
    return found


def _is_removed(group: Path) -> bool:
    """Remove a cgroup and those below it, which is possible once their processes have ended."""
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            return False
    return True
