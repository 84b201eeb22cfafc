"""The real TensorBoard with real training: what it answers, and its port, which it binds itself."""

import json
import re
import signal
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fake_tensorboard import Said
from support.launch import Launch
from support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.needs("tensorboard")]

PROGRAMS = Path(__file__).parent / "programs"
URL = r"TensorBoard: http://localhost:(\d+)/"


def data(port: int, question: str) -> Any:
    """Return TensorBoard's answer; None where it knows nothing yet."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/data/{question}", timeout=60) as answer:
        return json.load(answer)


def point(port: int, tag: str, run: str, step: int) -> tuple[float, int]:
    """Return the value of a tag in a run after its last step, and that step, as the page asks for them."""
    query = urllib.parse.urlencode({"tag": tag, "run": run})

    def last() -> list[float] | None:  # time, step, value
        points = data(port, f"plugin/scalars/scalars?{query}") or [[0, -1, 0]]
        return points[-1] if points[-1][1] >= step else None

    _, reached, value = wait_until(last, otherwise=f"no {tag} of {run} after step {step}")
    return value, int(reached)


def answers(port: int) -> bool:
    return "window_title" in (data(port, "environment") or {})


@pytest.mark.thorough
@pytest.mark.usefixtures("shared_import")
def test_it_shows_what_a_training_has_written(launch: Launch) -> None:
    """Tag, run and value, after the run; TensorBoard listens on loopback only; Ctrl-C leaves nothing."""
    spec = launch.spec(
        cluster={"worker": 2}, command=["python", str(PROGRAMS / "scalars.py"), "logs"], tensorboard="logs/"
    )
    launch.succeed("up", spec)
    running = launch.start("tensorboard")
    port = int(Said(running).until(URL)[1])
    wait_until(lambda: {"ours", "train"} <= {*data(port, "runs")})  # event files are read every five seconds
    assert point(port, "answer", "ours", 4) == (4.25, 4)
    loss = re.search(r"last loss ([\d.e-]+)", launch.log("worker:0"))
    assert loss is not None
    assert point(port, "epoch_loss", "train", 2) == (pytest.approx(float(loss[1]), rel=0.01), 2)
    (process,) = psutil.Process(running.pid).children()
    listening = [
        connection.laddr.ip
        for one in (process, *process.children(recursive=True))
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 0
    assert not launch.survivors()
    assert not answers(port)
