"""A program that saves in a handler of TERM of its own: made before its strategy, or after it.

    own_handlers.py

Even workers make it before: there TensorFlow's own handler replaces it, and it is never called.
"""

import os
import signal
import sys
import time
from types import FrameType

import tensorflow as tf


def save(number: int, frame: FrameType | None) -> None:
    """Save and end."""
    print("saved by my handler", flush=True)
    sys.exit(0)


before = int(os.environ["TFLAUNCH_TASK"][-1]) % 2 == 0
if before:
    signal.signal(signal.SIGTERM, save)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
if not before:
    signal.signal(signal.SIGTERM, save)
value = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
print("sum", value.numpy(), flush=True)
while True:
    time.sleep(0.1)
