"""TensorFlow under `tflaunch up`: clusters that form, servers, and the fate of tasks that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from support.fixed_ports import free_ports
from support.launch import LONG, PATIENCE, Launch, read_until
from support.specs import TFLAUNCH
from tflaunch.explain.startup_messages import NOTE

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("shared_import"),
]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

REDUCE = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
value = strategy.run(lambda: tf.constant(1.0))
print("sum", strategy.reduce("SUM", value, axis=None).numpy(), flush=True)
"""

HANG = REDUCE + "import time; time.sleep(300)"

CHIEF_ONLY = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
@tf.function
def add():
    total.assign_add(1.0)
for _ in range(10):
    coordinator.schedule(add)
coordinator.join()
print("total", total.numpy(), "on", total.device, flush=True)
"""


def test_tasks_run_by_hand_join_the_same_cluster(launch: Launch) -> None:
    """`eval "$(tflaunch env SPEC TASK)"` and the command: both tasks find each other."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    (launch.directory / "reduce.py").write_text(REDUCE)
    spec = launch.spec(cluster=cluster, command=["python", "reduce.py"], env=QUIET)
    script = f'eval "$(tflaunch env {spec} "$1")" && exec python reduce.py'
    by_hand = [
        subprocess.Popen(["sh", "-c", script, "sh", task], env=launch.env, stdout=subprocess.PIPE, text=True)
        for task in ("worker:0", "worker:1")
    ]
    launch.started += by_hand
    assert [task.communicate(timeout=PATIENCE)[0] for task in by_hand] == ["sum 2.0\n", "sum 2.0\n"]


@pytest.mark.skipif(not LONG, reason="imports TensorFlow once more: TFLAUNCH_TEST_LONG=1")
def test_start_up_messages_are_hidden_from_who_reads_both_streams(launch: Launch) -> None:
    """All that this version of TensorFlow writes at its start; `-v` and the logs have it."""
    env = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    spec = launch.spec(cluster={"worker": 2}, command=["python", "-c", REDUCE], env=env, preload=[])
    shown = {}
    for option in ("--verbose", "--no-preflight"):
        command = [str(TFLAUNCH), "up", option, str(spec)]
        shown[option] = subprocess.check_output(command, env=launch.env, stderr=subprocess.STDOUT, text=True)
    hidden, (begun, note, *lines, done) = shown["--verbose"], shown["--no-preflight"].splitlines()
    assert "oneDNN" in hidden
    assert NOTE not in hidden
    assert (begun.split()[1], note, done.split()[1]) == ("run", f"tflaunch: {NOTE}", "done:")
    rest = [line for line in lines if "WARNING:tensorflow" not in line]
    assert sorted(rest) == [f"worker:{number} | sum 2.0" for number in (0, 1)]


def test_tflaunch_runs_the_standard_servers(launch: Launch) -> None:
    """`server: true`: a program with only the chief's code trains on tflaunch's own workers and ps.

    Where people read, TensorFlow's messages of several lines are hidden, too, though it writes all that it can.
    """
    servers = {"worker": {"server": True}, "ps": {"server": True}}
    command = ["python", "-c", CHIEF_ONLY]
    env = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    spec = launch.spec(cluster={"chief": 1, "worker": 2, "ps": 1}, roles=servers, command=command, env=env)
    said = subprocess.check_output(
        [str(TFLAUNCH), "up", str(spec)], env=launch.env, stderr=subprocess.STDOUT, text=True
    )
    (line,) = [line for line in said.splitlines() if not line.startswith("tflaunch: ")]
    assert line.startswith("chief:0  | total 10.0 on /job:ps"), said
    assert "SessionOptions" in (launch.run_directory() / "logs" / "ps-0.log").read_text()


def test_a_mirrored_task_that_ignores_term_is_ended(launch: Launch) -> None:
    """TensorFlow catches TERM under MultiWorkerMirroredStrategy; after a short grace the task is killed."""
    timeouts = {"grace": "1s"}
    spec = launch.spec(cluster={"worker": 2}, command=["python", "-c", HANG], env=QUIET, timeouts=timeouts)
    running = launch.start("up", spec)
    read_until(running, "sum 2.0", 2)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    exits = [record["signal"] for record in launch.journal() if record["kind"] == "task_exited"]
    assert exits == [signal.SIGKILL, signal.SIGKILL]


def test_survivors_of_a_failure_do_not_wait_for_tensorflow(launch: Launch) -> None:
    """TensorFlow would notice a dead peer after 10 s; tflaunch has stopped everything long before."""
    spec = launch.spec(cluster={"worker": 2}, command=["python", "-c", HANG], env=QUIET, restart={"max": 0})
    running = launch.start("up", spec)
    read_until(running, "sum 2.0", 2)
    pid = next(r["pid"] for r in launch.journal() if r["kind"] == "task_started" and r["task"] == "worker:1")
    os.kill(pid, signal.SIGKILL)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 137
    assert "worker:1 was killed by SIGKILL" in err
    (survivor,) = [r for r in launch.journal() if r["kind"] == "task_exited" and r["task"] == "worker:0"]
    assert survivor["was_told"]
    assert "unhealthy" not in launch.log("worker:0")


def test_a_formed_cluster_is_known_by_its_ports(launch: Launch) -> None:
    """Once both listen, an exit with a plain code is a training failure, and retried."""
    failing = REDUCE + "import os, sys, time\nif os.environ['TFLAUNCH_ATTEMPT'] == '1': sys.exit()\n"
    failing += "while not os.path.exists('go'): time.sleep(0.05)\nsys.exit(3)\n"
    command = ["python", "-c", failing]
    spec = launch.spec(cluster={"worker": 2}, command=command, env=QUIET, restart={"backoff": [0, 0]})
    running = launch.start("up", spec)
    read_until(running, "sum 2.0", 2)
    while sum(record["kind"] == "port_opened" for record in launch.journal()) < 2:
        assert running.poll() is None
        time.sleep(0.05)
    (launch.directory / "go").touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "done: 2 tasks, after 1 restart" in err
