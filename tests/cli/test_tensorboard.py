"""TensorBoard as a part of a run: its port, what is told of it, how long it stays. A stand-in listens for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from boards import Said, busy, stand_in
from launch import PATIENCE, Launch
from specs import written

pytestmark = pytest.mark.cli

URL = r"TensorBoard: http://localhost:(\d+)/"
STAYS = r"TensorBoard still running until Ctrl-C or `tflaunch down`"
UNTIL_GO = "echo up; until test -e go; do sleep 0.05; done; "
QUICK = {"lease": 60, "grace": 5}
ONCE = {"max": 1, "backoff": [0, 0]}


def job(launch: Launch, script: str, **fields: Any) -> Path:
    """Write the spec of a worker that runs a shell script, with a TensorBoard beside it."""
    if not (launch.directory / "tensorboard").exists():
        stand_in(launch.directory)
    return launch.shell(
        script, **{"workers": 1, "strategy": "none", "tensorboard": "logs/", "timeouts": QUICK, **fields}
    )


def answers(port: int) -> bool:
    """Whether somebody serves pages on a port of the loopback address."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as page:
        return page.status == 200
    return False


def board(launch: Launch) -> psutil.Process:
    """Return the process of the only run's TensorBoard."""
    (task,) = [task for task in launch.status()["tasks"] if task["task"] == "tensorboard"]
    return psutil.Process(task["pid"])


def test_it_is_told_shown_and_ends_with_the_job(launch: Launch) -> None:
    """Where it is; in `ps` as well; and it is gone with the run."""
    running = launch.start("up", job(launch, UNTIL_GO))
    port = int(Said(running).until(URL)[1])
    assert answers(port)
    current = launch.status()
    assert current["tensorboard"] == {
        "url": f"http://localhost:{port}/", "host": None, "ssh": None, "container": None,
    }  # fmt: skip
    (shown,) = [task for task in current["tasks"] if task["task"] == "tensorboard"]
    assert (shown["address"], shown["state"]) == (f"localhost:{port}", "running")
    assert f"TensorBoard: http://localhost:{port}/" in launch.run("ps").stdout
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0
    assert not answers(port)
    assert not launch.survivors()


@pytest.mark.parametrize("code", [0, 7])
def test_it_stays_until_ctrl_c_and_the_exit_code_is_the_jobs(launch: Launch, code: int) -> None:
    """A job that succeeds, and one that fails for good; it is said once, with the result before it."""
    running = launch.start("up", "--keep", job(launch, f"{UNTIL_GO} exit {code}", restart=ONCE))
    said = Said(running)
    port = int(said.until(URL)[1])
    (launch.directory / "go").touch()
    said.until(f"{STAYS}: http://localhost:{port}/")
    result = "tflaunch: done: 1 task in " if code == 0 else "tflaunch: worker:0 exited with code 7"
    assert any(line.startswith(result) for line in said.lines)
    assert answers(port)
    running.send_signal(signal.SIGINT)
    assert said.rest() == ["tflaunch: ending tensorboard"]
    assert running.wait(PATIENCE) == code
    assert not launch.survivors()
    records = [record for record in launch.journal() if record["kind"] in ("kept", "ended")]
    assert [(record["kind"], record["exit_code"]) for record in records] == [("kept", code), ("ended", code)]


def test_it_does_not_stay_when_the_user_ends_the_job(launch: Launch) -> None:
    """Ctrl-C while the job runs ends everything, with 130."""
    running = launch.start("up", "--keep", job(launch, "sleep 300"))
    said = Said(running)
    said.until(URL)
    running.send_signal(signal.SIGINT)
    assert not any("stays" in line for line in said.rest())
    assert running.wait(PATIENCE) == 130
    assert not launch.survivors()


def test_other_terminals_see_a_result_that_stands(launch: Launch) -> None:
    """`wait` returns it while TensorBoard stays; ls, ps and attach show it; `down` ends it and changes nothing."""
    started = launch.run("up", "-d", "--keep", job(launch, f"{UNTIL_GO} exit 7", restart=ONCE))
    assert started.returncode == 0, started.stderr
    waiting = launch.start("wait")
    (launch.directory / "go").touch()
    _, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 7
    assert f"TensorBoard still running until `tflaunch down {started.stdout.strip()}`" in err
    (entry,) = json.loads(launch.run("ls", "--json").stdout)
    assert (entry["state"], entry["exit_code"]) == ("keeping", 7)
    assert launch.status()["phase"] == "keeping"
    assert "failed (7), TensorBoard still running" in launch.run("ps").stdout
    attached = launch.start("attach")
    watching = Said(attached)
    watching.until("TensorBoard still running until `tflaunch down")
    refused = launch.run("restart")
    assert refused.returncode == 2
    assert "the job is keeping" in refused.stderr
    ended = launch.run("down")
    assert (ended.returncode, "has ended with exit code 7" in ended.stderr) == (0, True)
    assert attached.wait(PATIENCE) == 7
    assert not launch.survivors()
    assert launch.run("wait").returncode == 7


