"""`tflaunch stacks`: where tasks are, for people, and what is wrong with a request."""

import sys

from support.launch import Launch
from support.processes import wait_until_waiting

PROGRAM = """
import os, time
def stay():
    print("up", flush=True)
    time.sleep(3600)
stay()
"""


def test_groups_and_stacks_of_a_live_run_are_shown(launch: Launch) -> None:
    script = f"[ $TFLAUNCH_TASK = worker:2 ] && exec sleep 3600; exec {sys.executable} -c '{PROGRAM}'"
    launch.succeed("up", "-d", launch.shell(script, 3, strategy="none"))
    for task in ("worker:0", "worker:1"):
        launch.wait_for_log(task, "up")
    for about in launch.status()["tasks"]:
        wait_until_waiting(about["pid"])  # a program may stand still after it has printed
    shown = launch.succeed("stacks")
    assert "\nworker:2\n    waits" in shown.stdout
    assert "\nworker:0, worker:1\n    sleeps at <string>:5, in stay\n" in shown.stdout
    verbose = launch.run("stacks", "-v", "worker:1")
    assert "worker:0" not in verbose.stdout.partition("\n")[2]
    assert "            <string>:5, in stay\n            <string>:6, in <module>\n" in verbose.stdout
    unknown = launch.run("stacks", "worker:7", code=2)
    assert "worker:7" in unknown.stderr
    launch.succeed("down", "-t", "0")
    ended = launch.run("stacks", code=2)
    assert "has ended with exit code 143" in ended.stderr
    assert ended.stderr.count("\n") == 1
