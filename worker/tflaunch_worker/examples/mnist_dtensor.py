"""Train a small network whose batches are tensors that lie on several workers (DTensor).

With tflaunch:     tflaunch up cluster_specs/mnist_dtensor.json
By hand, alone:    python -m tflaunch_worker.examples.mnist_dtensor

With `"strategy": "dtensor"`, tflaunch sets the variables that initialize_accelerator_system() reads. All workers run
the same program on the same mesh: the batch is split along it, the weights are the same everywhere, and DTensor adds
up the gradients by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

from tflaunch_worker import training
from tflaunch_worker.examples import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorflow as tf

HIDDEN = 256
RATE, MOMENTUM = 0.1, 0.9
SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.parser_of(__doc__, 100).parse_args()
    import numpy as np
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    from tflaunch_worker.examples import digits

    dtensor.initialize_accelerator_system("CPU")
    workers, mine = dtensor.num_clients(), dtensor.client_id()
    mesh = dtensor.create_distributed_mesh([("batch", dtensor.num_global_devices("CPU"))], device_type="CPU")
    split = {rank: dtensor.Layout.batch_sharded(mesh, "batch", rank=rank) for rank in (1, 2)}

    def every_task(here: bool) -> bool:
        answers = dtensor.pack([tf.constant([int(here)])], split[1])
        return bool(dtensor.unpack(tf.reduce_min(answers))[0])

    (pictures, labels), (tests, answers) = digits.load(digits.choose(args.data, every_task))
    pictures, tests = (array.reshape(len(array), -1) for array in (pictures, tests))
    weights = make_weights(mesh, [pictures.shape[1], HIDDEN, 10])
    train_step = make_step(weights)

    chance = np.random.default_rng(SEED)  # the same on all workers: each takes its share of the same batch
    steps = args.epochs * args.steps_per_epoch
    for done in range(1, steps + 1):
        share = chance.integers(0, len(pictures), args.batch_size * workers)[mine::workers]
        batch = dtensor.pack([tf.constant(pictures[share])], split[2])
        goals = dtensor.pack([tf.one_hot(labels[share], 10)], split[2])
        loss = train_step(batch, goals)
        here = float(dtensor.unpack(loss)[0])
        training.report(done, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, loss=here)

    arrays = [dtensor.unpack(weight.read_value())[0].numpy() for weight in weights]
    guesses = (np.maximum(tests @ arrays[0], 0) @ arrays[1]).argmax(axis=1)
    accuracy = float(np.mean(guesses == answers))
    print(f"test accuracy {accuracy:.4f}", flush=True)
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    sys.stdout.write(f"weights sha256 {digest}\n")  # one write: the tasks of a rendered script share their output
    return 0 if accuracy >= args.min_accuracy else 1


def make_weights(mesh: Any, sizes: list[int]) -> list[Any]:
    """Return a matrix of weights between each layer and the next, the same on all devices of the mesh."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    everywhere = dtensor.Layout.replicated(mesh, rank=2)

    def matrix(number: int, shape: list[int]) -> Any:
        about = {"shape": shape, "seed": (SEED, number), "stddev": (2 / shape[0]) ** 0.5}
        return dtensor.DVariable(dtensor.call_with_layout(tf.random.stateless_normal, everywhere, **about))

    return [matrix(number, list(shape)) for number, shape in enumerate(itertools.pairwise(sizes))]


def make_step(weights: list[Any]) -> Callable[..., tf.Tensor]:
    """Return the function that trains on one batch and returns its loss."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    speeds = [
        dtensor.DVariable(dtensor.call_with_layout(tf.zeros, weight.layout, shape=weight.shape)) for weight in weights
    ]

    def train_step(batch: tf.Tensor, goals: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            guesses = tf.matmul(tf.nn.relu(tf.matmul(batch, weights[0])), weights[1])
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=goals, logits=guesses))
        for weight, speed, gradient in zip(weights, speeds, tape.gradient(loss, weights), strict=True):
            # Not read back from its variable: on several workers, DTensor may read it before it is assigned.
            faster = MOMENTUM * speed + gradient
            speed.assign(faster)
            weight.assign_sub(RATE * faster)
        return loss

    compiled: Callable[..., tf.Tensor] = tf.function(train_step)
    return compiled


if __name__ == "__main__":
    sys.exit(main())
