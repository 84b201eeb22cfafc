"""tflaunch: start, monitor and stop distributed TensorFlow training from one cluster spec."""

__version__ = "0.1.0"
