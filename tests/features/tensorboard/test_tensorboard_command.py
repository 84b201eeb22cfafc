"""`tflaunch tensorboard RUN` shows the event files of a live or ended run. A stand-in listens instead."""

import os
import shutil
import signal
import socket

import psutil
import pytest

from support.fake_tensorboard import UNTIL_GO, URL, Said, answers, job
from support.fixed_ports import free_ports
from support.launch import PATIENCE, Launch
from support.waiting import wait_gone


def test_it_serves_an_ended_run_until_a_signal(launch: Launch) -> None:
    """It dies with the command; a taken port, and a TensorBoard that fails, are told."""
    assert launch.up(job(launch, "true")).returncode == 0
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        serving = launch.start("tensorboard")
        assert answers(int(Said(serving).until(URL)[1]))
        (process,) = psutil.Process(serving.pid).children()
        assert process in launch.survivors()
        serving.send_signal(number)
        assert serving.wait(PATIENCE) == code
        wait_gone(process.pid)
        assert not launch.survivors()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = launch.run("tensorboard", "--port", port)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"port {port} is held by pid {os.getpid()} (" in refused.stderr
    (launch.directory / "tensorboard" / "main.py").write_text("raise SystemExit(7)")
    failed = launch.run("tensorboard", code=125)
    assert "TensorBoard exited with code 7" in failed.stderr


def test_it_serves_a_live_run_on_a_port_of_its_own(launch: Launch) -> None:
    """In addition to the run's own TensorBoard, which is told and shown, on the port that the user chooses."""
    running = launch.start("up", job(launch, UNTIL_GO))
    own = int(Said(running).until(URL)[1])
    current = launch.status()
    url = f"http://localhost:{own}/"
    assert current["tensorboard"] == {"url": url, "host": None, "tunnel": None, "container": None}
    (shown,) = [task for task in current["tasks"] if task["task"] == "tensorboard"]
    assert (shown["address"], shown["state"]) == (f"localhost:{own}", "running")
    assert f"TensorBoard: {url}" in launch.run("ps").stdout
    assert psutil.Process(shown["pid"]) in launch.survivors()
    (wanted,) = free_ports(1)
    serving = launch.start("tensorboard", "--port", str(wanted))
    assert int(Said(serving).until(URL)[1]) == wanted != own
    serving.send_signal(signal.SIGINT)
    assert serving.wait(PATIENCE) == 0
    assert answers(own)
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0
    assert not launch.survivors()


def test_a_port_that_is_taken_just_before_it_listens(launch: Launch) -> None:
    """That listener is not mistaken for TensorBoard."""
    assert launch.up(job(launch, "true")).returncode == 0
    for name in ("told", "waits", "refused"):
        os.mkfifo(launch.directory / name)
    serving = launch.start("tensorboard", "--port", str(free_ports(1)[0]))
    said = Said(serving)
    taken = socket.create_server(("127.0.0.1", int((launch.directory / "told").read_text())))
    (launch.directory / "waits").write_text("taken")
    with (launch.directory / "refused").open("w"):
        taken.close()
    said.until("TensorBoard exited with code 255")
    assert serving.wait(PATIENCE) == 125


@pytest.mark.parametrize("spec", ["without event files", "whose directory is gone"])
def test_a_run_that_has_nothing_to_show_is_refused(launch: Launch, spec: str) -> None:
    place = launch.directory / "place"
    place.mkdir()
    is_gone = spec == "whose directory is gone"
    assert launch.up(job(launch, "true", workdir=str(place)) if is_gone else launch.shell("true")).returncode == 0
    shutil.rmtree(place)
    refused = launch.run("tensorboard")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    expected = "their working directory is gone" if is_gone else 'write "tensorboard": "logs/" into the spec'
    assert expected in refused.stderr
