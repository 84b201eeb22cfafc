"""Mirrored workers that share one epoch of a tf.data service, whose address is in a variable of the program's own."""

import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = tf.data.Dataset.range(100).map(lambda number: number * 2).batch(5)
data = data.apply(
    tf.data.experimental.service.distribute(
        processing_mode="distributed_epoch",
        service="grpc://" + os.environ["DATA_SERVICE_ADDRESS"],
        job_name="epoch_0",
    )
)
own = sum(int(tf.reduce_sum(batch)) for batch in data)
total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(own, tf.int64)), axis=None)
print(f"all saw {int(total)}", flush=True)
