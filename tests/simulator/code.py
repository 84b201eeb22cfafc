"""The user's code on the machine of the supervisor, and what it must become on the hosts that need a copy."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.file_system import FileSystem, SimPath, fill
from tflaunch.features.code.user_code import Code, File
from tflaunch_worker import CODE_NAME

if TYPE_CHECKING:
    from simulator.hosts import SimHost

DIRECTORY = "/home/ann/code"
_NAMES = ("train.py", "model/layers.py", "model/__init__.py", "data/words.txt")
_SIZES = (0, 700, 1000, 2500, 9000)
_LINKS = (("shared", "/mnt/data"),)


class SimCode:
    """The code, which the user may edit while it is sent."""

    def __init__(self, machine: FileSystem, chance: random.Random) -> None:
        self._machine = machine
        self._chance = chance
        self._edits = 0
        self._versions: list[dict[str, bytes]] = []
        fill(machine, DIRECTORY, ((name, self._text(name)) for name in _NAMES))

    def _text(self, name: str) -> bytes:
        size = self._chance.choice(_SIZES)
        return f"# {name}, edit {self._edits}\n".encode().ljust(size, b".")[:size]

    def edit(self) -> str:
        self._edits += 1
        name = self._chance.choice(_NAMES)
        self._machine.unlink(f"{DIRECTORY}/{name}")
        fill(self._machine, DIRECTORY, [(name, self._text(name))])
        return name

    def gather(self) -> Code:
        """Return the code as a supervisor reads it when it begins."""
        contents = {name: bytes(self._machine.find(f"{DIRECTORY}/{name}").content) for name in _NAMES}
        self._versions.append(contents)
        here: Any = SimPath(DIRECTORY, self._machine)
        files = tuple(
            File(name, 0o644, hashlib.sha256(content).hexdigest(), len(content), here / name)
            for name, content in contents.items()
        )
        return Code(here, files, _LINKS)

    def what_is_wrong(self, host: SimHost) -> str:
        """Return how the copy on a host differs from all that was offered; "" if it is one of them."""
        found = host.files.below(os.path.join(host.directory, CODE_NAME))
        files = {name: bytes(node.content) for name, node in found.items() if node.kind == stat.S_IFREG}
        links = tuple((name, node.target) for name, node in found.items() if node.kind == stat.S_IFLNK)
        if files in self._versions and links == _LINKS:
            return ""
        latest = self._versions[-1]
        return f"there are {_sizes(files)} and the links {links}, and {_sizes(latest)} were offered last"


def _sizes(files: dict[str, bytes]) -> Sequence[tuple[str, int]]:
    return [(name, len(content)) for name, content in files.items()]
