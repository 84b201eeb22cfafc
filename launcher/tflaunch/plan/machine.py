"""What the plan must know about the machine on which tflaunch runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Machine(NamedTuple):
    """Facts gathered once by `local_machine.look`, so that planning stays a pure function.

    ``cores`` may be used by this process; ``local_names`` are the hosts of a spec that are this
    machine; ``python_directory`` is put first on the PATH of local tasks, None to leave it alone;
    ``server_program`` is the path of the program that runs TensorFlow's standard server.
    """

    cores: int
    local_names: frozenset[str]
    environ: Mapping[str, str]
    python_directory: str | None
    server_program: str
