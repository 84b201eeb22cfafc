"""Run potentially slow work in a fork, so that the agent never blocks."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Callable

from tflaunch_worker import linux
from tflaunch_worker.event_loop import Loop


def run_in_fork(
    loop: Loop, work: Callable[[], Any], done: Callable[[Any], None], prepare: Callable[[int], None] = lambda _: None
) -> tuple[int, Callable[[], None]]:
    """Call ``work`` in a fork, and ``done`` here with its JSON-serializable result.

    An exception in ``work`` is written to the agent's log, and ``done`` gets None. ``prepare`` is called in the fork
    before, with the descriptor by which the result comes. Returns the pid of the fork, and what kills it.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _work_and_exit(work, writer, agent, prepare)
    os.close(writer)
    answer = bytearray()
    is_wanted = True

    def read() -> None:
        nonlocal is_wanted
        data = os.read(reader, 65536)
        answer.extend(data)
        if not data:
            loop.forget(reader)
            os.close(reader)
            _, status = os.waitpid(pid, 0)  # no limit: it has closed its end of the pipe
            if is_wanted:
                is_wanted = False
                done(json.loads(answer) if status == 0 else None)  # a fork that was killed may have written half of it

    def end() -> None:
        nonlocal is_wanted
        if is_wanted:
            is_wanted = False
            linux.kill(pid, None, signal.SIGKILL)

    loop.watch(reader, read)
    return pid, end


def _work_and_exit(work: Callable[[], Any], writer: int, agent: int, prepare: Callable[[int], None]) -> None:
    """Run the work in this fork and write its result. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() == agent:
            prepare(writer)
            data = json.dumps(work()).encode("ascii")
            while data:
                data = data[os.write(writer, data) :]
        code = 0
    except BrokenPipeError:
        pass  # the agent has ended, so no one waits for the answer
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode("utf-8", "replace"))
    finally:
        os._exit(code)
