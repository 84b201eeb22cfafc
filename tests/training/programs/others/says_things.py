"""What programs write: both streams, progress bars, bytes that are no text, a very long line, no newline at the end.

says_things.py WHAT
"""

import os
import sys
import time

what = sys.argv[1]
if what == "streams":
    for number in range(100):
        print(f"out {number}", flush=True)
        print(f"err {number}", file=sys.stderr, flush=True)
elif what == "bar":
    for step in range(1, 51):
        sys.stderr.write(f"\r{step}/50 [{'=' * step:<50}]")
        sys.stderr.flush()
        time.sleep(0.002)
    sys.stderr.write("\n")
elif what == "bytes":
    os.write(1, bytes(range(256)) * 40 + b"\n")
elif what == "long":
    os.write(1, b"x" * 3_000_000 + b"\nafter\n")
elif what == "open end":
    os.write(1, b"no newline at the end")
