"""A program whose evaluator has nothing to do: it ends at once with the code that is given, the others train.

exits_at_once.py CODE
"""

import os
import sys
import time
from pathlib import Path

if os.environ["TFLAUNCH_TASK"].startswith("evaluator"):
    sys.exit(int(sys.argv[1]))
while not Path("enough").exists():
    time.sleep(0.02)
print("trained", flush=True)
