"""Trainings that wait for a host which is switched off for longer than the fence, and is needed."""

from __future__ import annotations

import re
import sys
import time

import pytest

from support.launch import PATIENCE, SHARED, Launch, read_until
from support.netns_hosts import Bed
from support.specs import REPOSITORY

pytestmark = [pytest.mark.ssh, pytest.mark.tensorflow]

PROGRAM = REPOSITORY / "tests" / "training" / "programs" / "mirrored.py"
TRIES = 2  # that are in vain until the host is on again


def test_a_training_goes_on_from_its_checkpoint_when_its_host_is_back(bed: Bed, launch: Launch) -> None:
    """With a budget of one restart that stays untouched; meanwhile `ps` and `explain` say what it waits for."""
    launch.prefix, launch.preload = bed.run_prefix, SHARED
    launch.env["HOME"] = str(bed.client_home)
    spec = launch.spec(
        cluster={"worker": ["h1", "h2"]},
        hosts={name: {"python": sys.executable} for name in ("h1", "h2")},
        command=["python", str(PROGRAM), "0", "if attempt: leave()"],
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        restart={"max": 1, "backoff": [0, 0]},
        timeouts={"connect": 10, "lease": 9, "grace": 0.5},
    )
    running = launch.start("up", spec)
    read_until(running, "step 3: weight 6")
    bed.power_off(2)
    with bed.watch() as watch:
        assert running.stderr is not None
        err = ""
        while "waiting for h2 (" not in err:
            line = running.stderr.readline()
            assert line, err
            err += line
        current = launch.status()
        host = next(host for host in current["hosts"] if host["host"] == "h2")
        assert (current["state"], host["until"] - host["since"]) == ("waiting_for_hosts", pytest.approx(900, abs=0.01))
        assert "waiting for h2 (" in launch.run("explain").stdout
        while sum(record["kind"] == "host_unreachable" for record in launch.journal()) < TRIES:
            time.sleep(0.1)
        bed.power_on(2)
        out, rest = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err + rest
    assert "h2 is back after" in rest
    assert launch.journal()[-1]["exit_code"] == 0
    assert not [record for record in launch.journal() if record["kind"] == "start_task" and record["attempt"] > 1]
    (began,) = set(map(int, re.findall(r"attempt 1 begins at step (\d+)", out)))
    assert began >= 3
    assert not watch.clashes()
