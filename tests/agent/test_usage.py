"""Real agents report what tasks use, how far they are, and when they wrote what."""

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.agent_client import Agent, Talk
from support.processes import command_of
from support.waiting import PATIENCE, wait_gone, wait_until
from tflaunch.core import states
from tflaunch.core.states import Measure, Progress
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.inspect import usage
from tflaunch_worker.inspect.usage import Measurer


def ask(talk: Talk) -> tuple[dict[str, Measure], float]:
    """Return what the tasks use, and when it was measured."""
    told = talk.call("measure")
    return states.read_measures(told["tasks"]), told["time"]


def test_a_task_is_measured_with_all_that_it_started(agent: Agent) -> None:
    """Children, those that ended, and orphans of its session; nothing of other tasks."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    keep = "b = b'x' * 50_000_000; print('up', flush=True); import time; time.sleep(9999)"
    script = f'python3 -c "{burn}"; (python3 -c "{keep}" &); python3 -c "{keep}"'
    agent.talk.start("worker:0", "sh", "-c", script)
    agent.talk.start("worker:1", "sleep", "9999")
    agent.talk.wait_until(lambda: agent.talk.output.get(("worker:0", 0), b"").count(b"up") == 2)
    agent.talk.wait_for("task_started", "worker:1")
    before = time.monotonic()  # clock: the agent says when it has measured
    tasks, moment = ask(agent.talk)
    assert before <= moment <= time.monotonic()  # clock: as above
    busy, idle = tasks["worker:0"], tasks["worker:1"]
    assert (busy.attempt, busy.progress, busy.gpu_bytes) == (0, None, None)
    assert busy.cpu_seconds is not None
    assert 0.3 <= busy.cpu_seconds < 30
    assert busy.rss_bytes is not None
    assert 100_000_000 < busy.rss_bytes < 300_000_000
    assert idle.cpu_seconds is not None
    assert idle.cpu_seconds < 0.3
    assert idle.rss_bytes is not None
    assert 0 < idle.rss_bytes < 20_000_000


def test_only_what_lives_is_measured(agent: Agent) -> None:
    """And a new attempt knows nothing of its predecessor's progress."""
    say = """echo '{"step": 5}' > "$TFLAUNCH_PROGRESS"; """
    agent.talk.start("worker:0", "sh", "-c", say + "echo up; read x")
    agent.talk.wait_for("task_gone")
    assert ask(agent.talk)[0] == {}
    agent.talk.start("worker:0", "sleep", "9999", attempt=1)
    agent.talk.wait_for("task_started", attempt=1)
    again = ask(agent.talk)[0]["worker:0"]
    assert (again.attempt, again.progress) == (1, None)


def test_progress_that_only_the_output_shows_is_marked(agent: Agent) -> None:
    """Its speed is known once it was asked for twice; a report takes its place."""
    bar, report = "\\r%d/900 [=>....] - ETA: 3s - loss: 0.5", '{"step": 7}'
    script = (
        f"i=0; echo Epoch 1/2; while [ $i -lt 900 ]; do i=$((i + 1)); sleep 0.1; printf '{bar}' $i;"
        f" [ -e $GO ] && echo '{report}' > $TFLAUNCH_PROGRESS; done"
    )
    go = agent.directory / "go"
    agent.talk.start("worker:0", "sh", "-c", script, GO=str(go))
    agent.talk.wait_until(lambda: b"/900" in agent.talk.output.get(("worker:0", 0), b""))

    def progress() -> Progress:
        known = ask(agent.talk)[0]["worker:0"].progress
        assert known is not None
        return known

    first = progress()
    assert (first.is_from_output, first.epoch, first.steps_per_epoch, first.metrics) == (True, 1, 900, {"loss": 0.5})
    assert first.steps_per_second is None
    wait_until(lambda: progress().steps_per_second)
    go.touch()
    last = wait_until(lambda: None if (now := progress()).is_from_output else now)
    assert (last.step, last.epoch) == (7, None)


