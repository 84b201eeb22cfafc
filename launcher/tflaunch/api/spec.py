"""`Spec`, and the other forms in which a program may give one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tflaunch.clusterspec import model
from tflaunch.clusterspec.problems import problems_in
from tflaunch.clusterspec.spec_file import SpecFile, read_spec_file
from tflaunch.errors import EXIT_INTERNAL, SpecError, TflaunchError

_DEFAULT_NAME = "job"

SpecLike = model.Spec | Mapping[str, Any] | str | Path
"""A spec, a mapping with the fields of one, or the path of a spec file."""


class Spec(model.Spec):
    """A cluster spec. Its fields are those of a spec file, with the same checks."""

    def __init__(self, **fields: Any) -> None:
        """Make a spec.

        Raises:
            SpecError: it is invalid; lists all problems.
        """
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SpecError("Spec", problems_in(error, fields)) from None


def file_of(spec: SpecLike, directory: Path | None) -> SpecFile:
    """Return a spec as the text of a file.

    Raises:
        TflaunchError: it cannot be read, or is not data.
    """
    if isinstance(spec, str | Path):
        file = read_spec_file(Path(spec))
        return file if directory is None else file._replace(directory=directory)
    data = spec.as_data() if isinstance(spec, model.Spec) else dict(spec)
    try:
        text = json.dumps({"name": _DEFAULT_NAME, **data}, indent=2) + "\n"
    except (TypeError, ValueError) as error:
        raise TflaunchError(f"the spec cannot be written as JSON: {error}", EXIT_INTERNAL) from None
    return SpecFile("Spec", directory or Path(), ".json", text)
