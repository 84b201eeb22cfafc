"""What is known about problems of TensorFlow, Keras and their environment."""

from tflaunch.feature import Feature

FEATURE = Feature(hints=".hint_rules:find_hint")
