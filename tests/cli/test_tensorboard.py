"""TensorBoard during and after a run: its port and the messages about it. A stand-in listens instead."""

from __future__ import annotations

import psutil
import pytest

from support.fake_tensorboard import UNTIL_GO, URL, Said, answers, job
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
