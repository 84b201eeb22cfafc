"""Patterns of files in working directories, in `collect` and on the command line."""

from collections.abc import Iterator
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield what keeps its field from doing what it is for."""
    for index, path in enumerate(spec.collect):
        if not is_pattern(path):
            message = f"{path!r} is not a path below the working directory"
            yield Problem.error(f"collect[{index}]", message, 'write for example "outputs/**"')


def is_pattern(path: str) -> bool:
    """Whether a path, possibly with wildcards, names something below a directory."""
    return not path.startswith(("/", "~")) and ".." not in path.split("/") and bool(path.strip("/. "))
