"""What each signal means to each of our processes: none that a user or scheduler sends takes the tasks' time to save.

Runs that wait, the page, and what imports modules are in the tests of their features.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.agent_client import LocalAgent
from support.launch import PATIENCE, Launch, read_until, wait_for_end
from support.signals import ENDING, FAULTS, OTHERS, SOME_ENDING, SURVIVED, WARNINGS
from tflaunch_worker import signals
from tflaunch_worker.readable import signal_name

SAVES = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
SAVES_SLOWLY = "trap 'echo saving; until test -e go; do sleep 0.05; done; echo saved; exit 0' TERM; echo up; " + (
    "while :; do sleep 0.05; done"
)
SAVES_AT_CTRL_C = """
import time
try:
    print("up", flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    print("saved", flush=True)
"""


def spec_of(launch: Launch, script: str) -> Path:
    """Write the spec of one task that has much time to save."""
    about = {"strategy": "none", "restart": {"max": 0}, "timeouts": {"grace": PATIENCE}}
    return launch.shell(script, workers=1, **about)


def test_the_table_has_every_signal() -> None:
    """Once; and a test that sends the ending ones sends all that our processes treat as TERM."""
    known = [*ENDING, *SURVIVED, *FAULTS, *OTHERS]
    assert len(known) == len(set(known))
    assert signal.valid_signals() - set(known) <= set(range(35, 64))
    assert {*ENDING, *range(35, 64)} - ({32, 33} - signal.valid_signals()) == signals.ENDING


@pytest.mark.parametrize("number", [*SOME_ENDING, signal.SIGHUP], ids=signal_name)
def test_the_supervisor_ends_the_run(launch: Launch, number: int) -> None:
    """The task can save; the exit code is 128 + the signal's number, and a sentence names it."""
    running = launch.start("up", spec_of(launch, SAVES), until="up")
    running.send_signal(number)
    out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out.count("saved")) == (128 + number, 1)
    assert f"got {signal_name(number)}; ending worker:0" in err
    assert launch.journal()[-1]["state"] == "interrupted"


@pytest.mark.parametrize("number", SOME_ENDING, ids=signal_name)
def test_a_supervisor_without_a_terminal_does_too(launch: Launch, number: int) -> None:
    """It survives a logout, which sends HUP, and nothing else."""
    launch.detach(spec_of(launch, SAVES))
    launch.wait_for_log("worker:0", "up")
    for each in (signal.SIGHUP, *SURVIVED, number):
        launch.supervisor().send_signal(each)
    assert launch.run("wait").returncode == 128 + number
    assert launch.log("worker:0").count("saved\n") == 1
    assert launch.journal()[-1]["state"] == "interrupted"


def test_a_warning_that_comes_again_is_no_second_ctrl_c(launch: Launch) -> None:
    """XCPU comes each second, and TERM after the warning that has announced it; a further TERM is meant."""
    running = launch.start("up", spec_of(launch, SAVES_SLOWLY), until="up")
    for number in SURVIVED:
        running.send_signal(number)
    running.send_signal(signal.SIGXCPU)
    read_until(running, "saving")
    for number in (*WARNINGS, signal.SIGXCPU, signal.SIGTERM):
        running.send_signal(number)
    assert launch.status()["phase"] == "ending"
    (launch.directory / "go").touch()
    out, _ = running.communicate(timeout=PATIENCE)
    assert (running.returncode, "saved" in out) == (128 + signal.SIGXCPU, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=signal_name)
def test_a_second_term_kills(launch: Launch, number: int) -> None:
    """After the warning and the TERM that it has announced."""
    running = launch.start("up", spec_of(launch, SAVES_SLOWLY), until="up")
    running.send_signal(signal.SIGUSR1)
    read_until(running, "saving")
    running.send_signal(signal.SIGTERM)
    assert launch.status()["phase"] == "ending"  # it has taken the signal: of several, Python takes the lowest first
    running.send_signal(number)
    wait_for_end(running, 128 + signal.SIGUSR1)


@pytest.mark.parametrize(
    ("end", "preload"),
    [
        ("ctrl-c", ["json"]),
        ("drain", []),
        pytest.param("down", [], marks=pytest.mark.thorough),
        pytest.param("restart", ["json"], marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_tasks_get_the_stop_signal(launch: Launch, end: str, preload: list[str]) -> None:
    """Wherever they would get TERM, which a sidecar gets in any case."""
    sidecar = {"command": ["sh", "-c", SAVES.replace("saved", "ended")], "host": "localhost"}
    spec = launch.spec(
        cluster={"worker": 1}, strategy="none", stop_signal="SIGINT", sidecars={"beside": sidecar}, preload=preload,
        command=[sys.executable, "-c", SAVES_AT_CTRL_C], timeouts={"grace": PATIENCE}, restart={"backoff": [0, 0]},
    )  # fmt: skip
    running = launch.start("up", spec, until="| up", count=2)
    if end in ("down", "restart"):
        launch.succeed(end)
    elif end == "drain":
        (guard,) = [child for child in psutil.Process(running.pid).children() if "guard" in " ".join(child.cmdline())]
        guard.terminate()
    if end in ("restart", "drain"):
        read_until(running, "worker:0 | up")
    if end != "down":
        running.send_signal(signal.SIGINT)
    _, err = wait_for_end(running, 143 if end == "down" else 130)
    assert "sent INT, waiting up to" in err
    assert launch.log("worker:0").count("up\nsaved\n") == (2 if end in ("restart", "drain") else 1)
    assert launch.log("beside").count("ended") == launch.log("beside").count("up") > 0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[LocalAgent]]:
    """Agents; their log is to be empty."""
    started: list[LocalAgent] = []
    yield started
    for agent in started:
        assert not (log := agent.end()), log


@pytest.mark.agent
@pytest.mark.parametrize("victim", ["guard", "agent"])
def test_guard_and_agent_empty_their_host(agents: list[LocalAgent], tmp_path: Path, victim: str) -> None:
    """The tasks can save, and their supervisor is told why they end; what terminals send is not for these two."""
    for number in SOME_ENDING:
        agents.append(agent := LocalAgent(tmp_path / str(number)))
        agent.talk.hello(grace=PATIENCE)
        agent.talk.start("worker:0", "sh", "-c", SAVES)
        agent.talk.wait_until(lambda: agent.talk.output.get(("worker:0", 0)))
        pid = agent.pids()[victim == "agent"]
        for each in (signal.SIGHUP, signal.SIGINT, *SURVIVED, number, number):
            os.kill(pid, each)
        assert agent.talk.wait_for("host_leaving")["is_drain"], signal_name(number)
        exited = agent.talk.wait_for("task_exited")
        assert (exited["code"], exited["was_told"]) == (0, True), signal_name(number)
        assert agent.talk.text("worker:0").count("saved\n") == 1