def test_a_job_that_is_over_at_once_is_kept_as_well(launch: Launch) -> None:
    """`up -d` comes back with its result."""
    started = launch.run("up", "-d", "--keep", job(launch, "exit 3", restart=ONCE))
    assert started.returncode in (0, 3)
    assert launch.run("wait").returncode == 3
    following = launch.start("logs", "-f", "tensorboard")
    assert launch.run("down").returncode == 0
    assert following.wait(PATIENCE) == 0
    assert not launch.survivors()


def test_a_port_that_is_taken_is_left_to_its_owner(launch: Launch) -> None:
    """6006 is busy: another one is chosen."""
    with busy(6006):
        running = launch.start("up", "--keep", job(launch, "true"))
        port = int(Said(running).until(URL)[1])
        assert port != 6006
        assert answers(port)
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 0


def test_runs_that_start_at_once_do_not_dispute_a_port(launch: Launch) -> None:
    """Each TensorBoard has its own, at the first attempt."""
    spec = job(launch, "true", restart={"max": 0})
    running = [launch.start("up", "--keep", "--name", f"run{number}", spec) for number in range(4)]
    ports = {int(Said(one).until(URL)[1]) for one in running}
    assert len(ports) == len(running)
    assert all(answers(port) for port in ports)
    for one in running:
        one.send_signal(signal.SIGINT)
    assert [one.wait(PATIENCE) for one in running] == [0] * len(running)


def test_a_port_that_is_taken_just_before_it_listens(launch: Launch) -> None:
    """Somebody else listens there: that is not taken for TensorBoard, which starts again on another port."""
    spec = job(launch, UNTIL_GO)
    for name in ("told", "waits"):
        os.mkfifo(launch.directory / name)
    running = launch.start("up", spec)
    said = Said(running)
    first = int((launch.directory / "told").read_text())
    with socket.create_server(("127.0.0.1", first)):
        (launch.directory / "waits").write_text("taken")
        said.until("tensorboard exited with code 255; it restarts alone")
        second = int(said.until(URL)[1])
        assert second != first
        assert answers(second)
    assert sum("TensorBoard:" in line for line in said.lines) == 1
    (launch.directory / "go").touch()
    assert running.wait(PATIENCE) == 0


def test_one_that_dies_starts_again_also_when_it_is_all_that_is_left(launch: Launch) -> None:
    """The job's result is not touched."""
    running = launch.start("up", "--keep", job(launch, "true"))
    said = Said(running)
    said.until(STAYS)
    if not any("TensorBoard: " in line for line in said.lines):
        said.until(URL)
    board(launch).kill()
    said.until("tensorboard was killed by SIGKILL; it restarts alone")
    assert answers(int(said.until(URL)[1]))
    board(launch).terminate()
    assert said.rest() == ["tflaunch: tensorboard ended, and the run ends with it"]
    assert running.wait(PATIENCE) == 0


def test_another_supervisor_takes_it_over(launch: Launch) -> None:
    """Kill -9 of tflaunch while TensorBoard stays: the same process goes on under the next one."""
    assert launch.run("up", "-d", "--keep", job(launch, "exit 5", restart=ONCE)).returncode in (0, 5)
    assert launch.run("wait").returncode == 5
    same = board(launch)
    supervisor = launch.supervisor()
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=PATIENCE)
    assert launch.run("wait").returncode == 5
    running = launch.start("up", "--resume", launch.run_directory().name)
    said = Said(running)
    said.until(STAYS)
    assert board(launch) == same
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 5
    assert not launch.survivors()


@pytest.mark.parametrize("ending", ["down", "nobody"])
def test_nothing_is_left_when_the_supervisor_is_killed(launch: Launch, ending: str) -> None:
    """`down` ends what a dead supervisor has kept; without it the lease does."""
    lease = {"lease": 60 if ending == "down" else 1, "grace": 1}
    assert launch.run("up", "-d", "--keep", job(launch, "true", timeouts=lease)).returncode == 0
    assert launch.run("wait").returncode == 0
    kept, supervisor = board(launch), launch.supervisor()
    supervisor.kill()
    if ending == "down":
        assert launch.run("down").returncode == 0
        assert not kept.is_running()
    gone, _ = psutil.wait_procs([kept, *launch.survivors()], timeout=PATIENCE)
    assert kept in gone
    assert not launch.survivors()


