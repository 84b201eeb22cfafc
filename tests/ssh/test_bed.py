"""The beds of other tests: hosts that can be reached, lost, and removed without a trace."""

from __future__ import annotations

import os
import signal

import pytest

from support.netns_hosts import Bed
from support.processes import Living

pytestmark = pytest.mark.ssh


def test_watch_sees_two_attempts_of_one_task_wherever_they_are(bed: Bed) -> None:
    def begin(host: int, task: str, attempt: int, run: str = "mine") -> Living:
        env = [f"TFLAUNCH_RUN={run}", f"TFLAUNCH_TASK={task}", f"TFLAUNCH_ATTEMPT={attempt}"]
        bed.execute(host, "env", *env, "setsid", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        return Living(task, attempt, host)

    def end(host: int) -> None:
        for process in bed.survivors(host):
            os.kill(process.pid, signal.SIGKILL)
        assert bed.wait_empty(host) == []

    with bed.watch("mine") as watch:
        begin(3, "worker:0", 9, run="another")
        first, other = begin(1, "worker:0", 0), begin(2, "worker:1", 0)
        watch.wait_until(lambda living: living == {first, other})
        end(1)
        watch.wait_until(lambda living: living == {other})
        assert not watch.clashes()
        second = begin(2, "worker:0", 1)
        watch.wait_until(lambda living: living == {second, other})
        assert not watch.clashes()
        first = begin(1, "worker:0", 0)
        watch.wait_until(lambda living: living == {first, second, other})
        assert [clash for _, clash in watch.clashes()] == [[first, second]] * len(watch.clashes()) != []
        for i in bed.hosts:
            end(i)
    assert watch.samples[-1].living == frozenset()
