"""Keep what a test with pytest has imported for the next one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch_worker.features.preload import source_checks, warm_client

if TYPE_CHECKING:
    import pytest

_WARM = "10m"
_IMPORTED_FOR = "tensorflow"
_SLOW = frozenset(("tensorflow", "keras", "tf_keras"))


class BetweenTests:
    """The warm servers of a session, which end with it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / warm_client.OWNER_NAME).write_text(str(os.getpid()))

    def environ(self) -> Mapping[str, str]:
        """Return the variable by which runs find them."""
        return {warm_client.DIRECTORY: str(self._directory)}

    def fields_for(self, item: pytest.Item, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return spec fields that keep a test's imports for the next one, if that is safe."""
        if given.keys() & {"preload", "warm"}:
            return {}
        above = [directory for directory in item.path.parents if directory.is_relative_to(item.config.rootpath)]
        modules = {"pytest"}
        for path in (item.path, *(directory / "conftest.py" for directory in above)):
            if path.exists():
                command = [sys.executable, str(path)]
                reason, imported = source_checks.check_source(command, str(Path.cwd()), [], sys.path, os.environ)
                if reason:
                    return {}
                modules |= {_IMPORTED_FOR} if imported & _SLOW else set()
        return {"warm": _WARM, "preload": sorted(modules)}

    def end(self) -> None:
        """End them."""
        warm_client.stop_servers(str(self._directory))
