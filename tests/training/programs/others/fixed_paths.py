"""Paths that are written into the program: every task on a machine uses the same ones.

    fixed_paths.py PATH MODE

MODE `overwrite`: writes its name there, and into its own TFLAUNCH_TASK_DIR. `mkdir`: makes a directory there,
and does not expect that another process was faster.
"""

import os
import sys
from pathlib import Path

path, mode = Path(sys.argv[1]), sys.argv[2]
task = os.environ["TFLAUNCH_TASK"]
if mode == "mkdir":
    path.mkdir()
else:
    path.write_text(task)
    (Path(os.environ["TFLAUNCH_TASK_DIR"]) / "model").write_text(task)
    print("own", os.environ["TFLAUNCH_TASK_DIR"], (Path(os.environ["TFLAUNCH_TASK_DIR"]) / "model").read_text())
