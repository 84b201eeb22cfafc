"""The standard server of a worker or ps; it exits with the code that is written into its FIFO.

server.py FIFO
"""

import os
import sys
import threading
from pathlib import Path

from tflaunch_worker.training.server import serve

fifo = Path(sys.argv[1])
threading.Thread(target=lambda: os._exit(int(fifo.read_text())), daemon=True).start()
serve()
