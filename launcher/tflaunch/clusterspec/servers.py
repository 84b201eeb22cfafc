"""Programs of parameter servers, judged by their text: whether worker and ps would find a server in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem

_SERVER = rb"Server\(|\bServer as\b|\bserver_lib\b|\bserve_if_server\b"
_COORDINATOR = rb"\bParameterServerStrategy|\bClusterCoordinator\b"
_MOST_MODULES = 200


def without_server(command: Sequence[str], directory: Path) -> list[Path]:
    """Return the Python programs in a command that are here, and no server in their text or the modules beside."""
    programs = [path for word in command if word.endswith(".py") and os.path.isfile(path := directory / word)]
    return [path for path in programs if not any(_has(_SERVER, each) for each in (path, *_beside(path)))]


def missing_servers(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Warn of worker and ps that run the chief's program, which is here, coordinates servers, and starts none."""
    own = {name for name, role in spec.roles.items() if role.server or role.command}
    alike = [role for role in ("worker", "ps") if role in spec.cluster and role not in own]
    if alike and "chief" not in own and spec.effective_strategy() == "parameter_server":
        for program in without_server(spec.command or (), directory / (spec.workdir or "")):
            if _has(_COORDINATOR, program):
                message = f"{' and '.join(alike)} run {program.name}, which starts no server: the chief would wait"
                roles = json.dumps({role: {"server": True} for role in alike})
                yield Problem.warning("roles", message, f'add "roles": {roles}, or a tf.distribute.Server to it')


def _beside(program: Path) -> Iterator[Path]:
    return islice((path for pattern in ("*.py", "*/*.py") for path in program.parent.glob(pattern)), _MOST_MODULES)


def _has(pattern: bytes, path: Path) -> bool:
    try:
        return path.is_file() and bool(re.search(pattern, path.read_bytes()))
    except OSError:
        return False