def test_a_python_without_tensorboard_is_explained(launch: Launch) -> None:
    """It never fails the job; when it is given up, a hint says what to install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", launch.directory / "bare"], check=True)
    python = str(launch.directory / "bare" / "bin" / "python")
    spec = launch.spec(
        cluster={"worker": 1}, strategy="none", command=["sh", "-c", UNTIL_GO], tensorboard="logs/",
        hosts={"localhost": {"python": python}}, restart={"backoff": [0, 0]},
    )  # fmt: skip
    running = launch.start("up", "--keep", spec)
    said = Said(running)
    said.until("tensorboard exited with code 1; the job goes on without it")
    said.until(f"hint: there is no TensorBoard for {python}: pip install tensorboard there")
    (launch.directory / "go").touch()
    assert not any("stays" in line for line in said.rest())
    assert running.wait(PATIENCE) == 0
    doctor = launch.run("doctor", spec)
    assert "its Python has no tensorboard" in doctor.stdout


def test_a_run_without_a_spec_has_one_too(launch: Launch) -> None:
    """`run --tensorboard DIR`."""
    stand_in(launch.directory)
    running = launch.start("run", "--tensorboard", "logs", "--keep", "--", "true")
    said = Said(running)
    said.until(STAYS)
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    "arguments",
    [["up", "--keep", "none.json"], ["run", "--keep", "--", "true"], ["up", "-d", "--keep", "none.json"]],
)
def test_there_must_be_one_to_keep(launch: Launch, arguments: list[str]) -> None:
    """One sentence, and nothing is started."""
    written(launch.directory, {"cluster": {"worker": 1}, "command": ["true"]}, "none.json")
    refused = launch.run(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith("tflaunch: --keep keeps TensorBoard, and this job has none: ")
    assert refused.stderr.count("\n") == 1
    assert not (launch.home / "runs").exists()


class TestTheCommand:
    """`tflaunch tensorboard RUN` shows the event files, whether the run lives or has ended."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_serves_an_ended_run_until_a_signal(self, launch: Launch, number: signal.Signals) -> None:
        """And leaves nothing."""
        assert launch.up(job(launch, "true")).returncode == 0
        serving = launch.start("tensorboard")
        port = int(Said(serving).until(URL)[1])
        assert answers(port)
        serving.send_signal(number)
        assert serving.wait(PATIENCE) == (0 if number == signal.SIGINT else 143)
        assert not answers(port)
        assert not launch.survivors()

    def test_it_serves_a_live_run_on_a_port_of_its_own(self, launch: Launch) -> None:
        """Beside the run's own TensorBoard, and on the port that the user wants."""
        running = launch.start("up", job(launch, UNTIL_GO))
        own = int(Said(running).until(URL)[1])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            wanted = probe.getsockname()[1]
        serving = launch.start("tensorboard", "--port", str(wanted))
        assert int(Said(serving).until(URL)[1]) == wanted != own
        serving.send_signal(signal.SIGINT)
        assert serving.wait(PATIENCE) == 0
        assert answers(own)
        (launch.directory / "go").touch()
        assert running.wait(PATIENCE) == 0

    def test_a_port_that_is_taken_is_refused(self, launch: Launch) -> None:
        """One sentence."""
        assert launch.up(job(launch, "true")).returncode == 0
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            refused = launch.run("tensorboard", "--port", port)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"port {port} cannot be used" in refused.stderr

    def test_a_run_without_event_files_is_refused(self, launch: Launch) -> None:
        """With what to write into the spec."""
        assert launch.up(launch.shell("true")).returncode == 0
        refused = launch.run("tensorboard")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert 'write "tensorboard": "logs/" into the spec' in refused.stderr

    def test_one_that_fails_is_told(self, launch: Launch) -> None:
        """It ends by itself."""
        assert launch.up(job(launch, "true")).returncode == 0
        (launch.directory / "tensorboard" / "main.py").write_text("raise SystemExit(7)")
        failed = launch.run("tensorboard")
        assert failed.returncode == 125
        assert "TensorBoard exited with code 7" in failed.stderr

    def test_event_files_that_are_gone_are_told(self, launch: Launch) -> None:
        """The working directory was removed."""
        place = launch.directory / "place"
        place.mkdir()
        stand_in(place)
        assert launch.up(job(launch, "true", workdir=str(place))).returncode == 0
        shutil.rmtree(place)
        refused = launch.run("tensorboard")
        assert refused.returncode == 2
        assert "their working directory is gone" in refused.stderr

    def test_it_dies_with_the_command(self, launch: Launch) -> None:
        """Also when that is killed."""
        assert launch.up(job(launch, "true")).returncode == 0
        serving = launch.start("tensorboard")
        port = int(Said(serving).until(URL)[1])
        left = psutil.Process(serving.pid).children()
        serving.kill()
        psutil.wait_procs(left, timeout=PATIENCE)
        assert not answers(port)
