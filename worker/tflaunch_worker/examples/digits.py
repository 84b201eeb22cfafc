"""The examples' data: MNIST if available, else synthetic digits of its shape.

A job must train on one data set, even if one of its hosts cannot reach the network. So `choose` asks every task before
it decides, and `load` returns the chosen data set.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import numpy.typing as npt

    Pictures: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_PATIENCE = 5.0  # seconds: timeout for the server's first answer, and for each pause while it sends
_ASK_AGAIN = 60.0  # seconds for which a task's failed attempt also counts for the other tasks of its host

# Ten glyphs of seven rows; the five low bits of a byte are one row.
_FONT = (
    "0e11131519110e 040c040404040e 0e11010204081f 1f02040201110e 02060a121f0202"
    " 1f101e0101110e 0608101e11110e 1f010204080808 0e11110e11110e 0e11110f01020c"
)


def choose(wanted: str, every_task: Callable[[bool], bool] = bool) -> str:
    """Print and return "mnist" or "synthetic"; all tasks with data call it together.

    `every_task` turns "this task has MNIST" into "every task has it".
    """
    name, why = "synthetic", "as asked"
    if wanted != "synthetic":
        if every_task(_has_mnist()):
            name, why = "mnist", "from the Keras cache"
        elif wanted == "mnist":
            sys.exit("Not every task can have MNIST: use --data auto or --data synthetic.")
        else:
            why = "not every task can have MNIST"
    print(f"data: {name} ({why})", flush=True)
    return name


def load(name: str) -> tuple[Pictures, Pictures]:
    """Return (x_train, y_train), (x_test, y_test): x is 28x28x1 in [0, 1], y integers."""
    if name == "synthetic":
        return _draw(8000, seed=1), _draw(2000, seed=2)
    train, test = tf.keras.datasets.mnist.load_data()
    return _scale(*train), _scale(*test)


def _scale(x: npt.NDArray[np.uint8], y: npt.NDArray[np.uint8]) -> Pictures:
    return x[..., np.newaxis].astype(np.float32) / np.float32(255), y.astype(np.int64)


def _has_mnist() -> bool:
    """Return whether Keras has MNIST in its cache; one task per host downloads it.

    Keras downloads directly to the final path, so tasks that download at the same time would corrupt each other's file.
    A failed attempt leaves its reason in the lock file, so that the tasks of a host without a network wait for one
    timeout instead of one each.
    """
    cache = Path("~/.keras/datasets").expanduser()
    with contextlib.suppress(OSError):  # without a writable home directory MNIST cannot be cached
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "mnist.npz.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, even if this task is killed
            if (cache / "mnist.npz").exists():
                return _load_bounded()
            lock.seek(0)
            if lock.read() and time.time() - Path(lock.name).stat().st_mtime < _ASK_AGAIN:
                return False
            lock.truncate(0)
            if _server_answers() and _load_bounded():
                return True
            lock.write("The server of MNIST did not answer.\n")
    return False


def _server_answers() -> bool:
    """Return whether the server answers a HEAD request in time.

    It is sent in a thread because name resolution has no timeout.
    """
    answers: list[int] = []

    def ask() -> None:
        head = urllib.request.Request(_URL, method="HEAD")
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(head, timeout=_PATIENCE) as answer,  # noqa: S310 - it is https
        ):
            answers.append(answer.status)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answers)


def _load_bounded() -> bool:
    """Make Keras check, download or repair its cached file; return whether it could."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)  # Keras itself downloads without a timeout
    try:
        tf.keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises plain Exception for a failed download
        print(f"MNIST: {error}", file=sys.stderr, flush=True)
        return False
    finally:
        socket.setdefaulttimeout(before)
    return True


def _draw(count: int, seed: int) -> Pictures:
    """Return digits of varied width, position and ink, with noise, drawn by the seed."""
    random = np.random.default_rng(seed)
    rows = np.array([list(bytes.fromhex(glyph)) for glyph in _FONT.split()], np.uint8)
    font = np.unpackbits(rows[..., np.newaxis], axis=-1)[..., 3:]
    labels = random.integers(0, 10, count)
    scales = random.integers(2, 5, count)
    inks = random.uniform(0.6, 1.0, count).astype(np.float32)
    pictures = random.standard_normal((count, 28, 28), np.float32) * np.float32(0.15)
    for scale in (2, 3, 4):  # all pictures with glyphs of one width together, because a loop over each takes seconds
        (chosen,) = np.nonzero(scales == scale)
        glyphs = font[labels[chosen]].repeat(3, axis=1).repeat(scale, axis=2)
        _, height, width = glyphs.shape
        top, left = (random.integers(0, 29 - size, len(chosen))[:, np.newaxis] for size in (height, width))
        ys = (top + np.arange(height))[:, :, np.newaxis]
        xs = (left + np.arange(width))[:, np.newaxis, :]
        pictures[chosen[:, np.newaxis, np.newaxis], ys, xs] += glyphs * inks[chosen, np.newaxis, np.newaxis]
    return pictures.clip(0.0, 1.0)[..., np.newaxis], labels
