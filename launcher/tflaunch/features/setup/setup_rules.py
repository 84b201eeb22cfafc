"""What is wrong with `setup` in a spec."""

import re
from collections.abc import Iterator
from pathlib import Path

from tflaunch.clusterspec.model import Host, Role, Spec
from tflaunch.errors import Problem

_INSTALLERS = {
    r"\buv sync\b": "uv.lock",
    r"\bpoetry (install|sync)\b": "poetry.lock",
    r"\bpip install (-\S+ )*\.(\s|$)": "pyproject.toml",
}
"""Commands that read a file without naming it."""


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield what keeps these fields from doing what they are for."""
    parts: dict[str, Spec | Role | Host] = {"": spec}
    parts |= {f"roles.{name}.": role for name, role in spec.roles.items()}
    parts |= {f"hosts.{name}.": host for name, host in spec.hosts.items()}
    has_setup = any(part.setup for part in parts.values())
    has_files = any(part.setup_files is not None for part in parts.values())
    for place, part in parts.items():
        if part.setup_files and not has_setup:
            yield Problem.error(f"{place}setup_files", "has no effect without `setup`", "write the command, too")
        for index, path in enumerate(part.setup_files or ()):
            if path.startswith(("/", "~")) or ".." in path.split("/"):
                message = f"{path!r} is not below the directory in which `setup` runs"
                yield Problem.error(
                    f"{place}setup_files[{index}]", message, "move it there, and name it relative to it"
                )
        for pattern, file in _INSTALLERS.items() if not has_files else ():
            if any(re.search(pattern, command) for command in part.setup or ()):
                message = f"does not name {file}, so that a change of it is not noticed"
                yield Problem.warning(f"{place}setup", message, f'write "setup_files": ["{file}"]')
