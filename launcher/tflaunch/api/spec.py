"""`Spec`, and the other forms in which a program may give one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import ValidationError

from tflaunch.clusterspec import model
from tflaunch.clusterspec.problems import problems_in
from tflaunch.clusterspec.spec_file import SpecFile, read_spec_file
from tflaunch.errors import EXIT_INTERNAL, SpecError, TflaunchError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEFAULT_NAME = "job"

SpecLike = model.Spec | Mapping[str, Any] | str | Path
"""A spec, a mapping with the fields of one, or the path of a spec file."""


class SpecFields(TypedDict, total=False):
    """The fields of a spec with the types accepted; `model.Spec` has those converted."""

    cluster: Mapping[str, int | Sequence[str]]
    command: str | Sequence[str]
    name: str
    strategy: str
    discover: Mapping[str, str]
    roles: Mapping[str, model.Role | Mapping[str, Any]]
    sidecars: Mapping[str, model.Sidecar | Mapping[str, Any]]
    tensorboard: str
    hosts: Mapping[str, model.Host | Mapping[str, Any] | str]
    env: Mapping[str, str | int | float]
    secrets: Mapping[str, model.Secret | Mapping[str, str]]
    workdir: str
    restart: model.Restart | Mapping[str, Any]
    timeouts: model.Timeouts | Mapping[str, Any]
    stop_signal: str
    retention: model.Retention | Mapping[str, Any]
    notify: model.Notify | Mapping[str, Any]
    success: Literal["chief", "all"]
    legacy_keras: Literal["auto"] | bool
    sync: model.Sync | Mapping[str, Any]
    setup: str | Sequence[str]
    setup_files: Sequence[str]
    collect: Sequence[str]
    checkpoints: model.Checkpoints | Mapping[str, Any]
    elastic: model.Elastic | Mapping[str, Any]
    spares: int | Sequence[str]
    preload: Literal["auto"] | Sequence[str]
    warm: str | float
    network: Literal["fenced", "fenced-or-fail", "private", "open"]
    container: model.Container | Mapping[str, Any]
    slurm: Mapping[str, str | int | bool]
    kubernetes: model.Kubernetes | Mapping[str, Any]


class Spec(model.Spec):
    """A cluster spec. Its fields are those of a spec file, with the same checks."""

    if TYPE_CHECKING:

        def __init__(self, **fields: Unpack[SpecFields]) -> None: ...

    else:

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
