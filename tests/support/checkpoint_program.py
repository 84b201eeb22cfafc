"""A cheap program that writes checkpoints as TensorFlow's CheckpointManager does; the chief's are the real ones.

Arguments: the directory of checkpoints, after how many steps to save, seconds per step, and a file that says at which
step to end. It prints every step, and a number that depends on all steps.
"""

import os
import struct
import sys
import time
from pathlib import Path

INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)


def train(step: int, value: int) -> tuple[int, int]:
    return step + 1, (value * 6364136223846793005 + step) % 2**61


def state_at(step: int) -> int:
    """Return the value after this many steps."""
    reached, value = 0, 1
    while reached < step:
        reached, value = train(reached, value)
    return value


def restore(directory: Path) -> tuple[int, int]:
    try:
        prefix = (directory / "checkpoint").read_text().split('"')[1]
    except FileNotFoundError:
        return 0, 1
    assert (directory / f"{prefix}.index").read_bytes().endswith(INDEX_END)
    step, value = (directory / f"{prefix}.data-00000-of-00001").read_text().split()[:2]
    return int(step), int(value)


def save(directory: Path, step: int, value: int, every: int, padding: bytes = b"") -> None:
    """Write a checkpoint, its index last, and keep the newest two."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"ckpt-{step}.data-00000-of-00001").write_bytes(b"%d %d " % (step, value) + padding)
    (directory / f"ckpt-{step}.index").write_bytes(b"index" + INDEX_END)
    (directory / "checkpoint.tmp").write_text(f'model_checkpoint_path: "ckpt-{step}"\n')
    (directory / "checkpoint.tmp").replace(directory / "checkpoint")
    for ending in ("data-00000-of-00001", "index"):
        (directory / f"ckpt-{step - 2 * every}.{ending}").unlink(missing_ok=True)


def main() -> None:
    directory, every, pace, goal = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    index = int(os.environ["TFLAUNCH_TASK"].partition(":")[2])
    own = directory / f"workertemp_{index}" if index else directory
    step, value = restore(directory)
    print("begins at step", step, flush=True)
    while not (goal.exists() and step >= int(goal.read_text())):
        time.sleep(pace)  # clock: the pace of the training
        step, value = train(step, value)
        if step % every == 0:
            save(own, step, value, every)
        print("step", step, flush=True)
    print("ends with", step, value, flush=True)


if __name__ == "__main__":
    main()
