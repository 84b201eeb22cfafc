"""TensorBoard during and after a run: its port and the messages about it. A stand-in listens instead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from support.fake_tensorboard import UNTIL_GO, URL, Said, answers, job, left_alone
from support.launch import PATIENCE, Launch

pytestmark = pytest.mark.cli


def test_it_is_told_shown_and_ends_with_the_job(launch: Launch) -> None:
    running = launch.start("up", job(launch, UNTIL_GO))
    port = int(Said(running).until(URL)[1])
    assert answers(port)
    current = launch.status()
    board = {"url": f"http://localhost:{port}/", "host": None, "tunnel": None, "container": None}
    assert current["tensorboard"] == board
    (shown,) = [task for task in current["tasks"] if task["task"] == "tensorboard"]
    assert (shown["address"], shown["state"]) == (f"localhost:{port}", "running")
    assert f"TensorBoard: http://localhost:{port}/" in launch.run("ps").stdout
    assert psutil.Process(shown["pid"]) in launch.survivors()
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0
    assert not launch.survivors()


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
