"""TensorBoard during and after a run: its port and the messages about it. A stand-in listens instead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from support.fake_tensorboard import UNTIL_GO, URL, Said, answers, busy, job, left_alone, stand_in
from support.launch import PATIENCE, Launch
from support.specs import written

pytestmark = pytest.mark.cli


def board(launch: Launch) -> psutil.Process:
    """Return the process of the only run's TensorBoard."""
    (task,) = [task for task in launch.status()["tasks"] if task["task"] == "tensorboard"]
    return psutil.Process(task["pid"])


def test_it_is_told_shown_and_ends_with_the_job(launch: Launch) -> None:
    """Its address is printed and in `ps`; and it ends with the run."""
    running = launch.start("up", job(launch, UNTIL_GO))
    port = int(Said(running).until(URL)[1])
    assert answers(port)
    current = launch.status()
    assert current["tensorboard"] == {
        "url": f"http://localhost:{port}/", "host": None, "tunnel": None, "container": None,
    }  # fmt: skip
    (shown,) = [task for task in current["tasks"] if task["task"] == "tensorboard"]
    assert (shown["address"], shown["state"]) == (f"localhost:{port}", "running")
    assert f"TensorBoard: http://localhost:{port}/" in launch.run("ps").stdout
    assert psutil.Process(shown["pid"]) in launch.survivors()
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0
    assert not launch.survivors()


def test_a_port_that_is_taken_is_left_to_its_owner(launch: Launch) -> None:
    """6006 is in use: another port is chosen."""
    with busy(6006):
        running = launch.start("up", job(launch, UNTIL_GO))
        port = int(Said(running).until(URL)[1])
        assert port != 6006
        assert answers(port)
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0


def test_runs_that_start_at_once_do_not_dispute_a_port(launch: Launch) -> None:
    """Each TensorBoard has its own, at the first attempt."""
    spec = job(launch, UNTIL_GO, restart={"max": 0})
    with left_alone(6006):
        running = [launch.start("up", "--name", f"run{number}", spec) for number in range(4)]
        ports = {int(Said(one).until(URL)[1]) for one in running}
    assert len(ports) == len(running)
    assert all(answers(port) for port in ports)
    (launch.directory / "go").touch()
    assert [one.wait(PATIENCE) for one in running] == [0] * len(running)


def test_a_port_that_is_taken_just_before_it_listens(launch: Launch) -> None:
    """That listener is not mistaken for TensorBoard, which restarts on another port."""
    spec = job(launch, UNTIL_GO)
    for name in ("told", "waits"):
        os.mkfifo(launch.directory / name)
    with left_alone(6006):
        running = launch.start("up", spec)
        said = Said(running)
        first = int((launch.directory / "told").read_text())
        taken = socket.create_server(("127.0.0.1", first))
    with taken:
        (launch.directory / "waits").write_text("taken")
        said.until("tensorboard exited with code 255; it restarts alone")
        second = int(said.until(URL)[1])
        assert second != first
        assert answers(second)
    assert sum("TensorBoard:" in line for line in said.lines) == 1
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0


def test_one_that_dies_starts_again(launch: Launch) -> None:
    """The job's result is unaffected."""
    running = launch.start("up", job(launch, UNTIL_GO))
    said = Said(running)
    said.until(URL)
    board(launch).kill()
    said.until("tensorboard was killed by SIGKILL; it restarts alone")
    assert answers(int(said.until(URL)[1]))
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0


def test_a_python_without_tensorboard_is_explained(launch: Launch) -> None:
    """It never fails the job; once TensorBoard is given up, a hint says what to install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", launch.directory / "bare"], check=True)
    python = str(launch.directory / "bare" / "bin" / "python")
    spec = launch.spec(
        cluster={"worker": 1}, strategy="none", command=["sh", "-c", UNTIL_GO], tensorboard="logs/",
        hosts={"localhost": {"python": python}}, restart={"backoff": [0, 0]},
    )  # fmt: skip
    running = launch.start("up", spec)
    said = Said(running)
    said.until("tensorboard exited with code 1; the job goes on without it")
    said.until(f"hint: there is no TensorBoard for {python}: install tensorboard there, with pip or uv")
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0
    doctor = launch.run("doctor", spec)
    assert "its Python has no tensorboard" in doctor.stdout


def test_a_run_without_a_spec_has_one_too(launch: Launch) -> None:
    """`run --tensorboard DIR`."""
    stand_in(launch.directory)
    launch.env["PYTHONPATH"] = str(launch.directory)
    running = launch.start("run", "--tensorboard", "logs", "--", "sh", "-c", UNTIL_GO)
    Said(running).until(URL)
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0


@pytest.mark.parametrize("verb", ["up", "run"])
def test_the_removed_option_names_the_command(launch: Launch, verb: str) -> None:
    """And nothing is started."""
    written(launch.directory, {"cluster": {"worker": 1}, "command": ["true"]}, "none.json")
    refused = launch.run(verb, "--keep", "none.json")
    assert refused.returncode == 2
    assert "--keep was removed: `tflaunch tensorboard RUN`" in refused.stderr
    assert not (launch.home / "runs").exists()
