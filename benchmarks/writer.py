"""Writes numbered lines: a task of `output.py`. Arguments: a directory of its own kind, lines, and `block` or `line`.

Each takes the first number that is free, whoever has started it. At its end it writes the processor time that it used.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator

LENGTH = 99
"""Of a line, without its end."""
FILLER = "~-" * LENGTH
"""No launcher says this by itself, so that pieces of lines are known."""


def lines(number: int, count: int) -> Iterator[str]:
    """Return the lines of one task; no two are equal."""
    for index in range(count):
        yield f"{number}.{index:06d}.{FILLER}"[:LENGTH]


def main() -> None:
    """Write."""
    directory, count, mode = sys.argv[1:]
    for number in itertools.count():
        try:
            os.close(os.open(f"{directory}/taken-{number}", os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            pass
    write, flush, is_flushed = sys.stdout.write, sys.stdout.flush, mode == "line"
    for line in lines(number, int(count)):
        write(line + "\n")
        if is_flushed:
            flush()
    flush()
    with open(f"{directory}/cpu-{number}", "w") as file:
        file.write(repr(time.process_time()))


if __name__ == "__main__":
    main()
