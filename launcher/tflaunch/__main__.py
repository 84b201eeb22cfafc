"""The command: `tflaunch`, and `python -m tflaunch`."""

import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # What a start makes stays: to search it for garbage again and again would be a tenth of the start.
    gc.set_threshold(50_000)
    may_start_tasks = sys.argv[1:2] in (["up"], ["run"])  # most of them on this machine
    if may_start_tasks:
        from tflaunch.hosts import local

        local.start_early()
    from tflaunch import cli

    code = cli.main()
    if may_start_tasks:
        local.dismiss_early()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass  # whoever read us has gone
    os._exit(code)  # nothing is left to clean up, and the interpreter's farewell takes its time


if __name__ == "__main__":
    main()
