"""`preload` in environments with packages whose libraries start threads: each works, or the module is named."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.launch import LONG, PATIENCE, Launch

pytestmark = pytest.mark.tensorflow

TRAIN = """
import tensorflow as tf
import MODULES
tf.keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
x = tf.random.stateless_uniform((16, 3), (1, 2))
model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4), epochs=2, verbose=0)
print("weights", *(float(value) for value in model.get_weights()[0].ravel()))
"""
ALLOCATE = """
import pandas, pyarrow
table = pyarrow.Table.from_pandas(pandas.DataFrame({"a": range(100_000)}))
for pool in (pyarrow.jemalloc_memory_pool(), pyarrow.default_memory_pool()):
    buffers = [pyarrow.allocate_buffer(1 << 20, memory_pool=pool) for _ in range(50)]
    del buffers
    pool.release_unused()
print("sum", table.to_pandas().a.sum())
"""
PACKAGES = {
    "pandas": (["pandas", "pyarrow"], "pandas, pyarrow"),
    "scikit-learn": (["scikit-learn", "matplotlib"], "sklearn.linear_model, matplotlib.pyplot"),
    "polars": (["polars"], "polars"),
    "opencv": (["opencv-python-headless"], "cv2"),
    "numba": (["numba"], "numba"),
    "jax": (["jax"], "jax.numpy"),
    "transformers": (["transformers"], "transformers"),
    "tensorflow-datasets": (["tensorflow-datasets"], "tensorflow_datasets"),
    "mlflow": (["mlflow-skinny"], "mlflow"),
    "wandb": (["wandb"], "wandb"),
    "grpcio": (["grpcio"], "grpc"),
}
PER_HOST = 50
"""Tasks of a run that are forked from one process."""

Python = Callable[[str], Path]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Make an environment with packages beside those of this one, and return its interpreter."""

    @cache
    def make(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        interpreter = place / "bin/python"
        packages = place / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (packages / "base.pth").write_text(sysconfig.get_path("purelib"))
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", *PACKAGES[name][0]]
        done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=PATIENCE * 10)
        assert done.returncode == 0, done.stderr
        return interpreter

    return make


def run(launch: Launch, python: Path, program: str, workers: int, *preload: str, strategy: str) -> list[str]:
    """Run a program, and return what its tasks have written; with ``preload``, they were all forked."""
    launch.preload = []
    launch.env.pop("PYTHONPATH", None)
    (launch.directory / "prog.py").write_text(program)
    fields: dict[str, Any] = {"cluster": {"worker": workers}, "command": [str(python), "prog.py"], "strategy": strategy}
    ended = launch.up(launch.spec(**fields, preload=list(preload), restart={"max": 0}))
    assert ended.returncode == 0, ended.stderr
    starts = {record["preload"] for record in launch.journal() if record["kind"] == "task_started"}
    assert starts == {",".join(preload)}
    (launch.home / "runs").rename(launch.directory / f"runs-{os.urandom(4).hex()}")
    return sorted(line.partition(" | ")[2] for line in ended.stdout.splitlines() if " | " in line)


@pytest.mark.parametrize("name", PACKAGES)
def test_forked_workers_train_the_same(launch: Launch, python: Python, name: str) -> None:
    """As those that import everything themselves."""
    if not (LONG or name == "pandas"):
        pytest.skip("makes an environment for each package: TFLAUNCH_TEST_LONG=1")
    program = TRAIN.replace("MODULES", PACKAGES[name][1])
    seen = []
    for preload in (["tensorflow"], []):
        lines = run(launch, python(name), program, 2, *preload, strategy="multi_worker_mirrored")
        seen.append([line for line in lines if line.startswith("weights")])
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]


def test_forks_allocate_with_what_was_imported_for_them(launch: Launch, python: Python) -> None:
    """None hangs, though the thread that would give memory back is missing."""
    for _ in range(4 if LONG else 1):
        lines = run(launch, python("pandas"), ALLOCATE, PER_HOST, "pandas", "pyarrow", strategy="none")
        assert [line for line in lines if line.startswith("sum")] == ["sum 4999950000"] * PER_HOST
