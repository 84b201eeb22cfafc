"""What tests need of a machine. What it lacks is skipped, and said at the end with what helps; in CI it fails.

A test has the mark `needs("root")`; a fixture calls `need("sshd")`.
"""

import fcntl
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

SSHD = "/usr/sbin/sshd"
"""sshd re-executes itself for every connection, so it requires an absolute path."""
_REASON = "needs "
_SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_INSTALL_PATIENCE = 300


class Need(NamedTuple):
    """Something that not every machine has."""

    shows: str
    """What is not tested without it."""
    programs: str = ""
    packages: str = ""
    """Debian's, which have the programs."""
    is_there: Callable[[], bool] = lambda: True
    """Whether the machine has what no package brings."""
    remedy: str = ""
    """What brings that."""
    also: tuple[str, ...] = ()
    """Other needs, which come first."""
    is_optional: bool = False
    """Whether even CI may lack it."""


def _runs(*command: str) -> Callable[[], bool]:
    return lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_module(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


def _has_route() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(("198.51.100.1", 9)) == 0


def _has_index() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--retries", "0", "--dest", directory]
        return _runs(sys.executable, "-m", "pip", "download", *options, "wheel")()


_OURS = "pip install 'tflaunch[tensorflow]'"
NEEDS = {
    "root": Need("what needs root", is_there=lambda: os.getuid() == 0, remedy="run the tests as root"),
    "ssh": Need("OpenSSH's client", "ssh ssh-keygen ssh-agent ssh-add", "openssh-client"),
    "sshd": Need("hosts over SSH", SSHD, "openssh-server", also=("ssh",)),
    "namespaces": Need(
        "hosts whose links can be cut",
        "ip bridge nsenter unshare setpriv",
        "iproute2 util-linux",
        _runs("unshare", "--net", "--pid", "--fork", "--mount-proc", "true"),
        "allow root to make namespaces",
        ("root", "sshd"),
    ),
    "mounts": Need(
        "full disks and odd file systems",
        is_there=_runs("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"),
        remedy="allow root to mount",
        also=("root",),
    ),
    "tap": Need("slow links", is_there=Path("/dev/net/tun").exists, remedy="mknod /dev/net/tun c 10 200"),
    "cgroups": Need("limits of memory", remedy="allow root to make cgroups with limits of memory"),
    "nft": Need("firewalls", "nft", "nftables"),
    "pasta": Need("private networks with pasta", "pasta", "passt", remedy="give it a default route and /dev/net/tun"),
    "gcc": Need("steps of the wall clock", "gcc", "gcc libc6-dev"),
    "slurm": Need("a real Slurm", "slurmctld slurmd sbatch unshare setpriv", "slurm-wlm munge", also=("root",)),
    "apptainer": Need(
        "containers on the nodes of Slurm",
        is_there=lambda: "TFLAUNCH_TEST_IMAGE" in os.environ and bool(program("apptainer")),
        remedy="bash tests/support/with_apptainer.sh pytest tests/slurm",
        also=("slurm",),
        is_optional=True,
    ),
    "docker-compose": Need("docker-compose's own check", "docker-compose", "docker-compose"),
    "docker": Need(
        "containers",
        "docker dockerd docker-compose debootstrap",
        "docker.io docker-compose debootstrap cgroupfs-mount",
        also=("root", "index"),
    ),
    "kubernetes": Need(
        "a real Kubernetes",
        "dbus-daemon dbus-send",
        "dbus python3-dbusmock",
        is_there=Path("/sys/fs/cgroup/cpuset").is_dir,
        remedy="TFLAUNCH_TEST_LONG=1 make test-kubernetes, on a machine with cgroups of version 1",
        also=("root",),
        is_optional=True,
    ),
    "chromium": Need("pages in a browser", "chromium", "chromium"),
    "tensorflow": Need("TensorFlow, and training", is_there=_has_module("tensorflow"), remedy=_OURS),
    "tensorboard": Need("TensorBoard's pages", is_there=_has_module("tensorboard"), remedy=_OURS),
    "jax": Need("training with JAX", is_there=_has_module("jax"), remedy="pip install jax", is_optional=True),
    "torch": Need("hangs in torch", is_there=_has_module("torch"), remedy="pip install torch", is_optional=True),
    "index": Need("installations", is_there=_has_index, remedy="name a package index to pip that answers"),
    "python": Need("the wheel", remedy="apt-get install python3-venv, for a Python that all users may run"),
    "jobset": Need("pods of JobSet", remedy="put its definition into ../shared/schemas", is_optional=True),
    "ipv6": Need("IPv6", is_there=socket.has_dualstack_ipv6, remedy="sysctl net.ipv6.conf.all.disable_ipv6=0"),
    "route": Need("this machine's own addresses", is_there=_has_route, remedy="connect it", is_optional=True),
    "cores": Need(
        "a choice of cores", is_there=lambda: len(os.sched_getaffinity(0)) > 1, remedy="use two", is_optional=True
    ),
    "memory": Need("secrets in memory", remedy="sysctl kernel.yama.ptrace_scope=0", is_optional=True),
}


def need(*names: str) -> None:
    """Skip the test, or in CI fail it, where one of these is missing; there, root installs packages."""
    for name in names:
        if (gaps := _gaps(name)) and os.environ.get("CI") and os.getuid() == 0:
            _install(_packages(gaps))
            _gaps.cache_clear()
            gaps = _gaps(name)
        if gaps:
            packages, remedies = _packages(gaps), [each.remedy for each in gaps if each.remedy]
            lack(name, "; ".join([f"apt-get install {packages}", *remedies] if packages else remedies))


def lack(name: str, remedy: str = "") -> NoReturn:
    """End the test, which has seen that something is missing, or does not work."""
    reason = f"{_REASON}{name}: {remedy or NEEDS[name].remedy}"
    if os.environ.get("CI") and not NEEDS[name].is_optional:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program, including those that only root has in its PATH; "" if it is missing."""
    return shutil.which(name, path=_SEARCH) or ""


def untested(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Return what was not tested for these reasons of skips, with what helps, and the number of tests."""
    count = Counter(reason.partition(_REASON)[2].partition(": ")[::2] for reason in reasons)
    return sorted((f"{NEEDS[name].shows}: {remedy}", n) for (name, remedy), n in count.items() if name in NEEDS)


@functools.cache
def _gaps(name: str) -> list[Need]:
    """Return what is missing of a need and of those that come first."""
    own = NEEDS[name]
    gaps = [gap for other in own.also for gap in _gaps(other)]
    if not all(map(program, own.programs.split())):
        return [*gaps, own._replace(remedy="")]
    return gaps if gaps or own.is_there() else [own._replace(packages="")]


def _packages(gaps: list[Need]) -> str:
    return " ".join(dict.fromkeys(" ".join(gap.packages for gap in gaps).split()))


@functools.cache  # a failed attempt is not repeated for every test
def _install(packages: str) -> None:
    """Install packages; one test run of this machine at a time."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # the latter: start no services
    options = ["-qq", "-o", f"DPkg::Lock::Timeout={_INSTALL_PATIENCE}"]
    install = ["install", "-y", "--no-install-recommends", *packages.split()]
    with (Path(tempfile.gettempdir()) / "tflaunch-tests-install").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments in (["update"], install):
            subprocess.run(["apt-get", *options, *arguments], env=env, stdin=subprocess.DEVNULL, check=False)
