"""Keras `fit` under ParameterServerStrategy, with a DatasetCreator; whoever runs worker and ps is not its business."""

import tensorflow as tf

EPOCHS, STEPS, BATCH = 2, 5, 16


def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Return the data of one worker: y = 3 x."""
    x = tf.random.stateless_uniform((256, 1), (1, context.input_pipeline_id))
    data = tf.data.Dataset.from_tensor_slices((x, 3 * x)).shuffle(256).repeat()
    return data.batch(context.get_per_replica_batch_size(BATCH)).prefetch(2)


strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.TFConfigClusterResolver(),
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2),
)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=STEPS)
seen = model.fit(tf.keras.utils.experimental.DatasetCreator(make), epochs=EPOCHS, steps_per_epoch=STEPS)
print(f"{len(seen.history['loss'])} epochs, {int(model.optimizer.iterations)} steps", flush=True)
