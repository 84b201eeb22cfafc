"""What is wrong with `sync` in a spec."""

from collections.abc import Iterator
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield what keeps its field from doing what it is for."""
    for index, path in enumerate(spec.sync.paths if spec.sync is not None else ()):
        parts = path.split("/")
        if path.startswith(("/", "~")) or ".." in parts:
            message = f"{path!r} is not below the spec's directory"
            hint = "move the spec to a directory above both, and name the path relative to it"
            yield Problem.error(f"sync.paths[{index}]", message, hint)
