"""`preload` with TensorFlow itself: forked workers train the same as workers that were started."""

import json
import os
import re
import signal
from typing import Any

import psutil
import pytest

from support.launch import Launch, read_until, wait_for_end
from support.processes import command_of
from support.waiting import wait_until

pytestmark = pytest.mark.tensorflow

TRAIN = """
import os, time
import numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    model.compile("sgd", "mse")
x = np.arange(48, dtype="float32").reshape(16, 3) / 48
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True) * 2)).batch(4)
model.fit(data, epochs=2, verbose=0)
print("weights", [float(value) for value in model.get_weights()[0].ravel()], flush=True)
print("threads", tf.config.threading.get_intra_op_parallelism_threads(), len(os.listdir("/proc/self/task")) > 1)
"""
UNTIL_KILLED = TRAIN + "if os.environ['TFLAUNCH_ATTEMPT'] == '0': time.sleep(9999)\n"


def settings(size: int, **more: Any) -> dict[str, Any]:
    return {"cluster": {"worker": size}, "command": ["python", "prog.py"], "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, **more}


def weights(text: str) -> list[str]:
    """Return what workers have learned."""
    return [line.partition("weights ")[2] for line in text.splitlines() if "weights " in line]


def zygotes(launch: Launch) -> list[psutil.Process]:
    """Return the processes that have imported modules for the tasks."""
    return [each for each in launch.survivors() if any("tflaunch-forkserver" in word for word in command_of(each))]


def starts(launch: Launch) -> list[tuple[str, int, str]]:
    return [(r["task"], r["attempt"], r["preload"]) for r in launch.journal() if r["kind"] == "task_started"]


def threads(text: str) -> set[str]:
    return {line.partition("threads ")[2] for line in text.splitlines() if "threads " in line}


def test_forked_workers_train_the_same_and_again_after_a_restart(launch: Launch) -> None:
    """The weights equal those of workers that were started; a worker is killed: all restart without another import."""
    (launch.directory / "prog.py").write_text(TRAIN)
    started = launch.succeed("up", launch.spec(**settings(2, preload=[])))
    (launch.home / "runs").rename(launch.directory / "earlier")
    (launch.directory / "prog.py").write_text(UNTIL_KILLED)
    running = launch.start("up", launch.spec(**settings(2, restart={"backoff": [0, 0]})), "--preload")
    read_until(running, "threads ", 2)
    (zygote,) = zygotes(launch)
    wait_until(lambda: all(task["shared_bytes"] for task in launch.status()["tasks"]), running)
    status = launch.status()
    assert [task["preload"] for task in status["tasks"]] == ["tensorflow"] * 2
    assert all(50_000_000 < task["shared_bytes"] <= task["rss_bytes"] for task in status["tasks"])
    assert "SHARED" in launch.run("ps").stdout
    os.kill(status["tasks"][1]["pid"], signal.SIGKILL)
    read_until(running, "weights ", 1)
    assert [process.pid for process in zygotes(launch)] == [zygote.pid]
    wait_for_end(running)
    assert sorted(starts(launch)) == [(f"worker:{n}", attempt, "tensorflow") for n in range(2) for attempt in range(2)]
    forked = launch.log("worker:0") + launch.log("worker:1")
    assert len(weights(forked)) == 4
    assert len(set(weights(started.stdout) + weights(forked))) == 1
    assert len(threads(started.stdout + forked)) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("shared_import")
def test_forked_tasks_have_devices_and_random_numbers_of_their_own(launch: Launch) -> None:
    """TensorFlow creates its process-specific state after the fork."""
    program = (
        "import json, numpy as np, tensorflow as tf\n"
        "from tensorflow.python.client import device_lib\n"
        "drawn = [float(np.random.rand()), float(tf.random.uniform(()))]\n"
        "print('drawn', json.dumps(drawn + [d.incarnation for d in device_lib.list_local_devices()]))\n"
    )
    spec = launch.spec(**settings(2, strategy="none", command=["python", "-c", program]))
    ended = launch.succeed("up", spec, "--preload")
    drawn = [json.loads(line.partition("drawn ")[2]) for line in ended.stdout.splitlines() if "drawn " in line]
    assert len(drawn) == 2
    assert not set(drawn[0]) & set(drawn[1])
    assert {preload for _, _, preload in starts(launch)} == {"tensorflow"}


CRASHES_AS_A_FORK = """
import os, tensorflow as tf
if not os.environ["TFLAUNCH_PRELOAD"].startswith("no: ") and '"index":1' in os.environ["TF_CONFIG"]:
    os.abort()
print("weights", tf.constant(1.0).numpy())
"""


def test_unasked_workers_share_an_import_and_a_crash_of_a_fork_is_healed(launch: Launch) -> None:
    """Nobody pays for it, and the next run does not fork this program."""
    launch.preload = None
    (launch.directory / "prog.py").write_text(CRASHES_AS_A_FORK)
    spec = launch.spec(**settings(2, strategy="none", restart={"max": 0, "backoff": [0, 0]}))
    ended = launch.succeed("up", spec)
    said = "worker:1 was killed by SIGABRT; it was forked from a process that had imported tensorflow, and starts in"
    assert said in ended.stderr
    assert "without preload" not in ended.stderr
    assert weights(ended.stdout).count("1.0") >= 2
    reason = "no: worker:1 ended with SIGABRT after it was forked from a process that had imported tensorflow"
    assert sorted(starts(launch)) == sorted(
        (f"worker:{n}", attempt, preload) for n in range(2) for attempt, preload in enumerate(("tensorflow", reason))
    )
    (launch.home / "runs").rename(launch.directory / "earlier")
    assert "forked" not in launch.succeed("up", spec).stderr
    assert {start[1:] for start in starts(launch)} == {(0, reason)}


OF_TENSORFLOW = re.compile(r"\| ([IWEF]\d{4} |WARNING: All log)")
"""Lines that begin with the time and the process."""
ABOUT_ITSELF = (
    "import sys, tensorflow as tf\n"
    "print(sys.argv[1:], __name__, __package__, __spec__ and __spec__.name, tf.reduce_sum(tf.ones((3,))).numpy())\n"
)
SAME: dict[str, str] = {
    "python -m": f"from . import NAME\n{ABOUT_ITSELF}print(NAME)\n",
    "variables": (
        "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nos.environ.setdefault('KERAS_BACKEND', 'tensorflow')\n"
        "import keras, tensorflow as tf\nos.environ['TF_NUM_INTEROP_THREADS'] = '3'\n"
        "print(keras.backend.backend(), tf.ones((2,)).numpy(), os.environ['TF_CPP_MIN_LOG_LEVEL'])\n"
    ),
    "absl flags": (
        "from absl import app, flags, logging\nimport tensorflow as tf\n"
        "flags.DEFINE_integer('epochs', 2, 'How many.')\n"
        "def main(argv):\n    print(argv, flags.FLAGS.epochs, tf.constant(flags.FLAGS.epochs).numpy())\n"
        "if __name__ == '__main__':\n    app.run(main)\n"
    ),
    "tf.config": (
        "import tensorflow as tf\n"
        "tf.config.threading.set_intra_op_parallelism_threads(2)\ntf.config.set_soft_device_placement(False)\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],\n"
        "    [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "print(tf.reduce_sum(tf.ones((3, 3))).numpy(), len(tf.config.list_logical_devices()))\n"
        "try:\n    tf.config.threading.set_intra_op_parallelism_threads(3)\n"
        "except RuntimeError as error:\n    print(error)\n"
        "print(tf.config.threading.get_intra_op_parallelism_threads(), tf.config.get_soft_device_placement())\n"
    ),
    "tf.keras.backend": (
        "import tensorflow as tf\ntf.keras.backend.set_floatx('float64')\ntf.keras.backend.set_image_data_format"
        "('channels_first')\nprint(tf.keras.backend.floatx(), tf.keras.layers.Dense(2)(tf.ones((1, 2))).dtype)\n"
        "print(tf.keras.backend.image_data_format(), tf.keras.backend.epsilon())\n"
    ),
    "seeds": (
        "import random, numpy as np, tensorflow as tf\n"
        "tf.keras.utils.set_random_seed(3)\ntf.config.experimental.enable_op_determinism()\n"
        "print(random.random(), np.random.rand(), tf.random.normal((2,)).numpy())\n"
        "print(tf.random.Generator.from_seed(1).normal(()).numpy())\n"
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "x = np.arange(32, dtype='float32').reshape(8, 4) / 32\n"
        "print(model.fit(x, x.sum(1), epochs=2, verbose=0).history['loss'])\n"
    ),
    "processes": (
        "import multiprocessing as mp, tensorflow as tf\n"
        "def work(queue):\n    queue.put(float(tf.reduce_sum(tf.ones((4,)))))\n"
        "if __name__ == '__main__':\n    context = mp.get_context('spawn')\n    queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,))\n    child.start()\n"
        "    print(queue.get(), child.join(), child.exitcode, float(tf.reduce_sum(tf.ones((2,)))))\n"
    ),
    "logging": (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(levelname)s %(name)s %(message)s')\n"
        "import tensorflow as tf\ntf.get_logger().setLevel('INFO')\ntf.get_logger().info('ready')\n"
        "logging.getLogger('mine').warning('warned')\nprint(tf.get_logger().propagate, len(tf.get_logger().handlers))\n"
    ),
}
"""Programs of which each comes to the same, however it starts."""
COMMANDS: dict[str, list[str]] = {
    "python -m": ["python", "-m", "mine.sub", "a b"],
    "by its first line": ["./prog.py", "a b"],
    "behind others": ["env", "A=b", "nice", "python", "prog.py", "a b"],
}
SAME |= dict.fromkeys(list(COMMANDS)[1:], f"#!/usr/bin/env python\n{ABOUT_ITSELF}")
FORKED = {"variables": "keras,tensorflow", "logging": "", "by its first line": "", "behind others": ""}
"""What was imported for those that import more than TensorFlow, or cannot be forked."""


RARE = [pytest.param(name, marks=pytest.mark.thorough) for name in list(SAME)[1:]]


@pytest.mark.parametrize("name", [*list(SAME)[:1], *RARE])
def test_what_a_program_does_first_comes_to_the_same(launch: Launch, name: str) -> None:
    launch.preload = None
    installed = launch.directory / "site/mine"
    (installed / "sub").mkdir(parents=True)
    (installed.parent / "mine-1.0.dist-info").mkdir()
    (installed / "__init__.py").write_text("from mine.sub import NAME\n")
    (installed / "sub/__init__.py").write_text("NAME = 'mine'\n")
    for path in (launch.directory / "prog.py", installed / "sub/__main__.py"):
        path.write_text(SAME[name])
        path.chmod(0o755)
    fields = settings(2, strategy="none", command=COMMANDS.get(name, ["python", "prog.py"]))
    fields["env"]["PYTHONPATH"] = str(installed.parent)
    seen = []
    for arguments in (["--no-preload"], []):
        done = launch.succeed("up", launch.spec(**fields), *arguments)
        seen.append(sorted(line for line in done.stdout.splitlines() if not OF_TENSORFLOW.search(line)))
        forked = "" if arguments else FORKED.get(name, "tensorflow")
        assert {"" if preload.startswith("no: ") else preload for _, _, preload in starts(launch)} == {forked}
        (launch.home / "runs").rename(launch.directory / f"runs{arguments}")
    assert seen[0] == seen[1]
