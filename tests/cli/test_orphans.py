"""`kill -9` of guard and agent, or of the launcher too: no orphan lives beside an attempt or later."""

import fcntl
import os
import random
import shutil
import signal
from contextlib import suppress
from typing import Any

import psutil
import pytest

from support.launch import LONG, PATIENCE, Launch, read_until, wait_for_end
from support.processes import ProcessWatch, environment_of, is_agent
from tflaunch_worker import LOCK_NAME

KILLS = int(os.environ.get("TFLAUNCH_TEST_KILLS", "3"))
# A wrapper around a program that ignores TERM, like MultiWorkerMirrored, and a daemon that leaves the session.
DAEMON = "import os,time;os.fork() and os._exit(0);os.setsid();os.fork() and os._exit(0);time.sleep(3000)"
PROGRAM = "import os,sys;os.write(1,b'up %s\\n'%os.environb[b'TFLAUNCH_ATTEMPT']);import time;time.sleep(3000)"
SCRIPT = f"""trap '' TERM; python3 -S -c "{DAEMON}"; (trap '' TERM; python3 -S -c "{PROGRAM}"; true); true"""
FOR_EVER: dict[str, Any] = {"strategy": "none", "restart": {"max": 1000, "window": "1d", "backoff": [0, 0]}}


def tasks(launch: Launch) -> list[psutil.Process]:
    """Return the task processes, which survive guard and agent."""
    return [process for process in launch.survivors() if "TFLAUNCH_TASK_DIR" in environment_of(process)]


def agents(launch: Launch) -> list[psutil.Process]:
    """Return guard and agent."""
    return [process for process in launch.survivors() if is_agent(process)]


def kill_together(victims: list[psutil.Process], *, is_exact: bool = True) -> None:
    """Kill processes, and wait until they are dead.

    ``is_exact``: stop them first, so that none can react to the death of another; otherwise kill them one immediately
    after the other, in any order.
    """
    random.shuffle(victims)
    for number in (signal.SIGSTOP, signal.SIGKILL) if is_exact else (signal.SIGKILL,):
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, number)
    psutil.wait_procs(victims, PATIENCE)


def test_no_orphan_lives_beside_a_new_attempt(launch: Launch) -> None:
    """Guard and agent killed together, repeatedly: attempts never overlap; nothing is left."""
    running = launch.start("up", launch.shell(SCRIPT, timeouts={"grace": 0.2, "lease": 0}, **FOR_EVER), until="up 0")
    with ProcessWatch(lambda _: 0, launch.run_directory().name) as watch:
        for attempt in range(KILLS + 1):
            read_until(running, f"up {attempt}", 2 if attempt else 1)
            if attempt == KILLS:
                break
            kill_together(agents(launch), is_exact=attempt % 2 == 0)
        running.send_signal(signal.SIGINT)
        wait_for_end(running, 130)
    assert watch.clashes() == []
    assert not launch.survivors()


@pytest.mark.parametrize("is_ending", [False, True])
def test_no_orphan_lives_after_the_end_of_the_run(launch: Launch, is_ending: bool) -> None:
    """Without another attempt, and when both are killed while the run is ending anyway."""
    running = launch.start("up", launch.shell(SCRIPT, strategy="none", restart={"max": 0}, timeouts={"grace": 1}))
    read_until(running, "up 0", 2)
    victims = agents(launch)
    if is_ending:
        running.send_signal(signal.SIGINT)
    kill_together(victims)
    running.communicate(timeout=PATIENCE)
    assert running.returncode in (125, 130)
    assert not launch.survivors()


VERBS = [("ps",), ("ls",), ("wait",), ("down",), ("up", "--resume")]


def test_the_next_command_kills_what_was_left_of_a_run(launch: Launch) -> None:
    """Launcher, guard and agent killed together: the next command on the run leaves no orphan."""
    for verb in VERBS if LONG else [("ls",), ("up", "--resume")]:
        running = launch.start("up", launch.shell(SCRIPT, timeouts={"grace": 0.2, "lease": 0}, **FOR_EVER))
        read_until(running, "up 0", 2)
        (lock,) = launch.home.glob(f"runs/*/agents/*/{LOCK_NAME}")
        with (launch.directory / "lock").open("w") as held:
            # Else an agent of another test on this machine would kill the orphans first.
            fcntl.flock(held, fcntl.LOCK_EX)
            os.replace(held.name, lock)
            kill_together([psutil.Process(running.pid), *agents(launch)])
            running.communicate(timeout=PATIENCE)
            assert tasks(launch)
        run = launch.run_directory().name
        launch.run(*verb, *(() if verb == ("ls",) else (run,)))
        assert not tasks(launch), f"tflaunch {' '.join(verb)} left them"
        launch.run("down", run)
        shutil.rmtree(launch.home / "runs" / run)
