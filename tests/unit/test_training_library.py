"""What `tflaunch_worker.training` determines without TensorFlow: the task's identity, and where it saves."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tflaunch_worker import training
from tflaunch_worker.training import progress

Become = Callable[..., None]
MIRRORED = {"worker": ["h1:1", "h2:1"]}
WITH_CHIEF = {"chief": ["h0:1"], **MIRRORED}
SERVERS = {**WITH_CHIEF, "ps": ["h3:1"]}


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    for name in ("TFLAUNCH_RUN", "TFLAUNCH_TASK_DIR"):
        monkeypatch.delenv(name, raising=False)

    def be(role: str, index: int | str, cluster: object) -> None:
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}))

    return be


@pytest.mark.parametrize(
    ("role", "index", "cluster", "is_chief", "workers", "is_server"),
    [
        ("worker", 0, MIRRORED, True, 2, False),
        ("worker", "1", MIRRORED, False, 2, False),
        ("worker", 0, WITH_CHIEF, False, 3, False),
        ("chief", 0, WITH_CHIEF, True, 3, False),
        ("evaluator", 0, MIRRORED, False, 2, False),
        ("chief", 0, SERVERS, True, 2, False),
        ("worker", 0, SERVERS, False, 2, True),
        ("ps", 0, SERVERS, False, 2, True),
        ("worker", 0, {"worker": {"0": "h1:1", "3": "h4:1"}}, True, 2, False),
    ],
)
def test_a_task_knows_its_place(
    become: Become, role: str, index: int, cluster: object, is_chief: bool, workers: int, is_server: bool
) -> None:
    """As TensorFlow's multi_worker_util computes it, except for the evaluator, which leads no task."""
    become(role, index, cluster)
    assert training.is_chief() is is_chief
    assert training.workers() == workers
    assert training.this_task().is_server is is_server
    assert training.this_task().name == f"{role}:{index}"


@pytest.mark.parametrize("text", [None, "", " ", "{}"])
def test_without_a_cluster_a_task_is_alone(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    assert training.is_chief()
    assert training.workers() == 1
    assert not training.this_task().is_server
    monkeypatch.setenv("TFLAUNCH_STRATEGY", "jax")  # which is not of tf.distribute
    with pytest.raises(training.CannotTrain, match="keras"):
        training.strategy()


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"cluster": {"worker": 2}}', '{"cluster": {"worker": ["a:1"]}}'])
def test_a_wrong_tf_config_is_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In one sentence that shows the correct form."""
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(training.CannotTrain, match=r"TF_CONFIG .*write it like \{"):
        training.is_chief()


def test_a_run_has_a_checkpoint_directory_of_its_own(become: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, the same for all tasks and attempts of the run; without tflaunch it is the given directory itself."""
    become("worker", 1, MIRRORED)
    assert training.checkpoint_dir("saved") == str(Path.cwd() / "saved")
    monkeypatch.setenv("TFLAUNCH_RUN", "mnist-1")
    assert training.checkpoint_dir(Path("/data/saved/")) == "/data/saved/mnist-1"
    assert training.checkpoint_dir("gs://bucket/saved") == "gs://bucket/saved/mnist-1"


def test_only_the_chief_saves_where_it_is_kept(become: Become, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others save under the same name in their own scratch directories."""
    monkeypatch.setenv("TFLAUNCH_TASK_DIR", str(tmp_path))
    become("worker", 0, MIRRORED)
    assert training.save_path("out/model.keras") == "out/model.keras"
    become("worker", 1, MIRRORED)
    assert training.save_path("out/model.keras") == str(tmp_path / "model.keras")
    monkeypatch.setenv("TFLAUNCH_TASK_DIR", str(tmp_path / "gone"))
    elsewhere = Path(training.save_path("out/model.keras"))
    assert elsewhere.name == "model.keras"
    assert elsewhere.parent.is_dir()
    assert elsewhere.parent != tmp_path


def test_a_scratch_directory_ends_with_its_program(tmp_path: Path) -> None:
    """Without tflaunch, too, all scratch files are removed."""
    config = json.dumps({"cluster": MIRRORED, "task": {"type": "worker", "index": 1}})
    program = "from tflaunch_worker import training; print(open(training.save_path('x'), 'w').name)"
    env = {"TF_CONFIG": config, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_nothing_imports_tensorflow_before_it_is_used() -> None:
    """A program may set variables before TensorFlow reads them on import."""
    program = "import sys; from tflaunch_worker import training as t; t.is_chief(); print('tensorflow' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], env={}, capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


class ModelOfJax:
    """A Keras 3 model with JAX, whose state must not be moved within an epoch."""

    class optimizer:  # noqa: N801 - as Keras names it
        class iterations:  # noqa: N801
            numpy = staticmethod(lambda: 7)

    jax_state_sync = None


def test_progress_with_jax_leaves_the_model_alone_within_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are counted instead, also if an execution runs several of them."""
    told: list[dict[str, int]] = []
    monkeypatch.setenv("TFLAUNCH_PROGRESS", "a pipe")
    monkeypatch.setattr(progress.Teller, "tell", lambda _self, counts, _metrics: told.append(counts))
    monkeypatch.setattr(progress, "_KERAS_INTERVAL", 0.0)
    keras = SimpleNamespace(callbacks=SimpleNamespace(Callback=type("Callback", (), {"params": {}})))
    callback = progress.callback(keras)
    callback.model = ModelOfJax()
    callback.on_train_begin()
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        model = callback.__dict__.pop("model")
        callback.on_train_batch_end(1, {})
        callback.on_train_batch_end(3, {})
        callback.model = model
    assert [(counts["step"], counts["epoch"]) for counts in told] == [(9, 1), (11, 1), (13, 2), (15, 2)]
