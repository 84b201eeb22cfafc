"""A program with processes of its own: pools by fork and by spawn, one that execs itself, and children left behind."""

import multiprocessing
import os
import subprocess
import sys


def square(number: int) -> int:
    """Work for a pool."""
    return number * number


if __name__ == "__main__":
    if "again" not in sys.argv:  # to set what is read only at the start
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, sum(pool.map(square, range(10))), flush=True)
    deaf = ["sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait; sleep 600"]
    left = [
        subprocess.Popen(["sleep", "600"]),
        subprocess.Popen(["sleep", "600"], start_new_session=True),
        subprocess.Popen(deaf, start_new_session=True),
        subprocess.Popen(["sleep", "600"], start_new_session=True, env={}),
    ]
    print("left", *(child.pid for child in left), flush=True)
