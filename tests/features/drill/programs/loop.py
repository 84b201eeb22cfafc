"""A small synchronous training without TensorFlow, whose resuming has the fault FAULT: a right one without."""

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FAULT = os.environ.get("FAULT", "")
ROLE, _, index = os.environ["TFLAUNCH_TASK"].partition(":")
TASK, TASKS = int(index), int(os.environ["TASKS"])
STEPS, BATCH = 60, 16
SAVE_EVERY = {"rare": 1000, "late_first": 50}.get(FAULT, 10)
LATE = 25  # steps
rng = np.random.default_rng(0)
examples = rng.normal(size=(960, 8))
labels = examples @ np.arange(1.0, 9.0) + rng.normal(scale=2.0, size=960)
state: dict[str, Any] = {"weights": np.zeros(8), "momentum": np.zeros(8), "step": 0}
name = f"ckpt-{os.getpid()}" if FAULT == "directory" else "ckpt"
place = Path(f"{name}/{TASK}" if FAULT == "other_steps" else name)
place.mkdir(parents=True, exist_ok=True)
meetings = Path("meetings", os.environ["TFLAUNCH_ATTEMPT"])
meetings.mkdir(parents=True, exist_ok=True)


def save(step):
    path = place / ("latest.pkl" if FAULT in ("one_path", "in_place") else f"ckpt-{step}.pkl")
    data = pickle.dumps({**state, "step": step})
    if FAULT == "weights_only":
        data = pickle.dumps({"weights": state["weights"], "step": step})
    if FAULT == "damaged":
        data = data[:40]
    if FAULT in ("one_path", "in_place"):
        with path.open("wb") as file:
            for start in range(0, len(data), len(data) // 10):
                file.write(data[start : start + len(data) // 10])
                file.flush()
                time.sleep(0.01)  # clock: a save takes long, so that the tasks' saves overlap
        return
    path.with_suffix(".tmp").write_bytes(data)
    path.with_suffix(".tmp").replace(path)


def restore():
    paths = sorted(place.glob("*.pkl"), key=lambda path: path.stat().st_mtime)
    if FAULT == "other_steps" and TASK == 1:
        paths = paths[:-1]
    if not paths:
        return
    kept = pickle.loads(paths[-1].read_bytes())
    lost = {"counter": ["step"], "optimizer": ["momentum"], "not_used": ["weights", "step", "momentum"]}.get(FAULT, [])
    state.update({key: value for key, value in kept.items() if key not in lost})


is_ending: list[int] = []


def at_term(number, frame):
    if FAULT == "exits_0":
        sys.exit(0)
    is_ending.append(number)


def meet(step):
    """Wait until all tasks have come to a step; save and end together if one of them got TERM."""
    if is_ending:
        (meetings / f"stop-{step}").touch()  # before the others can go on from here
    (meetings / f"{step}-{TASK}").touch()
    while not all((meetings / f"{step}-{task}").exists() for task in range(TASKS)):
        time.sleep(0.002)  # clock: the program's own waiting
    if (meetings / f"stop-{step}").exists():
        if TASK == 0:
            save(step)
        sys.exit(42)


def evaluate():
    """Test each checkpoint, and keep the best score: that of the newest."""
    kept = Path("best.txt")
    tested: set[int] = set()
    best = int(kept.read_text()) if FAULT == "keeps_best" and kept.exists() else 0
    while STEPS not in tested:
        for step in sorted({int(path.stem[5:]) for path in place.glob("*.pkl")} - tested):
            tested.add(step)
            best = max(best, step)
            kept.write_text(str(best))
            print(f"tested ckpt-{step}: best score {best}", flush=True)
        time.sleep(0.02)  # clock: the program's own waiting


if ROLE == "evaluator":
    evaluate()
    sys.exit()
if FAULT in ("exits_0", "saves_at_term"):
    signal.signal(signal.SIGTERM, at_term)
if FAULT not in ("none", "never", "directory", "late") and not (FAULT == "only_chief" and TASK):
    restore()
first = state["step"]
for step in range(first, STEPS):
    if FAULT == "late" and step == first + LATE:
        restore()
    position = step - first if FAULT == "data" else step
    order = np.random.default_rng(position * BATCH // 960).permutation(960)
    chosen = order[position * BATCH % 960 :][:BATCH]
    rate = 0.05 / (1 + (step - first if FAULT in ("rate", "hidden_rate") else step) / 10)
    error = examples[chosen] @ state["weights"] - labels[chosen]
    state["momentum"] = 0.9 * state["momentum"] + examples[chosen].T @ error / BATCH
    state["weights"] = state["weights"] - rate * state["momentum"]
    state["step"] = step + 1
    shown = f" lr {rate:.5f}" if FAULT == "rate" else ""
    print(f"step {step + 1} loss {np.mean(error**2):.5f}{shown}", flush=True)
    if (step + 1) % SAVE_EVERY == 0 and FAULT != "none" and (TASK == 0 or FAULT in ("one_path", "other_steps")):
        save(step + 1)
    time.sleep(0.2 if STEPS / 2 < step <= STEPS * 2 / 3 else 0.02)  # clock: what a step takes; the fault comes in these
    if FAULT not in ("only_chief", "other_steps") or os.environ["TFLAUNCH_ATTEMPT"] == "0":  # then their steps differ
        meet(step + 1)
