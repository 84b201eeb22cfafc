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

_SERVER = re.compile(rb"Server\(|\bServer as\b|\bserver_lib\b|\bserve_if_server\b")
_COORDINATOR = re.compile(rb"\bParameterServerStrategy|\bClusterCoordinator\b")
_MOST_MODULES = 200


def programs_of(command: Sequence[str], directory: Path) -> list[Path]:
    """Return the Python programs in a command that are here, given the directory of relative paths."""
    return [path for word in command if word.endswith(".py") and os.path.isfile(path := directory / word)]


def starts_no_server(program: Path) -> bool:
    """Return whether neither a program nor a module beside it mentions a server of TensorFlow."""
    modules = islice((*program.parent.glob("*.py"), *program.parent.glob("*/*.py")), _MOST_MODULES)
    return not any(_SERVER.search(_text(path)) for path in (program, *modules))


def missing_servers(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Warn of worker and ps that run the chief's program, which coordinates servers and starts none.

    A program that is not here, or that leaves the coordination to a module, is not judged.
    """
    own = {name for name, role in spec.roles.items() if role.server or role.command}
    alike = [role for role in ("worker", "ps") if role in spec.cluster and role not in own]
    if not alike or "chief" in own or spec.effective_strategy() != "parameter_server":
        return
    for program in programs_of(spec.command or (), directory / (spec.workdir or "")):
        if _COORDINATOR.search(_text(program)) and starts_no_server(program):
            message = f"{' and '.join(alike)} run {program.name}, which starts no server: the chief would wait for them"
            roles = json.dumps({role: {"server": True} for role in alike})
            yield Problem.warning("roles", message, f'add "roles": {roles}, or a tf.distribute.Server to the program')


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:
        return b""
