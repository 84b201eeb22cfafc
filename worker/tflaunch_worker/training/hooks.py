"""Create Keras callbacks for whichever Keras the program uses: 2, 3 or tf_keras."""

from __future__ import annotations

from typing import Any


class Hooks:
    """Base class of our callbacks; `made` adds the Callback of the program's Keras."""

    model: Any
    params: dict[str, Any]
    async_safe = True  # for Keras 3: no step waits for the callback

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True  # for tf_keras: logs arrive as tensors, so no step waits for their values


def of_program(keras: Any) -> Any:
    """Return the Keras that a program uses: the given one, or else ``tf.keras``."""
    if keras is not None:
        return keras
    import tensorflow as tf

    return tf.keras


def made(keras: Any, hooks: type[Hooks], *args: Any) -> Any:
    """Return a callback of that Keras; ``args`` are passed to the hooks."""
    return type(hooks.__name__.strip("_"), (hooks, keras.callbacks.Callback), {})(*args)
