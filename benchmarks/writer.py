"""Write numbered lines, as a task of `output.py`; arguments: directory, lines, `block` or `line`.

The tasks share the directory; each takes the lowest free number, whichever launcher started it. At its end it writes
its CPU time.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator

LENGTH = 99
"""Length of a line, without its newline."""
FILLER = "~-" * LENGTH
"""Text that no launcher prints by itself, so that fragments of lines can be recognized."""


def lines(number: int, count: int) -> Iterator[str]:
    """Yield the lines of one task, all of them different."""
    for index in range(count):
        yield f"{number}.{index:06d}.{FILLER}"[:LENGTH]


def main() -> None:
    """Write the lines."""
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
