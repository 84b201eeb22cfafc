"""Pack the agent's modules into one text, identical on every machine for the same version."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import tflaunch_worker
from tflaunch_worker import boot


class Archive(NamedTuple):
    """The agent's modules as JSON, its hexadecimal SHA-256, and the source of the program that unpacks it."""

    data: bytes
    sha256: str
    boot: bytes


def make() -> Archive:
    """Return the archive of this version's agent and of the library for training programs."""
    package = Path(tflaunch_worker.__file__).parent
    data = boot.pack(str(package))
    return Archive(data, hashlib.sha256(data).hexdigest(), (package / "boot.py").read_bytes())
