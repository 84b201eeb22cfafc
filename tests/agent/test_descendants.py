"""The processes that a guard has adopted are all found, whatever happens to others meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tflaunch_worker import procfs

pytestmark = pytest.mark.agent

_WALKS = 20_000  # without repetition, one in some thousands misses a child
_FAMILY = """
import os, signal, time

def child(seconds):
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid

steady = 0
while True:
    short = [child(0.002) for _ in range(3)]
    earlier, steady = steady, child(600)
    os.write(1, b"%d\\n" % steady)
    for pid in short:  # the place of the steady child in the list moves with each of them
        os.waitpid(pid, 0)
    time.sleep(0.002)
    if earlier:
        os.kill(earlier, signal.SIGKILL)
        os.waitpid(earlier, 0)
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose children come, exit and are reaped all the time; it prints the pids of those that stay longer."""
    command = [sys.executable, "-c", _FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_a_child_is_found_while_others_are_reaped(family: subprocess.Popen[bytes]) -> None:
    """The kernel's list of children can hide one."""
    assert family.stdout is not None
    printed = family.stdout.fileno()
    text = os.read(printed, 4096)
    os.set_blocking(printed, False)
    for _ in range(_WALKS):
        with suppress(BlockingIOError):
            text += os.read(printed, 4096)
        *lines, rest = text.rsplit(b"\n", 2)
        text, steady = b"\n".join([*lines[-1:], rest]), int(lines[-1])
        is_found = steady in procfs.descendants(family.pid)
        assert is_found or procfs.parent_of(steady) != family.pid or procfs.is_zombie(steady)


def test_a_process_that_executes_another_program_may_belong_to_anybody(tmp_path: Path) -> None:
    """It shows no environment; one that was started without any shows none for good."""
    script = tmp_path / "again.sh"
    script.write_text('[ "$1" = 0 ] || exec sh "$0" $(($1 - 1))\n')
    with (
        subprocess.Popen(["sh", script, str(_WALKS)]) as busy,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={}) as bare,
    ):
        was_seen = False
        while not was_seen and busy.poll() is None:  # as long as it takes: a busy machine may leave it no CPU
            was_seen = not procfs.environment_of(busy.pid) and procfs.is_between_programs(busy.pid)
        busy.kill()
        assert was_seen
        while procfs.environment_of(bare.pid) or procfs.is_between_programs(bare.pid):
            assert bare.poll() is None
        bare.kill()
