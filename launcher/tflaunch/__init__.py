"""tflaunch: start, watch and end distributed TensorFlow training from one cluster spec."""

__version__ = "0.1.0"
