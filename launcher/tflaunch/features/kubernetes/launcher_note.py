"""The file in a run directory that says in which cluster the run has its supervisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch import private_files
from tflaunch_worker import wire

if TYPE_CHECKING:
    from tflaunch.features.kubernetes.cluster import KubernetesPlan

_NAME = "launcher.json"


def write_note(directory: Path, cluster: KubernetesPlan) -> None:
    """Record in which cluster the run of a directory has its supervisor."""
    private_files.write_text(directory / _NAME, as_text(cluster))


def as_text(cluster: KubernetesPlan) -> str:
    """Return what is recorded of a cluster."""
    return json.dumps(cluster._replace(objects="")._asdict())


def read_note(directory: Path) -> KubernetesPlan | None:
    """Return the cluster in which a run has its supervisor and files; None if they are here."""
    try:
        text = (directory / _NAME).read_bytes()
    except OSError:
        return None
    try:
        return from_text(text)
    except (TypeError, ValueError):
        return None


def from_text(text: bytes) -> KubernetesPlan:
    """Return what `as_text` has recorded; raise a TypeError or ValueError for anything else."""
    from tflaunch.features.kubernetes.cluster import KubernetesPlan  # few runs need it

    return KubernetesPlan(**wire.parse(text))


def remove_note(directory: Path) -> None:
    """Record that all files of a run are in its directory."""
    (directory / _NAME).unlink(missing_ok=True)
