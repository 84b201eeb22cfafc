"""`tflaunch profile`: Python stacks of live tasks."""

import json
import signal
import sys
from pathlib import Path

import jsonschema
import pytest

from support.launch import Launch, wait_for_end
from support.waiting import wait_until
from tflaunch.cli.json_output import schema_of_output

PROGRAM = """
def train():
    print("trains", flush=True)
    while True:
        sum(range(1000))

train()
"""
WORKER_1_RUNS_NO_PYTHON = f"test $TFLAUNCH_TASK = worker:1 && exec sleep 1000; exec {sys.executable} train.py"


def begin(launch: Launch, **cluster: int) -> str:
    """Start a run whose first worker can be profiled, and wait until it can be; return its name."""
    (launch.directory / "train.py").write_text(PROGRAM)
    command = ["sh", "-c", WORKER_1_RUNS_NO_PYTHON]
    started = launch.succeed("up", "-d", launch.spec(cluster=cluster, command=command, timeouts={"grace": 1}))
    launch.wait_for_log("worker:0", "trains")
    return started.stdout.strip()


def sessions(launch: Launch) -> list[Path]:
    """Return the directories of profiles, one for each command, the oldest first."""
    return sorted((launch.run_directory() / "profiles/python").glob("*"))


def test_each_task_is_profiled_and_what_fails_is_a_sentence(launch: Launch) -> None:
    begin(launch, worker=2, evaluator=1)
    launch.wait_for_log("evaluator:0", "trains")
    made = launch.succeed("profile", "--for", "500ms")
    lines = sorted(made.stdout.splitlines())
    assert [line.partition(" ")[0] for line in lines] == ["evaluator:0:", "worker:0:"]
    assert all("% of the main thread in train (train.py:" in line for line in lines)
    (session,) = sessions(launch)
    assert "tflaunch: worker:1 is not profiled: it does not run Python" in made.stderr
    assert f"the flame graphs are in {session}" in made.stderr.replace("\n", " ")
    names = [f"{task}.{suffix}" for task in ("evaluator-0", "worker-0") for suffix in ("folded", "svg")]
    assert sorted(path.name for path in session.iterdir()) == names
    assert "main thread;<module> (train.py:" in (session / "worker-0.folded").read_text()
    assert "train (train.py:" in (session / "worker-0.svg").read_text()
    none = launch.run("profile", "--json", "worker:1", "--for", "0.1")
    jsonschema.validate(printed := json.loads(none.stdout), schema_of_output("profile"))
    (about,) = printed["tasks"]
    assert (none.returncode, about["path"], about["problem"]) == (125, None, "it does not run Python")
    assert sessions(launch) == [session]
    launch.run("down")
    ended = launch.run("profile")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)])
def test_a_profile_can_be_interrupted(launch: Launch, how: signal.Signals) -> None:
    """The task goes on, and can be profiled again; nothing is left."""
    begin(launch, worker=1)
    profile = launch.start("profile", "--for", "10m")
    wait_until(lambda: sessions(launch))
    profile.send_signal(how)
    wait_for_end(profile, 130 if how is signal.SIGINT else -how)
    wait_until(lambda: not sessions(launch))
    launch.succeed("profile", "--for", "100ms")
    assert len(sessions(launch)) == 1
    assert launch.status()["state"] == "running"
    launch.succeed("down")
