"""Run programs in forks of a Python that has imported TensorFlow, as the import takes longer than what they do."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.launch import PATIENCE

_PROGRAM = """
import gc, json, os, signal, sys
gc.disable()
import tensorflow
tensorflow.keras.Model  # imported at its first use
gc.freeze()  # a collection in a fork would copy all pages
gc.enable()
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
for descriptor, path in enumerate(request["streams"]):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
signal.alarm(request["patience"])
os.environ.update(request["env"])
sys.argv[1:] = request["arguments"]
exec(compile(request["text"], "<string>", "exec"), {"__name__": "__main__"})
"""


class WarmPython:
    """A process that has imported TensorFlow with one of the two Keras versions.

    TensorFlow creates nothing that does not survive a fork until a program uses it, and `import tensorflow` reads
    TF_USE_LEGACY_KERAS, so programs with another Keras need another process.
    """

    def __init__(self, directory: Path, legacy_keras: str) -> None:
        """Start it; ``directory`` gets the programs' output, ``legacy_keras`` is TF_USE_LEGACY_KERAS."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF", "TPU"))}
        fixed = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": legacy_keras, "OPENBLAS_NUM_THREADS": "1"}
        self._directory = directory
        self._numbers = itertools.count()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env={**kept, **fixed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, text: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program as `python -c TEXT ARGUMENTS` with these variables, and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = (self._directory / f"{next(self._numbers)}.{name}" for name in ("out", "err"))
        request = {
            "text": text,
            "arguments": arguments,
            "env": env,
            "streams": [os.devnull, str(out), str(err)],
            "patience": PATIENCE,
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(["python", "-c", text], code, out.read_text(), err.read_text())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE)


StartWarm = Callable[[str], WarmPython]
"""The fixture `warm_python`: returns the process for a value of TF_USE_LEGACY_KERAS."""
