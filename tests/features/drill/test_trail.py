"""Where a training was, read from what its tasks print and report."""

import json
from pathlib import Path

import pytest

from tflaunch.features.drill.records import BESTS
from tflaunch.features.drill.trail import Trail
from tflaunch.store.log_writer import Mark
from tflaunch.store.run_dir import RunDirectory

LEGACY = (
    "Epoch 1/3\n 1/20 [>.............................] - ETA: 3s - loss: 0.9000"
    + "\b" * 20
    + "20/20 [==============================] - 1s 10ms/step - loss: 0.5000\n"
    "Epoch 2/3\n20/20 [==============================] - 1s 10ms/step - loss: 0.4000\n"
)
KERAS_3 = "Epoch 1/3\n20/20 ━━━━━━━━━━━━━━━━━━━━ 1s 10ms/step - learning_rate: 0.1000 - loss: 0.5000\n"


def trail_of(tmp_path: Path, *texts: str, per_epoch: float = 0.0) -> Trail:
    """Return the trail of a task that has written a text in each attempt."""
    (tmp_path / "logs").mkdir()
    log, marks = tmp_path / "logs/worker-0.log", tmp_path / "marks.jsonl"
    trail = Trail("worker:0", RunDirectory.existing(tmp_path, tmp_path / "logs"), per_epoch)
    for attempt, text in enumerate(texts):
        with marks.open("a") as file:
            file.write(json.dumps(Mark("worker:0", attempt, log.stat().st_size if attempt else 0, 0)) + "\n")
        for start in range(0, len(data := text.encode()), 7):  # as it comes
            with log.open("ab") as file:
                file.write(data[start : start + 7])
            trail.read()
    trail.read(is_over=True)
    return trail


def points(trail: Trail, source: str = "steps") -> list[list[tuple[float, float | None]]]:
    return [[(point.step, point.loss) for point in life.points] for life in trail.lives(source)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LEGACY, [(1, 0.9), (20, 0.5), (40, 0.4)]),
        (KERAS_3, [(20, 0.5)]),
        ("step 1 loss 0.5\nstep 2 loss 0.25\n", [(1, 0.5), (2, 0.25)]),
        ("[worker 0] Step=10/500, train_loss=1e-3\n", [(10, 0.001)]),
        ("2026-11-30 10:00:00 INFO: iteration 7: loss = .5\n", [(7, 0.5)]),
        ("it has no end of line: step 3 loss: 2", [(3, 2.0)]),
        ("restored from step 100\nsaved step 90\nstep 101 loss 1\n", [(101, 1.0)]),
        ("step 999 loss 2\nstep 1,000 loss 1\n", [(999, 2.0), (1000, 1.0)]),
        ("\r  0%|   | 0/9 [00:00<?]\r 50%|## | 5/9 [00:01<00:01, loss=0.5]\n", [(0, None), (5, 0.5)]),
        ('{"step": 5, "loss": 0.25}\n', [(5, 0.25)]),
        ("I1130 10:00:00.1 12 train.py:5] step 7, loss = nan\n", [(7, None)]),
        (
            "20/20 [==============================] - 1s 1ms/step - loss: 9.0\n" + LEGACY,
            [(1, 0.9), (20, 0.5), (40, 0.4)],
        ),
        ("Global batch 64\n", []),
        ("Epoch 0 step 9 loss 3\nEpoch 1 step 0 loss 1\n", [(9, 3), (10, 1)]),
        ("batch: 128 in a step\nbatch 3, loss 1\n", [(3, 1.0)]),
        ("epoch 1 step 0 loss 3\nepoch 1 step 9 loss 2\nepoch 2 step 0 loss 1\n", [(0, 3), (9, 2), (10, 1)]),
        ("epoch 1 step 1 loss 3\nepoch 2 step 2 loss 2\n", [(1, 3), (2, 2)]),
        ("---- tflaunch: worker:0, attempt 1, loss 1, step 5\n", []),
        ("Epoch 1/2\n  step 1 loss 3\n  step 2 loss 2\nEpoch 2/2\n  step 1 loss 1\n", [(1, 3), (2, 2), (3, 1)]),
        ("step 1 loss 3\nstep 2 loss 2\nstep 1 loss 1\n", []),
        ("step 1 loss 3\nstep 4 loss 2\nstep 9 loss 3\nbest loss 2 at step 4\n", [(1, 3), (4, 2), (9, 3), (4, 2)]),
        ("\r#| 0/3 [00:00<?]\r#| 3/3 [00:01<00:00]\r#| 0/9 [00:00<?]\r#| 4/9 [00:01<00:02]\n", [(0, None), (4, None)]),
        ("9/9 [==============================] - 1s 1ms/step - loss: 9.0\nstep 1 loss 2\n", [(1, 2)]),
    ],
)
def test_steps_and_losses_are_read_from_what_is_printed(
    tmp_path: Path, text: str, expected: list[tuple[float, float | None]]
) -> None:
    trail = trail_of(tmp_path, text)
    source = "bars" if "/20 " in text else "steps"
    assert points(trail, source) == ([expected] if expected else [])
    assert trail.source() == (source if expected else "")


