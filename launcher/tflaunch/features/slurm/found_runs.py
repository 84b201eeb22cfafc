"""Find the runs of this user that are jobs of Slurm, whatever TFLAUNCH_HOME they have."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tflaunch import private_files
from tflaunch.clusterspec.model import Spec
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.slurm import batch, commands
from tflaunch.features.slurm.commands import NoSlurmError, SlurmError
from tflaunch.store.run_dir import runs_directory

_MARK = "tflaunch:"
_COMMENT = "comment"


def marked(spec: Spec, directory: Path) -> Spec:
    """Return the spec with the directory of its run at the end of the job's comment."""
    comment = f"{spec.slurm.get(_COMMENT, '')} {_MARK}{directory}".strip()
    return spec.model_copy(update={"slurm": {**spec.slurm, _COMMENT: comment}})


def find_runs(settings: Sequence[str]) -> list[Path]:
    """Return the directories of this user's runs that Slurm has; one with another TFLAUNCH_HOME is linked to.

    Args:
        settings: unused: there is one Slurm.

    Raises:
        TflaunchError: Slurm does not tell them, or this machine has none.
    """
    try:
        comments = commands.run_command("squeue", f"--user={os.getuid()}", "--noheader", "--format=%k")
    except NoSlurmError as error:
        raise TflaunchError(f"{error}; run this on a login node of a Slurm cluster", EXIT_PREFLIGHT) from None
    except SlurmError as error:
        raise TflaunchError(f"Slurm does not tell your jobs: {error}", EXIT_INTERNAL) from None
    paths = dict.fromkeys(Path(path) for path in re.findall(rf"{_MARK}(/.+?)\s*$", comments, re.MULTILINE))
    return [_here(path) for path in paths if batch.job_of(path) is not None]


def _here(directory: Path) -> Path:
    path = runs_directory() / directory.name
    if not os.path.lexists(path):
        private_files.make_directories(path.parent)
        path.symlink_to(directory)
    return path
