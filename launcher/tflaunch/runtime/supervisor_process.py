"""Supervise a run in a new interpreter, on behalf of a program.

A program may have threads, which a fork does not copy, and an interpreter that is not this package's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tflaunch.own_process import end_process, own_process
from tflaunch.plan import serialize
from tflaunch.plan.model import Plan
from tflaunch.runtime import daemon, launch
from tflaunch.runtime.run_config import RunConfig
from tflaunch.store.run_dir import RunDirectory

_PROGRAM = (
    "import json; order = json.load(sys.stdin); "
    "from tflaunch.runtime import supervisor_process; supervisor_process.supervise(order)"
)


def start(plan: Plan, directory: RunDirectory, *, is_owned: bool) -> None:
    """Start a supervisor for a plan, and return once other processes can see the run.

    With ``is_owned``, the run ends when this process ends.

    Raises:
        TflaunchError: the supervisor ended before that, with the reason.
    """
    order = {
        "plan": serialize.as_json(plan),
        "run": str(directory.path),
        "logs": str(directory.logs),
        "owner": os.getpid() if is_owned else None,
    }
    process = subprocess.Popen(
        own_process(_PROGRAM, directory.run),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the program's terminal is for the program
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(order).encode("ascii"))
        daemon.await_beginning(process.stdout.fileno(), process.wait, directory.path)
    except BaseException:
        end_process(process)
        raise
    finally:
        process.stdout.close()
    threading.Thread(target=process.wait, daemon=True, name=f"tflaunch {directory.run}").start()  # leaves no zombie


def supervise(order: dict[str, Any]) -> None:
    """Supervise the run that `start` describes; never returns."""
    directory = RunDirectory.existing(Path(order["run"]), Path(order["logs"]))
    plan = serialize.from_json(order["plan"])

    def run(begun: Callable[[], None]) -> int:
        code = launch.code_for_hosts(plan)
        config = RunConfig(directory, code, daemon.Notes().say, owner=order["owner"], sink=daemon.notes, begun=begun)
        return launch.start(plan, config)

    daemon.be_supervisor(directory.path, run, os.dup(1))
