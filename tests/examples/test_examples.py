"""The example programs really train under `tflaunch up`, to a stated accuracy, with injected faults."""

import re
import subprocess
import sys

import pytest

from support.launch import LONG, PATIENCE, Launch
from support.mnist import PER_EPOCH, QUICK, accuracies, example, has_trained, train
from support.needs import need
from support.specs import REPOSITORY

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shared_import")]

TESTING = {  # which examples train here, and how many of their tasks test what they have learnt
    "mnist_mirrored": 1,
    "mnist_multi_worker": 2,
    "mnist_parameter_server": 1,
    "mnist_custom_loop": 2,
    "mnist_coordinator": 1,
    "mnist_data_service": 2,
    "mnist_by_hand": 2,
    "mnist_jax": 2,
}
UNDISTURBED = ("mnist_mirrored", "mnist_by_hand", "mnist_data_service")
"""The examples that are trained undisturbed every day; `make nightly` trains all of them, to their accuracy.

Those for several workers and for parameter servers are trained every day in containers, see tests/docker.
"""
SHORT = ("--epochs", "2")
"""Enough for the accuracy; the spec of an example trains three."""


def test_every_example_is_tested() -> None:
    """Every spec of cluster_specs/ is covered here."""
    specs = {path.stem for path in (REPOSITORY / "cluster_specs").glob("mnist_*.json")}
    assert specs == {*TESTING, "mnist_tpu"}


def need_jax(name: str) -> None:
    """Skip the example of JAX where that is missing; in CI the test fails instead."""
    if name == "mnist_jax":
        need("jax")


def check_trained(launch: Launch, name: str, out: str, is_quick: bool = False) -> None:
    """Check that the only run of an example has learned enough; no processes or state may be left behind."""
    assert has_trained(out, TESTING[name], is_quick), out
    assert not launch.survivors()
    assert not (launch.directory / "mnist-state").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", TESTING if LONG else UNDISTURBED)
def test_an_example_trains_and_leaves_nothing(launch: Launch, name: str) -> None:
    """To its accuracy (every day only the first); mirrored workers end with identical weights."""
    need_jax(name)
    is_quick = name != UNDISTURBED[0]
    ended = train(launch, name, *((*SHORT, *QUICK) if is_quick and not LONG else ()))
    assert ended.returncode == 0, ended.stderr
    check_trained(launch, name, ended.stdout, is_quick)


@pytest.mark.parametrize("legacy", ["auto", "false"][: 1 + LONG], ids=["tf_keras", "Keras 3"][: 1 + LONG])
def test_the_evaluator_has_tested_the_last_checkpoint(launch: Launch, legacy: str) -> None:
    """It gets time for that after the chief's end."""
    # How much the few steps of a quick training learn is chance, as they are asynchronous.
    spec = example(launch, "mnist_coordinator", *QUICK, "--min-accuracy", "0")
    ended = launch.up(spec, "--set", f"legacy_keras={legacy}")
    assert ended.returncode == 0, ended.stderr
    last = 3 * (PER_EPOCH if QUICK else 150)
    (accuracy,) = re.findall(rf"evaluator:0 \| accuracy after step {last}: ([\d.]+)", ended.stdout)
    assert float(accuracy) == accuracies(ended.stdout)[0]


def test_training_goes_on_from_the_checkpoint_after_a_kill(launch: Launch) -> None:
    """SIGKILL for worker:1 in mid-training: both attempts are in the log, no epoch is lost, exit 0."""
    ended = train(launch, "mnist_multi_worker", "--crash-at-step", "35", *SHORT, *QUICK)
    assert ended.returncode == 0, ended.stderr
    why = "worker:1 failed; ending worker:0\ntflaunch: worker:1 was killed by SIGKILL; restart 1 in "
    assert why in ended.stderr
    for task in ("worker:0", "worker:1"):
        before, after = launch.log(task).split(f"---- tflaunch: {task} attempt 1 ----\n")
        assert "resumed" not in before
        assert re.search(r"resumed at step 30, steps done again: [4-6]\n", after)
    check_trained(launch, "mnist_multi_worker", ended.stdout, is_quick=True)


def test_without_a_tpu_the_example_says_so(launch: Launch) -> None:
    """In one sentence with the remedy, and code 2."""
    ended = launch.up(example(launch, "mnist_tpu"), "--set", "restart.max=0")
    assert ended.returncode == 2
    (said,) = [line for line in ended.stdout.splitlines() if "TPU" in line]
    assert said.startswith("worker:0 | There is no TPU here (")
    assert "set TPU_NAME" in said


@pytest.mark.parametrize("name", [*TESTING, "mnist_tpu"])
def test_an_example_explains_itself(launch: Launch, name: str) -> None:
    """By `--help`."""
    command = [sys.executable, "-m", f"tflaunch_worker.examples.{name}", "--help"]
    ended = subprocess.run(command, cwd=launch.directory, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0
    assert f"tflaunch up cluster_specs/{name}.json" in ended.stdout
    assert "--min-accuracy" in ended.stdout
