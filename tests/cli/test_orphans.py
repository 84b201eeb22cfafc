"""`kill -9` of guard and agent, or of the launcher too: no orphan lives beside an attempt or later."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from support.launch import PATIENCE, PRELOADED, Launch, read_until
from support.processes import environment_of, is_agent

pytestmark = pytest.mark.cli

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


@contextmanager
def clashes(launch: Launch) -> Iterator[list[str]]:
    """Poll which attempts live, and collect cases of two attempts of one task."""
    found: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.005):
            seen: dict[str, set[str]] = {}
            for process in tasks(launch):
                about = environment_of(process)
                if about and process.is_running():
                    seen.setdefault(about["TFLAUNCH_TASK"], set()).add(about["TFLAUNCH_ATTEMPT"])
            # The first process found may die before the last is checked: only those found twice count.
            for task, attempts in seen.items():
                if len(attempts) > 1:
                    found.append(still_clashing(task))

    def still_clashing(task: str) -> str:
        living = [(process, environment_of(process)) for process in tasks(launch)]
        of_task = {about["TFLAUNCH_ATTEMPT"] for process, about in living if about.get("TFLAUNCH_TASK") == task}
        alive = all(process.is_running() for process, _ in living)
        return f"{task}: attempts {sorted(of_task)}" if len(of_task) > 1 and alive else ""

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield found
    finally:
        is_over.set()
        watch.join()


def test_no_orphan_lives_beside_a_new_attempt(launch: Launch) -> None:
    """Guard and agent killed together, repeatedly: attempts never overlap, and nothing lives at the end."""
    running = launch.start("up", launch.shell(SCRIPT, timeouts={"grace": 0.2}, **FOR_EVER))
    with clashes(launch) as found:
        for attempt in range(KILLS + 1):
            read_until(running, f"up {attempt}", 2)
            if attempt == KILLS:
                break
            kill_together(agents(launch), is_exact=attempt % 2 == 0)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, out + err
    assert [clash for clash in found if clash] == []
    assert not launch.survivors()


@pytest.mark.parametrize("moment", ["training", "the end"])
def test_no_orphan_lives_after_the_end_of_the_run(launch: Launch, moment: str) -> None:
    """Without another attempt, and when both are killed while the run is ending anyway."""
    running = launch.start("up", launch.shell(SCRIPT, strategy="none", restart={"max": 0}, timeouts={"grace": 1}))
    read_until(running, "up 0", 2)
    victims = agents(launch)
    if moment == "the end":
        running.send_signal(signal.SIGINT)
    kill_together(victims)
    running.communicate(timeout=PATIENCE)
    assert running.returncode in (125, 130)
    assert not launch.survivors()


VERBS = [("ps",), ("ls",), ("wait",), ("down",), ("logs",), ("attach",), ("up", "--resume")]


@pytest.mark.parametrize("lease", [0, 60])
def test_the_next_command_kills_what_was_left_of_a_run(launch: Launch, lease: int) -> None:
    """Launcher, guard and agent killed together: the next command on the run leaves no orphan."""
    left = number = 0
    wanted = max(KILLS, len(VERBS) if lease == 0 else 0)
    while number < wanted or not left:
        assert number < 10 * wanted, "nothing was ever left, so that nothing is tested"
        running = launch.start("up", launch.shell(SCRIPT, timeouts={"grace": 0.2, "lease": lease}, **FOR_EVER))
        read_until(running, "up 0", 2)
        kill_together([psutil.Process(running.pid), *agents(launch)])
        running.communicate(timeout=PATIENCE)
        left += bool(tasks(launch))  # another user's agent on this machine may kill them first
        verb = VERBS[number % len(VERBS)]
        number += 1
        if lease and verb[0] == "up":
            verb = ("down",)  # resuming the run is another test
        (run,) = [path.name for path in (launch.home / "runs").iterdir() if (path / "agents").is_dir()]
        arguments = () if verb == ("ls",) else (run,)
        launch.run(*verb, *arguments)
        assert not tasks(launch), f"tflaunch {' '.join(verb)} left them"
        launch.run("down", run)
        shutil.rmtree(launch.home / "runs" / run)


def test_a_run_that_is_taken_over_goes_on_alone(launch: Launch) -> None:
    """Launcher, guard and agent killed together within the lease: `up --resume` starts another attempt."""
    running = launch.start("up", launch.shell(SCRIPT, timeouts={"grace": 0.2, "lease": 60}, **FOR_EVER))
    with clashes(launch) as found:
        for attempt in range(KILLS + 1):
            read_until(running, f"up {attempt}", 2)
            if attempt == KILLS:
                break
            kill_together([psutil.Process(running.pid), *agents(launch)])
            running.communicate(timeout=PATIENCE)
            running = launch.start("up", "--resume", launch.run_directory().name)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert [clash for clash in found if clash] == []
    assert not launch.survivors()


def test_a_detached_run_is_cleaned_by_down(launch: Launch) -> None:
    """`up -d`, with everything of tflaunch killed."""
    started = launch.run("up", "-d", launch.shell(SCRIPT, timeouts={"grace": 0.2}, **FOR_EVER))
    assert started.returncode == 0, started.stderr
    kill_together([launch.supervisor(), *agents(launch)])
    assert launch.run("down").returncode == 0
    assert not launch.survivors()


def test_the_next_run_kills_what_another_one_left(launch: Launch) -> None:
    """No further command looks at the run, but another run starts on this machine."""
    running = launch.start("up", launch.shell(SCRIPT, **FOR_EVER))
    read_until(running, "up 0", 2)
    left = tasks(launch)
    kill_together([psutil.Process(running.pid), *agents(launch)])
    running.communicate(timeout=PATIENCE)
    assert launch.up(launch.spec("other.json", cluster={"worker": 1}, command=["true"])).returncode == 0
    assert not psutil.wait_procs(left, PATIENCE)[1]


def test_a_living_run_is_left_alone_by_commands_of_others(launch: Launch) -> None:
    """While its agent lives within the lease, and from inside a task of a dead run."""
    running = launch.start("up", launch.shell(SCRIPT, timeouts={"lease": 600}, **FOR_EVER))
    read_until(running, "up 0", 2)
    before = {process.pid for process in tasks(launch)}
    run = launch.run_directory().name
    running.kill()
    running.communicate(timeout=PATIENCE)
    for verb in ("ps", "ls", "logs"):
        launch.run(verb)
    assert launch.run("run", "-n", "1", "true").returncode == 0
    assert {process.pid for process in tasks(launch)} == before
    assert launch.run("down", "-t", "0", run).returncode == 0


def test_a_preloaded_task_leaves_no_orphan(launch: Launch) -> None:
    """A task that was forked from a preloaded process, and forks itself."""
    program = launch.directory / "train.py"
    program.write_text(
        "import os, time\n"
        "import json\n"
        "os.write(1, f\"preload {os.environ['TFLAUNCH_PRELOAD']}\\n\".encode())\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "os.write(1, f\"up {os.environ['TFLAUNCH_ATTEMPT']}\\n\".encode())\n"
        "time.sleep(3000)\n"
    )
    spec = launch.spec(
        cluster={"worker": 1}, command=["python3", str(program)], preload=PRELOADED or ["json"], **FOR_EVER
    )
    running = launch.start("up", spec)
    for attempt in range(2):
        out = read_until(running, f"up {attempt}", 2)
        assert "preload no:" not in out, out
        if attempt == 0:
            kill_together(agents(launch))
    assert {environment_of(process)["TFLAUNCH_ATTEMPT"] for process in tasks(launch)} == {"1"}
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert not launch.survivors()