def test_several_fits_count_the_same_steps_again(tmp_path: Path) -> None:
    assert trail_of(tmp_path, LEGACY + LEGACY).source() == ""


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (LEGACY + "step 1 loss 3\n", "bars"),
        ("Epoch 1/3\nstep 10 loss 1\nstep 20 loss 1\n" + KERAS_3[10:], "steps"),
        ("step 1 loss 3\nepoch 1: loss 3\nstep 1 loss 2\nepoch 2: loss 2\n", "steps"),
        ("step 1 loss 3\nstep 2 loss 3\nepoch 1: loss 3\nstep 1 loss 2\nepoch 2: loss 2\n", "epochs"),
    ],
)
def test_what_tells_most_counts_unless_it_begins_again(tmp_path: Path, text: str, source: str) -> None:
    assert trail_of(tmp_path, text).source() == source


def test_epochs_that_are_left_count_from_those_that_were_done(tmp_path: Path) -> None:
    assert points(trail_of(tmp_path, LEGACY, LEGACY.replace("/3", "/2")), "bars")[1] == [
        (21, 0.9),
        (40, 0.5),
        (60, 0.4),
    ]


def test_a_bar_of_what_is_left_counts_from_what_was_done(tmp_path: Path) -> None:
    bars = "\r#| 0/9 [00:00<?]\r#| 5/9 [00:01<00:01]\n", "\r#| 0/5 [00:00<?]\r#| 2/5 [00:01<00:01]\nstep 6 loss 1\n"
    assert points(trail_of(tmp_path, *bars)) == [[(0, None), (5, None)], [(4, None), (6, None), (6, 1)]]


def test_each_attempt_has_a_life_of_its_own(tmp_path: Path) -> None:
    trail = trail_of(tmp_path, "step 1 loss 3\nstep 2 loss 2\n", "step 2 loss 2\n")
    assert points(trail) == [[(1, 3), (2, 2)], [(2, 2)]]
    assert [life.attempt for life in trail.lives("steps")] == [0, 1]


def test_the_length_of_an_epoch_can_be_known_from_another_run(tmp_path: Path) -> None:
    assert points(trail_of(tmp_path, "epoch 3 step 0 loss 1\n", per_epoch=10)) == [[(20, 1)]]


def test_epochs_count_where_nothing_tells_steps(tmp_path: Path) -> None:
    trail = trail_of(tmp_path, "Epoch 1: loss 0.5, lr 0.1\nEpoch 2: loss 0.25, lr 0.05\n")
    assert trail.source() == "epochs"
    assert [(point.step, point.rate) for point in trail.lives("epochs")[0].points] == [(1, 0.1), (2, 0.05)]


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("New best accuracy: 0.81\n", 0.81),
        ("eval: loss 0.5, best val_loss=0.25 at step 40\n", 0.25),
        ("best so far -1.5e-3\n", -0.0015),
        ("best step 40, accuracy 0.8\n", None),
        ("restored best checkpoint ckpt-3\n", None),
    ],
)
def test_the_best_metric_is_read_from_what_is_printed(tmp_path: Path, text: str, best: float | None) -> None:
    lives = trail_of(tmp_path, text).lives(BESTS)
    assert [point.loss for life in lives for point in life.points] == ([] if best is None else [best])
