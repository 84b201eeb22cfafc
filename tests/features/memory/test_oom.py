"""What the kernel reports about a process that its OOM killer ended."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from support.memory_group import memory_group, need_memory_groups
from support.waiting import PATIENCE
from tflaunch_worker import procfs
from tflaunch_worker.features.memory import oom
from tflaunch_worker.features.memory.oom import OomWatch

KILLED = "Memory cgroup out of memory: Killed process {} (python) total-vm:2097152kB, anon-rss:2095104kB"
CHOSEN = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,task=python,pid={},uid=0"
GIB = 2**30


class Kernel:
    """A file tree as a kernel shows it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "cgroup"
        self.proc = directory / "proc"
        self.kmsg = directory / "kmsg"
        (self.proc / "self" / "ns").mkdir(parents=True)
        self.root.mkdir()
        (self.proc / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree:  1 kB\n")

    def v2(self, name: str, limit: object = "max", kills: int = 0, hits: int = 0) -> None:
        events = f"low 0\nhigh 0\nmax 9\noom {hits}\noom_kill {kills}"
        self._write(name, {"memory.events": events, "memory.max": limit})

    def v1(self, name: str, limit: int = 2**63 - 4096, kills: int = 0, hits: int = 0, swap: int = 0) -> None:
        """Describe a version 1 cgroup; ``swap``: the limit of memory and swap together, used up after a kill."""
        files: dict[str, object] = {
            "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}",
            "memory.limit_in_bytes": limit,
            "memory.failcnt": hits,
        }
        if swap:
            used = {"memory.memsw.failcnt": 0, "memory.memsw.max_usage_in_bytes": swap if kills > 1 else 0}
            files |= {"memory.memsw.limit_in_bytes": swap, **used}
        self._write(f"memory/{name.strip('/')}", files)

    def _write(self, name: str, files: dict[str, object]) -> None:
        directory = self.root / name.strip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(f"{text}\n")

    def we_are_in(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def has_log(self, namespace: str = "pid:[4026531836]") -> None:
        self.kmsg.write_text(f"6,1,0,-;{KILLED.format(7)}\n")
        (self.proc / "self" / "ns" / "pid").symlink_to(namespace)

    def logs(self, text: str) -> None:
        with self.kmsg.open("a") as file:
            file.write(f"3,2,100,-;{text}\n")

    def watch(self) -> OomWatch:
        return OomWatch(str(self.root), str(self.proc), str(self.kmsg))


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A kernel without any of these files."""
    return Kernel(tmp_path)


def test_the_limit_that_was_hit_is_named(kernel: Kernel) -> None:
    """Of several limits, the nearest one at which an allocation failed; without one it was the machine."""
    kernel.we_are_in("0::/slice/job/here")
    for name in ("/slice/job/here", "/slice/job", "/slice"):
        kernel.v2(name, 2 * GIB, kills=3)
    watch = kernel.watch()
    assert not watch.evidence(7)
    kernel.v2("/slice/job/here", 2 * GIB, kills=4)
    kernel.v2("/slice/job", 2 * GIB, kills=4, hits=1)
    kernel.v2("/slice", 2 * GIB, kills=4, hits=1)
    assert watch.evidence(7) == "the kernel's OOM killer ended it: memory limit of cgroup /slice/job is 2.0 GiB"
    kernel.we_are_in("0::/user")
    kernel.v2("/user")
    watch = kernel.watch()
    kernel.v2("/user", kills=1)
    assert watch.evidence(7).endswith("it: the memory of this machine, 16.0 GiB, was full")


def test_one_kill_explains_one_death(kernel: Kernel) -> None:
    """Of two that died together, both are explained; a third is not. Each look reads a few files."""
    kernel.we_are_in("0::/")
    kernel.v2("/", 64 * 2**20)
    watch = kernel.watch()
    kernel.v2("/", 64 * 2**20, kills=2, hits=2)
    with patch.object(procfs, "read", wraps=procfs.read) as read:
        said = [watch.evidence(pid) for pid in (7, 8, 9)]
    assert said == ["the kernel's OOM killer ended it: memory limit of the container is 64 MiB"] * 2 + [""]
    assert 3 <= read.call_count < 30


@pytest.mark.parametrize(
    ("named", "place", "swap", "words"),
    [
        ("/docker/abc", "/docker/abc", 0, "memory limit of cgroup /docker/abc is 1.0 GiB"),
        ("/docker/abc", "/docker/abc", 3 * GIB, "limit of memory and swap of cgroup /docker/abc is 3.0 GiB"),
        ("/docker/abc", "/", 0, "memory limit of the container is 1.0 GiB"),
        ("/../../elsewhere", "/", 0, "memory limit of the container is 1.0 GiB"),
    ],
)
def test_the_first_version_of_cgroups(kernel: Kernel, named: str, place: str, swap: int, words: str) -> None:
    """The limit with swap is checked first, and its hits are not counted. A container sees its group as the root."""
    kernel.we_are_in("9:name=systemd:/", f"4:cpu,memory:{named}", "0::/")
    kernel.v1("/", kills=1)
    kernel.v1(place, GIB, kills=1, hits=7, swap=swap)
    watch = kernel.watch()
    kernel.v1(place, GIB, kills=2, hits=7 if swap else 8, swap=swap)
    assert watch.evidence(7) == f"the kernel's OOM killer ended it: {words}"


@pytest.mark.parametrize("record", [KILLED, CHOSEN])
def test_the_log_names_the_process(kernel: Kernel, record: str) -> None:
    """Even without counters; one kill explains one death, and none of the past, as pids are reused."""
    kernel.has_log()
    watch = kernel.watch()
    assert not watch.evidence(7)
    kernel.logs(record.format(42))
    assert not watch.evidence(4)
    assert watch.evidence(42).startswith("the kernel's OOM killer ended it: the memory of this machine")
    assert not watch.evidence(42)
    (kernel.proc / "self" / "ns" / "pid").unlink()
    kernel.has_log("pid:[4026532000]")
    watch = kernel.watch()
    kernel.logs(record.format(42))
    assert not watch.evidence(42), "pid 42 is another process inside this namespace"


def test_a_kill_of_another_process_is_not_ours(kernel: Kernel) -> None:
    """The log names the victim: here a neighbour in the same cgroup."""
    kernel.has_log()
    kernel.we_are_in("0::/")
    kernel.v2("/", GIB)
    watch = kernel.watch()
    kernel.v2("/", GIB, kills=1, hits=1)
    kernel.logs(KILLED.format(1))
    assert not watch.evidence(42)
    kernel.v2("/", GIB, kills=2, hits=2)
    kernel.logs(KILLED.format(42))
    assert watch.evidence(42).endswith("memory limit of the container is 1.0 GiB")


def test_a_log_that_is_overwritten_or_endless_does_not_hold_us(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPIPE means that records were lost; the amount read is bounded."""
    kernel.has_log()
    watch = kernel.watch()
    record = KILLED.format(42).encode().ljust(8192)
    none = BlockingIOError(errno.EAGAIN, "no more records")
    read = Mock(side_effect=[none, *[OSError(errno.EPIPE, "overwritten")] * 3, *[record] * 10_000])
    monkeypatch.setattr(os, "read", read)
    assert not watch.evidence(42)
    assert watch.evidence(42)
    assert 3 < read.call_count < 600
    monkeypatch.undo()


@pytest.mark.parametrize("text", ["", "4:memory", "0::", "\0\xff:::", "oom_kill x"])
def test_files_that_make_no_sense_are_no_evidence(kernel: Kernel, text: str) -> None:
    """A missing explanation must not become an error."""
    assert not kernel.watch().evidence(7)  # /proc/self/cgroup does not exist
    kernel.we_are_in(text)
    (kernel.root / "memory.events").write_text(text)
    (kernel.root / "memory.max").mkdir()
    assert not kernel.watch().evidence(7)


EATER = """
import os, sys
sys.path.insert(0, sys.argv[1])
with open(sys.argv[2] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
from tflaunch_worker.features.memory.oom import OomWatch
watch = OomWatch(log=sys.argv[3])
pid = os.fork()
if pid == 0:
    eaten = bytearray(256 << 20)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(status, watch.evidence(pid), sep=";")
print(status, watch.evidence(pid), sep=";")
"""


@pytest.mark.parametrize(("log", "with_swap"), [("/dev/kmsg", False), ("/nowhere", True)])
def test_a_real_kill_is_found(log: str, with_swap: bool) -> None:
    """By the counter alone, and with the kernel's log as well."""
    need_memory_groups(with_swap=with_swap)
    source = str(Path(oom.__file__).parents[3])
    with memory_group(64 << 20, with_swap=with_swap) as group:
        command = [sys.executable, "-c", EATER, source, str(group.directory), log]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    first, second = ended.stdout.splitlines()
    clause = f"the kernel's OOM killer ended it: memory limit of cgroup /{group.directory.name} is 64 MiB"
    assert (first, second) == (f"9;{clause}", "9;"), ended.stderr
