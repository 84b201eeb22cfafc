"""`up --queue`, `--matrix` and `queue`: runs wait for their hosts, begin once, and can be compared."""

import contextlib
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.launch import LONG, Launch
from support.signals import SURVIVED
from support.waiting import PATIENCE, wait_until
from tflaunch_worker.readable import signal_name

MARK = 'echo "{run}" >>begun'
HOLD = "test -e free || until test -e free; do sleep 0.02; done"
"""Holds the host until the test makes a file."""
WAITERS, MATRIX, KILLS, SLOTS = (60, 500, 20, 3) if LONG else (5, 8, 2, 1)
SEED = 7


@pytest.fixture(autouse=True)
def _nothing_is_left(launch: Launch) -> Any:
    """Processes of runs that have begun and ended, or were taken out, exit by themselves."""
    yield
    wait_until(lambda: not launch.survivors())


def shell(launch: Launch, script: str, name: str = "job", **fields: Any) -> Path:
    """Write a spec of one task."""
    about = {"cluster": {"worker": 1}, "strategy": "none", "command": ["sh", "-c", script], "restart": {"max": 0}}
    return launch.spec(f"{name}.json", **{**about, **fields})


def queued(launch: Launch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(launch.run("queue", "--json").stdout)
    return found


def listed(launch: Launch, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return what `ls --json` shows, by run."""
    return {run["run"]: run for run in json.loads(launch.run("ls", "--json", *arguments).stdout)}


def begun(launch: Launch) -> list[str]:
    """Return the runs in the order in which they began."""
    path = launch.directory / "begun"
    return path.read_text().split() if path.exists() else []


def put(launch: Launch, spec: Path, *arguments: object) -> list[str]:
    """Queue a spec, and return the names of its runs."""
    done = launch.succeed("up", "-d", spec, "--queue", *arguments)
    return done.stdout.split()


def held(launch: Launch, **fields: Any) -> str:
    """Start a run that holds its hosts until `free` exists, and return its name."""
    done = launch.succeed("up", "-d", shell(launch, HOLD, "holder", **fields))
    return done.stdout.strip()


def free(launch: Launch) -> None:
    """End the run of `held`."""
    (launch.directory / "free").touch()


def waiter(launch: Launch, run: str) -> psutil.Process:
    tickets = (launch.home / "queue" / "tickets").iterdir()
    return psutil.Process(next(int(path.name.partition("-")[2]) for path in tickets if run in path.read_text().split()))


def test_a_matrix_is_run_and_compared(launch: Launch) -> None:
    """One run after the other, in the order of the values; `ls` has a column for each value and metric."""
    report = """echo '{"step": 7, "metrics": {"loss": {matrix.lr}}}' >"$TFLAUNCH_PROGRESS"; """
    spec = shell(launch, report + MARK + "; echo batch $BATCH", "mnist", env={"BATCH": "{matrix.batch}"})
    followed = launch.succeed("up", spec, "--matrix", "lr=0.5,0.25", "--matrix", "batch=1")
    runs = begun(launch)
    assert [run.rsplit("-", 3)[0] for run in runs] == ["mnist-lr0.5-batch1", "mnist-lr0.25-batch1"]
    lines = [line.split() for line in followed.stdout.splitlines()]
    assert lines[0][-4:] == ["lr", "batch", "STEP", "loss"]
    assert [line[-4:] for line in lines[1:]] == [["0.5", "1", "7", "0.5"], ["0.25", "1", "7", "0.25"]]
    found = listed(launch, "mnist")
    assert found[runs[0]]["matrix"] == {"lr": "0.5", "batch": "1"}
    assert {found[run]["job"] for run in runs} == {"mnist"}
    assert (found[runs[1]]["step"], found[runs[1]]["metrics"]) == (7, {"loss": 0.25})
    assert [found[run]["started"] for run in runs] == sorted(found[run]["started"] for run in runs)
    assert found[runs[0]]["ended"] <= found[runs[1]]["started"]
    assert launch.run("ls", "other").returncode == 2


def test_a_run_waits_for_another_that_is_not_of_the_queue(launch: Launch) -> None:
    """`queue` says why; entries that are taken out never begin; the others do when the host is free."""
    holder = held(launch)
    spec = shell(launch, MARK)
    first, second, third = (put(launch, spec)[0] for _ in range(3))
    found = queued(launch)
    assert [entry["run"] for entry in found] == [first, second, third]
    assert found[0]["obstacles"] == [{"machine": "localhost", "runs": [holder], "is_ahead": False}]
    assert found[0]["reason"] == f"{holder} on this machine"
    assert found[1]["obstacles"] == [{"machine": "localhost", "runs": [first], "is_ahead": True}]
    assert {run: listed(launch)[run]["state"] for run in (first, second)} == {first: "queued", second: "queued"}
    refused = launch.run("logs", first, code=125)
    assert f"run {first} has not begun; `tflaunch queue` says what it waits for" in refused.stderr
    removed = launch.run("down", second)
    assert (removed.returncode, removed.stderr) == (0, f"tflaunch: took {second} out of the queue\n")
    assert second not in listed(launch)
    waiting = launch.start("wait", third)
    free(launch)
    assert waiting.wait(PATIENCE) == 0
    assert begun(launch) == [first, third]
    assert queued(launch) == []


def start_queued(launch: Launch, *arguments: object) -> subprocess.Popen[str]:
    """Start a command that waits for the run of `held`, and return it when it says so."""
    process = launch.start("up", *arguments)
    assert "is in the queue; it waits for holder-" in process.stderr.readline()
    return process


def test_it_is_shown_here_when_it_begins(launch: Launch) -> None:
    held(launch)
    process = start_queued(launch, "--queue", shell(launch, "echo trains; exit 7"))
    free(launch)
    said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (7, "worker:0 | trains\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.thorough)]
)
def test_an_interrupt_takes_it_out_of_the_queue(launch: Launch, number: int, code: int) -> None:
    held(launch)
    process = start_queued(launch, shell(launch, MARK + "; exit {matrix.code}"), "--matrix", "code=1,2")
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, queued(launch)) == (code, [])
    assert "Traceback" not in said
    assert [run.split("-")[0] for run in listed(launch)] == ["holder"]
    free(launch)
    assert launch.run("wait", "holder").returncode == 0
    assert begun(launch) == []


def test_slots(launch: Launch) -> None:
    runs = put(launch, shell(launch, f"{MARK}; {HOLD}; : {{matrix.n}}"), "--matrix", "n=1,2,3")
    wait_until(lambda: begun(launch) == runs[:1])
    assert launch.run("queue", "--slots", "2").returncode == 0
    wait_until(lambda: sorted(begun(launch)) == runs[:2])
    assert [entry["run"] for entry in queued(launch)] == runs[2:]
    launch.succeed("down", "--all")
    assert sorted(begun(launch)) == runs[:2]
    assert queued(launch) == []


def test_a_run_has_the_environment_of_its_command(launch: Launch) -> None:
    """Secrets, too: no file has them."""
    held(launch)
    launch.env |= {"FLAVOUR": "sweet", "TOKEN": "hidden"}
    (run,) = put(launch, shell(launch, "echo $FLAVOUR; pwd; echo ${#SECRET}", secrets={"SECRET": {"env": "TOKEN"}}))
    path = launch.home / "runs" / run
    files = [path / "queued.json", *(file for file in launch.home.rglob("*") if file.is_file())]
    assert not any(word in file.read_text() for file in files for word in ("sweet", "hidden"))
    free(launch)
    assert launch.run("wait", run).returncode == 0
    assert (path / "logs" / "worker-0.log").read_text().split() == ["sweet", str(launch.directory), "6"]
    assert not list(path.glob("*queued.json"))


def test_a_run_that_cannot_begin(launch: Launch) -> None:
    held(launch)
    secret = launch.directory / "secret"
    secret.write_text("hidden")
    first, second = (put(launch, shell(launch, MARK, secrets=used))[0] for used in ({"S": {"file": "secret"}}, {}))
    secret.unlink()
    free(launch)
    assert launch.run("wait", second).returncode == 0
    waited = launch.run("wait", first, code=2)
    assert f"tflaunch: run {first} could not begin: secrets.S: " in waited.stderr
    assert (listed(launch)[first]["state"], listed(launch)[first]["exit_code"]) == ("failed", 2)
    assert begun(launch) == [second]


@pytest.mark.parametrize("options", [("--queue", "-d"), ("--matrix", "n=1,2")])
def test_a_process_that_cannot_wait_says_why(launch: Launch, options: tuple[str, ...]) -> None:
    """The command ends with its last words, and leaves no run."""
    (launch.home / "queue").mkdir(parents=True)
    (launch.home / "queue" / "tickets").touch()
    ended = launch.run("up", shell(launch, "true" if "--queue" in options else ": {matrix.n}"), *options)
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith(f"tflaunch: {launch.home}/queue/tickets"), ended.stderr
    assert listed(launch) == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_ends_while_its_run_waits(launch: Launch, number: int) -> None:
    """The run says so, its follower says so, and the next one takes its place."""
    held(launch)
    following = start_queued(launch, "--queue", shell(launch, MARK))
    (first,) = (entry["run"] for entry in queued(launch))
    (second,) = put(launch, shell(launch, MARK))
    process = waiter(launch, first)
    for each in (signal.SIGHUP, *SURVIVED, number):
        process.send_signal(each)
    _, said = following.communicate(timeout=PATIENCE)
    is_killed = number == signal.SIGKILL
    word = "was killed while it waited" if is_killed else f"was ended by {signal_name(number)} while it waited"
    assert (following.returncode, word in said) == (125 if is_killed else 128 + number, True), said
    assert listed(launch)[first]["state"] == ("lost" if is_killed else "stopped")
    assert [entry["run"] for entry in queued(launch)] == [second]
    free(launch)
    assert launch.run("wait", second).returncode == 0
    assert begun(launch) == [second]


@pytest.mark.thorough
def test_many_processes_that_wait(launch: Launch) -> None:
    """Some are killed at any moment: each run begins once or says that it was killed, and never too many at a time."""
    chance = random.Random(SEED)
    launch.run("queue", "--slots", SLOTS)
    held(launch)
    alone = f"mkdir slot-{{run}}; ls -d slot-* | wc -l >>at-once; {MARK}; rmdir slot-{{run}}"
    runs = put(launch, shell(launch, f"{alone}; : {{matrix.n}}"), "--matrix", f"n={','.join(map(str, range(MATRIX)))}")
    singles = [put(launch, shell(launch, alone))[0] for _ in range(WAITERS)]
    free(launch)
    killed = set[str]()
    while len(killed) < KILLS and (waiting := [each["run"] for each in queued(launch) if each["run"] in singles]):
        with contextlib.suppress(StopIteration, psutil.NoSuchProcess, FileNotFoundError):
            waiter(launch, victim := chance.choice(waiting)).kill()
            killed.add(victim)
    for run in (*runs, *singles):
        assert launch.run("wait", run).returncode in ((0, 125) if run in killed else (0,))
    lost = {run for run, entry in listed(launch).items() if entry["state"] == "lost"}
    assert lost <= killed
    assert sorted(run for run in begun(launch) if run not in lost) == sorted({*runs, *singles} - lost)
    assert max(map(int, (launch.directory / "at-once").read_text().split())) <= SLOTS
