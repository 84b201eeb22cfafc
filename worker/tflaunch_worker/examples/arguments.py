"""The example programs' command line."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

_DEFAULT = "(default: %(default)s)"


def read(program: str | None, steps: int, crash: str, arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line.

    Args:
        program: the docstring of the program.
        steps: default number of steps per epoch.
        crash: help text that says what the fault drill does.
        arguments: the arguments to parse; by default all of the command line.
    """
    parser = parser_of(program, steps)
    state = f"what a restarted job goes on from; one directory for all tasks, removed after the test {_DEFAULT}"
    parser.add_argument("--state-dir", type=Path, default=Path("mnist-state"), metavar="DIR", help=state)
    logs = "where the chief writes curves for TensorBoard (default: nowhere)"
    parser.add_argument("--logs", type=Path, metavar="DIR", help=logs)
    drill = f"fault drill, only when $TFLAUNCH_ATTEMPT is 0 or unset: {crash}"
    parser.add_argument("--crash-at-step", type=positive, metavar="N", help=drill)
    return parser.parse_args(arguments)


def parser_of(program: str | None, steps: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all examples have; arguments as in `read`."""
    parser = argparse.ArgumentParser(description=program, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = functools.partial(parser.add_argument, metavar="N")
    add("--epochs", type=positive, default=3, help=f"rounds of training {_DEFAULT}")
    add("--steps-per-epoch", type=positive, default=steps, help=f"steps in a round {_DEFAULT}")
    add("--batch-size", type=positive, default=64, help=f"pictures for one worker in one step {_DEFAULT}")
    add("--min-accuracy", type=float, default=0.95, help=f"exit 1 when the test accuracy is lower {_DEFAULT}")
    data = f"auto: MNIST when every task can have it, else drawn digits {_DEFAULT}"
    add("--data", choices=("auto", "mnist", "synthetic"), default="auto", metavar=None, help=data)
    return parser


def positive(text: str) -> int:
    """Return a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)
