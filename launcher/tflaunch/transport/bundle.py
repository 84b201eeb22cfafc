"""Pack the agent's source into one archive, identical on every machine for the same version."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import tflaunch_worker

_BOOT = "boot.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in the zip format
_MODE = 0o600 << 16


class Archive(NamedTuple):
    """The agent's archive, its hexadecimal SHA-256, and the source of the program that starts it."""

    data: bytes
    sha256: str
    boot: bytes


def make() -> Archive:
    """Return the archive of this version's agent and of the library for training programs.

    It is not compressed: a host's Python may lack zlib, and compressed bytes differ between zlib versions.
    """
    root = Path(tflaunch_worker.__file__).parent
    folders = [root, *(init.parent for init in root.glob("*/__init__.py"))]
    modules = sorted(path for folder in folders for path in folder.glob("*.py") if path != root / _BOOT)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for path in modules:
            _add(file, f"{root.name}/{path.relative_to(root).as_posix()}", path.read_bytes())
    data = buffer.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest(), (root / _BOOT).read_bytes())


def _add(file: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = _MODE
    entry.create_system = 3  # Unix, on every machine
    file.writestr(entry, data)
