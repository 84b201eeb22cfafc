"""Options that earlier versions had, and what does their work now."""

from __future__ import annotations

import click

_JOBS = (
    "`tflaunch up --on kubernetes` starts the tasks in pods and supervises them, `render --to jobset` writes a JobSet"
)
_INSTEAD = {
    **dict.fromkeys(("render --to k8s", "render --to kubernetes"), _JOBS),
    "debug --debugpy": "call `debugpy.listen` in the task, as docs/how_do_i.md shows",
    "debug --port": "it was for editors; call `debugpy.listen` in the task, as docs/how_do_i.md shows",
    "profile --python": "stacks of Python are all that `tflaunch profile` samples; leave it out",
    "profile --tensorflow": "TensorFlow has a profiler of its own, which docs/how_do_i.md shows",
    "run --keep": "`tflaunch tensorboard RUN` serves a run's event files at any time",
    "up --keep": "`tflaunch tensorboard RUN` serves a run's event files at any time",
    "tensorboard --profiles": "`tensorboard --logdir DIR` shows what TensorFlow's profiler has written to DIR",
}
"""Verb and option (or verb, option and value) to what does it now, as a sentence without its full stop."""


def instead_of(words: str) -> str | None:
    """Return the message for a removed option, named as ``verb --option``; None if there never was one."""
    instead = _INSTEAD.get(words)
    return None if instead is None else f"{words.partition(' ')[2]} was removed: {instead}"


def removed_option(error: click.NoSuchOption) -> click.UsageError | None:
    """Return the error for a removed option, None if an unknown option is not one."""
    verb = error.ctx.info_name if error.ctx is not None else ""
    message = instead_of(f"{verb} {error.option_name}")
    return None if message is None else click.UsageError(message, error.ctx)
