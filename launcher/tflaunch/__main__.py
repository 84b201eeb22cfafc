"""The command: `tflaunch`, and `python -m tflaunch`."""

import gc
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # What a start makes stays: to search it for garbage again and again would be a tenth of the start.
    gc.set_threshold(50_000)
    if sys.argv[1:2] in (["up"], ["run"]):  # most of them need an agent on this machine
        from tflaunch.hosts import local

        local.start_early()
    from tflaunch import cli

    cli.main()


if __name__ == "__main__":
    main()
