"""What is looked up on this host: what tasks use, what it can do, which TensorFlow there is."""
