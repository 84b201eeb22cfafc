"""Run work that may take long in a fork of the agent, so that the agent itself never waits.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import json
import os
import signal

from tflaunch_worker import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from tflaunch_worker.loop import Loop


def run_in_fork(loop: Loop, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Call ``work`` in a fork, and ``done`` here with what it returned, which must fit into JSON.

    An exception in ``work`` is written to the agent's log; ``done`` is then given None.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _work_and_exit(work, writer, agent)
    os.close(writer)
    answer = bytearray()

    def read() -> None:
        data = os.read(reader, 65536)
        answer.extend(data)
        if not data:
            loop.forget(reader)
            os.close(reader)
            _, status = os.waitpid(pid, 0)
            done(json.loads(answer) if status == 0 else None)  # one that was killed may have said half of it

    loop.watch(reader, read)


def _work_and_exit(work: Callable[[], Any], writer: int, agent: int) -> None:
    """Be the fork. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == agent:
            data = json.dumps(work()).encode("ascii")
            while data:
                data = data[os.write(writer, data) :]
        code = 0
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)
