"""Callbacks of Keras, whichever Keras the program uses: 2, 3 or tf_keras."""

from __future__ import annotations

from typing import Any


class Hooks:
    """What all callbacks of ours have in common; `made` gives each a Keras' own Callback as its other base."""

    model: Any
    params: dict[str, Any]
    async_safe = True  # for Keras 3: no step waits for us

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True  # for tf_keras: logs come as tensors, so no step waits for their values


def of_program(keras: Any) -> Any:
    """Return the Keras that a program uses: the one that it says, else ``tf.keras``."""
    if keras is not None:
        return keras
    import tensorflow as tf

    return tf.keras


def made(keras: Any, hooks: type[Hooks], *args: Any) -> Any:
    """Make a callback of that Keras; ``args`` are the hooks' own."""
    return type(hooks.__name__.strip("_"), (hooks, keras.callbacks.Callback), {})(*args)