def test_output_has_the_time_at_which_it_was_read(new_agent: Agent) -> None:
    """Not the time at which it was received."""
    new_agent.talk.hello(lease=PATIENCE)
    fifo = new_agent.directory / "fifo"
    os.mkfifo(fifo)
    script = "echo one; read x < $FIFO; sleep 0.3; echo two"  # lines that follow at once have one time
    new_agent.talk.start("worker:0", "sh", "-c", script, FIFO=str(fifo))
    new_agent.talk.wait_until(lambda: new_agent.talk.output.get(("worker:0", 0)) == b"one\n")
    new_agent.talk.keep_alive()
    new_agent.talk.wait_for("alive")
    new_agent.link.close()
    cut = time.monotonic()  # clock: the agent says when it has read output
    fifo.write_text("go\n")
    wait_until_written(new_agent)
    again = new_agent.reconnect()
    linked = time.monotonic()  # clock: as above
    again.hello(lease=PATIENCE)
    assert again.text("worker:0") == "one\ntwo\n"
    times = [note for m in again.heard if m["kind"] == "output" for note in m["times"]]
    assert [offset for offset, _ in times] == [0, 4]
    (_, first), (_, second) = times
    assert first < cut
    assert cut <= second <= linked
    again.say("leave", grace=0)
    again.acknowledge(("worker:0", 0, 8, True))
    wait_gone(new_agent.guard.pid)  # before the link is given up and this output is lost with it


def wait_until_written(agent: Agent) -> None:
    """Wait until the task has ended and its output is read; without a link, no event can be delivered."""
    task: Any = [p for p in psutil.Process(agent.pids()[1]).children() if "read x" in " ".join(command_of(p))]
    psutil.wait_procs(task, timeout=PATIENCE)
    stranger = agent.reconnect()  # it is answered after the agent has reaped the task and read what that has left
    stranger.connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert stranger.connection.recv(100) == b""


# ---- GPUs, reported by a stub

STUB = """#!/bin/sh
case "$1" in
  --query-compute-apps=*) echo "{pid}, GPU-1, 300"; echo "{pid}, GPU-2, 24"; echo "1, GPU-2, 5"; echo "x, GPU-1, 1"
    echo "{pid}, GPU-3, [N/A]" ;;
  *) echo "GPU-1, 90"; echo "GPU-2, 30"; echo "GPU-3, [N/A]"; echo "nonsense" ;;
esac
"""


def measured(directory: Path, program: str, asks: int = 1) -> list[dict[str, dict[str, float]]]:
    """Return the answers about this very process on a host with GPUs."""
    loop = Loop()
    (directory / "version").write_text("driver")
    measurer = Measurer(loop, str(directory / "version"), program)
    answers: list[dict[str, dict[str, float]]] = []

    def answered(figures: dict[str, dict[str, float]]) -> None:
        answers.append(figures)
        loop.stop()

    for _ in range(asks):
        measurer.ask(lambda: {"worker:0": os.getpid()}, answered)
    if not answers:
        loop.run()
    return answers


def stub(directory: Path, text: str) -> str:
    path = directory / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_gpus_are_told_of_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request while one is pending gives no second answer."""
    monkeypatch.setattr(usage, "PATIENCE", PATIENCE)
    (answer,) = measured(tmp_path, stub(tmp_path, STUB.format(pid=os.getpid())), asks=3)
    assert answer["worker:0"]["gpu_bytes"] == 324 * 1024 * 1024
    assert answer["worker:0"]["gpu_percent"] == 60.0
    assert answer["worker:0"]["rss_bytes"] > 0


@pytest.mark.parametrize("script", ["", "exit 9", "head -c 9999 /dev/urandom", "exec sleep 9999"])
def test_a_broken_tool_costs_its_figures_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """There may be a driver without the tool, and it hangs when a GPU has fallen off the bus."""
    monkeypatch.setattr(usage, "PATIENCE", 0.1)
    program = stub(tmp_path, f"#!/bin/sh\n{script}\n") if script else str(tmp_path / "missing")
    (answer,) = measured(tmp_path, program)
    assert set(answer["worker:0"]) == {"cpu_seconds", "rss_bytes"}
