"""Call functions in forks, which may belong to another user."""

from __future__ import annotations

import ctypes
import encodings.ascii  # another user may not be able to read this installation
import encodings.idna
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

assert encodings.ascii
assert encodings.idna


def in_fork(function: Callable[[], object], user: int | None = None) -> Any:
    """Return the result of a function in a fork, which another user may own."""
    with tempfile.TemporaryFile("w+") as file:
        pid = os.fork()
        if pid == 0:
            try:
                if user is not None:
                    os.setgroups([])
                    os.setresgid(user, user, user)
                    os.setresuid(user, user, user)
                    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
                json.dump(function(), file)
                file.flush()
            finally:
                os._exit(0)  # without a result, which fails the test
        os.waitpid(pid, 0)
        file.seek(0)
        return json.load(file)
