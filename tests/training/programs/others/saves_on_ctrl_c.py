"""A program that is stopped by hand with Ctrl-C, and saves then; TERM it does not know."""

import time

try:
    print("training", flush=True)
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    print("saved", flush=True)
