"""Ways to end that are not an exception in the main program.

ends_badly.py HOW
"""

import os
import signal
import sys
import threading

how = sys.argv[1]
if how == "message":
    sys.exit("cannot find the data")
elif how == "os._exit":
    os._exit(9)
elif how == "stdin":
    answer = input("overwrite the old checkpoints? [y/N] ")
elif how == "fork":
    if os.fork() == 0:
        raise RuntimeError("in the child")
    _, status = os.wait()
    raise ValueError(f"the child ended with {os.waitstatus_to_exitcode(status)}")
elif how == "abort":
    os.kill(os.getpid(), signal.SIGABRT)
elif how == "thread":
    threading.Thread(target=lambda: 1 / 0).start()  # which Python reports, and then ends with 0
