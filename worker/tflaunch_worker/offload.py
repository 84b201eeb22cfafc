"""Run potentially slow work in a fork of the agent, so that the agent itself never blocks.

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

    from tflaunch_worker.event_loop import Loop


def run_in_fork(loop: Loop, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Call ``work`` in a fork, then ``done`` here with its result, which must be serializable as JSON.

    An exception in ``work`` is written to the agent's log, and ``done`` gets None.
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
            done(json.loads(answer) if status == 0 else None)  # a fork that was killed may have written half of it

    loop.watch(reader, read)


def _work_and_exit(work: Callable[[], Any], writer: int, agent: int) -> None:
    """Run the work in this fork and write its result. Never returns."""
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
