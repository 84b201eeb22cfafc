"""`tflaunch stacks` names the task and the line for which real trainings wait, and accuses none that goes on."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.launch import LONG, WARM, WARM_DIRECTORY, Launch, wait_for_end
from support.needs import need
from support.waiting import wait_until
from training import framework_hangs, hangs
from training.hangs import GOING_ON, Hang
from training.healthy import HEALTHY

pytestmark = pytest.mark.tensorflow
HANGS = {**hangs.HANGS, **framework_hangs.HANGS}
FAST = ("stopped", "input", "uneven data", "never listens")
"""Those that `make test-all` tries beside the one of `make test`; `make nightly` tries all."""
HELD = (
    "stopped",
    "breakpoint",
    "data service",
    "stopped parameter server",
    "endless loop",
    "closure without an end",
    "JAX: stopped",
)
"""Those that are noticed, but not ended: a person may hold the task, or it computes."""
NAMES = ["sleep", *(pytest.param(name, marks=pytest.mark.thorough) for name in (HANGS if LONG else FAST))]
ASKS = 200 // len(GOING_ON) + 1 if LONG else 3
RUNS = int(os.environ.get("TFLAUNCH_TEST_RUNS", "20" if LONG else "1"))


def start(home: Launch, directory: Path, hang: Hang) -> str:
    """Start a program and wait until it hangs, or has begun; return the name of the run."""
    home.directory, name = directory, f"job-{len(home.started)}"
    with network_of(home, hang):
        home.detach("--name", name, written(home, hang, restart={"max": 0}))
    home.wait_for_log(hang.culprits[0], "hangs", run=name)
    return name


def written(home: Launch, hang: Hang, **fields: Any) -> Path:
    """Write a program and its spec."""
    (home.directory / "hang.py").write_text(hang.program)
    command, env = ["python", "hang.py", hang.culprits[0]], {"TF_CPP_MIN_LOG_LEVEL": "2"}
    kept = {} if hang.has_own_network else {"warm": WARM}
    return home.spec(cluster=dict(hang.cluster), command=command, env=env, **kept, **fields, **hang.fields)


@contextmanager
def network_of(home: Launch, hang: Hang) -> Iterator[None]:
    """Start runs in a network of their own, if the program cuts its links."""
    need(*hang.needs, *["namespaces"] * hang.has_own_network)
    if hang.has_own_network:
        home.prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    yield
    home.prefix = []


def ask(home: Launch, run: str) -> dict[str, Any]:
    shown = home.succeed("stacks", "--json", run)
    verdict: dict[str, Any] = json.loads(shown.stdout)
    return verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_task_and_the_line_are_named(home: Launch, tmp_path: Path, name: str) -> None:
    """As soon as the others wait for it, and the tasks live on."""
    hang = HANGS[name]
    run = start(home, tmp_path, hang)
    verdict = wait_until(lambda: found if (found := ask(home, run))["culprits"] else None)
    sentence = verdict["sentence"]
    assert tuple(verdict["culprits"]) == hang.culprits, sentence
    assert hang.says in sentence
    line = re.search(r"\(hang\.py, line (\d+)\)", sentence)
    assert not hang.lines or (line is not None and int(line[1]) in hang.lines), sentence
    assert home.run("down", "-t", "0", run).returncode == 0


@pytest.mark.thorough
@pytest.mark.skipif(not LONG, reason="waits a minute for each hang: TFLAUNCH_TEST_LONG=1")
@pytest.mark.parametrize("name", [name for name in HANGS if name not in HELD])
def test_it_is_ended_and_trains_to_its_end_after_the_restart(launch: Launch, warm_servers: Path, name: str) -> None:
    """Without a field of the spec."""
    hang = HANGS[name]
    launch.env.update({WARM_DIRECTORY: str(warm_servers), "TFLAUNCH_STALL_SCALE": "100"})
    with network_of(launch, hang):
        launch.up(written(launch, hang), code=0)
    assert len(launch.records("job_hung")) == 1
    (explained,) = launch.records("hang_explained")
    assert all(name in explained["sentence"] for name in hang.culprits), explained
    assert hang.says in explained["sentence"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", GOING_ON if LONG else ("uneven workers",))
def test_a_slow_run_that_goes_on_is_not_accused_or_ended(
    home: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One worker sleeps for up to two seconds in each step, and the other one waits for it, for example."""
    monkeypatch.setitem(home.env, "TFLAUNCH_STALL_SCALE", "100")
    run = start(home, tmp_path, GOING_ON[name])
    for _ in range(ASKS):
        verdict = ask(home, run)
        assert verdict["culprits"] == [], verdict["sentence"]
    assert home.status(run)["exit_code"] is None
    assert home.run("down", "-t", "0", run).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", HEALTHY if LONG else ("evaluator that works",))
def test_a_healthy_job_is_not_ended(launch: Launch, name: str) -> None:
    """It is silent for long, and goes on; its runs are side by side, as they wait most of the time."""
    healthy = HEALTHY[name]
    launch.env["TFLAUNCH_STALL_SCALE"] = str(healthy.scale)
    (launch.directory / "train.py").write_text(healthy.program)
    cluster = {"worker": 2, **({"evaluator": 1} if healthy.evaluator else {})}
    spec = launch.spec(cluster=cluster, command=["python", "train.py"], restart={"max": 0}, preload=[])
    for started in [launch.start("up", "--name", f"job-{number}", spec) for number in range(RUNS)]:
        wait_for_end(started)
    assert not launch.records("job_hung")
