"""Programs that are done and stay: a thread that is never joined, a loop for an operator to look around, a wait.

    never_ends.py TASK HOW

Only TASK stays: `thread`, `loop`, or `peer` (it waits for a file that never appears). The others end well.
"""

import os
import sys
import threading
import time
from pathlib import Path


def poll_the_gpu() -> None:
    """Watch something without end, in a thread that is not a daemon."""
    while True:
        time.sleep(0.1)


task, how = sys.argv[1:]
print("training done", flush=True)
if os.environ["TFLAUNCH_TASK"] == task:
    if how == "thread":
        threading.Thread(target=poll_the_gpu).start()
    elif how == "loop":
        while True:
            time.sleep(0.1)
    else:
        while not Path("results-of-my-peer").exists():
            time.sleep(0.1)
