"""Options that earlier versions had, and what does their work now."""

from __future__ import annotations

import click

_JOBS = (
    "`tflaunch up --on kubernetes` starts the tasks in pods and supervises them, `render --to jobset` writes a JobSet"
)
_ENGINES = "`tflaunch up` starts and supervises tasks, and `render` writes files for compose, slurm (sbatch) and jobset"
_LISTEN = "for an editor, call `debugpy.listen(('127.0.0.1', 5678))` and `debugpy.wait_for_client()` in the task"
_INSTEAD = {
    **dict.fromkeys(("render --to k8s", "render --to kubernetes"), _JOBS),
    **dict.fromkeys(("render --to sh", "render --to tfjob"), _ENGINES),
    **dict.fromkeys(("debug --debugpy", "debug --port"), _LISTEN),
    "profile --python": "stacks of Python are all that `tflaunch profile` samples; leave it out",
    "profile --tensorflow": "call `tf.profiler.experimental.start('logs')` in the program, and later `…stop()`",
    "run --keep": "`tflaunch tensorboard RUN` serves a run's event files at any time",
    "up --keep": "`tflaunch tensorboard RUN` serves a run's event files at any time",
    "tensorboard --profiles": "`tensorboard --logdir DIR` shows what TensorFlow's profiler has written to DIR",
}
"""Verb and option (or verb, option and value) to what does it now, as a sentence without its full stop."""


def instead_of(words: str) -> str | None:
    """Return the message for a removed ``verb --option``; None if it never existed."""
    instead = _INSTEAD.get(words)
    return None if instead is None else f"{words.partition(' ')[2]} was removed: {instead}"


def removed_option(error: click.NoSuchOption) -> click.UsageError | None:
    """Return the error for a removed option, None if an unknown option is not one."""
    verb = error.ctx.info_name if error.ctx is not None else ""
    message = instead_of(f"{verb} {error.option_name}")
    return None if message is None else click.UsageError(message, error.ctx)
