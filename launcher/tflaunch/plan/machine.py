"""Facts about the machine that tflaunch runs on, as planning needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Machine(NamedTuple):
    """Facts collected once by `local_machine.describe_machine`, so that planning stays a pure function.

    ``cores`` is the number that this process may use; ``local_names`` are the hosts of a spec that are this
    machine; ``python_directory`` is put first on the PATH of local tasks, None to leave PATH unchanged;
    ``server_program`` is the path of the program that runs TensorFlow's standard server.
    """

    cores: int
    local_names: frozenset[str]
    environ: Mapping[str, str]
    python_directory: str | None
    server_program: str
