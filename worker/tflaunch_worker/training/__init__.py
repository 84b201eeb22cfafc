"""Help for training programs; nothing here imports TensorFlow before it is used."""
