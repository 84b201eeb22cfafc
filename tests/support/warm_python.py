"""Run programs in forks of a Python that has imported what they need, where the import takes most of their time."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

_SERVER = """
import gc, json, os, signal, sys
gc.disable()
exec(sys.argv[1])
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
    os.dup2(os.open(path, os.O_RDWR), descriptor)
signal.alarm(request["patience"])
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
sys.argv = request["argv"]
exec(compile(request["text"], "<string>", "exec"), {"__name__": "__main__"})
"""


class WarmPython:
    """A Python that has run some imports; it ends when it is closed, or with the process that started it."""

    def __init__(self, imports: str, env: Mapping[str, str]) -> None:
        """Start it.

        Args:
            imports: statements. They must not create what does not survive a fork, such as a thread.
            env: all environment variables, also those that are read while modules are imported.
        """
        self.env = dict(env)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, imports],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        text: str,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        typed: str = "",
        patience: int = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as `python -c TEXT`, and wait for its end.

        Args:
            text: the program.
            argv: what it finds in sys.argv.
            env: all its environment variables; by default those of the imports.
            cwd: its working directory; by default the current one.
            typed: its standard input.
            patience: seconds until SIGALRM ends it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as directory:
            streams = [Path(directory, name) for name in ("stdin", "stdout", "stderr")]
            for stream in streams:
                stream.touch()
            streams[0].write_text(typed)
            request = {
                "text": text,
                "argv": argv,
                "env": self.env if env is None else dict(env),
                "cwd": str(cwd or Path.cwd()),
                "streams": list(map(str, streams)),
                "patience": patience,
            }
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            stdout, stderr = (stream.read_bytes().decode() for stream in streams[1:])  # "\\r" stays, as in a pipe
            return subprocess.CompletedProcess(argv, code, stdout, stderr)

    def close(self) -> None:
        self._process.communicate()


def warm_tensorflow(legacy_keras: str) -> WarmPython:
    """Start a Python that has imported TensorFlow, with one of the two Keras versions as tf.keras.

    TensorFlow creates nothing that does not survive a fork until a program uses it. The import itself reads
    TF_USE_LEGACY_KERAS, so programs with another value need another process.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF", "TPU"))}
    fixed = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": legacy_keras, "OPENBLAS_NUM_THREADS": "1"}
    return WarmPython("import tensorflow; tensorflow.keras.Model", {**kept, **fixed})


StartWarm = Callable[[str], WarmPython]
"""The fixture `warm_python`: returns the process for a value of TF_USE_LEGACY_KERAS."""
