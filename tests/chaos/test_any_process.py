"""Any process of a run is killed, stopped or signalled at any moment: the run ends, with the right exit code."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from support.launch import Launch, clean_launch, read_until
from support.processes import command_of, is_agent, parent_of
from support.sshd import Sshd, StartSshd, home_for_client
from support.waiting import PATIENCE, wait_until

SERIES = int(os.environ.get("TFLAUNCH_TEST_SERIES", "7"))
"""How many are played; `make nightly` plays 200."""
OFTEN = (2,)
LEASE, STOPPED = 3, 9  # seconds: what is stopped for longer than lease and grace has tasks that end without it
PROGRAM = """
import os, signal, sys, time
def save(*_):
    os.write(1, b"saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"up\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
SIGNALS = (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT)
MOMENTS = ("starting", "training", "ending")


class Series(NamedTuple):
    """A fault: ``signal`` goes to a process of a ``kind`` at a ``moment``, on this machine or on hosts over SSH."""

    place: str
    kind: str
    signal: signal.Signals
    moment: str

    def __str__(self) -> str:
        return f"{self.place}-{self.kind}-{self.signal.name}-{self.moment}".replace(" ", "_")


def is_titled(title: str) -> Callable[[psutil.Process], bool]:
    """Return a function that recognizes a process by a word of its command line."""
    return lambda process: any(word.startswith(title) for word in command_of(process))


def is_agent_of_guard(process: psutil.Process) -> bool:
    """Return whether a process is an agent: its parent is a guard."""
    parent = parent_of(process)
    return is_agent(process) and parent is not None and is_agent(psutil.Process(parent))


def is_waiter(process: psutil.Process) -> bool:
    """Return whether a process is that of a run which waits in the queue: it has a ticket open."""
    with suppress(OSError):  # it has exited
        entries = Path(f"/proc/{process.pid}/fd").iterdir()
        return any("/home/queue/tickets/" in os.readlink(entry) for entry in entries)
    return False


class Kind(NamedTuple):
    """How a run gets a process of this kind, and how it is recognized."""

    is_it: Callable[[psutil.Process], bool]
    options: tuple[str, ...] = ()
    places: tuple[str, ...] = ("here", "ssh")


KINDS = {
    "agent": Kind(is_agent_of_guard),
    "guard": Kind(lambda process: is_agent(process) and not is_agent_of_guard(process)),
    "supervisor": Kind(lambda process: command_of(process)[1:3][-1:] == ["up"]),
    "forkserver": Kind(is_titled("tflaunch-forkserver"), ("--set", 'preload=["decimal"]')),
    "warm server": Kind(
        is_titled("tflaunch-warm"), ("--set", 'preload=["decimal"]', "--set", "warm=1m"), places=("here",)
    ),
    "page": Kind(is_titled("--owner"), ("--web",), places=("here",)),
    "waiter": Kind(is_waiter, ("--queue",), places=("here",)),
}


def draw(seed: int) -> Series:
    """Return a series, the same for the same seed."""
    chosen = random.Random(seed)
    kind = [*KINDS][seed % len(KINDS)]
    place = chosen.choice(KINDS[kind].places)
    moment = "starting" if kind == "waiter" else chosen.choice(MOMENTS)
    return Series(place, kind, SIGNALS[seed % len(SIGNALS)], moment)


def right_codes(series: Series) -> set[int]:
    """Return the exit codes that are right: what any process but the run's own suffers costs a restart at most."""
    number = series.signal
    if series.kind == "waiter" and number != signal.SIGSTOP:
        return {125} if number == signal.SIGKILL else {128 + number}
    if series.kind == "supervisor" and number != signal.SIGSTOP:
        noticed = {-number} if number == signal.SIGKILL else {128 + number}
        # At the start it has neither handlers nor tasks yet; at the end, the run may be over.
        return noticed | {"starting": {-number}, "training": set[int](), "ending": {0}}[series.moment]
    is_unstarted = series.kind in ("agent", "guard") and series.moment == "starting"
    return {0, 3} if is_unstarted else {0}  # 3: an agent could not be started


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], list[int]]]:
    """Run another user's training beside all series; return what tells the pids of its tasks."""
    directory = tmp_path_factory.mktemp("neighbour")
    with clean_launch(directory) as other:
        running = other.start("up", spec_for(other, directory / "go", {"worker": 2}, PATIENCE))
        read_until(running, "| up", 2)
        yield lambda: [task["pid"] for task in other.status()["tasks"]]
        (directory / "go").touch()
        out, err = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0, out + err


def spec_for(launch: Launch, go: Path, cluster: dict[str, Any], lease: int = LEASE) -> Path:
    """Write the spec of tasks that end when a file appears."""
    (launch.directory / "program.py").write_text(PROGRAM)
    return launch.spec(
        cluster=cluster,
        strategy="none",
        workdir=str(launch.directory),
        restart={"max": 5, "backoff": [0, 0]},
        timeouts={"lease": lease, "grace": 2, "lost_host": PATIENCE},
        command=[sys.executable, "program.py", str(go)],
    )


@contextmanager
def stopped(victim: psutil.Process, go: Path) -> Iterator[None]:
    """Let a process go on when it was stopped for longer than tasks live without it, and only then let tasks end."""

    def go_on() -> None:
        go.touch()
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGCONT)

    timer = threading.Timer(STOPPED, go_on)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        go_on()


def find(launch: Launch, hosts: dict[str, Sshd], kind: Kind) -> psutil.Process:
    """Wait for a process of a kind, and return it."""
    while launch.started[-1].poll() is None:
        living = [*launch.survivors(), *(process for host in hosts.values() for process in host.survivors())]
        for process in living:
            with suppress(psutil.NoSuchProcess):
                if kind.is_it(process):
                    return process
    raise AssertionError("the run ended without such a process")


@pytest.mark.ssh
@pytest.mark.parametrize(
    "series",
    [pytest.param(draw(seed), marks=[pytest.mark.thorough] * (seed not in OFTEN)) for seed in range(SERIES)],
    ids=str,
)
def test_a_run_survives_or_ends(
    launch: Launch, sshd: StartSshd, neighbour: Callable[[], list[int]], series: Series
) -> None:
    """Nothing is left, and a neighbour's tasks go on."""
    others = neighbour()
    hosts = {"h1": sshd(), "h2": sshd()} if series.place == "ssh" else {}
    if hosts:
        launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    go = launch.directory / "go"
    spec = spec_for(launch, go, {"worker": [*hosts] or 2})
    kind = KINDS[series.kind]
    if series.kind == "warm server":
        go.touch()
        assert launch.up(spec, *kind.options).returncode == 0
        go.unlink()
    if series.kind == "waiter":  # it waits for the hosts of another run
        assert launch.run("up", "-d", spec).returncode == 0
    running = launch.start("up", spec, *kind.options)
    if series.moment != "starting":
        read_until(running, "| up", 2)
    victim = find(launch, hosts, kind)
    if series.moment == "ending":
        go.touch()
    with suppress(psutil.NoSuchProcess):
        victim.send_signal(series.signal)
    if series.signal == signal.SIGSTOP:
        with stopped(victim, go):
            _, err = running.communicate(timeout=PATIENCE)
    else:
        go.touch()
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode in right_codes(series), err
    launch.run("ps")  # kills what a killed supervisor could not
    launch.run("warm", "--stop")
    wait_until(lambda: not launch.survivors())
    assert neighbour() == others
